"""Read the run folders of an experiment into the form that tables need.

A data set has either folds (each bag is tested once, by the run of its fold) or one test part that
the runs of all splits predict. Each method then has several `replicates` of scores for every test
bag: one per seed with folds (pooled over folds), one per split and seed with a fixed test part.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from ...errors import InputError, ProbSAError
from ...evaluation import Prediction, read_predictions
from ..grid.methods_and_cells import Method
from .method_order import position
from .run_folders import CELL, Run, Runs, Tested, Truth, read_object, read_tested
from .run_folders import read_cells as read_cells
from .target_scores import RunPart, TargetScores


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """The scores of one method on a data set of two classes: a row each replicate, a column each
    test bag."""

    data: str
    method: Method
    bags: tuple[str, ...]
    y: Int[np.ndarray, " bags"]
    groups: Shaped[np.ndarray, " bags"]
    """Patients, the units that intervals resample."""
    p: Float[np.ndarray, "replicates bags"]
    """p(Y = 1)."""
    calls: Bool[np.ndarray, "replicates bags"]
    """Whether p reaches the threshold that its run chose on its validation part."""
    split: Int[np.ndarray, "replicates bags"]
    """Split of the run that gave each score."""
    seed: Int[np.ndarray, " replicates"]
    runs: tuple[Path, ...] = field(default=())
    """The run folders, replicate after replicate, each by split."""
    folds: bool = False
    """Whether each bag is tested by the run of its own fold."""

    def take(self, rows: Sequence[int]) -> "Scores":
        """Return some of the replicates, in this order."""
        each = len(self.runs) // len(self.p)
        return replace(
            self,
            p=self.p[rows],
            calls=self.calls[rows],
            split=self.split[rows],
            seed=self.seed[rows],
            runs=tuple(path for r in rows for path in self.runs[r * each : (r + 1) * each]),
        )


AnyScores = Scores | TargetScores


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """The scores that tables are made of, and what was left out of them."""

    all: tuple[AnyScores, ...]
    """Of every data set, by data set and then in the paper's order."""
    scores: tuple[Scores, ...]
    """Of data sets of two classes."""
    targets: tuple[TargetScores, ...]
    """Of data sets of other tasks."""
    unfinished: tuple[Path, ...]
    incomplete: tuple[str, ...]
    """Replicates that lack a fold, in words."""
    skipped: tuple[tuple[Path, str], ...]

    def left_out(self) -> tuple[str, ...]:
        """Return one sentence for everything that was left out."""
        sentences = []
        if self.unfinished:
            n = len(self.unfinished)
            sentences.append(f"{n} run{'' if n == 1 else 's'} not finished and left out.")
        sentences += [f"Incomplete, left out: {replicate}." for replicate in self.incomplete]
        sentences += [
            f"Damaged, left out: {path.parent.name}/{path.name}: {why}."
            for path, why in self.skipped
        ]
        return tuple(sentences)


def read_scores(out: Path) -> list[Scores]:
    """Return the scores of every method and data set of two classes, from the run folders.

    Only whole replicates count: with folds, a seed that lacks a fold is left out.

    Raises:
        InputError: There is no finished run or no whole replicate below `out`.
    """
    return list(read_results(out).scores)


