"""What is given for a grid: its file and the flags, checked before PyTorch is imported."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

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
    given = load_yaml(path, what="grid", least="models") if path.is_file() else {}
    return str(given.get("name", path.stem))


def given_grid(
    path: Path, overrides: Mapping[str, Any] | None = None, *, data: Sequence[str] = ()
) -> GivenGrid:
    """Read a grid's file and flags, and check that its folders and tables exist.

    The arguments are those of `read_grid`.

    Raises:
        UnknownName: A key, a model or an argument does not exist; suggests the right one.
        InputError, TableError, BagError: A value is invalid, or a path leads to nothing.
    """
    flags = overrides or {}
    given_as = ", ".join(f"--{_short(key)}" for key in flags)
    where = f"{path} (with {given_as})" if flags else str(path)
    own: dict[str, Any] = {}
    slurm: dict[str, Any] = {}
    for_runs: dict[str, Any] = {}
    for key, value in flags.items():
        name = "kl_weight" if key == "training.kl_weight" else key
        if name in GRID_KEYS:
            several = name in LISTS and isinstance(value, str) and "," in value
            own[name] = f"[{value}]" if several and value[0] not in "[{" else value
        elif name.startswith("slurm."):
            option = RunKey(name=name, annotation=Any, help="")
            slurm[option.short] = option.read(value)
        else:
            for_runs[key] = value
    last = ExceptionRule(others=run_keys(for_runs, where="the flags", others=GRID_KEYS))
    given = load_yaml(path, what="grid", least="models") | own
    file = read_record(GridFile, given, where=where)
    for_all = run_keys(file.others, where=where, others=GRID_KEYS)
    rules = exceptions_of(file, where=where)
    models = listed(file.models)
    if "seeds" in own and "exceptions" not in own:
        rules = [replace(r, seeds=None) for r in rules]
    if "kl_weight" in own and "models" not in own:
        models = [
            {k: v for k, v in m.items() if k != "kl_weight"} if isinstance(m, dict) else m
            for m in models
        ]
    rules += [last] if last.others else []
    check_models(models, where=where)
    check_paths(file.data, data=data, where=where)
    return GivenGrid(
        where=where, file=file, rules=rules, models=models, for_all=for_all, slurm=slurm
    )


def _short(key: str) -> str:
    """Return a run's key without its section, as flags usually give it: `epochs`."""
    section, _, rest = key.partition(".")
    return rest if section in SECTIONS and rest else key
