"""A grid: models × data sets × splits × seeds × λ as a small YAML file, and its cells.

It may set every key of a run for all cells, a data set, a model or, as an exception, for some
models on some data sets; later ones in this list take precedence.
"""

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
from .data_sets import DataSet, chosen_splits, found_at, named_sets, prepare_set, shared_keys
from .entries import (
    GridFile,
    check_exceptions,
    kl_weights,
    listed,
    methods_of,
    number_list,
)
from .given import GRID_KEYS, given_grid
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
            for seed in self.seeds:
                for split in data.splits:
                    file = splits_folder(out, data.name) / f"splits_{split}.csv"
                    part = {"test_fold": split} if data.folds else {"split": file}
                    for row in (r for r in data_rows if seed in r.seeds):
                        config = replace(
                            row.config,
                            data=replace(row.config.data, **part),
                            seed=seed,
                            data_seed=self.file.data_seed,
                        )
                        yield Cell(
                            data=data.name, method=row.method, split=split, seed=seed, config=config
                        )

    def write(self, out: Path) -> None:
        """Write `grid.yaml` to the experiment's folder, for `read_grid`."""
        given = {k: plain(getattr(self.file, k)) for k in GRID_KEYS} | plain(self.file.others)
        write_text(out / "grid.yaml", yaml.safe_dump(given, sort_keys=False))


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
    path, out = Path(path), optional_path(out)
    given = given_grid(path, overrides, data=data)
    where = given.where
    file = given.file
    rules = given.rules
    models = given.models
    for_all = dict(given.for_all)
    name = file.name or path.stem
    sets = _found(data, shared=shared_keys(file.data)) if data else file.data
    if sets is None or shared_keys(sets):
        raise InputError(
            f"{path} names no data: give --data DIR, a folder with features/ and labels.csv (or "
            "a parent of such folders)"
        )
    ready: dict[str, dict[str, Any]] = {}
    notes: list[str] = []
    for data_name, keys in named_sets(sets, where=where).items():
        # the features folder that all methods use: a study is opened with it
        chosen = keys.pop("feature_set", keys.pop(FEATURE_SET, for_all.get(FEATURE_SET)))
        for rule in rules:
            if not rule.models and (not rule.data or data_name in listed(rule.data)):
                chosen = rule.others.get(FEATURE_SET, chosen)
        ready[data_name], data_notes = prepare_set(
            keys,
            out=(out or Path(name)) / "data" / data_name,
            feature_set=None if chosen in (None, "null") else str(chosen),
            where=f"{where} (data {data_name})",
        )
        notes += [f"{data_name}: {note}" for note in data_notes]
    for_all.pop(FEATURE_SET, None)
    for rule in rules:
        if not rule.models:
            rule.others.pop(FEATURE_SET, None)
    exceptions = [
        {k: plain(getattr(r, k)) for k in ("data", "models", "seeds") if getattr(r, k)} | r.others
        for r in rules
    ]
    file = replace(
        file,
        name=name,
        data={n: {k.removeprefix("data."): v for k, v in d.items()} for n, d in ready.items()},
        models=models,
        exceptions=exceptions,
        slurm={**(file.slurm or {}), **given.slurm},
        others=for_all,
    )
    entries = methods_of(models, kl_weights(file.kl_weight, where=where), where=where)
    notes += check_exceptions(rules, ready, entries)
    rows: list[Row] = []
    for data_name, keys in ready.items():
        data_set: DataSet | None = None
        for entry in entries:
            run, seeds = {**for_all, **keys, **entry.training}, file.seeds
            for rule in rules:
                if rule.holds(data_name, entry.method):
                    run, seeds = run | rule.others, rule.seeds or seeds
            method = entry.method
            config = checked_run(
                {
                    "training.tensorboard": False,
                    **run,
                    "model.name": method.model,
                    **{f"model.{k}": v for k, v in method.arguments.items()},
                    "training.kl_weight": 0.0 if method.kl_weight is None else method.kl_weight,
                },
                where=f" in {where}",
            )
            data_set = data_set or _data_set(data_name, keys, config, file, where=where)
            rows.append(Row(data=data_set, method=method, config=config, seeds=number_list(seeds)))
    return Grid(file=file, rows=tuple(rows), notes=tuple(notes))


def _found(data: Sequence[str], *, shared: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the data sets of folders; they have the shared keys beside their own."""
    data_sets: dict[str, dict[str, Any]] = {}
    for text in data:
        for name, keys in found_at(text).items():
            if name in data_sets:
                raise InputError(f"two data sets are called {name!r}: give --data NAME=DIR")
            data_sets[name] = {**shared, **keys}
    return data_sets


def _data_set(
    name: str, keys: Mapping[str, Any], config: RunConfig, file: GridFile, *, where: str
) -> DataSet:
    bags = None
    with suppress(ProbSAError):  # the checks say what is wrong with the bags
        bags = open_data(config.data)
    table = read_labels(config.data, bags)
    if config.data.targets.unit == "patient":
        table = patient_table(table)
    wanted = file.splits
    made = wanted if isinstance(wanted, int) else max(5, *(k + 1 for k in wanted))
    return DataSet(
        name=name,
        keys=keys,
        table=table,
        splits=chosen_splits(table, wanted, where=where),
        made=0 if table.folds is not None else made,
    )
