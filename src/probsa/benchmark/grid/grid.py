"""A grid: models × data sets × splits × seeds × λ as a small YAML file, and its cells.

Every key of a run may stand in it, for all cells, for a data set, for a model, or, as an exception,
for some models on some data sets; of two that say one key, the later of these holds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from ...core import write_text
from ...datasets import read_table
from ...errors import InputError, UnknownName
from ...training import SECTIONS, RunConfig, checked_run, load_yaml, section_keys
from ..execution.cells import Keep
from .data_sets import DataSet, chosen_splits, found_at, keys_of, made_ready, named_sets
from .entries import kl_weights, methods_of, run_keys
from .exceptions import exception_of, idle_note
from .methods_and_cells import Cell, Method
from .values import choice, listed, number, numbers

OWN = (
    "name",
    "data",
    "models",
    "kl_weight",
    "seeds",
    "splits",
    "data_seed",
    "keep",
    "heads",
    "leaks",
    "exceptions",
    "slurm",
)
"""Keys of a grid that are not a run's."""
LISTS = ("models", "kl_weight", "seeds", "splits")
"""Those whose flag may hold several values with commas between them."""
SPLITS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A method on a data set, and its run but for split and seed."""

    data: DataSet
    method: Method
    config: RunConfig
    seeds: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """An experiment, checked as far as its files say."""

    name: str
    rows: tuple[Row, ...]
    data_seed: int | None
    keep: Keep
    """Checkpoints that are kept once a cell is done."""
    heads: int | None
    """Runs that train in one pass at most; 1: each alone; None: as `units_of` bounds them."""
    leaks: Literal["refuse", "note"]
    """What becomes of a grid with a patient or a copied bag in two parts."""
    slurm: Mapping[str, Any]
    given: Mapping[str, Any]
    """The grid as it can be written and read again: paths absolute, flags in it."""
    notes: tuple[str, ...] = field(default=())

    @property
    def data(self) -> tuple[DataSet, ...]:
        """Each data set once."""
        return tuple({row.data.name: row.data for row in self.rows}.values())

    @property
    def seeds(self) -> tuple[int, ...]:
        """Each seed once, whatever method it is of."""
        return tuple(dict.fromkeys(seed for row in self.rows for seed in row.seeds))

    @property
    def methods(self) -> tuple[Method, ...]:
        """Each method once."""
        return tuple({row.method.slug: row.method for row in self.rows}.values())

    def cells(self, out: Path) -> list[Cell]:
        """Every run of the grid; whole replicates of all methods come first.

        Args:
            out: the experiment's folder, in which the splits lie that the protocol makes.
        """
        return list(self._cells(out.resolve()))

    def _cells(self, out: Path) -> Iterator[Cell]:
        for data in self.data:
            own = [r for r in self.rows if r.data.name == data.name]
            for seed in self.seeds:
                for split in data.splits:
                    for row in (r for r in own if seed in r.seeds):
                        yield _cell(row, split, seed, data_seed=self.data_seed, out=out)

    def write(self, out: Path) -> None:
        """`grid.yaml` in the experiment's folder; `read_grid` reads it."""
        write_text(out / "grid.yaml", yaml.safe_dump(dict(self.given), sort_keys=False))


def splits_folder(out: Path, data: str) -> Path:
    """Where the splits of a data set lie."""
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
    """Reads a grid and checks every key, model and value of it.

    Args:
        path: the YAML file.
        data: `DIR` or `NAME=DIR` each: data sets instead of those that the file names.
        overrides: keys of the grid or of a run (dotted or short), which win over all that the file
            says.
        out: the experiment's folder (default: the grid's name), where the labels of a data set are
            put that has to be made ready.

    Raises:
        UnknownName: a key, a model or an argument that does not exist; suggests the right one.
        InputError: a value that is none, no data, or a folder that is no data set.
        TableError: labels that are not there, or that cannot be used.
    """
    given = load_yaml(path, what="grid", least="models")
    overrides = overrides or {}
    flags = ", ".join(f"--{_short(key)}" for key in overrides)
    where = f"{path} (with {flags})" if flags else str(path)
    own, for_all = _parted(overrides)
    given = _overruled(given, own, where=where)
    if data:
        found: dict[str, dict[str, Any]] = {}
        for text in data:
            for name, keys in found_at(text).items():
                if name in found:
                    raise InputError(f"two data sets are called {name!r}: give --data NAME=DIR")
                found[name] = keys
        given["data"] = found
    if given.get("data") is None:
        raise InputError(
            f"{path} names no data: give --data DIR, a folder with features/ and labels.csv (or "
            "one of such folders)"
        )
    if for_all:
        given["exceptions"] = [*listed(given, "exceptions", where=where), for_all]
    name = str(given.get("name", path.stem))
    notes: list[str] = []
    ready = {}
    for of, keys in named_sets(given["data"], where=where).items():
        feature_set = _feature_set(given, of, keys, where=where)
        folder = (out or Path(name)) / "data" / of
        ready[of], said = made_ready(keys, out=folder, feature_set=feature_set, where=where)
        notes += [f"{of}: {note}" for note in said]
    given = {**_settled(given, where=where), "data": ready}
    return _grid(given, name=name, notes=notes, where=where)


def name_of(path: Path) -> str:
    """A grid's name: what it says, else its file's."""
    given = load_yaml(path, what="grid", least="models") if path.is_file() else {}
    return str(given.get("name", path.stem))


def _short(key: str) -> str:
    """A run's key without its section, as flags are mostly given: `epochs`."""
    section, _, rest = key.partition(".")
    return rest if section in SECTIONS and rest else key


