"""The leaderboard of LocalMIL: bags, instances, doubt and faithfulness of every model and set.

Bag AUROC is compared within folds, if these allow it, by the rule of the other tables. The NLL and
the AP within bags are means over bags, compared by the same rule. A winner is decided over the
seeds that all methods have.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from ..core import TextTable, counted
from ..errors import ProbSAError
from ..evaluation import NULL_MAPS, bag_measures, bag_rows, within_bag
from ..statistics import (
    ALPHA,
    Difference,
    average_ranks,
    compare,
    detectable_from_intervals,
    holm,
    mean_interval,
)
from .execution.map_checks import read_map_checks
from .grid.variants import chosen
from .results.comparing import clipped, compare_methods
from .results.instances import null_tables
from .results.results import Results, instances_of
from .results.scores import Scores
from .tables.comparison import RANK, rank_cell
from .tables.table import (
    METHOD,
    Column,
    ResultTable,
    TableCell,
    Unit,
    key,
    metric_cell,
    text_cell,
    write_table,
)

FOLDER = "leaderboard"
RESAMPLES = 1000
LEAST = 1e-7
"""Probabilities are kept this far from 0, as float32 cannot be nearer to 1."""
VALUES = ("average_precision", "doubt_gain", "faithfulness", "area", "shown_precision")
"""What is known of each positive bag: `BagMeasures`, and two that `execution.map_checks` finds."""
CHECKS = {"area": "areas", "shown_precision": "shown_precisions", "faithfulness": "correlations"}
"""The fields of `MapChecks`; `faithfulness` of bags whose prediction has none."""
MEASURES: dict[str, tuple[str, Unit]] = {
    "auroc": ("bag AUROC", "percent"),
    "nll": ("NLL", "number"),
    "ap": ("AP within bags", "percent"),
    "gain": ("gain over the best null", "points"),
    "ap_shown": ("AP of the shown score", "percent"),
    "doubt_gain": ("P(wrong) minus margin", "points"),
    "area": ("area of deletion", "number"),
    "faithfulness": ("rank correlation", "number"),
    "seconds": ("seconds", "count"),
}
"""The title and unit of each column."""
COLUMNS = [Column(key=k, title=title, unit=unit) for k, (title, unit) in MEASURES.items()]
OWN_MEANS = {"ap_shown": "shown_precision"} | {
    name: name for name in ("doubt_gain", "area", "faithfulness")
}
"""Measures that are means over the bags on which a method has them, and the value averaged."""
RANKED = {"auroc": 1.0, "nll": -1.0, "ap": 1.0}
"""The measures that methods are ranked by, with −1 where less is better."""
DIFFERENCES = ("gain", "doubt_gain")
"""The measures that are differences themselves."""
EXPLAINED = (
    "AP within bags: average precision of the model's own score of the instances, averaged over "
    "positive test bags that have instances of both labels. Gain: this AP minus that of the null "
    "map that is best on these test bags; null maps hardly look at the image. AP of the shown "
    "score: the AP of the score that a run's maps would show, which is chosen by deletion on "
    "validation bags. P(wrong) minus margin: the difference of their AUROCs for finding wrong "
    "calls of instances within bags. Area of deletion: how much faster the probability falls if "
    "the instances with the highest scores are removed first than if those with the lowest are; 0 "
    "for a random order. Rank correlation: Spearman's correlation of the model's own score with "
    "the change of the bag's probability when the instance is left out; 1 by construction for "
    "linear models. Models without a closed form predict shortened bags again, so these two "
    "columns use only some of their test bags. Seconds: training of one run with its validation; "
    "runs that trained together share their time."
)

Values = Float[np.ndarray, "replicates bags"]
Bags = Bool[np.ndarray, " bags"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One method or null map on one data set."""

    name: str
    scores: Scores
    """The predictions of the bags; of a null map, which makes none, those of any method."""
    values: Mapping[str, Values]
    """`VALUES`: a row per replicate (of a null map per split), a column per test bag; nan if
    undefined."""
    null: bool = False
    seconds: float | None = None
    """Mean duration of the training of a run, with its validation."""

    @property
    def gains(self) -> Values:
        """The log-likelihood of each bag's label: minus its NLL, so that more is better."""
        p = np.where(self.scores.positive, self.scores.p, 1 - self.scores.p)
        return np.log(np.clip(p, LEAST, 1))

    @property
    def splits(self) -> list[int]:
        """The split of each row of `values`; -1 with folds, which a replicate pools."""
        splits = [split for split, _ in self.scores.keys]
        return list(dict.fromkeys(splits)) if self.null else splits

    def rows(self, keys: Sequence[tuple[int, int]]) -> list[int]:
        """Return the row of `values` of each replicate (split, seed); null maps have no seeds."""
        if self.null:
            return [self.splits.index(split) for split, _ in keys]
        return [self.scores.keys.index(key) for key in keys]


