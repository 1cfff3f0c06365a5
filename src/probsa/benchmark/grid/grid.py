"""A grid: models × data sets × splits × seeds × λ as a small YAML file, and its cells.

It may set every key of a run for all cells, a data set, a model or, as an exception, for some
models on some data sets; later ones in this list take precedence.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from ...core import write_text
from ...datasets import patient_table
from ...errors import InputError, UnknownName
from ...training import (
    SECTIONS,
    RunConfig,
    checked_run,
    load_yaml,
    read_labels,
    section_keys,
)
from ..execution.cells import Keep
from .data_sets import (
    DataSet,
    chosen_splits,
    found_at,
    keys_of,
    made_ready,
    named_sets,
    shared_keys,
)
from .entries import kl_weights, methods_of, run_keys
from .exceptions import exception_of, idle_note
from .methods_and_cells import Cell, Method
from .values import choice, listed, number, numbers

GRID_KEYS = (
    "name",
    "data",
    "models",
    "kl_weight",
    "seeds",
    "splits",
    "data_seed",
    "keep",
    "left_out_bags",
    "leaks",
    "exceptions",
    "slurm",
)
"""Keys of a grid that are not keys of its runs."""
LISTS = ("models", "kl_weight", "seeds", "splits")
"""Keys whose flag may give several values, separated by commas."""
SPLITS = 5


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

    name: str
    rows: tuple[Row, ...]
    data_seed: int | None
    keep: Keep
    """Checkpoints that remain when a cell is done."""
    left_out_bags: int
    """Number of test bags of a cell that models without a closed form predict again, without some
    of their instances; 0 for no checks of maps. See `execution.map_checks`."""
    leaks: Literal["refuse", "note"]
    """Whether to reject or only report a patient or a copied bag in two parts."""
    slurm: Mapping[str, Any]
    given: Mapping[str, Any]
    """The grid as it can be written and read again: absolute paths, flags included."""
    notes: tuple[str, ...] = field(default=())

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
                    for row in (r for r in data_rows if seed in r.seeds):
                        yield _cell(row, split, seed, data_seed=self.data_seed, out=out)

    def write(self, out: Path) -> None:
        """Write `grid.yaml` to the experiment's folder, for `read_grid`."""
        write_text(out / "grid.yaml", yaml.safe_dump(dict(self.given), sort_keys=False))


def splits_folder(out: Path, data: str) -> Path:
    """Return the folder of a data set's splits."""
    return out / "splits" / data


def _cell(row: Row, split: int, seed: int, *, data_seed: int | None, out: Path) -> Cell:
    if row.data.folds:
        data = replace(row.config.data, test_fold=split)
    else:
        file = splits_folder(out, row.data.name) / f"splits_{split}.csv"
        data = replace(row.config.data, split=file)
    config = replace(row.config, data=data, seed=seed, data_seed=data_seed)
    return Cell(data=row.data.name, method=row.method, split=split, seed=seed, config=config)


