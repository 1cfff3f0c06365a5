"""What is seen to before a grid runs: bags, labels, splits, and what each model needs of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config import DataConfig
from ..datasets import BagSet
from ..datasets.protocol import (
    ABOUT,
    fold_splits,
    protocol_splits,
    read_about,
    read_splits,
    write_splits,
)
from ..datasets.splits import Split
from ..errors import BagError, InputError
from ..models import build
from ..models._registry import fixed
from ..preparation import open_data, prepare
from .grid import Grid, Row, splits_folder
from .sets import DataSet

SEED = 0
"""Of the splits that are made: all seeds of a grid meet the same."""
LOOKED_AT = 200
"""Bags in which an edge or coordinates are looked for, at most."""


def check_grid(grid: Grid, out: Path) -> dict[str, list[Split]]:
    """Refuses a grid that could not run to its end, or would mean nothing. Writes nothing.

    Args:
        grid: read and checked as far as its files say.
        out: the experiment's folder, which may hold the splits of an earlier call.

    Returns: the splits that are still to be stored, by data set.

    Raises:
        TableError: labels, bags and splits do not fit; a test part of one class; stored splits that
            no longer fit.
        InputError: a model that the bags or classes do not suit, or splits made otherwise.
    """
    new = {}
    for data in grid.data:
        if data.folds:
            splits = fold_splits(data.table)
        elif (splits_folder(out, data.name) / ABOUT).is_file():
            splits = _stored(data, splits_folder(out, data.name))
        else:
            splits = new[data.name] = protocol_splits(data.table, splits=data.made, seed=SEED)
        _check_rows([r for r in grid.rows if r.data.name == data.name], splits)
    return new


def store_splits(new: Mapping[str, Sequence[Split]], out: Path) -> None:
    """Writes splits where the cells of a grid look for them."""
    for name, splits in new.items():
        write_splits(splits_folder(out, name), splits, settings=_settings(len(splits)))


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


def _check_rows(rows: list[Row], splits: list[Split]) -> None:
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
        own = replace(row.config.data, standardize=False)
        if own not in opened:
            opened[own] = open_data(own)
        for need in sorted(fixed(row.config.model)[0].needs):
            _check_need(need, row, opened[own], splits[0])


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
        f"{row.data.name} ({bags.folder}) has (graph: {row.config.data.graph}): leave it out of "
        "models"
    )