def entry_of(scores: Scores) -> Entry | None:
    """Return the entry of a method's runs; None if no test bag has instance labels.

    Raises:
        BagError: a bag's file is missing or damaged, or its scores are not finite.
        InputError: a run's file of left-out instances is damaged.
    """
    found: dict[str, list[dict[str, float | None]]] = {name: [] for name in VALUES}
    labels, labelled = scores.labels, False
    for runs, predictions in zip(scores.runs, instances_of(scores), strict=True):
        checks = [c for run in runs if (c := read_map_checks(run)) is not None]
        for name, replicates in found.items():
            of_checks = [getattr(c, CHECKS[name]) for c in checks if name in CHECKS]
            replicates.append({bag: value for of in of_checks for bag, value in of.items()})
        for p in predictions:
            labelled |= p.instance_labels is not None and bool((p.instance_labels >= 0).any())
            measures = asdict(bag_measures(p)) if labels[p.name] else {}
            for name in found.keys() & measures.keys():
                if measures[name] is not None:
                    found[name][-1][p.name] = measures[name]
    if not labelled:
        return None
    return Entry(
        name=scores.method.name,
        scores=scores,
        values={name: _by_bag(values, scores) for name, values in found.items()},
        seconds=_seconds([path for runs in scores.runs for path in runs]),
    )


def _by_bag(replicates: Sequence[Mapping[str, float | None]], scores: Scores) -> Values:
    """Return the values of each replicate as a row; nan for bags without."""
    rows = [[replicate.get(bag) for bag in scores.bags] for replicate in replicates]
    return np.array(rows, dtype=np.float64)  # None becomes nan


def _seconds(runs: Sequence[Path]) -> float | None:
    files = [path / "metrics.csv" for path in runs]
    rows = [TextTable.read(file).rows if file.is_file() else [] for file in files]
    totals = [sum(float(row.get("seconds") or 0) for row in of_run) for of_run in rows]
    return float(np.mean(totals)) if any(totals) else None


def null_entries(scores: Scores) -> tuple[list[Entry], list[str]]:
    """Return an entry for each null map of a method's data set, and why others are missing.

    Raises:
        BagError: a bag's file is missing or damaged.
    """
    tables, missing = null_tables(scores)
    entries = []
    for null in NULL_MAPS:
        if not all(null in table.columns for table in tables):
            continue
        replicates: list[dict[str, float | None]] = [
            {
                table.names[b]: float(within_bag(table.y[rows], table[null][rows])[1])
                for b, rows in enumerate(bag_rows(table))
                if table.mixed[b]
            }
            for table in tables
        ]
        values = {name: _by_bag([{}] * len(tables), scores) for name in VALUES}
        values["average_precision"] = _by_bag(replicates, scores)
        entries.append(Entry(name=null, scores=scores, values=values, null=True))
    return entries, [f"Null map {name} on {scores.data}: {why}." for name, why in missing.items()]


@dataclass(frozen=True, kw_only=True, slots=True)
class SetBoard:
    """All measures of all methods on one data set, by the method's name."""

    data: str
    entries: tuple[Entry, ...]
    cells: Mapping[str, Mapping[str, TableCell]]
    """By measure (a key of `MEASURES`) and name; bold if shown to be the best of its column, or,
    of a gain, to be above 0."""
    best_null: str | None
    """The null map with the highest AP within bags on these test bags."""
    positive: int
    """Number of bags on which every entry has an AP."""
    notes: tuple[str, ...] = ()

    def of(self, measure: str, name: str) -> TableCell:
        """Return a method's value."""
        return self.cells[measure].get(name, TableCell())

    @property
    def frame(self) -> pd.DataFrame:
        """The values: a row for each method (by its name) and measure."""
        rows = [
            {"data": self.data, "method": e.name, "measure": m, "value": self.of(m, e.name).value}
            for e in self.entries
            for m in MEASURES
        ]
        return pd.DataFrame(rows).astype({"value": float})


