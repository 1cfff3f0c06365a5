"""probsa benchmark."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ...errors import InputError, UnknownName
from ..command import Answer, Flag, write
from ..flags import Count, Dir, Shard
from ._keys import RunKeys

if TYPE_CHECKING:
    from ...maps import Sources

KEYS = RunKeys(
    usage="probsa benchmark GRID.yaml [--data DIR ...] [--out DIR] [--KEY VALUE ...]",
    without={"kl_weight", "test_fold", "split", "seed", "data_seed", "workers"},
)
SHOWN = 20
"""Number of failed cells that are listed for people."""
Names = Annotated[str, Flag("NAME,NAME")]
Folders = Annotated[list[str], Flag("DIR", repeated=True)]


def run(
    grid: Annotated[Path, Flag("GRID.yaml")] | None = None,
    *,
    data: Folders | None = None,
    out: Dir | None = None,
    engine: Literal["local", "slurm"] = "local",
    workers: Count = 1,
    shard: Shard = "0/1",
    no_retry: bool = False,
    dry_run: bool = False,
    tables_only: bool = False,
    bags: Names | None = None,
    methods: Names | None = None,
    slides: Folders | None = None,
    **keys: str,
) -> Answer:
    """Train and evaluate a grid of runs, and write tables and figures.

    The cells of the grid are all combinations of models, data sets, splits, seeds and λ. An
    interrupted benchmark continues where it stopped, and failed cells are tried again.

    The keys of the grid and all keys of `probsa train` may be given in the file or as flags;
    flags take precedence. The file may also contain

      data: {features: DIR, labels: FILE}, or {dataset: camelyon16, root: DIR}, or several of
            these by name, each with keys of runs that apply to it
      exceptions: a list of {data: NAMES, models: NAMES with *, KEY: VALUE}; of several that
            apply, the last one counts

    Args:
        grid: YAML file with the grid, or the name of a recipe: standins, …
        data: Data set to run on instead of those in the file: a folder with features/ and
            labels.csv, a folder of such folders, a folder that probsa dataset wrote, or RSNA,
            PANDA or CAMELYON16 as published. NAME=DIR names it. May be repeated.
        out: Output folder. Default: the name of the grid.
        engine: Where cells are trained.
        workers: Number of processes or Slurm jobs that run at the same time.
        shard: Run only part I of N of the cells, counted from 0, so that N machines can share the
            work. Default: 0/1.
        no_retry: Do not try failed cells again.
        dry_run: List the cells and which are done, and exit.
        tables_only: Write tables and figures of the finished cells in --out without running any.
        bags: Test bags whose attention maps are shown side by side. Default: chosen by a rule.
        methods: Methods whose attention maps are shown side by side, in this order. Default: the
            variants of ProbSA, their baseline and the best rivals.
        slides: Draw the slide, or slices of the scan, above those maps: the work folder of probsa
            patch, or a folder of slides or series. NAME=DIR is for one data set. May be repeated.

    Keys of the grid:
        models: Models: names, or all, local or global. In the file, also mappings {name, label,
            training: {KEY: VALUE}, <arguments of the model>}.
        kl_weight: Weight λ of models with a KL term; several are compared. 0 gives the plain
            baseline. Default: cyclical.
        seeds: Number of seeds, counted from 0, or a list of seeds. Default: 1.
        splits: Number of splits to make if the labels have no folds, or a list of the splits to
            run. Default: 5.
        data_seed: Seed of the order of the bags, so that all seeds get the same batches; null: the
            seed of each run. Default: 0.
        keep: Checkpoints to keep of a finished cell: best, all or none. Default: best.
        f1_at_half: Whether the tables of several data sets, ranks and figures have F1 at a
            probability of 0.5, as the paper, instead of F1 at the threshold that each run chose.
            The tables of each data set have both. Default: false.
        leaks: refuse or note: what to do if a patient, a bag or its copy is in two parts. Default:
            refuse.
        slurm.KEY: Setting of the Slurm jobs: partition, timeout_min, mem_gb, cpus_per_task,
            gpus_per_node, …
    """
    shown_bags = bags and bags.split(",")
    shown_methods = methods and methods.split(",")

    def tables(out: Path) -> Answer:
        """Write tables and figures of the finished cells."""
        if not (out / "cells").is_dir():
            raise InputError(
                f"{out} is not the folder of a benchmark: it has no folder cells. Give --out"
            )
        from ...benchmark import write_report

        names = [folder.name for folder in sorted((out / "cells").iterdir()) if folder.is_dir()]
        report = write_report(
            out,
            bags=shown_bags,
            methods=shown_methods,
            sources=_sources(slides or (), names),
            told=lambda part: write(f"making {part}", error=True),
        )
        files = [str(file) for file in report.files]
        lines = list(files)
        missing: list[dict[str, str]] = []
        for figure, reason in report.missing:
            lines.append(f"not made: {figure}: {reason}")
            missing.append({"figure": figure, "reason": reason})
        document = {"out": str(out), "files": files, "missing": missing}
        return Answer(document, "\n".join(lines))

    if tables_only and out is not None:
        return tables(out)
    if grid is None:
        raise InputError("probsa benchmark needs a grid first: probsa benchmark GRID.yaml")
    from ...benchmark import given_grid, grid_name
    from ...jobs import Share
    from ...training import find_recipe

    share = Share.parse(shard)

    grid = find_recipe(grid)
    if not tables_only:
        given_grid(grid, keys, data=data or [])
    from ...benchmark import count_states, plan, read_grid, run_grid
    from ..grid_bar import GridBar

    if tables_only:
        return tables(Path(grid_name(grid)))
    experiment = read_grid(grid, data=data or [], overrides=keys, out=out)
    # refused now, not after hours of training
    method_names = [name for m in experiment.methods for name in (m.name, m.label, m.slug)]
    test_bags = [bag for d in experiment.data for bag in d.test_bags]
    _check_names("method (of --methods)", shown_methods, method_names)
    _check_names("test bag (of --bags)", shown_bags, test_bags)
    _sources(slides or (), [d.name for d in experiment.data])
    out = out or Path(experiment.name)
    if dry_run:
        planned = plan(experiment, out)
        states = planned.states
        counts = count_states(planned.states)
        sets = ", ".join(f"{d.name} ({len(d.splits)} splits)" for d in experiment.data)
        lines: list[str] = []
        cells: list[dict[str, Any]] = []
        for s in states:
            reason = f"  {s.reason}" if s.reason else ""
            lines.append(f"{s.status:8}{s.cell.name}{reason}")
            cells.append({**s.to_dict(), "cell": s.cell.name})
        lines += [f"note: {note}" for note in planned.notes]
        lines.append(
            f"{len(states)} cells: {len(experiment.methods)} methods × {sets} × "
            f"{len(experiment.seeds)} seeds"
        )
        lines.append(", ".join(f"{n} {status}" for status, n in counts.items()))
        document = {"out": str(out), "counts": counts, "cells": cells, "notes": list(planned.notes)}
        return Answer(document, "\n".join(lines))
    with GridBar("cells") as bar:
        states = run_grid(
            experiment,
            out,
            engine=engine,
            workers=workers,
            share=share,
            retry=not no_retry,
            watch=bar,
        )
    counts = count_states(states)
    failed = [s for s in states if s.status != "done"]
    lines = [f"{s.status}: {s.cell.name}: {s.reason}" for s in failed[:SHOWN]]
    if len(failed) > SHOWN:
        lines.append(f"… and {len(failed) - SHOWN} more: {out / 'cells.csv'}")
    others = "".join(f", {n} {s}" for s, n in counts.items() if n and s != "done")
    lines.append(f"{counts['done']} of {len(states)} cells are done{others}")
    report = Answer({"out": str(out), "files": [], "missing": []}, "")
    if len(failed) < len(states):
        report = tables(out)
    document = {
        "counts": counts,
        "failed": [{"cell": s.cell.name, "reason": s.reason} for s in failed],
        **report.document,
    }
    return Answer(document, "\n".join([*lines, str(report.text)]), status=int(bool(failed)))


def _check_names(kind: str, names: Sequence[str] | None, known: Sequence[str]) -> None:
    for name in names or ():
        if name not in known:
            raise UnknownName(kind, name, known)


def _sources(slides: Sequence[str], data: Sequence[str]) -> dict[str, "Sources"]:
    """Return the slides of --slides by data set."""
    from ...maps import CohortSources

    sources: dict[str, Sources] = {}
    for argument in slides:
        name, _, folder = argument.rpartition("=")
        names = [name] if name else data
        _check_names("data set (of --slides)", names, data)
        for data_name in names:
            sources[data_name] = CohortSources(Path(folder))
    return sources
