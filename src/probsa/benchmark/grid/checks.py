"""Check a grid before it runs: bags, labels, splits, tasks, and what each model needs of them."""

import contextlib
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ...core import read_record, write_json
from ...datasets import (
    SPLITS_FILE,
    BagSet,
    CopyGroup,
    Leak,
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
from ...models import build, check_task, look_up
from ...training import DataConfig, fit_likelihood, open_data, open_units, prepare
from .data_sets import DataSet
from .grid import Grid, Row, splits_folder

SEED = 0
"""Seed of the splits, the same for all seeds of a grid."""
SHOWN = 10
"""Number of leaks reported individually."""
LOOKED_AT = 200
"""Largest number of bags searched for edges or coordinates."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredCopies:
    """The bags of a data set that are copies of others; stored, since finding them reads all."""

    bags: str
    """Digest of the bags that were compared."""
    copies: tuple[CopyGroup, ...]
    """Their groups; files of version 0.2 have pairs instead, and are not used."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """Results of the checks of a grid."""

    new: Mapping[str, list[Split]]
    """Splits to be stored, by data set."""
    copies: Mapping[str, StoredCopies]
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
    new_splits: dict[str, list[Split]] = {}
    stored_copies: dict[str, StoredCopies] = {}
    notes = list(grid.notes)
    for data in grid.data:
        rows = [r for r in grid.rows if r.data.name == data.name]
        _check_tasks(data, rows)
        splits = _existing_splits(data, splits_folder(out, data.name))
        if splits is None:
            splits = protocol_splits(data.table, splits=data.made, seed=SEED)
            new_splits[data.name] = splits
        _check_parts(data, rows, splits)
        bags = _check_rows(rows, splits)
        copies: tuple[CopyGroup, ...] = ()
        if read_all:
            stored_copies[data.name] = _copies(bags, data, copies_file(out, data.name))
            copies = stored_copies[data.name].copies
        notes += _leaks(bags, data, splits, copies, refuse=grid.file.leaks == "refuse")
    return Checked(new=new_splits, copies=stored_copies, notes=tuple(dict.fromkeys(notes)))


def _existing_splits(data: DataSet, folder: Path) -> list[Split] | None:
    """Return the splits by folds or those that an earlier call stored; None if there are none.

    Raises:
        InputError: The stored splits were made with other settings.
    """
    if data.folds:
        return fold_splits(data.table)
    if not (folder / SPLITS_FILE).is_file():
        return None
    settings = {"splits": data.made, "seed": SEED}
    stored_settings = read_splits_metadata(folder).get("settings") or {}
    if stored_settings != settings:
        raise InputError(
            f"the splits in {folder} were made with {stored_settings}, but the grid has "
            f"{settings}: give another --out"
        )
    return read_splits(folder, data.table)


def _refuse_shared_members(grid: Grid) -> None:
    """Reject seeds of ensembles that are too close: replicates that share members are not
    independent."""
    for row in grid.rows:
        members = row.config.training.members
        seeds = sorted(row.seeds)
        gaps = [b - a for a, b in itertools.pairwise(seeds)]
        if gaps and min(gaps) < members:
            advised_seeds = [k * members for k in range(len(seeds))]
            raise InputError(
                f"{row.method.name} has {members} members with the seeds seed, seed + 1, …, so its "
                f"seeds {', '.join(map(str, seeds))} would share members: give seeds that are "
                f"{members} apart, such as seeds: {advised_seeds}"
            )


def _leaks(
    bags: BagSet,
    data: DataSet,
    splits: Sequence[Split],
    copies: Sequence[CopyGroup],
    *,
    refuse: bool,
) -> list[str]:
    """Reject leaks, or describe them."""
    find = refuse_leaks if refuse else find_leaks
    leaks: list[Leak] = []
    try:
        for split in splits:
            leaks += find(bags, data.table, split, copies=copies)
    except TableError as error:
        column = "fold" if data.folds else "split"
        raise TableError(
            f"{data.name}: {error}; if the table has a column {column}, put them in one part. To "
            "keep them as they are, set `leaks: note` in the grid, which only reports them"
        ) from error
    # the same bags may leak in several splits
    sentences = list(dict.fromkeys(leak.what for leak in leaks))
    if len(sentences) > SHOWN:
        sentences[SHOWN:] = [f"… and {len(sentences) - SHOWN} more such bags"]
    return [f"{data.name}: {sentence}" for sentence in sentences]


def _copies(bags: BagSet, data: DataSet, path: Path) -> StoredCopies:
    """Find bags that are copies of others, unless an earlier call stored those of the same bags.

    Bags that cannot be read, and test bags without a label, are reported by the run that reads
    them.
    """
    available = set(bags.names)
    sizes = [(name, bags.size(name)) for name in data.table.bags if name in available]
    sizes = [(name, size) for name, size in sizes if size]
    digest = hashlib.sha256(json.dumps([str(bags.folder), sizes]).encode()).hexdigest()
    with contextlib.suppress(InputError):  # missing or damaged: the copies are found again
        stored = read_record(StoredCopies, path)
        if stored.bags == digest:
            return stored
    names = [name for name, _ in sizes]
    return StoredCopies(bags=digest, copies=tuple(find_copies(bags, names)))


def copies_file(out: Path, data: str) -> Path:
    """Return the file that stores the copies of bags."""
    return out / "copies" / f"{data}.json"


def store_checked(checked: Checked, out: Path) -> None:
    """Write the results of the checks, and splits where the cells look for them."""
    for name, splits in checked.new.items():
        settings = {"splits": len(splits), "seed": SEED}
        write_splits(splits_folder(out, name), splits, settings=settings)
    for name, copies in checked.copies.items():
        write_json(copies_file(out, name), asdict(copies))
    write_json(out / "notes.json", list(checked.notes))


def _check_rows(rows: Sequence[Row], splits: Sequence[Split]) -> BagSet:
    """Check that bags match the labels and that every method can be built and has what it needs."""
    first = rows[0].config
    # as the first run does, but without steps fitted to the bags
    if rows[0].data.folds:
        data = replace(first.data, standardize=False, test_fold=rows[0].data.splits[0])
    else:
        data = replace(first.data, standardize=False, split=None)
    training = replace(first.training, balanced=False)
    prepared = prepare(replace(first, data=data, training=training))
    bag_sets: dict[DataConfig, BagSet] = {}
    for row in rows:
        arguments = {k: v for k, v in row.config.model_arguments.items() if k != "n_classes"}
        spec = fit_likelihood(row.config, row.data.table, splits[0])
        if spec is None:
            arguments["n_classes"] = prepared.model_arguments.get("n_classes", 1)
        else:
            arguments["likelihood"] = spec
        build(row.config.model, in_dim=8, **arguments)
        data_config = replace(row.config.data, standardize=False, cache_gb=0.0)
        if data_config not in bag_sets:
            bag_sets[data_config] = _open(data_config)
        for need in sorted(look_up(row.config.model).model.needs):
            _check_need(need, row, bag_sets[data_config], splits[0])
    return next(iter(bag_sets.values()))


def _open(data: DataConfig) -> BagSet:
    """Open the bags that models see: those of patients if these are the unit."""
    if data.targets.unit == "patient":
        bags, _ = open_units(data)
        return bags
    return open_data(data)


def _check_need(need: str, row: Row, bags: BagSet, split: Split) -> None:
    """Refuse a model that needs coordinates or edges if no bag has any."""
    available = set(bags.names)
    names = [name for name in split.train if name in available][:LOOKED_AT]
    for name in names:
        try:
            bag = bags.bag(name)
        except BagError:  # reported by the run that reads it
            continue
        has_need = bag.coords is not None if need == "coords" else bag.edges.shape[1] > 0
        if has_need:
            return
    title = "coordinates" if need == "coords" else "neighbours"
    raise InputError(
        f"{row.method.label} needs {title}, which none of the first {len(names)} training bags of "
        f"{row.data.name} ({bags.folder}) has (graph: {row.config.data.graph.kind}): leave it out "
        "of models"
    )


def _check_tasks(data: DataSet, rows: Sequence[Row]) -> None:
    """Refuse models that cannot learn the task, and rows of several tasks."""
    targets = rows[0].config.data.targets
    for row in rows:
        if row.config.data.targets != targets:
            raise InputError(
                f"the targets of {data.name} differ between {rows[0].method.name} and "
                f"{row.method.name}: give each data set one task and one target"
            )
    refused: dict[str, InputError] = {}
    for row in rows:
        try:
            check_task(row.config.model, data.table.task)
        except InputError as error:
            refused.setdefault(row.config.model, error)
    if refused:
        first, *more = refused
        also = f" The same holds for {', '.join(more)}." if more else ""
        raise InputError(f"{data.name}: {refused[first]}.{also} Remove them from `models`")


def _check_parts(data: DataSet, rows: Sequence[Row], splits: Sequence[Split]) -> None:
    """Refuse training parts that do not determine the likelihood, and test parts that cannot be
    judged by the primary metric. Data sets of two classes are checked by the splits alone."""
    table = data.table
    task = table.of_task
    if task.two_classes:
        return
    numbers = sorted(set(table.folds)) if table.folds is not None else range(len(splits))
    for number, split in zip(numbers, splits, strict=True):
        if number not in data.splits:
            continue
        y = table.y(split.test)
        reason = "no bag has a label"
        if len(y):
            reason = task.labels.unjudgeable(y, table.y(split.train), table.classes)
        if reason is not None:
            part = "the test part"
            remedy = "Put other bags into it (column split)"
            if data.folds:
                part = f"fold {number}"
                remedy = "Assign bags to the folds so that each can be judged, or make fewer folds"
            raise TableError(
                f"{data.name}: {reason} in {part} of {table.where}, so {task.primary.title} is "
                f"undefined there. {remedy}{task.words.remedy}"
            )
        try:
            for row in rows:
                fit_likelihood(row.config, table, split)
        except (InputError, TableError) as error:
            place = f"fold {number}" if data.folds else f"split {number}"
            raise type(error)(f"{data.name}, {place}: {error}") from error
