"""probsa benchmark: a grid of runs, its tables and its figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InputError, UnknownName
from ._cohort import workers_of
from ._shared import write, write_json

if TYPE_CHECKING:
    from ...benchmark import Grid, Plan

BENCHMARK = """\
usage: probsa benchmark GRID.yaml [--data DIR ...] [--out DIR] [--KEY VALUE ...]

Trains, predicts and evaluates every cell of a grid (models × data sets × splits × seeds × λ), then
writes tables and figures. Goes on where it stopped; what failed is tried again.

  --data DIR         a folder with features/ and labels.csv, a folder of such, what probsa dataset
                     wrote, or RSNA, PANDA or CAMELYON16 as published; or NAME=DIR; may be repeated
  --out DIR          the experiment's folder (default: the grid's name)
  --engine local|ray|slurm   (default: local)
  --workers N        processes, actors or jobs at work at the same time (default: 1)
  --slurm.KEY VALUE  of a Slurm job: partition, timeout_min, mem_gb, cpus_per_task, gpus_per_node, …
  --no-retry         leave what failed before as it is
  --dry-run          list cells, passes and what is done, and stop
  --tables-only      tables and figures of what is done in --out, without running anything
  --timing           measure a training step of every method too, with one thread; torchmil's beside
                     where it is installed
  --bags NAME,NAME   whose attention maps are drawn side by side (default: chosen by rule)
  --json             one JSON document on standard output

Keys of the grid, in the file or as flags (flags win over all that the file says):

  data: {features: DIR, labels: FILE}, {dataset: camelyon16, root: DIR}, or a name with such keys
        and keys of runs for each of several
  models: names, all, local, global; or mappings {name, label, training: {KEY: VALUE}, <arguments>}
  kl_weight: λ of models with a KL; 0 is the plain baseline (default: cyclical)
  seeds: how many, from 0, or a list (default: 1)
  splits: how many are made where labels have no folds (default: 5); a list: these alone
  data_seed: of the order of bags, so that all seeds meet the same batches; null: each its own (0)
  keep: checkpoints of a cell that is done: best, all, none (default: best)
  joint_runs: most cells trained jointly; 1: each alone (default: 48, fewer of large models)
  leaks: refuse or note, where a patient, a bag or its copy is in two parts (default: refuse)
  exceptions: a list of {data: NAMES, models: NAMES with *, KEY: VALUE}; the last one holds
  KEY: any key of `probsa train` under data and training
