"""A grid: models × data sets × splits × seeds × λ as a small YAML file, and its cells.

It may set every key of a run for all cells, a data set, a model or, as an exception, for some
models on some data sets; later ones in this list take precedence.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from ...core import optional_path, write_text
from ...datasets import patient_table
from ...errors import InputError, ProbSAError
from ...training import (
    RunConfig,
    checked_run,
    open_data,
    plain,
    read_labels,
)
from .data_sets import DataSet, chosen_splits, find_sets, named_sets, prepare_set, shared_keys
from .entries import (
    GridFile,
    MethodEntry,
    check_exceptions,
    kl_weights,
    listed,
    methods_of,
    number_list,
)
from .given import GRID_KEYS, GivenGrid, given_grid
from .methods_and_cells import Cell, Method

FEATURE_SET = "data.feature_set"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A method on a data set, with the config of its runs except split and seed."""

    data: DataSet
    method: Method
    config: RunConfig
    seeds: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """An experiment whose keys and files have been checked."""

    file: GridFile
    """The keys of the grid, with absolute paths and the flags that were given."""
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of the grid: its key `name`, else the name of its file."""
        return self.file.name

    @property
    def data(self) -> tuple[DataSet, ...]:
        """Return each data set once."""
        return tuple({row.data.name: row.data for row in self.rows}.values())

    @property
    def seeds(self) -> tuple[int, ...]:
        """Return each seed of any method once."""
        return tuple(dict.fromkeys(seed for row in self.rows for seed in row.seeds))

    @property
    def methods(self) -> tuple[Method, ...]:
        """Return each method once."""
        return tuple({row.method.slug: row.method for row in self.rows}.values())

    def cells(self, out: Path) -> list[Cell]:
        """Return every run of the grid; whole replicates of all methods come first.

        Args:
            out: The experiment's folder, which holds the splits that the protocol makes.
        """
        return list(self._cells(out.resolve()))

    def _cells(self, out: Path) -> Iterator[Cell]:
        for data in self.data:
            data_rows = [r for r in self.rows if r.data.name == data.name]
            for seed, split in itertools.product(self.seeds, data.splits):
                for row in data_rows:
                    if seed in row.seeds:
                        config = self._config(row, out, split=split, seed=seed)
                        yield Cell(
                            data=data.name, method=row.method, split=split, seed=seed, config=config
                        )

    def _config(self, row: Row, out: Path, *, split: int, seed: int) -> RunConfig:
        """Return the config of one run."""
        if row.data.folds:
            data = replace(row.config.data, test_fold=split)
        else:
            file = splits_folder(out, row.data.name) / f"splits_{split}.csv"
            data = replace(row.config.data, split=file)
        return replace(row.config, data=data, seed=seed, data_seed=self.file.data_seed)

    def write(self, out: Path) -> None:
        """Write `grid.yaml` to the experiment's folder, for `read_grid`."""
        grid_keys = {name: plain(getattr(self.file, name)) for name in GRID_KEYS}
        keys = grid_keys | plain(self.file.others)
        write_text(out / "grid.yaml", yaml.safe_dump(keys, sort_keys=False))


def splits_folder(out: Path, data: str) -> Path:
    """Return the folder of a data set's splits."""
    return out / "splits" / data


def read_grid(
    path: Path | str,
    *,
    data: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
    out: Path | str | None = None,
) -> Grid:
    """Read a grid and check every key, model and value of it.

    Args:
        path: The YAML file.
        data: `DIR` or `NAME=DIR` each; replaces the data sets of the file. If its `data` names no
            folder, its keys hold for each of these sets.
        overrides: Keys of the grid or of a run (dotted or short), which take precedence over the
            file.
        out: The experiment's folder (default: the grid's name); labels made for a data set are
            written there.

    Raises:
        UnknownName: A key, a model or an argument does not exist; suggests the right one.
        InputError: A value is invalid, there is no data, or a folder is not a data set.
        TableError: The labels are missing or unusable.
    """
    path = Path(path)
    given = given_grid(path, overrides, data=data)
    name = given.file.name or path.stem
    sets = _named_data(given, path, data)
    folder = (optional_path(out) or Path(name)) / "data"
    set_keys, notes = _prepare_sets(sets, given, folder=folder)
    given = _without_feature_set(given)
    file = _resolved_file(given, name=name, set_keys=set_keys)
    weights = kl_weights(file.kl_weight, where=given.where)
    entries = methods_of(given.models, weights, where=given.where)
    notes += check_exceptions(given.rules, set_keys, entries)
    rows = _rows(given, set_keys, entries)
    return Grid(file=file, rows=tuple(rows), notes=tuple(notes))


