"""What the run folders of an experiment hold, brought into the shape that tables need.

A data set either has folds (every bag is tested once, by the run of its fold) or one test part that
every split's run predicts. Either way a method has so many `replicates` of scores for every test
bag: with folds one a seed (pooled over folds), with a fixed test part one a split and seed.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from ...errors import InputError, ProbSAError
from ...evaluation import Prediction, read_predictions
from ..grid.methods_and_cells import Method
from .paper import position
from .run_folders import CELL, Run, Runs, Tested, read_object, read_tested
from .run_folders import read_cells as read_cells


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """One method on one data set: what each replicate gives every test bag (rows: replicates)."""

    data: str
    method: Method
    bags: tuple[str, ...]
    y: Int[np.ndarray, " bags"]
    groups: Shaped[np.ndarray, " bags"]
    """Patients: what intervals resample."""
    p: Float[np.ndarray, "replicates bags"]
    """p(Y = 1)."""
    calls: Bool[np.ndarray, "replicates bags"]
    """p at or above the threshold of the run that gave it, chosen on its validation part."""
    split: Int[np.ndarray, "replicates bags"]
    """Of the run that gave it."""
    seed: Int[np.ndarray, " replicates"]
    runs: tuple[Path, ...] = field(default=())
    """The run folders it was read from: those of a replicate one after another, by split."""
    folds: bool = False
    """Whether every bag is tested by the run of its own fold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """All that tables are made of, and what was left out of them."""

    scores: tuple[Scores, ...]
    unfinished: tuple[Path, ...]
    incomplete: tuple[str, ...]
    """Replicates of which a fold is missing, in words."""
    skipped: tuple[tuple[Path, str], ...]

    def left_out(self) -> tuple[str, ...]:
        """What a reader of the tables must know: one sentence each."""
        found = []
        if self.unfinished:
            n = len(self.unfinished)
            found.append(f"{n} run{'' if n == 1 else 's'} not finished, left out.")
        found += [f"Incomplete, left out: {what}." for what in self.incomplete]
        found += [
            f"Damaged, left out: {path.parent.name}/{path.name}: {why}."
            for path, why in self.skipped
        ]
        return tuple(found)


def read_scores(out: Path) -> list[Scores]:
    """Every method and data set of an experiment's folder, from its run folders alone.

    Only whole replicates count: with folds, a seed of which a fold is missing is left out.

    Raises:
        InputError: no finished run, or no whole replicate, below `out`.
    """
    return list(read_results(out).scores)


def read_results(out: Path) -> Results:
    """The same, with what was left out and why. By data set, then in the order of the paper.

    Raises:
        InputError: no finished run, or no whole replicate, below `out`.
    """
    runs = read_cells(out)
    scores: list[Scores] = []
    incomplete: list[str] = []
    skipped = list(runs.skipped)
    for data in sorted({run.data for run in runs.done}):
        of = _DataSet.read([run for run in runs.done if run.data == data])
        skipped += of.skipped
        for key in sorted({_key(t.run) for t in of.tested}):
            found, missing = of.scores(key)
            scores += found
            incomplete += missing
    if not scores:
        raise InputError(_nothing(out, runs, incomplete=incomplete, skipped=skipped))
    return Results(
        scores=tuple(scores),
        unfinished=runs.unfinished,
        incomplete=tuple(incomplete),
        skipped=tuple(skipped),
    )


def instances_of(scores: Scores) -> Iterator[list[Prediction]]:
    """The per-instance outputs of each replicate's test bags, read when it is asked for.

    In the order of `scores.bags`.

    Raises:
        BagError: the file of a bag is missing or damaged.
    """
    place = {bag: i for i, bag in enumerate(scores.bags)}
    for runs in replicates_of(scores):
        found = [p for path in runs for p in _part(path, "test")]
        yield sorted(found, key=lambda p: place[p.name])


def validation_of(scores: Scores) -> Iterator[dict[int, list[Prediction]]]:
    """The same of the bags that each run of a replicate validated on, by the run's split.

    Raises:
        BagError: the file of a bag is missing or damaged.
    """
    for runs in replicates_of(scores):
        yield {int(read_object(path / CELL)["split"]): _part(path, "val") for path in runs}


def _part(path: Path, part: Literal["val", "test"]) -> list[Prediction]:
    table = read_predictions(path / "predictions")
    rows = zip(table.bags, table.parts, strict=True)
    return [table.instances(bag) for bag, at in rows if at == part]