"""

OWN = {
    "out": True,
    "bags": True,
    "engine": True,
    "workers": True,
    "no_retry": False,
    "dry_run": False,
    "tables_only": False,
    "timing": False,
    "json": False,
    "help": False,
}
ENGINES = ("local", "ray", "slurm")
SHOWN = 20
"""Failed cells that are listed for people."""


def run(arguments: list[str]) -> int:
    """probsa benchmark."""
    from ...training import flags_of

    given = ["--help" if a == "-h" else a for a in arguments]
    file = given.pop(0) if given and not given[0].startswith("--") else None
    data, rest = _data(given)
    overrides, own = flags_of(rest, own=OWN)
    if own.get("help"):
        write(BENCHMARK)
        return 0
    if file is None and not (own.get("tables_only") and "out" in own):
        raise InputError("probsa benchmark needs a grid first: probsa benchmark GRID.yaml")
    if own.get("engine", "local") not in ENGINES:
        raise InputError(f"--engine is {own['engine']!r}: expected {', '.join(ENGINES)}")
    from ...benchmark import name_of, read_grid

    if own.get("tables_only"):
        return _tables(Path(own.get("out") or name_of(Path(str(file)))), own)

    assert file is not None
    asked = Path(own["out"]) if "out" in own else None
    grid = read_grid(Path(file), data=data, overrides=overrides, out=asked)
    out = asked or Path(grid.name)
    every = [bag for d in grid.data for bag in d.test_bags]
    for bag in own["bags"].split(",") if "bags" in own else []:
        if bag not in every:  # before hours of work, not after
            raise UnknownName("test bag (of --bags)", bag, every)
    return _dry(grid, out, own) if own.get("dry_run") else _run(grid, out, own)


def _data(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """What --data names, as often as it is given, and all other arguments."""
    data, rest = [], []
    waiting = iter(given)
    for token in waiting:
        if token == "--data":
            value = next(waiting, "--")
            if value.startswith("--"):
                raise InputError("--data needs a value: DIR or NAME=DIR")
            data.append(value)
        elif token.startswith("--data="):
            data.append(token.partition("=")[2])
        else:
            rest.append(token)
    return data, rest


def _workers(own: dict[str, Any]) -> int:
    given = own.get("workers", "1")
    if not given.isdigit():
        raise InputError(f"--workers is {given!r}: expected a whole number")
    return workers_of(int(given), default=1)


def _dry(grid: "Grid", out: Path, own: dict[str, Any]) -> int:
    from ...benchmark import counts, plan

    found = plan(grid, out)
    states, units = found.states, found.units
    if own.get("json"):
        write_json(
            {
                "out": str(out),
                "counts": counts(states),
                "cells": [{**s.to_dict(), "cell": s.cell.name} for s in states],
                "units": [{"name": u.name, "cells": [c.name for c in u.cells]} for u in units],
                "notes": list(found.notes),
            }
        )
        return 0
    for state in states:
        write(f"{state.status:8}{state.cell.name}" + (f"  {state.reason}" if state.reason else ""))
    write("\n".join(_summary(grid, found)))
    return 0


def _summary(grid: "Grid", found: "Plan") -> list[str]:
    from ...benchmark import counts

    states = found.states
    passes = [u for u in found.units if u.together]
    alone = len(found.units) - len(passes)
    several = sum(len(u.cells) for u in passes)
    so_far = ", ".join(f"{n} {what}" for what, n in counts(states).items())
    sets = ", ".join(f"{d.name} ({len(d.splits)} splits)" for d in grid.data)
    return [
        *(f"note: {n}" for n in found.notes),
        f"{len(states)} cells: {len(grid.methods)} methods × {sets} × {len(grid.seeds)} seeds",
        f"{several} cells train in {len(passes)} passes, {alone} alone",
        so_far,
    ]


def _run(grid: "Grid", out: Path, own: dict[str, Any]) -> int:
    from ...benchmark import counts, run_grid
    from ..terminal import grid_bar

    with grid_bar() as bar:
        states = run_grid(
            grid,
            out,
            engine=own.get("engine", "local"),
            workers=_workers(own),
            retry=not own.get("no_retry"),
            watch=bar,
        )
    failed = [s for s in states if s.status != "done"]
    if own.get("timing"):
        from ...benchmark import write_timing
        from ..terminal import ERR

        ERR.print("timing the training steps")
        write_timing(grid.cells(out), out)
    made = _report(out, own) if len(failed) < len(states) else _NOTHING
    if own.get("json"):
        write_json(
            {
                "out": str(out),
                "counts": counts(states),
                "failed": [{"cell": s.cell.name, "reason": s.reason} for s in failed],
                **made,
            }
        )
        return 1 if failed else 0
    for state in failed[:SHOWN]:
        write(f"{state.status}: {state.cell.name}: {state.reason}")
    if len(failed) > SHOWN:
        write(f"… and {len(failed) - SHOWN} more: {out / 'cells.csv'}")
    found = counts(states)
    others = "".join(f", {n} {what}" for what, n in found.items() if n and what != "done")
    write(f"{found['done']} of {len(states)} cells are done{others}")
    _say(made)
    return 1 if failed else 0


def _tables(out: Path, own: dict[str, Any]) -> int:
    if not (out / "cells").is_dir():
        raise InputError(f"{out} is no experiment's folder: it has no cells. Give --out")
    made = _report(out, own)
    if own.get("json"):
        write_json({"out": str(out), **made})
    else:
        _say(made)
    return 0


_NOTHING: dict[str, Any] = {"files": [], "missing": [], "odd": []}


def _report(out: Path, own: dict[str, Any]) -> dict[str, Any]:
    """Tables and figures: the files, what there is none of, and folds that stand out."""
    from ...benchmark import write_report
    from ..terminal import ERR

    bags = own["bags"].split(",") if "bags" in own else None
    made = write_report(out, bags=bags, told=lambda part: ERR.print(f"making {part}", markup=False))
    missing = [{"figure": figure, "reason": reason} for figure, reason in made.missing]
    return {"files": [str(f) for f in made.files], "missing": missing, "odd": list(made.odd)}


def _say(made: dict[str, Any]) -> None:
    for file in made["files"]:
        write(file)
    for one in made["missing"]:
        write(f"not made: {one['figure']}: {one['reason']}")
    for one in made["odd"]:
        write(f"odd: {one}")