def _named_data(given: GivenGrid, path: Path, data: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the keys of the data sets by name: those of the file, or those of the flags.

    Raises:
        InputError: Neither names any data.
    """
    sets = given.file.data
    if data:
        sets = _sets_of_folders(data, shared=shared_keys(sets))
    if sets is None or shared_keys(sets):
        raise InputError(
            f"{path} names no data: give --data DIR, a folder with features/ and labels.csv (or "
            "a parent of such folders)"
        )
    return named_sets(sets, where=given.where)


def _prepare_sets(
    sets: Mapping[str, Mapping[str, Any]], given: GivenGrid, *, folder: Path
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the dotted keys of the runs of each data set, and notes; studies are opened.

    Args:
        sets: The keys of the data sets as they were given.
        given: The grid's file and flags.
        folder: The folder below which labels of studies are written.
    """
    set_keys: dict[str, dict[str, Any]] = {}
    notes: list[str] = []
    for name, keys in sets.items():
        other_keys = {k: v for k, v in keys.items() if k not in ("feature_set", FEATURE_SET)}
        set_keys[name], set_notes = prepare_set(
            other_keys,
            out=folder / name,
            feature_set=_feature_set(name, keys, given),
            where=f"{given.where} (data {name})",
        )
        notes += [f"{name}: {note}" for note in set_notes]
    return set_keys, notes


def _feature_set(name: str, keys: Mapping[str, Any], given: GivenGrid) -> str | None:
    """Return the folder of features that all methods use on a data set: a study is opened with it.

    An exception for all models comes before a key of the data set, and that before one of the grid.
    """
    feature_set = given.for_all.get(FEATURE_SET)
    feature_set = keys.get(FEATURE_SET, feature_set)
    feature_set = keys.get("feature_set", feature_set)
    for rule in given.rules:
        if not rule.models and (not rule.data or name in listed(rule.data)):
            feature_set = rule.others.get(FEATURE_SET, feature_set)
    return None if feature_set in (None, "null") else str(feature_set)


def _without_feature_set(given: GivenGrid) -> GivenGrid:
    """Leave out the folders of features for all models, which the keys of the sets contain."""

    def rest(keys: Mapping[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in keys.items() if k != FEATURE_SET}

    rules = [r if r.models else replace(r, others=rest(r.others)) for r in given.rules]
    return replace(given, for_all=rest(given.for_all), rules=rules)


def _resolved_file(
    given: GivenGrid, *, name: str, set_keys: Mapping[str, Mapping[str, Any]]
) -> GridFile:
    """Return the grid as a file: with its name, the paths of its data sets, and the flags."""
    data: dict[str, dict[str, Any]] = {}
    for set_name, keys in set_keys.items():
        data[set_name] = {key.removeprefix("data."): value for key, value in keys.items()}
    exceptions = []
    for rule in given.rules:
        scope = {k: plain(getattr(rule, k)) for k in ("data", "models", "seeds")}
        exceptions.append({k: v for k, v in scope.items() if v} | rule.others)
    return replace(
        given.file,
        name=name,
        data=data,
        models=given.models,
        exceptions=exceptions,
        slurm={**(given.file.slurm or {}), **given.slurm},
        others=dict(given.for_all),
    )


def _rows(
    given: GivenGrid,
    set_keys: Mapping[str, Mapping[str, Any]],
    entries: Sequence[MethodEntry],
) -> list[Row]:
    """Return every method on every data set, with the checked config of its runs."""
    rows: list[Row] = []
    for name, keys in set_keys.items():
        data_set: DataSet | None = None
        for entry in entries:
            config, seeds = _config_and_seeds(name, keys, entry, given)
            if data_set is None:
                data_set = _data_set(name, keys, config, given)
            row = Row(data=data_set, method=entry.method, config=config, seeds=seeds)
            rows.append(row)
    return rows


def _config_and_seeds(
    data: str, keys: Mapping[str, Any], entry: MethodEntry, given: GivenGrid
) -> tuple[RunConfig, tuple[int, ...]]:
    """Return the config and the seeds of a method's runs on a data set."""
    method = entry.method
    run_keys = {**given.for_all, **keys, **entry.training}
    seeds = given.file.seeds
    for rule in given.rules:
        if rule.holds(data, method):
            run_keys |= rule.others
            seeds = rule.seeds or seeds
    config = checked_run(
        {
            "training.tensorboard": False,
            **run_keys,
            "model.name": method.model,
            **{f"model.{name}": value for name, value in method.arguments.items()},
            "training.kl_weight": 0.0 if method.kl_weight is None else method.kl_weight,
        },
        where=f" in {given.where}",
    )
    return config, number_list(seeds)


def _sets_of_folders(
    data: Sequence[str], *, shared: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the data sets of folders; they have the shared keys beside their own."""
    data_sets: dict[str, dict[str, Any]] = {}
    for text in data:
        for name, keys in find_sets(text).items():
            if name in data_sets:
                raise InputError(f"two data sets are called {name!r}: give --data NAME=DIR")
            data_sets[name] = {**shared, **keys}
    return data_sets


def _data_set(name: str, keys: Mapping[str, Any], config: RunConfig, given: GivenGrid) -> DataSet:
    """Return a data set with its labels and splits."""
    bags = None
    with suppress(ProbSAError):  # the checks say what is wrong with the bags
        bags = open_data(config.data)
    table = read_labels(config.data, bags)
    if config.data.targets.unit == "patient":
        table = patient_table(table)
    splits = given.file.splits
    if table.folds is not None:
        made = 0
    elif isinstance(splits, int):
        made = splits
    else:  # as many as the protocol has, so that a few of them may be run alone
        made = max(5, *(number + 1 for number in splits))
    return DataSet(
        name=name,
        keys=keys,
        table=table,
        splits=chosen_splits(table, splits, where=given.where),
        made=made,
    )