def read_results(out: Path) -> Results:
    """Return the scores and what was left out.

    Raises:
        InputError: There is no finished run or no whole replicate below `out`.
    """
    runs = read_cells(out)
    scores: list[AnyScores] = []
    incomplete: list[str] = []
    skipped = list(runs.skipped)
    for data in sorted({run.data for run in runs.done}):
        data_set = _DataSet.read([run for run in runs.done if run.data == data])
        skipped += data_set.skipped
        for key in sorted({_key(t.run) for t in data_set.tested}):
            complete, missing = data_set.scores(key)
            scores += complete
            incomplete += missing
    if not scores:
        raise InputError(_no_results(out, runs, incomplete=incomplete, skipped=skipped))
    return Results(
        all=tuple(scores),
        scores=tuple(s for s in scores if isinstance(s, Scores)),
        targets=tuple(s for s in scores if isinstance(s, TargetScores)),
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
    for runs in replicates_of(scores):
        predictions = [p for path in runs for p in _part(path, "test")]
        yield sorted(predictions, key=lambda p: place[p.name])


def validation_of(scores: Scores) -> Iterator[dict[int, list[Prediction]]]:
    """Yield the predictions of each replicate's validation bags, by the run's split.

    Raises:
        BagError: A bag's file is missing or damaged.
    """
    for runs in replicates_of(scores):
        yield {int(read_object(path / CELL)["split"]): _part(path, "val") for path in runs}


def _part(path: Path, part: Literal["val", "test"]) -> list[Prediction]:
    table = read_predictions(path / "predictions")
    rows = zip(table.bags, table.parts, strict=True)
    return [table.instances(bag) for bag, bag_part in rows if bag_part == part]


def replicates_of(scores: Scores) -> list[tuple[Path, ...]]:
    """Return the run folders of each replicate: one per fold, or a single one."""
    runs_per_replicate = len(scores.runs) // len(scores.p)
    return [
        scores.runs[i : i + runs_per_replicate]
        for i in range(0, len(scores.runs), runs_per_replicate)
    ]


Key = tuple[tuple[float, str, int, float], str, str]


def _key(run: Run) -> Key:
    """Return a method's sort key, in the order of the paper's tables."""
    return position(run.method), run.method.name, run.method.slug


@dataclass(frozen=True, kw_only=True, slots=True)
class _DataSet:
    """The runs of one data set that agree about its bags and labels."""

    tested: tuple[Tested, ...]
    bags: tuple[str, ...]
    """Every test bag, by name."""
    splits: tuple[int, ...]
    skipped: tuple[tuple[Path, str], ...]

    @classmethod
    def read(cls, runs: Sequence[Run]) -> "_DataSet":
        tested: list[Tested] = []
        skipped: list[tuple[Path, str]] = []
        for run in runs:
            try:
                tested.append(read_tested(run))
            except ProbSAError as error:
                skipped.append((run.path, str(error)))
        most_common = Counter(_test_bags(t) for t in tested).most_common(1)
        bags = most_common[0][0] if most_common else ()
        labels: dict[str, Truth] = {}
        arguments: dict[Key, Method] = {}
        consistent: list[Tested] = []
        for t in tested:
            if _test_bags(t) != bags:
                skipped.append(
                    (t.run.path, "its bags differ from those of the data set's other runs")
                )
                continue
            relabelled = [b for b, y in t.y.items() if labels.setdefault(b, y) != y]
            same = arguments.setdefault(_key(t.run), t.run.method) == t.run.method
            if t.task != tested[0].task:
                why = f"its task is {t.task}, but that of the data set's first run {tested[0].task}"
                skipped.append((t.run.path, why))
            elif relabelled:
                why = f"bag {relabelled[0]!r} is labelled differently in the data set's other runs"
                skipped.append((t.run.path, why))
            elif not same:
                skipped.append((t.run.path, "its model or arguments differ from its neighbours'"))
            else:
                consistent.append(t)
        splits = tuple(sorted({run.split for run in runs}))
        return cls(tested=tuple(consistent), bags=bags, splits=splits, skipped=tuple(skipped))

    def scores(self, key: Key) -> tuple[list[AnyScores], list[str]]:
        """Return a method's scores if a replicate is whole, and the incomplete replicates in
        words."""
        tested = sorted(
            (t for t in self.tested if _key(t.run) == key), key=lambda t: (t.run.seed, t.run.split)
        )
        replicates: dict[tuple[int, int], list[Tested]] = {}
        for t in tested:
            # with a fixed test part every run is a replicate
            replicates.setdefault((-1 if t.run.folds else t.run.split, t.run.seed), []).append(t)
        whole, missing = [], []
        for k in sorted(replicates):
            if self._is_whole(replicates[k]):
                whole.append(replicates[k])
            else:
                missing.append(self._incomplete(replicates[k]))
        if not whole:
            return [], missing
        of_targets = whole[0][0].target is not None
        return [self._targets(whole) if of_targets else self._scores(whole)], missing

    def _is_whole(self, runs: Sequence[Tested]) -> bool:
        return sorted(bag for t in runs for bag in t.y) == list(self.bags)

    def _incomplete(self, runs: Sequence[Tested]) -> str:
        first = runs[0].run
        present = {t.run.split for t in runs}
        absent = [str(k) for k in self.splits if k not in present]
        bags = len(set(self.bags) - {bag for t in runs for bag in t.y})
        problem = f"{bags} bags are tested by no run" if bags else "bags are tested twice"
        splits = f" (split {', '.join(absent)})" if absent else ""
        return f"{first.method.name} on {first.data}, seed {first.seed}: {problem}{splits}"

    def _scores(self, replicates: Sequence[Sequence[Tested]]) -> Scores:
        first = replicates[0][0].run
        rows = [{bag: t for t in runs for bag in t.y} for runs in replicates]
        groups = first.groups or {}
        p = np.array([[row[b].p[b] for b in self.bags] for row in rows])
        limit = np.array([[row[b].threshold for b in self.bags] for row in rows])
        return Scores(
            data=first.data,
            method=first.method,
            bags=self.bags,
            y=np.array([rows[0][b].y[b] for b in self.bags]),
            groups=np.array([groups.get(b, b) for b in self.bags]),
            p=p,
            calls=p >= limit,
            split=np.array([[row[b].run.split for b in self.bags] for row in rows]),
            seed=np.array([runs[0].run.seed for runs in replicates]),
            runs=tuple(t.run.path for runs in replicates for t in runs),
            folds=first.folds,
        )

    def _targets(self, replicates: Sequence[Sequence[Tested]]) -> TargetScores:
        first, groups = replicates[0][0].run, replicates[0][0].run.groups or {}
        place = {bag: i for i, bag in enumerate(self.bags)}
        parts = tuple(
            tuple(
                RunPart(
                    split=t.run.split,
                    rows=np.array([place[bag] for bag in t.y]),
                    data=t.target,
                    path=t.run.path,
                )
                for t in runs
                if t.target is not None
            )
            for runs in replicates
        )
        return TargetScores(
            data=first.data,
            method=first.method,
            bags=self.bags,
            groups=np.array([groups.get(b, b) for b in self.bags]),
            replicates=parts,
            seed=np.array([runs[0].run.seed for runs in replicates]),
            folds=first.folds,
        )


def _test_bags(t: Tested) -> tuple[str, ...]:
    """Return the bags that a whole replicate tests; with folds, these are all bags."""
    return tuple(sorted(t.all)) if t.run.folds else t.bags


def _no_results(
    out: Path, runs: Runs, *, incomplete: Sequence[str], skipped: Sequence[tuple[Path, str]]
) -> str:
    counts = f"{len(runs.done)} finished and {len(runs.unfinished)} unfinished runs"
    reason = ""
    if incomplete:
        reason = f"; incomplete: {incomplete[0]}"
    elif skipped:
        reason = f"; damaged: {skipped[0][0]}: {skipped[0][1]}"
    return (
        f"there is nothing to tabulate in {out}: {counts} below {out / 'cells'}{reason}. "
        "`probsa benchmark GRID.yaml --out` runs the grid and resumes where it stopped"
    )