def set_board(
    entries: Sequence[Entry], *, resamples: int = RESAMPLES, notes: tuple[str, ...] = ()
) -> SetBoard:
    """Return the measures of all entries of one data set; names are unique."""
    trained, first = [e for e in entries if not e.null], entries[0].scores
    both, lacking = _evaluated(entries)
    every = np.ones(len(first.bags), dtype=bool)

    def mean(values: Values, bags: Bags, splits: Sequence[int]) -> Difference:
        groups = first.groups[bags].tolist()
        return mean_interval(values, groups=groups, resamples=resamples, blocks=splits)

    def winners(values: Mapping[str, Values], bags: Bags) -> list[str | None]:
        return [_winner(values, entries, first.groups[bags].tolist(), resamples)]

    gains = {e.name: e.gains for e in trained}
    cells = {
        "auroc": _aurocs([e.scores for e in trained], resamples),
        "nll": _cells(
            {e.name: mean(-e.gains, every, e.splits) for e in trained}, winners(gains, every)
        ),
        "seconds": {e.name: TableCell(value=e.seconds) for e in entries},
        "ap": {},
        "gain": {},
    }
    precisions = {e.name: e.values["average_precision"][:, both] for e in entries}
    nulls = [e for e in entries if e.null]
    best = max(nulls, key=lambda e: precisions[e.name].mean() if both.any() else 0.0, default=None)
    if both.any():
        means = {e.name: mean(precisions[e.name], both, e.splits) for e in entries}
        cells["ap"] = _cells(means, winners(precisions, both), 0.0, 1.0)
    if both.any() and best is not None:  # which has a gain of 0 over itself
        over = {}
        for e in (e for e in entries if e is not best):
            # a map is compared with the null map of its own split
            of_split = [best.splits.index(split) for split in e.splits]
            difference = precisions[e.name] - precisions[best.name][of_split]
            over[e.name] = mean(difference, both, e.splits)
        above = above_zero({e.name: over[e.name] for e in trained})
        cells["gain"] = {best.name: TableCell(value=0.0)} | _cells(over, above)
    for measure, name in OWN_MEANS.items():
        means = {}
        for e in entries:
            known = np.asarray(np.isfinite(e.values[name]).any(0))
            if known.any():
                by_bag = np.nanmean(e.values[name][:, known], axis=0, keepdims=True)
                means[e.name] = mean(by_bag, known, [0])
        above = above_zero(means) if measure in DIFFERENCES else ()
        cells[measure] = _cells(means, above, -1.0, 1.0)
    return SetBoard(
        data=first.data,
        entries=tuple(entries),
        cells=cells,
        best_null=None if best is None else best.name,
        positive=int(both.sum()),
        notes=(*notes, *lacking),
    )


def _evaluated(entries: Sequence[Entry]) -> tuple[Bags, list[str]]:
    """Return the bags on which every entry has an AP, and which entries lack one that others have.

    These are the positive bags with instances of both labels, unless labels or scores of some
    entries are missing.
    """
    finite = [np.isfinite(e.values["average_precision"]) for e in entries]
    known, some = np.stack([f.all(0) for f in finite]), np.stack([f.any(0) for f in finite]).any(0)
    notes = []
    for entry, of_entry in zip(entries, known, strict=True):
        lacking = np.flatnonzero(some & ~of_entry)
        if len(lacking):
            data, bags = entry.scores.data, entry.scores.bags
            notes.append(
                f"{entry.name} on {data} has no AP for {counted(len(lacking), 'bag')} "
                f"({bags[lacking[0]]!r} first) for which other methods have one. AP within bags, "
                "the gain and the best null map are computed without these bags for all."
            )
    return np.asarray(known.all(0)), notes


def _aurocs(scores: Sequence[Scores], resamples: int) -> dict[str, TableCell]:
    if not scores:
        return {}
    compared = compare_methods(scores, baseline=None, resamples=resamples).deciding("auroc")
    if compared is None:
        return {}
    winner = compared.comparison.winner
    return {name: metric_cell(v, bold=winner == name) for name, v in compared.values.items()}


def _winner(
    values: Mapping[str, Values], entries: Sequence[Entry], groups: Sequence[str], resamples: int
) -> str | None:
    """Return the winner over the replicates that all trained methods have."""
    if len(values) < 2:
        return None
    compared = [e for e in entries if e.name in values]
    trained = [set(e.scores.keys) for e in compared if not e.null]
    common = sorted(set.intersection(*(trained or [set(compared[0].scores.keys)])))
    if not common:
        return None
    aligned = {e.name: values[e.name][e.rows(common)] for e in compared}
    splits = [split for split, _ in common]
    found = compare(None, aligned, groups=groups, metric="mean", blocks=splits, resamples=resamples)
    return found.winner


def above_zero(differences: Mapping[str, Difference]) -> frozenset[str]:
    """Return whose difference is above 0 with p ≤ 0.05, by Holm's adjustment over all of them."""
    adjusted = holm([1.0 if d.p is None else d.p for d in differences.values()])
    return frozenset(
        name
        for (name, d), p in zip(differences.items(), adjusted, strict=True)
        if p <= ALPHA and d.difference > 0
    )


def _cells(
    means: Mapping[str, Difference],
    bold: Collection[str | None],
    lowest: float = -math.inf,
    highest: float = math.inf,
) -> dict[str, TableCell]:
    """Return means whose intervals end where their values do."""
    return {n: metric_cell(clipped(d, lowest, highest), bold=n in bold) for n, d in means.items()}


