"""What is seen to before a grid runs: bags, labels, splits, and what each model needs of them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...core import write_json
from ...datasets import (
    ABOUT,
    BagSet,
    Copy,
    Split,
    find_copies,
    find_leaks,
    fold_splits,
    protocol_splits,
    read_about,
    read_splits,
    refuse_leaks,
    write_splits,
)
from ...errors import BagError, InputError, TableError
from ...models import build, fixed
from ...training import DataConfig, open_data, prepare
from .data_sets import DataSet
from .grid import Grid, Row, splits_folder

SEED = 0
"""Of the splits that are made: all seeds of a grid meet the same."""
SHOWN = 10
"""Leaks that are told one by one."""
LOOKED_AT = 200
"""Bags in which an edge or coordinates are looked for, at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """What the checks of a grid found."""

    new: Mapping[str, list[Split]]
    """Splits that are still to be stored, by data set."""
    copies: Mapping[str, Any]
    """Bags that hold the same instances, by data set; to be stored too."""
    notes: tuple[str, ...]


def check_grid(grid: Grid, out: Path, *, read_all: bool = True) -> Checked:
    """Refuses a grid that could not run to its end, or would mean nothing. Writes nothing.

    Args:
        grid: read and checked as far as its files say.
        out: the experiment's folder, which may hold the splits of an earlier call.
        read_all: whether all bags are read, once, to find copies of one another.

    Raises:
        TableError: labels, bags and splits do not fit; a test part of one class; a patient, a bag
            or its copy in two parts; stored splits that no longer fit.
        InputError: more than two classes, a model that the bags do not suit, or splits made
            otherwise.
    """
    new, found, notes = {}, {}, list(grid.notes)
    for data in grid.data:
        _refuse_classes(data)
        if data.folds:
            splits = fold_splits(data.table)
        elif (splits_folder(out, data.name) / ABOUT).is_file():
            splits = _stored(data, splits_folder(out, data.name))
        else:
            splits = new[data.name] = protocol_splits(data.table, splits=data.made, seed=SEED)
        rows = [r for r in grid.rows if r.data.name == data.name]
        bags = _check_rows(rows, splits)
        copies: list[Copy] = []
        if read_all:
            copies, found[data.name] = _copies(bags, data, out)
        notes += _leaks(bags, data, splits, copies, refuse=grid.leaks == "refuse")
    return Checked(new=new, copies=found, notes=tuple(dict.fromkeys(notes)))


def _refuse_classes(data: DataSet) -> None:
    """Tables and figures are of two classes: said before hours of training, not after."""
    if len(data.table.classes) > 2:
        raise InputError(
            f"{data.table.where} has {len(data.table.classes)} classes "
            f"({', '.join(data.table.classes)}): the tables of an experiment compare methods on "
            "two. Join classes in a table of labels of its own, or train a run with probsa train"
        )


def _leaks(
    bags: BagSet, data: DataSet, splits: Sequence[Split], copies: Sequence[Copy], *, refuse: bool
) -> list[str]:
    """Refuses leaks, or gives them in words."""
    look = refuse_leaks if refuse else find_leaks
    try:
        found = [leak for split in splits for leak in look(bags, data.table, split, copies=copies)]
    except TableError as error:
        column = "fold" if data.folds else "split"
        raise TableError(
            f"{data.name}: {error}; where {column} is a column, put them into one part there. If "
            "they are to stay as they are, the grid's `leaks: note` only tells of them"
        ) from error
    said = list(dict.fromkeys(leak.what for leak in found))
    more = [f"{data.name}: … and {len(said) - SHOWN} more such bags"] if len(said) > SHOWN else []
    return [f"{data.name}: {what}" for what in said[:SHOWN]] + more


def _copies(bags: BagSet, data: DataSet, out: Path) -> tuple[list[Copy], Any]:
    """Bags that are copies of others, as an earlier call found them or by reading all; and as JSON.

    A bag that cannot be read, or is a test bag without label, is said where a run reads it.
    """
    names = [n for n in data.table.bags if n in set(bags.names) and bags.size(n)]
    key = hashlib.sha256(
        json.dumps([str(bags.folder), [(n, bags.size(n)) for n in names]]).encode()
    ).hexdigest()
    path = copies_file(out, data.name)
    if path.is_file():
        held = json.loads(path.read_text(encoding="utf-8"))
        if held["bags"] == key:
            return [Copy(**c) for c in held["copies"]], held
    copies = find_copies(bags, names)
    return copies, {"bags": key, "copies": [asdict(c) for c in copies]}


def copies_file(out: Path, data: str) -> Path:
    """Where it is kept which bags are copies of others: finding them reads every bag."""
    return out / "copies" / f"{data}.json"


def store_checked(checked: Checked, out: Path) -> None:
    """Writes what the checks found, and splits where the cells of a grid look for them."""
    for name, splits in checked.new.items():
        write_splits(splits_folder(out, name), splits, settings=_settings(len(splits)))
    for name, found in checked.copies.items():
        write_json(copies_file(out, name), found)
    write_json(out / "notes.json", list(checked.notes))


def _stored(data: DataSet, folder: Path) -> list[Split]:
    stored, wanted = read_about(folder).get("settings") or {}, _settings(data.made)
    if stored != wanted:
        raise InputError(
            f"the splits in {folder} were made with {_said(stored)}, the grid says "
            f"{_said(wanted)}: give another --out"
        )
    return read_splits(folder, data.table)


def _settings(splits: int) -> dict[str, int]:
    return {"splits": splits, "seed": SEED}


def _said(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in settings.items())


def _check_rows(rows: Sequence[Row], splits: Sequence[Split]) -> BagSet:
    """Bags fit labels, and every method of a data set can be built and finds what it needs."""
    first = rows[0].config
    training = replace(first.training, balanced=False)
    # as the first run will, but without what is fitted to the bags
    at = {"test_fold": rows[0].data.splits[0]} if rows[0].data.folds else {"split": None}
    data = replace(first.data, standardize=False, **at)
    prepared = prepare(replace(first, data=data, training=training))
    opened: dict[DataConfig, BagSet] = {}
    for row in rows:
        given = {k: v for k, v in row.config.model_arguments.items() if k != "n_classes"}
        n_classes = prepared.model_arguments.get("n_classes", 1)
        build(row.config.model, in_dim=8, n_classes=n_classes, **given)
        own = replace(row.config.data, standardize=False, cache_gb=0.0)
        if own not in opened:
            opened[own] = open_data(own)
        for need in sorted(fixed(row.config.model)[0].needs):
            _check_need(need, row, opened[own], splits[0])
    return next(iter(opened.values()))


def _check_need(need: str, row: Row, bags: BagSet, split: Split) -> None:
    names = [n for n in split.train if n in set(bags.names)][:LOOKED_AT]
    for name in names:
        try:
            bag = bags.bag(name)
        except BagError:  # said where the run reads it
            continue
        if bag.coords is not None if need == "coords" else bag.edges.shape[1]:
            return
    what = "coordinates" if need == "coords" else "neighbours"
    raise InputError(
        f"{row.method.label} needs {what}, which none of the first {len(names)} training bags of "
        f"{row.data.name} ({bags.folder}) has (graph: {row.config.data.graph.kind}): leave it out "
        "of models"
    )