def replicates_of(scores: Scores) -> list[tuple[Path, ...]]:
    """The run folders of each replicate: one a fold, or one alone."""
    each = len(scores.runs) // len(scores.p)
    return [scores.runs[i : i + each] for i in range(0, len(scores.runs), each)]


Key = tuple[tuple[float, str, int, float], str, str]


def _key(run: Run) -> Key:
    """Of a method, in the order of the paper's tables."""
    return position(run.method), run.method.name, run.method.slug


@dataclass(frozen=True, kw_only=True, slots=True)
class _DataSet:
    """The runs of one data set that agree about it."""

    tested: tuple[Tested, ...]
    bags: tuple[str, ...]
    """Every test bag, by name."""
    splits: tuple[int, ...]
    skipped: tuple[tuple[Path, str], ...]

    @classmethod
    def read(cls, runs: Sequence[Run]) -> "_DataSet":
        read: list[Tested] = []
        skipped: list[tuple[Path, str]] = []
        for run in runs:
            try:
                read.append(read_tested(run))
            except ProbSAError as error:
                skipped.append((run.path, str(error)))
        usual = Counter(_test_bags(t) for t in read).most_common(1)
        bags = usual[0][0] if usual else ()
        labels: dict[str, int] = {}
        arguments: dict[Key, Method] = {}
        kept: list[Tested] = []
        for t in read:
            if _test_bags(t) != bags:
                skipped.append((t.run.path, "its bags are not those of the data set's other runs"))
                continue
            other = [b for b, y in t.y.items() if labels.setdefault(b, y) != y]
            same = arguments.setdefault(_key(t.run), t.run.method) == t.run.method
            if other:
                why = f"bag {other[0]!r} has another label than in the data set's other runs"
                skipped.append((t.run.path, why))
            elif not same:
                skipped.append((t.run.path, "its model or arguments differ from its neighbours'"))
            else:
                kept.append(t)
        splits = tuple(sorted({run.split for run in runs}))
        return cls(tested=tuple(kept), bags=bags, splits=splits, skipped=tuple(skipped))

    def scores(self, key: Key) -> tuple[list[Scores], list[str]]:
        """Of one method: its scores, unless no replicate is whole; and the ones that are not."""
        mine = sorted(
            (t for t in self.tested if _key(t.run) == key), key=lambda t: (t.run.seed, t.run.split)
        )
        replicates: dict[tuple[int, int], list[Tested]] = {}
        for t in mine:
            # with a fixed test part every run is a replicate
            replicates.setdefault((-1 if t.run.folds else t.run.split, t.run.seed), []).append(t)
        whole, missing = [], []
        for k in sorted(replicates):
            if self._is_whole(replicates[k]):
                whole.append(replicates[k])
            else:
                missing.append(self._incomplete(replicates[k]))
        return ([self._scores(whole)] if whole else []), missing

    def _is_whole(self, runs: Sequence[Tested]) -> bool:
        return sorted(bag for t in runs for bag in t.y) == list(self.bags)

    def _incomplete(self, runs: Sequence[Tested]) -> str:
        first = runs[0].run
        there = {t.run.split for t in runs}
        gone = [str(k) for k in self.splits if k not in there]
        bags = len(set(self.bags) - {bag for t in runs for bag in t.y})
        what = f"{bags} bags are tested by no run" if bags else "bags are tested twice"
        named = f" (split {', '.join(gone)})" if gone else ""
        return f"{first.method.name} on {first.data}, seed {first.seed}: {what}{named}"

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


def _test_bags(t: Tested) -> tuple[str, ...]:
    """The bags that a whole replicate tests: with folds, all that there are."""
    return tuple(sorted(t.all)) if t.run.folds else t.bags


def _nothing(
    out: Path, runs: Runs, *, incomplete: Sequence[str], skipped: Sequence[tuple[Path, str]]
) -> str:
    what = f"{len(runs.done)} finished and {len(runs.unfinished)} unfinished runs"
    why = ""
    if incomplete:
        why = f"; incomplete: {incomplete[0]}"
    elif skipped:
        why = f"; damaged: {skipped[0][0]}: {skipped[0][1]}"
    return (
        f"there is nothing to tabulate in {out}: {what} below {out / 'cells'}{why}. "
        "`probsa benchmark GRID.yaml --out` makes them, and goes on where it stopped"
    )