def write_leaderboard(
    results: Results, out: Path, *, resamples: int = RESAMPLES
) -> tuple[Path, ...]:
    """Write `out`/leaderboard/leaderboard.{md,tex,csv} and a CSV file for each data set.

    Args:
        results: the experiment's results.
        out: the experiment's folder.
        resamples: number of resamples of the intervals.

    Returns: the files; none if no test bag has instance labels.
    """
    entries: list[Entry] = []
    notes: list[str] = []
    for s in chosen(results.two_classes):
        try:
            entry = entry_of(s)
        except ProbSAError as error:
            notes.append(f"{s.method.name} on {s.data} has no measures: {error}.")
            continue
        entries += [] if entry is None else [entry]
    if not entries:
        return ()
    boards = []
    for data in dict.fromkeys(e.scores.data for e in entries):
        trained = [e for e in entries if e.scores.data == data]
        nulls, missing = null_entries(trained[-1].scores)
        of_data = tuple(n for n in (*notes, *missing) if f" on {data}" in n)
        boards.append(set_board([*trained, *nulls], resamples=resamples, notes=of_data))
    table = leaderboard_table(boards, notes=results.left_out())
    return tuple(write_table(table, out / FOLDER))


def leaderboard_table(boards: Sequence[SetBoard], *, notes: Sequence[str] = ()) -> ResultTable:
    """Return the table over all data sets, followed by one of each with intervals."""
    frame = pd.concat([board.frame for board in boards])
    of_ranked = frame[frame["measure"].isin(list(RANKED))]
    wide = of_ranked.pivot(index="method", columns=["data", "measure"], values="value").dropna()
    signs = [RANKED[measure] for _, measure in wide.columns.to_list()]
    values = {str(name): (row.to_numpy() * signs).tolist() for name, row in wide.iterrows()}
    ranks = average_ranks(values) if len(values) > 1 else None
    grouped = frame.groupby(["measure", "method"])["value"]
    means, whole = grouped.mean().to_dict(), grouped.agg(lambda v: v.mean(skipna=False)).to_dict()
    entries = {e.name: e for board in boards for e in board.entries}

    def place(name: str) -> tuple[float, float]:
        rank = math.inf if ranks is None else ranks.mean.get(name, math.inf)
        return rank, -means["ap", name]

    def row(name: str) -> tuple[TableCell, ...]:
        gains = [board.of("gain", name) for board in boards]
        known = [cell for cell in gains if cell.value is not None]
        better = f"{sum(cell.bold for cell in known)} of {len(known)}" if known else ""
        return (
            text_cell(_shown(entries[name])),
            rank_cell(ranks, name),
            *(TableCell(value=whole[measure, name]) for measure in MEASURES),
            text_cell(better),
        )

    better = Column(key="better", title="sets with a gain shown to be above 0")
    return ResultTable(
        name="leaderboard",
        title=f"LocalMIL: {len(entries)} methods on {', '.join(b.data for b in boards)}",
        columns=(METHOD, RANK, *COLUMNS, better),
        rows=tuple(row(name) for name in sorted(entries, key=place)),
        footnotes=(
            "Each value is the mean over the data sets of a method, if the measure is defined on "
            "all of them. Null maps are marked (null). The rank covers methods that have a bag "
            "AUROC, an NLL and an AP within bags on every data set.",
            EXPLAINED,
            "Average rank: over the three measures of every set; 1 is best, ties share a rank.",
            *notes,
        ),
        follow=tuple(map(_set_table, boards)),
    )


def _shown(entry: Entry) -> str:
    return f"{entry.name} (null)" if entry.null else entry.name


def _set_table(board: SetBoard) -> ResultTable:
    null = "no null map has a value" if board.best_null is None else board.best_null
    cells = board.cells
    return ResultTable(
        name=f"leaderboard_{key(board.data)}",
        title=board.data,
        columns=(METHOD, *COLUMNS),
        rows=tuple(
            (text_cell(_shown(e)), *(board.of(measure, e.name) for measure in MEASURES))
            for e in sorted(board.entries, key=lambda e: -(board.of("ap", e.name).value or 0))
        ),
        footnotes=(
            f"{len(board.entries[0].scores.bags)} test bags; {board.positive} positive ones with "
            f"instances of both labels. Best null map: {null}. [lo, hi] are 95 % intervals over "
            "groups and replicates. Bold marks winners, which differ from every other method "
            "(Holm-adjusted p ≤ 0.05). In the columns of differences (gain, P(wrong) minus "
            "margin) it marks all values significantly above 0 (p ≤ 0.05, Holm-adjusted over the "
            "methods).",
            *(
                detectable_from_intervals(
                    [(cell.low, cell.high) for cell in cells[measure].values()],
                    what=MEASURES[measure][0],
                )
                for measure in DIFFERENCES
            ),
            *board.notes,
        ),
    )