def _overruled(given: Mapping[str, Any], own: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """The file's keys under those of flags, which also win over its exceptions and models."""
    found = {**given, **own}
    if not isinstance(given.get("slurm") or {}, dict):
        raise InputError(f"slurm in {where} is {given['slurm']!r}: expected keys of a job")
    if "slurm" in own:
        found["slurm"] = {**(given.get("slurm") or {}), **own["slurm"]}
    for key, of in (("seeds", "exceptions"), ("kl_weight", "models")):
        if key in own and of not in own and isinstance(given.get(of), list):
            found[of] = [
                {k: v for k, v in one.items() if k != key} if isinstance(one, dict) else one
                for one in given[of]
            ]
    return found


FEATURE_SET = ("feature_set", "data.feature_set")


def _feature_set(
    given: Mapping[str, Any], data: str, keys: Mapping[str, Any], *, where: str
) -> str | None:
    """The folder of features that all methods take of a data set, if the grid says which."""
    found = keys.get("feature_set", given.get("feature_set"))
    for one in listed(given, "exceptions", where=where):
        exception = exception_of(one, where=where)
        if not exception.models and (not exception.data or data in exception.data):
            found = exception.keys.get("data.feature_set", found)
    return None if found in (None, "null") else str(found)


def _settled(given: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """A grid whose data sets say themselves which features all methods take of them."""
    exceptions = [
        one if one.get("models") else {k: v for k, v in one.items() if k not in FEATURE_SET}
        for one in listed(given, "exceptions", where=where)
    ]
    rest = {k: v for k, v in given.items() if k not in FEATURE_SET}
    return {**rest, "exceptions": exceptions} if exceptions else rest


def _parted(overrides: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Flags of the grid itself, and those of its runs."""
    own: dict[str, Any] = {}
    of_runs: dict[str, Any] = {}
    for key, value in overrides.items():
        short = key.removeprefix("training.") if key == "training.kl_weight" else key
        if short in OWN:
            own[short] = _value(short, value)
        elif short.startswith("slurm."):
            own.setdefault("slurm", {})[short.removeprefix("slurm.")] = _value(short, value)
        else:
            of_runs[key] = value
    return own, run_keys(of_runs, where="the flags", others=OWN)


def _value(key: str, given: Any) -> Any:
    """A flag's text as YAML would have it; `a,b` is a list where one is expected."""
    if not isinstance(given, str):
        return given
    if key in LISTS and "," in given and not given.startswith(("[", "{")):
        return [yaml.safe_load(part) for part in given.split(",")]
    try:
        return yaml.safe_load(given)
    except yaml.YAMLError as e:
        raise InputError(f"--{key} is {given!r}, which cannot be read as YAML") from e


def _grid(given: dict[str, Any], *, name: str, notes: Sequence[str], where: str) -> Grid:
    rest = {k: v for k, v in given.items() if k not in OWN}
    for key in rest:
        if "." not in key and key not in (*SECTIONS, *_run_names()):
            raise UnknownName(f"key of a grid in {where}", key, [*OWN, *_run_names()])
    for_all = run_keys(rest, where=where)
    weights = kl_weights(given.get("kl_weight", "cyclical"), where=where)
    entries = methods_of(given.get("models", []), weights, where=where)
    named = given["data"]
    exceptions = [exception_of(e, where=where) for e in listed(given, "exceptions", where=where)]
    idle = idle_note(exceptions, named, entries)
    for_most = numbers(given.get("seeds", 1), "seeds", where=where)
    rows: list[Row] = []
    for data_name, of_data in named.items():
        held: DataSet | None = None
        keys = keys_of(of_data, where=f"{where} (data {data_name})")
        for entry in entries:
            run, seeds = {**for_all, **keys, **entry.training}, for_most
            for exception in exceptions:
                if exception.holds(data_name, entry.method):
                    run, seeds = {**run, **exception.keys}, exception.seeds or seeds
            config = _config(run, entry.method, where=where)
            held = held or _data_set(data_name, keys, config, given, where=where)
            rows.append(Row(data=held, method=entry.method, config=config, seeds=seeds))
    order, heads = given.get("data_seed", 0), given.get("heads")
    return Grid(
        name=name,
        rows=tuple(rows),
        data_seed=None if order is None else number(order, "data_seed", where=where),
        keep=choice(given, "keep", get_args(Keep), where=where),
        heads=None if heads is None else number(heads, "heads", where=where, least=1),
        leaks=choice(given, "leaks", ("refuse", "note"), where=where),
        slurm=given.get("slurm") or {},
        given={"name": name, **given},
        notes=(*notes, *idle),
    )


def _config(run: Mapping[str, Any], method: Method, *, where: str) -> RunConfig:
    """The run of a method; defaults are the paper's but for TensorBoard's files."""
    keys = {"training.tensorboard": False, **run, "model.name": method.model}
    keys |= {f"model.{k}": v for k, v in method.arguments.items()}
    keys["training.kl_weight"] = 0.0 if method.kl_weight is None else method.kl_weight
    return checked_run(keys, origin=dict.fromkeys(keys, f" in {where}"))


def _data_set(
    name: str, keys: Mapping[str, Any], config: RunConfig, given: Mapping[str, Any], *, where: str
) -> DataSet:
    table = read_table(config.data.labels, classes=config.data.classes)
    wanted: int | tuple[int, ...] = given.get("splits", SPLITS)
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        made = wanted
    else:
        wanted = numbers(wanted, "splits", where=where)
        made = max(SPLITS, *(k + 1 for k in wanted))
    return DataSet(
        name=name,
        keys=keys,
        table=table,
        splits=chosen_splits(table, wanted, where=where),
        made=0 if table.folds is not None else made,
    )


def _run_names() -> list[str]:
    return [key.short for key in section_keys().values() if "." in key.name]
