"""Read the run folders of an experiment into the form that tables need."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from ...core import counted, group_keys, read_record
from ...errors import InputError, ProbSAError
from ...evaluation import PREDICTIONS_TABLE, Prediction, read_predictions, target_data
from ...tasks import HALF, TargetData, Task
from ...training import RunFolder, load_yaml, read_split
from ...variational import KLWeight
from ..grid.methods_and_cells import Method
from .method_order import position
from .scores import ALL_FOLDS, RunPart, Scores

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
        predictions = path / "predictions" / PREDICTIONS_TABLE
        if not (predictions.is_file() and (path / CELL).is_file()):
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
    folder = RunFolder(run.path)
    table = read_predictions(folder.predictions)
    split = read_split(folder)
    row_of = {bag: i for i, bag in enumerate(table.bags)}
    missing = [bag for bag in split.test if bag not in row_of]
    if missing:
        raise InputError(f"{len(missing)} test bags have no prediction ({missing[0]!r} first)")
    if not split.test:
        raise InputError("its split has no test part")
    rows = [row_of[bag] for bag in split.test]
    targets = table.targets
    if targets is None:  # one class or grade per bag
        labels = [np.nan if y is None else y for y in table.labels]
        targets = np.array(labels, dtype=np.float64)[:, None]
    y = targets[rows]
    _check_targets(y, split.test, table.of_task)
    data = target_data(table, rows, y)
    if table.of_task.two_classes:
        data = replace(data, threshold=_threshold(folder))
    every = (*split.train, *split.val, *split.test) if run.folds else split.test
    return Tested(run=run, every=tuple(sorted(set(every))), bags=split.test, data=data)


def _check_targets(y: Float[np.ndarray, "bags targets"], bags: Sequence[str], task: Task) -> None:
    """Refuse bags without a label, and labels of two classes other than 0 and 1."""
    is_known = np.isfinite(y)
    # a bag with findings needs one of its targets, any other bag all of them
    unusable = ~(is_known.any(1) if task.has_findings else is_known.all(1))
    if task.two_classes:
        unusable |= ~np.isin(y[:, 0], (0, 1))
    if not unusable.any():
        return
    first = int(unusable.argmax())
    problem = "no label"
    if is_known[first].any():
        problem = f"the label {y[first, 0]:g}, not 0 or 1"
    raise InputError(f"test bag {bags[first]!r} has {problem}")


def _threshold(run: RunFolder) -> float:
    """Return the threshold of a run's calls."""
    thresholds = run.thresholds()
    if thresholds is None:
        raise InputError("threshold.json is missing: run the grid again")
    # without a validation part calls are at 0.5, as in the predictions
    return HALF if thresholds.threshold is None else float(thresholds.threshold)


@dataclass(frozen=True, kw_only=True, slots=True)
class IncompleteReplicate:
    """A replicate whose runs do not test every bag once; its text is a description."""

    data: str
    method: str
    seed: int
    untested: int
    """Number of bags that no run tests; if 0, some bags are tested twice."""
    splits: tuple[int, ...]
    """The splits of the data set without a run."""

    def __str__(self) -> str:
        problem = "bags are tested twice"
        if self.untested:
            problem = f"{self.untested} bags are tested by no run"
        if self.splits:
            problem += f" (split {', '.join(map(str, self.splits))})"
        return f"{self.method} on {self.data}, seed {self.seed}: {problem}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """The scores that tables are made of, and what was left out of them."""

    scores: tuple[Scores, ...]
    """Of every data set, by data set and then in the paper's order."""
    unfinished: tuple[Path, ...] = ()
    incomplete: tuple[IncompleteReplicate, ...] = ()
    """Replicates that lack a fold, or test a bag twice."""
    skipped: tuple[tuple[Path, str], ...] = ()

    @property
    def two_classes(self) -> list[Scores]:
        """The scores of data sets of two classes, whose instances are evaluated too."""
        return [s for s in self.scores if s.task.two_classes]

    def left_out(self) -> tuple[str, ...]:
        """Return one sentence for everything that was left out."""
        sentences: list[str] = []
        if self.unfinished:
            sentences.append(f"{counted(len(self.unfinished), 'run')} not finished and left out.")
        for replicate in self.incomplete:
            sentences.append(f"Incomplete, left out: {replicate}.")
        for path, why in self.skipped:
            sentences.append(f"Damaged, left out: {path.parent.name}/{path.name}: {why}.")
        return tuple(sentences)


