"""Check a grid before it runs: bags, labels, splits, and what each model needs of them."""

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...core import read_record, write_json
from ...datasets import (
    SPLITS_FILE,
    BagCopy,
    BagSet,
    Split,
    find_copies,
    find_leaks,
    fold_splits,
    protocol_splits,
    read_splits,
    read_splits_metadata,
    refuse_leaks,
    write_splits,
)
from ...errors import BagError, InputError, TableError
from ...models import build, look_up
from ...training import DataConfig, fit_likelihood, open_data, open_units, prepare
from .data_sets import DataSet
from .grid import Grid, Row, splits_folder
from .target_checks import check_parts, check_tasks

SEED = 0
"""Seed of the splits, the same for all seeds of a grid."""
SHOWN = 10
"""Number of leaks reported individually."""
LOOKED_AT = 200
"""Largest number of bags searched for edges or coordinates."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """Results of the checks of a grid."""

    new: Mapping[str, list[Split]]
    """Splits to be stored, by data set."""
    copies: Mapping[str, Any]
    """Bags with the same instances, by data set; to be stored as well."""
    notes: tuple[str, ...]


def check_grid(grid: Grid, out: Path, *, read_all: bool = True) -> Checked:
    """Reject a grid that could not finish or whose results would be invalid; write nothing.

    Args:
        grid: The grid from `read_grid`.
        out: The experiment's folder, which may hold the splits of an earlier call.
        read_all: Whether to read all bags once, to find copies.

    Raises:
        TableError: Labels, bags and splits do not match; a test part has one class, or cannot be
            judged by the primary metric; a patient, a bag or its copy is in two parts; stored
            splits no longer match.
        InputError: A model does not suit the bags or cannot learn the task, stored splits were made
            with other settings, or ensembles of different seeds share members.
    """
    _refuse_shared_members(grid)
    new, stored_copies, notes = {}, {}, list(grid.notes)
    for data in grid.data:
        rows = [r for r in grid.rows if r.data.name == data.name]
        check_tasks(data, rows)
        if data.folds:
            splits = fold_splits(data.table)
        elif (splits_folder(out, data.name) / SPLITS_FILE).is_file():
            splits = _stored(data, splits_folder(out, data.name))
        else:
            splits = new[data.name] = protocol_splits(data.table, splits=data.made, seed=SEED)
        check_parts(data, rows, splits)
        bags = _check_rows(rows, splits)
        copies: list[BagCopy] = []
        if read_all:
            copies, stored_copies[data.name] = _copies(bags, data, out)
        notes += _leaks(bags, data, splits, copies, refuse=grid.leaks == "refuse")
    return Checked(new=new, copies=stored_copies, notes=tuple(dict.fromkeys(notes)))


def _refuse_shared_members(grid: Grid) -> None:
    """Reject seeds of ensembles that are too close: replicates that share members are not
    independent."""
    for row in grid.rows:
        members, seeds = row.config.training.members, sorted(row.seeds)
        gaps = [b - a for a, b in itertools.pairwise(seeds)]
        if gaps and min(gaps) < members:
            apart = [k * members for k in range(len(seeds))]
            raise InputError(
                f"{row.method.name} has {members} members with the seeds seed, seed + 1, …, so its "
                f"seeds {', '.join(map(str, seeds))} would share members: give seeds that are "
                f"{members} apart, such as seeds: {apart}"
            )


def _leaks(
    bags: BagSet, data: DataSet, splits: Sequence[Split], copies: Sequence[BagCopy], *, refuse: bool
) -> list[str]:
    """Reject leaks, or describe them."""
    look = refuse_leaks if refuse else find_leaks
    try:
        leaks = [leak for split in splits for leak in look(bags, data.table, split, copies=copies)]
    except TableError as error:
        column = "fold" if data.folds else "split"
        raise TableError(
            f"{data.name}: {error}; if the table has a column {column}, put them in one part. To "
            "keep them as they are, set `leaks: note` in the grid, which only reports them"
        ) from error
    descriptions = list(dict.fromkeys(leak.what for leak in leaks))
    more = (
        [f"{data.name}: … and {len(descriptions) - SHOWN} more such bags"]
        if len(descriptions) > SHOWN
        else []
    )
    return [f"{data.name}: {what}" for what in descriptions[:SHOWN]] + more


def _copies(bags: BagSet, data: DataSet, out: Path) -> tuple[list[BagCopy], Any]:
    """Find bags that are copies of others, or read them from an earlier call; also return them as
    JSON.

    Bags that cannot be read, and test bags without a label, are reported by the run that reads
    them.
    """
    names = [n for n in data.table.bags if n in set(bags.names) and bags.size(n)]
    key = hashlib.sha256(
        json.dumps([str(bags.folder), [(n, bags.size(n)) for n in names]]).encode()
    ).hexdigest()
    path = copies_file(out, data.name)
    if path.is_file():
        stored = _stored_copies(path)
        if stored is not None and stored.bags == key:
            copies = list(stored.copies)
            return copies, {"bags": key, "copies": [asdict(c) for c in copies]}
    copies = find_copies(bags, names)
    return copies, {"bags": key, "copies": [asdict(c) for c in copies]}


@dataclass(frozen=True, kw_only=True, slots=True)
class _StoredCopies:
    """The content of the file that caches copies of bags."""

    bags: str
    """Digest of the bags that were compared."""
    copies: tuple[BagCopy, ...]


def _stored_copies(path: Path) -> _StoredCopies | None:
    try:
        return read_record(_StoredCopies, path)
    except InputError:  # damaged: the copies are found again
        return None


def copies_file(out: Path, data: str) -> Path:
    """Return the file that caches copies of bags, since finding them reads every bag."""
    return out / "copies" / f"{data}.json"


def store_checked(checked: Checked, out: Path) -> None:
    """Write the results of the checks, and splits where the cells look for them."""
    for name, splits in checked.new.items():
        write_splits(splits_folder(out, name), splits, settings=_settings(len(splits)))
    for name, copies in checked.copies.items():
        write_json(copies_file(out, name), copies)
    write_json(out / "notes.json", list(checked.notes))


def _stored(data: DataSet, folder: Path) -> list[Split]:
    stored, wanted = read_splits_metadata(folder).get("settings") or {}, _settings(data.made)
    if stored != wanted:
        raise InputError(
            f"the splits in {folder} were made with {_listed(stored)}, but the grid has "
            f"{_listed(wanted)}: give another --out"
        )
    return read_splits(folder, data.table)


def _settings(splits: int) -> dict[str, int]:
    return {"splits": splits, "seed": SEED}


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in settings.items())


def _check_rows(rows: Sequence[Row], splits: Sequence[Split]) -> BagSet:
    """Check that bags match the labels and that every method can be built and has what it needs."""
    first = rows[0].config
    training = replace(first.training, balanced=False)
    # as the first run does, but without steps fitted to the bags
    split = {"test_fold": rows[0].data.splits[0]} if rows[0].data.folds else {"split": None}
    data = replace(first.data, standardize=False, **split)
    prepared = prepare(replace(first, data=data, training=training))
    opened: dict[DataConfig, BagSet] = {}
    for row in rows:
        arguments = {k: v for k, v in row.config.model_arguments.items() if k != "n_classes"}
        spec = fit_likelihood(row.config, row.data.table, splits[0])
        n_classes = prepared.model_arguments.get("n_classes", 1)
        outputs = {"n_classes": n_classes} if spec is None else {"likelihood": spec}
        build(row.config.model, in_dim=8, **outputs, **arguments)
        data_config = replace(row.config.data, standardize=False, cache_gb=0.0)
        if data_config not in opened:
            opened[data_config] = _open(data_config)
        for need in sorted(look_up(row.config.model).model.needs):
            _check_need(need, row, opened[data_config], splits[0])
    return next(iter(opened.values()))


def _open(data: DataConfig) -> BagSet:
    """Open the bags of a run: slides or scans, or patients with all of theirs."""
    return open_units(data)[0] if data.targets.unit == "patient" else open_data(data)


def _check_need(need: str, row: Row, bags: BagSet, split: Split) -> None:
    names = [n for n in split.train if n in set(bags.names)][:LOOKED_AT]
    for name in names:
        try:
            bag = bags.bag(name)
        except BagError:  # reported by the run that reads it
            continue
        if bag.coords is not None if need == "coords" else bag.edges.shape[1]:
            return
    what = "coordinates" if need == "coords" else "neighbours"
    raise InputError(
        f"{row.method.label} needs {what}, which none of the first {len(names)} training bags of "
        f"{row.data.name} ({bags.folder}) has (graph: {row.config.data.graph.kind}): leave it out "
        "of models"
    )
