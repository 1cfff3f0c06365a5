"""Read the run folders of an experiment into the form that tables need."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ...core import counted, group_keys, read_record
from ...errors import InputError, ProbSAError
from ...evaluation import PREDICTIONS_TABLE, Prediction, read_predictions, target_data
from ...tasks import TargetData
from ...training import RunFolder, load_yaml, read_split
from ...variational import KLWeight
from ..grid.methods_and_cells import Method
from .method_order import position
from .scores import RunPart, Scores

CELL = "cell.json"
"""Describes a run within its experiment; it is written last."""
GRID = "grid.yaml"
"""The grid that was run, beside the folder of the cells."""
ADVICE = "remove the folder and run the grid again"


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A finished cell, as its cell.json describes it."""

    data: str
    label: str
    model: str
    arguments: Mapping[str, Any]
    kl_weight: KLWeight | None
    split: int
    seed: int
    folds: bool
    groups: Mapping[str, str] | None
    path: Path = Path()

    @property
    def method(self) -> Method:
        """The method that was run."""
        return Method(
            label=self.label,
            model=self.model,
            arguments=self.arguments,
            kl_weight=self.kl_weight,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Runs:
    """The run folders of an experiment."""

    done: tuple[Run, ...]
    unfinished: tuple[Path, ...]
    """Runs without predictions: waiting, running or failed."""
    skipped: tuple[tuple[Path, str], ...]
    """Damaged runs, with the reason."""


def read_cells(out: Path) -> Runs:
    """Read the cell.json of every run folder below `out`/cells."""
    done: list[Run] = []
    unfinished: list[Path] = []
    skipped: list[tuple[Path, str]] = []
    for path in sorted(p for p in (out / "cells").glob("*/*/split*-seed*") if p.is_dir()):
        files = path / "predictions" / PREDICTIONS_TABLE, path / CELL
        if not all(file.is_file() for file in files):
            unfinished.append(path)
            continue
        try:
            done.append(replace(read_record(Run, path / CELL, advice=ADVICE), path=path))
        except InputError as error:
            skipped.append((path, str(error)))
    return Runs(done=tuple(done), unfinished=tuple(unfinished), skipped=tuple(skipped))


@dataclass(frozen=True, kw_only=True, slots=True)
class Tested:
    """The test part of one run."""

    run: Run
    every: tuple[str, ...]
    """The bags that a whole replicate tests, sorted; with folds, all bags of the split."""
    bags: tuple[str, ...]
    """The bags that this run tests."""
    data: TargetData
    """Their targets and predictions."""


def read_tested(run: Run) -> Tested:
    """Read a run's test part.

    Raises:
        ProbSAError: A file is damaged, or a test bag lacks a prediction or a label.
    """
    table = read_predictions(run.path / "predictions")
    split = read_split(RunFolder(run.path))
    row = {bag: i for i, bag in enumerate(table.bags)}
    missing = [bag for bag in split.test if bag not in row]
    if missing:
        raise InputError(f"{len(missing)} test bags have no prediction ({missing[0]!r} first)")
    if not split.test:
        raise InputError("its split has no test part")
    rows, task = [row[bag] for bag in split.test], table.of_task
    values = table.targets
    if values is None:  # one class or grade per bag
        values = np.array([[np.nan if y is None else y] for y in table.labels], dtype=np.float64)
    y = values[rows]
    known = np.isfinite(y)
    lacking = ~(known.any(1) if task.has_findings else known.all(1))
    if task.two_classes:
        lacking |= ~np.isin(y[:, 0], (0, 1))
    if lacking.any():
        first = int(lacking.argmax())
        what = "no label" if not known[first].any() else f"the label {y[first, 0]:g}, not 0 or 1"
        raise InputError(f"test bag {split.test[first]!r} has {what}")
    data = target_data(table, rows, y)
    if task.two_classes:
        stored = RunFolder(run.path).thresholds()
        if stored is None:
            raise InputError("threshold.json is missing: run the grid again")
        # without a validation part calls are at 0.5, as in the predictions
        threshold = 0.5 if stored.threshold is None else float(stored.threshold)
        data = replace(data, threshold=threshold)
    every = (*split.train, *split.val, *split.test) if run.folds else split.test
    return Tested(run=run, every=tuple(sorted(set(every))), bags=split.test, data=data)


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """The scores that tables are made of, and what was left out of them."""

    scores: tuple[Scores, ...]
    """Of every data set, by data set and then in the paper's order."""
    unfinished: tuple[Path, ...] = ()
    incomplete: tuple[str, ...] = ()
    """Replicates that lack a fold, in words."""
    skipped: tuple[tuple[Path, str], ...] = ()

    @property
    def two_classes(self) -> list[Scores]:
        """The scores of data sets of two classes, whose instances are evaluated too."""
        return [s for s in self.scores if s.task.two_classes]

    def left_out(self) -> tuple[str, ...]:
        """Return one sentence for everything that was left out."""
        unfinished = counted(len(self.unfinished), "run")
        return (
            *([f"{unfinished} not finished and left out."] if self.unfinished else []),
            *(f"Incomplete, left out: {replicate}." for replicate in self.incomplete),
            *(
                f"Damaged, left out: {path.parent.name}/{path.name}: {why}."
                for path, why in self.skipped
            ),
        )


def read_results(out: Path) -> Results:
    """Return the scores and what was left out.

    Raises:
        InputError: There is no finished run or no whole replicate below `out`.
    """
    runs = read_cells(out)
    f1_at_half = _states_f1_at_half(out / GRID)
    scores: list[Scores] = []
    incomplete: list[str] = []
    skipped = list(runs.skipped)
    for data in sorted({run.data for run in runs.done}):
        of_data = [run for run in runs.done if run.data == data]
        tested, inconsistent = _consistent(of_data)
        skipped += inconsistent
        splits = sorted({run.split for run in of_data})
        for key in sorted({_key(t.run) for t in tested}):
            whole: list[list[Tested]] = []
            for runs_of in _replicates([t for t in tested if _key(t.run) == key]):
                problem = _problem(runs_of, splits)
                incomplete += [problem] if problem else []
                whole += [] if problem else [runs_of]
            scores += [_scores(whole, f1_at_half=f1_at_half)] if whole else []
    if not scores:
        reason = f"; incomplete: {incomplete[0]}" if incomplete else ""
        if skipped and not incomplete:
            reason = f"; damaged: {skipped[0][0]}: {skipped[0][1]}"
        raise InputError(
            f"there is nothing to tabulate in {out}: {len(runs.done)} finished and "
            f"{len(runs.unfinished)} unfinished runs below {out / 'cells'}{reason}. "
            "`probsa benchmark GRID.yaml --out` runs the grid and resumes where it stopped"
        )
    return Results(
        scores=tuple(scores),
        unfinished=runs.unfinished,
        incomplete=tuple(incomplete),
        skipped=tuple(skipped),
    )


def instances_of(scores: Scores) -> Iterator[list[Prediction]]:
    """Yield the predictions of each replicate's test bags, in the order of `scores.bags`.

    Raises:
        BagError: A bag's file is missing or damaged.
    """
    place = {bag: i for i, bag in enumerate(scores.bags)}
    for runs in scores.runs:
        predictions = [p for path in runs for p in _part(path, "test")]
        yield sorted(predictions, key=lambda p: place[p.name])


def validation_of(scores: Scores) -> Iterator[dict[int, list[Prediction]]]:
    """Yield the predictions of each replicate's validation bags, by the run's split.

    Raises:
        BagError: A bag's file is missing or damaged.
    """
    for parts in scores.replicates:
        yield {part.split: _part(part.path, "val") for part in parts}


def _part(path: Path, part: Literal["val", "test"]) -> list[Prediction]:
    table = read_predictions(path / "predictions")
    rows = zip(table.bags, table.parts, strict=True)
    return [table.instances(bag) for bag, bag_part in rows if bag_part == part]


Key = tuple[tuple[float, str, int, float], str, str]


def _key(run: Run) -> Key:
    """Return a method's sort key, in the order of the paper's tables."""
    return position(run.method), run.method.name, run.method.slug


def _consistent(runs: Sequence[Run]) -> tuple[list[Tested], list[tuple[Path, str]]]:
    """Return the runs of a data set that agree about its bags and labels, and why others do not."""
    tested: list[Tested] = []
    skipped: list[tuple[Path, str]] = []
    for run in runs:
        try:
            tested.append(read_tested(run))
        except ProbSAError as error:
            skipped.append((run.path, str(error)))
    most_common = Counter(t.every for t in tested).most_common(1)
    labels: dict[str, str] = {}
    methods: dict[Key, Method] = {}
    consistent: list[Tested] = []
    for t in tested:
        if t.every != most_common[0][0]:
            why = "its bags differ from those of the data set's other runs"
            skipped.append((t.run.path, why))
            continue
        # as text, where unknown targets are equal
        targets = dict(zip(t.bags, map(str, t.data.y.tolist()), strict=True))
        relabelled = [b for b, y in targets.items() if labels.setdefault(b, y) != y]
        first, task = tested[0].data.task, t.data.task
        if task != first:
            why = f"its task is {task}, but that of the data set's first run {first}"
        elif relabelled:
            why = f"bag {relabelled[0]!r} is labelled differently in the data set's other runs"
        elif methods.setdefault(_key(t.run), t.run.method) != t.run.method:
            why = "its model or arguments differ from its neighbours'"
        else:
            consistent.append(t)
            continue
        skipped.append((t.run.path, why))
    return consistent, skipped


def _replicates(tested: Sequence[Tested]) -> list[list[Tested]]:
    """Return a method's runs by replicate: with a fixed test part every run is one."""
    replicates: dict[tuple[int, int], list[Tested]] = {}
    for t in sorted(tested, key=lambda t: (t.run.seed, t.run.split)):
        replicates.setdefault((-1 if t.run.folds else t.run.split, t.run.seed), []).append(t)
    return [replicates[k] for k in sorted(replicates)]


def _problem(runs: Sequence[Tested], splits: Sequence[int]) -> str | None:
    """Return why the runs do not test every bag once."""
    first, found = runs[0].run, [bag for t in runs for bag in t.bags]
    if sorted(found) == list(runs[0].every):
        return None
    absent = [str(k) for k in splits if k not in {t.run.split for t in runs}]
    bags = len(set(runs[0].every) - set(found))
    problem = f"{bags} bags are tested by no run" if bags else "bags are tested twice"
    missing = f" (split {', '.join(absent)})" if absent else ""
    return f"{first.method.name} on {first.data}, seed {first.seed}: {problem}{missing}"


def _states_f1_at_half(grid: Path) -> bool:
    """Return whether the grid of an experiment has F1 at 0.5; run folders alone do not say so."""
    if not grid.is_file():
        return False
    return bool(load_yaml(grid, what="grid", least="models").get("f1_at_half", False))


def _scores(replicates: Sequence[Sequence[Tested]], *, f1_at_half: bool) -> Scores:
    first, bags = replicates[0][0].run, replicates[0][0].every
    groups = first.groups or {}
    place = {bag: i for i, bag in enumerate(bags)}

    def part(t: Tested) -> RunPart:
        rows = np.array([place[bag] for bag in t.bags])
        return RunPart(split=t.run.split, rows=rows, data=t.data, path=t.run.path)

    return Scores(
        data=first.data,
        method=first.method,
        bags=bags,
        groups=np.array(group_keys(bags, groups)),
        replicates=tuple(tuple(map(part, runs)) for runs in replicates),
        seed=np.array([runs[0].run.seed for runs in replicates]),
        folds=first.folds,
        f1_at_half=f1_at_half,
    )
