"""Read the run folders of an experiment into the form that tables need."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ...errors import InputError, ProbSAError
from ...evaluation import Prediction, read_predictions
from ..grid.methods_and_cells import Method
from .method_order import position
from .run_folders import CELL, Run, Runs, Tested, Truth, read_object, read_tested
from .run_folders import read_cells as read_cells
from .scores import RunPart, Scores


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """The scores that tables are made of, and what was left out of them."""

    scores: tuple[Scores, ...]
    """Of every data set, by data set and then in the paper's order."""
    unfinished: tuple[Path, ...]
    incomplete: tuple[str, ...]
    """Replicates that lack a fold, in words."""
    skipped: tuple[tuple[Path, str], ...]

    @property
    def two_classes(self) -> list[Scores]:
        """The scores of data sets of two classes, whose instances are evaluated too."""
        return [s for s in self.scores if s.task.two_classes]

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


def read_results(out: Path) -> Results:
    """Return the scores and what was left out.

    Raises:
        InputError: There is no finished run or no whole replicate below `out`.
    """
    runs = read_cells(out)
    scores: list[Scores] = []
    incomplete: list[str] = []
    skipped = list(runs.skipped)
    for data in sorted({run.data for run in runs.done}):
        data_set = _DataSet.read([run for run in runs.done if run.data == data])
        skipped += data_set.skipped
        for key in sorted({_key(t.run) for t in data_set.tested}):
            complete, missing = data_set.scores(key)
            scores += [] if complete is None else [complete]
            incomplete += missing
    if not scores:
        raise InputError(_no_results(out, runs, incomplete=incomplete, skipped=skipped))
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
    for runs in scores.runs:
        yield {int(read_object(path / CELL)["split"]): _part(path, "val") for path in runs}


def _part(path: Path, part: Literal["val", "test"]) -> list[Prediction]:
    table = read_predictions(path / "predictions")
    rows = zip(table.bags, table.parts, strict=True)
    return [table.instances(bag) for bag, bag_part in rows if bag_part == part]


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
            if t.data.task != tested[0].data.task:
                first = tested[0].data.task
                why = f"its task is {t.data.task}, but that of the data set's first run {first}"
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

    def scores(self, key: Key) -> tuple[Scores | None, list[str]]:
        """Return a method's scores, None if no replicate is whole, and the incomplete ones in
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
        return self._scores(whole) if whole else None, missing

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
        groups = first.groups or {}
        place = {bag: i for i, bag in enumerate(self.bags)}

        def part(t: Tested) -> RunPart:
            rows = np.array([place[bag] for bag in t.y])
            return RunPart(split=t.run.split, rows=rows, data=t.data, path=t.run.path)

        return Scores(
            data=first.data,
            method=first.method,
            bags=self.bags,
            groups=np.array([groups.get(b, b) for b in self.bags]),
            replicates=tuple(tuple(map(part, runs)) for runs in replicates),
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