def read_results(out: Path) -> Results:
    """Return the scores and what was left out.

    Raises:
        InputError: There is no finished run or no whole replicate below `out`.
    """
    runs = read_cells(out)
    f1_at_half = _states_f1_at_half(out / GRID)
    scores: list[Scores] = []
    incomplete: list[IncompleteReplicate] = []
    skipped = list(runs.skipped)
    for data in sorted({run.data for run in runs.done}):
        data_runs = [run for run in runs.done if run.data == data]
        tested, inconsistent = _consistent(data_runs)
        skipped += inconsistent
        splits = sorted({run.split for run in data_runs})
        for key in sorted({_key(t.run) for t in tested}):
            method_runs = [t for t in tested if _key(t.run) == key]
            whole: list[list[Tested]] = []
            for replicate in _replicates(method_runs):
                problem = _incompleteness(replicate, splits)
                if problem is None:
                    whole.append(replicate)
                else:
                    incomplete.append(problem)
            if whole:
                scores.append(_scores(whole, f1_at_half=f1_at_half))
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
    row_of = {bag: i for i, bag in enumerate(scores.bags)}
    for parts in scores.replicates:
        predictions = [p for part in parts for p in _predictions(part.path, "test")]
        yield sorted(predictions, key=lambda p: row_of[p.name])


def validation_of(scores: Scores) -> Iterator[dict[int, list[Prediction]]]:
    """Yield the predictions of each replicate's validation bags, by the run's split.

    Raises:
        BagError: A bag's file is missing or damaged.
    """
    for parts in scores.replicates:
        yield {part.split: _predictions(part.path, "val") for part in parts}


def _predictions(run: Path, part: Literal["val", "test"]) -> list[Prediction]:
    """Return the predictions of the bags in one part of a run's split."""
    table = read_predictions(run / "predictions")
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
    if not tested:
        return [], skipped
    [(usual_bags, _)] = Counter(t.every for t in tested).most_common(1)
    first_task = tested[0].data.task
    labels: dict[str, str] = {}
    methods: dict[Key, Method] = {}
    consistent: list[Tested] = []
    for t in tested:
        if t.every != usual_bags:
            why = "its bags differ from those of the data set's other runs"
            skipped.append((t.run.path, why))
            continue
        relabelled = _relabelled(t, labels)
        if t.data.task != first_task:
            why = f"its task is {t.data.task}, but that of the data set's first run {first_task}"
        elif relabelled:
            why = f"bag {relabelled[0]!r} is labelled differently in the data set's other runs"
        elif methods.setdefault(_key(t.run), t.run.method) != t.run.method:
            why = "its model or arguments differ from its neighbours'"
        else:
            consistent.append(t)
            continue
        skipped.append((t.run.path, why))
    return consistent, skipped


def _relabelled(tested: Tested, labels: dict[str, str]) -> list[str]:
    """Return the bags whose targets differ from those in `labels`, and add the others to it.

    Targets are compared as text, where unknown ones (nan) are equal.
    """
    bags = []
    for bag, targets in zip(tested.bags, tested.data.y.tolist(), strict=True):
        text = str(targets)
        if labels.setdefault(bag, text) != text:
            bags.append(bag)
    return bags


def _replicates(tested: Sequence[Tested]) -> list[list[Tested]]:
    """Return a method's runs by replicate: with a fixed test part every run is one."""
    replicates: dict[tuple[int, int], list[Tested]] = {}
    for t in sorted(tested, key=lambda t: (t.run.seed, t.run.split)):
        split = ALL_FOLDS if t.run.folds else t.run.split
        replicates.setdefault((split, t.run.seed), []).append(t)
    return [replicates[key] for key in sorted(replicates)]


def _incompleteness(runs: Sequence[Tested], splits: Sequence[int]) -> IncompleteReplicate | None:
    """Return what is wrong with a replicate; None if its runs test every bag once."""
    first = runs[0]
    tested_bags = [bag for t in runs for bag in t.bags]
    if sorted(tested_bags) == list(first.every):
        return None
    run_splits = {t.run.split for t in runs}
    return IncompleteReplicate(
        data=first.run.data,
        method=first.run.method.name,
        seed=first.run.seed,
        untested=len(set(first.every).difference(tested_bags)),
        splits=tuple(split for split in splits if split not in run_splits),
    )


def _states_f1_at_half(grid: Path) -> bool:
    """Return whether the grid of an experiment has F1 at 0.5; run folders alone do not say so."""
    if not grid.is_file():
        return False
    return bool(load_yaml(grid, what="grid", least="models").get("f1_at_half", False))


def _scores(replicates: Sequence[Sequence[Tested]], *, f1_at_half: bool) -> Scores:
    """Return the scores of one method on one data set."""
    first = replicates[0][0].run
    bags = replicates[0][0].every
    row_of = {bag: i for i, bag in enumerate(bags)}

    def part(t: Tested) -> RunPart:
        rows = np.array([row_of[bag] for bag in t.bags])
        return RunPart(split=t.run.split, rows=rows, data=t.data, path=t.run.path)

    return Scores(
        data=first.data,
        method=first.method,
        bags=bags,
        groups=np.array(group_keys(bags, first.groups or {})),
        replicates=tuple(tuple(map(part, runs)) for runs in replicates),
        seed=np.array([runs[0].run.seed for runs in replicates]),
        folds=first.folds,
        f1_at_half=f1_at_half,
    )