def read_grid(
    path: Path,
    *,
    data: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
    out: Path | None = None,
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
    given = load_yaml(path, what="grid", least="models")
    overrides = overrides or {}
    flags = ", ".join(f"--{_short(key)}" for key in overrides)
    where = f"{path} (with {flags})" if flags else str(path)
    grid_flags, run_flags = _parted(overrides)
    given = _overruled(given, grid_flags, where=where)
    if data:
        given["data"] = _found(data, shared=shared_keys(given.get("data")))
    if given.get("data") is None or shared_keys(given["data"]):
        raise InputError(
            f"{path} names no data: give --data DIR, a folder with features/ and labels.csv (or "
            "a parent of such folders)"
        )
    if run_flags:
        given["exceptions"] = [*listed(given, "exceptions", where=where), run_flags]
    name = str(given.get("name", path.stem))
    notes: list[str] = []
    ready = {}
    for data_name, keys in named_sets(given["data"], where=where).items():
        feature_set = _feature_set(given, data_name, keys, where=where)
        folder = (out or Path(name)) / "data" / data_name
        ready[data_name], data_notes = made_ready(
            keys, out=folder, feature_set=feature_set, where=where
        )
        notes += [f"{data_name}: {note}" for note in data_notes]
    given = {**_settled(given, where=where), "data": ready}
    return _grid(given, name=name, notes=notes, where=where)


def _found(data: Sequence[str], *, shared: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the data sets of folders; they have the shared keys beside their own."""
    data_sets: dict[str, dict[str, Any]] = {}
    for text in data:
        for name, keys in found_at(text).items():
            if name in data_sets:
                raise InputError(f"two data sets are called {name!r}: give --data NAME=DIR")
            data_sets[name] = {**shared, **keys}
    return data_sets


def grid_name(path: Path) -> str:
    """Return a grid's name: its key `name`, else the name of its file."""
    given = load_yaml(path, what="grid", least="models") if path.is_file() else {}
    return str(given.get("name", path.stem))


def _short(key: str) -> str:
    """Return a run's key without its section, as flags usually give it: `epochs`."""
    section, _, rest = key.partition(".")
    return rest if section in SECTIONS and rest else key


def _overruled(given: Mapping[str, Any], flags: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Return the file's keys overridden by flags, also in its exceptions and models."""
    merged = {**given, **flags}
    if not isinstance(given.get("slurm") or {}, dict):
        raise InputError(f"slurm in {where} is {given['slurm']!r}: expected keys of a job")
    if "slurm" in flags:
        merged["slurm"] = {**(given.get("slurm") or {}), **flags["slurm"]}
    for key, section in (("seeds", "exceptions"), ("kl_weight", "models")):
        if key in flags and section not in flags and isinstance(given.get(section), list):
            merged[section] = [
                {k: v for k, v in item.items() if k != key} if isinstance(item, dict) else item
                for item in given[section]
            ]
    return merged


FEATURE_SET = ("feature_set", "data.feature_set")


def _feature_set(
    given: Mapping[str, Any], data: str, keys: Mapping[str, Any], *, where: str
) -> str | None:
    """Return the features folder of a data set that all methods use, if the grid sets it."""
    feature_set = keys.get("feature_set", given.get("feature_set"))
    for item in listed(given, "exceptions", where=where):
        exception = exception_of(item, where=where)
        if not exception.models and (not exception.data or data in exception.data):
            feature_set = exception.keys.get("data.feature_set", feature_set)
    return None if feature_set in (None, "null") else str(feature_set)


def _settled(given: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Return a grid without features folders that are now set by its data sets."""
    exceptions = [
        item if item.get("models") else {k: v for k, v in item.items() if k not in FEATURE_SET}
        for item in listed(given, "exceptions", where=where)
    ]
    rest = {k: v for k, v in given.items() if k not in FEATURE_SET}
    return {**rest, "exceptions": exceptions} if exceptions else rest


def _parted(overrides: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split flags into those of the grid and those of its runs."""
    of_grid: dict[str, Any] = {}
    of_runs: dict[str, Any] = {}
    for key, value in overrides.items():
        short = key.removeprefix("training.") if key == "training.kl_weight" else key
        if short in GRID_KEYS:
            of_grid[short] = _value(short, value)
        elif short.startswith("slurm."):
            of_grid.setdefault("slurm", {})[short.removeprefix("slurm.")] = _value(short, value)
        else:
            of_runs[key] = value
    return of_grid, run_keys(of_runs, where="the flags", others=GRID_KEYS)


def _value(key: str, given: Any) -> Any:
    """Parse a flag's text as YAML; `a,b` is a list for keys that take lists."""
    if not isinstance(given, str):
        return given
    if key in LISTS and "," in given and not given.startswith(("[", "{")):
        return [yaml.safe_load(part) for part in given.split(",")]
    try:
        return yaml.safe_load(given)
    except yaml.YAMLError as e:
        raise InputError(f"--{key} is {given!r}, which cannot be read as YAML") from e


def _grid(given: dict[str, Any], *, name: str, notes: Sequence[str], where: str) -> Grid:
    rest = {k: v for k, v in given.items() if k not in GRID_KEYS}
    for key in rest:
        if "." not in key and key not in (*SECTIONS, *_run_names()):
            raise UnknownName(f"key of a grid in {where}", key, [*GRID_KEYS, *_run_names()])
    for_all = run_keys(rest, where=where)
    weights = kl_weights(given.get("kl_weight", "cyclical"), where=where)
    entries = methods_of(given.get("models", []), weights, where=where)
    named = given["data"]
    exceptions = [exception_of(e, where=where) for e in listed(given, "exceptions", where=where)]
    idle = idle_note(exceptions, named, entries)
    default_seeds = numbers(given.get("seeds", 1), "seeds", where=where)
    rows: list[Row] = []
    for data_name, of_data in named.items():
        data_set: DataSet | None = None
        keys = keys_of(of_data, where=f"{where} (data {data_name})")
        for entry in entries:
            run, seeds = {**for_all, **keys, **entry.training}, default_seeds
            for exception in exceptions:
                if exception.holds(data_name, entry.method):
                    run, seeds = {**run, **exception.keys}, exception.seeds or seeds
            config = _config(run, entry.method, where=where)
            data_set = data_set or _data_set(data_name, keys, config, given, where=where)
            rows.append(Row(data=data_set, method=entry.method, config=config, seeds=seeds))
    order = given.get("data_seed", 0)
    keep = choice(given, "keep", get_args(Keep), where=where)
    left_out_bags = number(given.get("left_out_bags", 0), "left_out_bags", where=where, least=0)
    if left_out_bags and keep == "none":
        raise InputError(
            f"left_out_bags in {where} is {left_out_bags} with keep: none: the models predict bags "
            "again, so keep their best checkpoints, or give left_out_bags: 0"
        )
    return Grid(
        name=name,
        rows=tuple(rows),
        data_seed=None if order is None else number(order, "data_seed", where=where),
        keep=keep,
        left_out_bags=left_out_bags,
        leaks=choice(given, "leaks", ("refuse", "note"), where=where),
        slurm=given.get("slurm") or {},
        given={"name": name, **given},
        notes=(*notes, *idle),
    )


def _config(run: Mapping[str, Any], method: Method, *, where: str) -> RunConfig:
    """Return the config of a method's runs; the defaults are the paper's, without TensorBoard
    files."""
    keys = {"training.tensorboard": False, **run, "model.name": method.model}
    keys |= {f"model.{k}": v for k, v in method.arguments.items()}
    keys["training.kl_weight"] = 0.0 if method.kl_weight is None else method.kl_weight
    return checked_run(keys, where=f" in {where}")


def _data_set(
    name: str, keys: Mapping[str, Any], config: RunConfig, given: Mapping[str, Any], *, where: str
) -> DataSet:
    table = read_labels(config.data)
    if config.data.targets.unit == "patient":
        table = patient_table(table)
    wanted: int | tuple[int, ...] = given.get("splits", SPLITS)
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        n_splits = wanted
    else:
        wanted = numbers(wanted, "splits", where=where)
        n_splits = max(SPLITS, *(k + 1 for k in wanted))
    return DataSet(
        name=name,
        keys=keys,
        table=table,
        splits=chosen_splits(table, wanted, where=where),
        made=0 if table.folds is not None else n_splits,
    )


def _run_names() -> list[str]:
    return [key.short for key in section_keys().values() if "." in key.name]
