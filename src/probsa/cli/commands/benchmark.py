"""probsa benchmark: train and evaluate a grid of runs, with tables and figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from ...errors import InputError, UnknownName
from ._cohort import worker_count
from ._run_flags import add_run_flags, parse_with_run_flags
from ._shared import add_json_flag, command_parser, write, write_json

if TYPE_CHECKING:
    from ...benchmark import Grid, Plan
    from ...maps import Sources

DESCRIPTION = """\
Train and evaluate a grid of runs, and write tables and figures.

The cells of the grid are all combinations of models, data sets, splits, seeds and λ. An
interrupted benchmark continues where it stopped, and failed cells are tried again.

The keys of the grid and all keys of `probsa train` may be given in the file or as flags;
flags take precedence. The file may also contain

  data: {features: DIR, labels: FILE}, or {dataset: camelyon16, root: DIR}, or several of
        these by name, each with keys of runs that apply to it
  exceptions: a list of {data: NAMES, models: NAMES with *, KEY: VALUE}; of several that
        apply, the last one counts"""

GRID_KEYS = {
    "models": "Models: names, or all, local or global. In the file, also mappings {name, "
    "label, training: {KEY: VALUE}, <arguments of the model>}.",
    "kl_weight": "Weight λ of models with a KL term; several are compared. 0 gives the plain "
    "baseline. Default: cyclical.",
    "seeds": "Number of seeds, counted from 0, or a list of seeds. Default: 1.",
    "splits": "Number of splits to make if the labels have no folds, or a list of the splits to "
    "run. Default: 5.",
    "data_seed": "Seed of the order of the bags, so that all seeds get the same batches; null: "
    "the seed of each run. Default: 0.",
    "keep": "Checkpoints to keep of a finished cell: best, all or none. Default: best.",
    "left_out_bags": "Number of positive test bags per run on which the faithfulness of models "
    "without a closed form is measured, by leaving out their instances (bags of at most 100 "
    "instances). Default: 0.",
    "leaks": "refuse or note: what to do if a patient, a bag or its copy is in two parts. "
    "Default: refuse.",
}
"""Keys of a grid that are flags too, with their help texts."""
NOT_OF_RUNS = {"kl_weight", "test_fold", "split", "seed", "data_seed", "workers"}
"""Keys of runs that the grid determines, or that are another flag of this command."""
SHOWN = 20
"""Number of failed cells that are listed for people."""


def own_parser() -> ArgumentParser:
    """Return the parser of the arguments that are not keys of the grid or of a run."""
    parser = command_parser("benchmark", DESCRIPTION)
    add = parser.add_argument
    add(
        "grid", type=Path, nargs="?", metavar="GRID.yaml",
        help="YAML file with the grid, or the name of a recipe: standins, …",
    )  # fmt: skip
    add(
        "--data", action="append", metavar="DIR",
        help="Data set to run on instead of those in the file: a folder with features/ and "
        "labels.csv, a folder of such folders, a folder that probsa dataset wrote, or RSNA, PANDA "
        "or CAMELYON16 as published. NAME=DIR names it. May be repeated.",
    )  # fmt: skip
    add("--out", type=Path, metavar="DIR", help="Output folder. Default: the name of the grid.")
    add(
        "--engine", choices=("local", "ray", "slurm"), default="local",
        help="Where cells are trained. Default: local.",
    )  # fmt: skip
    add(
        "--workers", type=int, metavar="N",
        help="Number of processes, Ray actors or Slurm jobs that run at the same time. Default: 1.",
    )  # fmt: skip
    add("--no-retry", action="store_true", help="Do not try failed cells again.")
    add(
        "--dry-run", action="store_true",
        help="List the cells and which are done, and exit.",
    )  # fmt: skip
    add(
        "--tables-only", action="store_true",
        help="Write tables and figures of the finished cells in --out without running any.",
    )  # fmt: skip
    add(
        "--bags", metavar="NAME,NAME",
        help="Test bags whose attention maps are shown side by side. Default: chosen by a rule.",
    )  # fmt: skip
    add(
        "--methods", metavar="NAME,NAME",
        help="Methods whose attention maps are shown side by side, in this order. Default: the "
        "variants of ProbSA, their baseline and the best rivals.",
    )  # fmt: skip
    add(
        "--slides", action="append", metavar="DIR",
        help="Draw the slide, or slices of the scan, above those maps: the work folder of probsa "
        "patch, or a folder of slides or series. NAME=DIR is for one data set. May be repeated.",
    )  # fmt: skip
    add_json_flag(parser)
    return parser


def parser() -> ArgumentParser:
    """Return the whole parser, for help and shell completion."""
    whole = own_parser()
    whole.usage = "probsa benchmark GRID.yaml [--data DIR ...] [--out DIR] [--KEY VALUE ...]"
    group = whole.add_argument_group("keys of the grid")
    for key, words in GRID_KEYS.items():
        group.add_argument(f"--{key.replace('_', '-')}", metavar="VALUE", help=words)
    group.add_argument(
        "--slurm.KEY", metavar="VALUE",
        help="Setting of the Slurm jobs: partition, timeout_min, mem_gb, cpus_per_task, "
        "gpus_per_node, …",
    )  # fmt: skip
    add_run_flags(whole, without=NOT_OF_RUNS)
    return whole


def run(arguments: Sequence[str]) -> int:
    """Run `probsa benchmark`."""
    if {"-h", "--help"} & set(arguments):
        write(parser().format_help())
        return 0
    own, overrides = parse_with_run_flags(own_parser(), arguments)
    if own.tables_only and own.out is not None:
        return _tables(own.out, own)
    if own.grid is None:
        raise InputError("probsa benchmark needs a grid first: probsa benchmark GRID.yaml")
    from ...benchmark import grid_name, read_grid
    from ...training import find_recipe

    own.grid = find_recipe(own.grid)
    if own.tables_only:
        return _tables(Path(grid_name(own.grid)), own)
    grid = read_grid(own.grid, data=own.data or [], overrides=overrides, out=own.out)
    known = [name for m in grid.methods for name in (m.name, m.label, m.slug)]
    for name in _listed(own.methods) or []:
        if name not in known:  # refused now, not after hours of training
            raise UnknownName("method (of --methods)", name, known)
    _sources(own, [data.name for data in grid.data])
    out = own.out or Path(grid.name)
    test_bags = [bag for data in grid.data for bag in data.test_bags]
    for bag in _listed(own.bags) or []:
        if bag not in test_bags:  # refused now, not after hours of training
            raise UnknownName("test bag (of --bags)", bag, test_bags)
    return _dry_run(grid, out, own) if own.dry_run else _run(grid, out, own)


def _listed(names: str | None) -> list[str] | None:
    return None if names is None else names.split(",")


def _sources(own: Namespace, data: Sequence[str]) -> dict[str, "Sources"]:
    """Return the slides of --slides by data set."""
    from ...maps import CohortSources

    found: dict[str, Sources] = {}
    for given in own.slides or []:
        name, _, folder = given.rpartition("=")
        if name and name not in data:
            raise UnknownName("data set (of --slides)", name, data)
        opened = CohortSources(Path(folder))
        found |= dict.fromkeys([name] if name else data, opened)
    return found


def _dry_run(grid: "Grid", out: Path, own: Namespace) -> int:
    from ...benchmark import count_states, plan

    planned = plan(grid, out)
    states = planned.states
    if own.json:
        write_json(
            {
                "out": str(out),
                "counts": count_states(states),
                "cells": [{**s.to_dict(), "cell": s.cell.name} for s in states],
                "notes": list(planned.notes),
            }
        )
        return 0
    for state in states:
        write(f"{state.status:8}{state.cell.name}" + (f"  {state.reason}" if state.reason else ""))
    write("\n".join(_summary(grid, planned)))
    return 0


def _summary(grid: "Grid", planned: "Plan") -> list[str]:
    from ...benchmark import count_states

    states = planned.states
    so_far = ", ".join(f"{n} {status}" for status, n in count_states(states).items())
    sets = ", ".join(f"{d.name} ({len(d.splits)} splits)" for d in grid.data)
    return [
        *(f"note: {n}" for n in planned.notes),
        f"{len(states)} cells: {len(grid.methods)} methods × {sets} × {len(grid.seeds)} seeds",
        so_far,
    ]


def _run(grid: "Grid", out: Path, own: Namespace) -> int:
    from ...benchmark import count_states, run_grid
    from ..terminal import grid_bar

    workers = worker_count(own.workers, default=1)
    with grid_bar() as bar:
        states = run_grid(
            grid,
            out,
            engine=own.engine,
            workers=workers,
            retry=not own.no_retry,
            watch=bar,
        )
    failed = [s for s in states if s.status != "done"]
    report = _report(out, own) if len(failed) < len(states) else _NO_REPORT
    if own.json:
        write_json(
            {
                "out": str(out),
                "counts": count_states(states),
                "failed": [{"cell": s.cell.name, "reason": s.reason} for s in failed],
                **report,
            }
        )
        return 1 if failed else 0
    for state in failed[:SHOWN]:
        write(f"{state.status}: {state.cell.name}: {state.reason}")
    if len(failed) > SHOWN:
        write(f"… and {len(failed) - SHOWN} more: {out / 'cells.csv'}")
    by_status = count_states(states)
    others = "".join(f", {n} {s}" for s, n in by_status.items() if n and s != "done")
    write(f"{by_status['done']} of {len(states)} cells are done{others}")
    _write_report(report)
    return 1 if failed else 0


def _tables(out: Path, own: Namespace) -> int:
    if not (out / "cells").is_dir():
        raise InputError(
            f"{out} is not the folder of a benchmark: it has no folder cells. Give --out"
        )
    report = _report(out, own)
    if own.json:
        write_json({"out": str(out), **report})
    else:
        _write_report(report)
    return 0


_NO_REPORT: dict[str, Any] = {"files": [], "missing": []}


def _report(out: Path, own: Namespace) -> dict[str, Any]:
    """Write tables and figures; return their files, and what is missing and why."""
    from ...benchmark import write_report
    from ..terminal import ERR

    data = [folder.name for folder in sorted((out / "cells").iterdir()) if folder.is_dir()]
    written = write_report(
        out,
        bags=_listed(own.bags),
        methods=_listed(own.methods),
        sources=_sources(own, data),
        told=lambda part: ERR.print(f"making {part}", markup=False),
    )
    missing = [{"figure": figure, "reason": reason} for figure, reason in written.missing]
    return {"files": [str(f) for f in written.files], "missing": missing}


def _write_report(report: Mapping[str, Any]) -> None:
    for file in report["files"]:
        write(file)
    for missing in report["missing"]:
        write(f"not made: {missing['figure']}: {missing['reason']}")
