"""What is given for a grid: its file and the flags, checked before PyTorch is imported."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from ...training import SECTIONS, RunKey, load_yaml
from .data_sets import check_paths
from .entries import (
    ExceptionRule,
    GridFile,
    check_models,
    exceptions_of,
    listed,
    read_record,
    run_keys,
)

GRID_KEYS = tuple(f.name for f in fields(GridFile) if f.name != "others")
"""Keys of a grid that are not keys of its runs."""
LISTS = ("models", "kl_weight", "seeds", "splits")
"""Keys whose flag may give several values, separated by commas."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenGrid:
    """The file of a grid with the flags that were given; names of keys and models exist."""

    where: str
    """The file, with the flags, for messages."""
    file: GridFile
    rules: list[ExceptionRule]
    """The exceptions, and last the flags that are keys of runs."""
    models: list[Any]
    """Names, words or mappings."""
    for_all: Mapping[str, Any]
    """The keys of all runs, with their sections."""
    slurm: Mapping[str, Any]


def grid_name(path: Path) -> str:
    """Return a grid's name: its key `name`, else the name of its file."""
    keys = load_yaml(path, what="grid", least="models") if path.is_file() else {}
    return str(keys.get("name", path.stem))


def given_grid(
    path: Path, overrides: Mapping[str, Any] | None = None, *, data: Sequence[str] = ()
) -> GivenGrid:
    """Read a grid's file and flags, and check that its folders and tables exist.

    The arguments are those of `read_grid`.

    Raises:
        UnknownName: A key, a model or an argument does not exist; suggests the right one.
        InputError, TableError, BagError: A value is invalid, or a path leads to nothing.
    """
    overrides = overrides or {}
    where = str(path)
    if overrides:
        names = ", ".join(f"--{_short(key)}" for key in overrides)
        where = f"{path} (with {names})"
    flags = _sorted_flags(overrides)
    last_rule = ExceptionRule(others=run_keys(flags.run, where="the flags", others=GRID_KEYS))
    keys = load_yaml(path, what="grid", least="models") | flags.grid
    file = read_record(GridFile, keys, where=where)
    for_all = run_keys(file.others, where=where, others=GRID_KEYS)
    rules = exceptions_of(file, where=where)
    models = listed(file.models)
    # a flag takes precedence over the file's exceptions and models, unless it gives them as well
    if "seeds" in flags.grid and "exceptions" not in flags.grid:
        rules = [replace(r, seeds=None) for r in rules]
    if "kl_weight" in flags.grid and "models" not in flags.grid:
        models = [_without_kl_weight(model) for model in models]
    if last_rule.others:
        rules.append(last_rule)
    check_models(models, where=where)
    check_paths(file.data, data=data, where=where)
    return GivenGrid(
        where=where, file=file, rules=rules, models=models, for_all=for_all, slurm=flags.slurm
    )


class Flags(NamedTuple):
    """The flags of a grid by what they set."""

    grid: dict[str, Any]
    """Keys of the grid."""
    slurm: dict[str, Any]
    """Options of Slurm."""
    run: dict[str, Any]
    """Keys of runs."""


def _sorted_flags(overrides: Mapping[str, Any]) -> Flags:
    flags = Flags(grid={}, slurm={}, run={})
    for key, value in overrides.items():
        name = "kl_weight" if key == "training.kl_weight" else key
        if name in GRID_KEYS:
            flags.grid[name] = _bracketed(value) if name in LISTS else value
        elif name.startswith("slurm."):
            option = RunKey(name=name, annotation=Any, help="")
            flags.slurm[option.short] = option.read(value)
        else:
            flags.run[key] = value
    return flags


def _bracketed(value: Any) -> Any:
    """Return values separated by commas as a YAML list, `0,1` as `[0,1]`; any other as it is."""
    if isinstance(value, str) and "," in value and value[0] not in "[{":
        return f"[{value}]"
    return value


def _without_kl_weight(model: Any) -> Any:
    """Return an item of `models` without a λ of its own."""
    if not isinstance(model, dict):
        return model
    return {k: v for k, v in model.items() if k != "kl_weight"}


def _short(key: str) -> str:
    """Return a run's key without its section, as flags usually give it: `epochs`."""
    section, _, rest = key.partition(".")
    return rest if section in SECTIONS and rest else key
