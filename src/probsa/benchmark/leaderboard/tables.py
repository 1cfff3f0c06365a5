"""The leaderboard as tables: one over all data sets, and one of each."""

from collections.abc import Mapping, Sequence

import numpy as np

from ...statistics import Ranks, average_ranks, detectable_from_intervals
from ..tables._notes import rank_note
from ..tables.table import Column, ResultTable, TableCell, Unit, key, text_cell
from .measures import SetBoard, Value

MEASURES: tuple[tuple[str, str, Unit], ...] = (
    ("auroc", "bag AUROC", "percent"),
    ("nll", "NLL", "number"),
    ("ap", "AP within bags", "percent"),
    ("gain", "gain over the best null", "points"),
    ("ap_shown", "AP of the shown score", "percent"),
    ("doubt_gain", "P(wrong) minus margin", "points"),
    ("area", "area of deletion", "number"),
    ("faithfulness", "rank correlation", "number"),
    ("seconds", "seconds", "count"),
)
RANKED = (("auroc", 1.0), ("nll", -1.0), ("ap", 1.0))
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


def leaderboard_table(boards: Sequence[SetBoard], *, notes: Sequence[str] = ()) -> ResultTable:
    """Return the table over all data sets, followed by one of each with intervals."""
    names = list(dict.fromkeys(name for board in boards for name in board.names))
    ranks = ranks_of(boards)
    order = sorted(names, key=lambda n: (_rank(ranks, n), -_mean(boards, "ap", n)))
    columns = [
        Column(key="method", title="method"),
        Column(key="rank", title="average rank", unit="rank"),
        *(Column(key=k, title=title, unit=unit) for k, title, unit in MEASURES),
        Column(key="better", title="sets with a gain shown to be above 0"),
    ]
    rows = [
        (
            text_cell(_shown(boards, name)),
            _rank_cell(ranks, name),
            *(TableCell(value=_whole_mean(boards, k, name)) for k, _, _ in MEASURES),
            text_cell(_better(boards, name)),
        )
        for name in order
    ]
    return ResultTable(
        name="leaderboard",
        title=f"LocalMIL: {len(names)} methods on {', '.join(b.data for b in boards)}",
        columns=tuple(columns),
        rows=tuple(rows),
        footnotes=(
            "Each value is the mean over the data sets of a method, if the measure is defined on "
            "all of them. Null maps are marked (null). The rank covers methods that have a bag "
            "AUROC, an NLL and an AP within bags on every data set.",
            EXPLAINED,
            rank_note(ranks),
            *notes,
        ),
        follow=tuple(_set_table(board) for board in boards),
    )


def ranks_of(boards: Sequence[SetBoard]) -> Ranks | None:
    """Return the ranks of the methods that have every ranked measure on every data set."""
    values: dict[str, list[float]] = {}
    for name in dict.fromkeys(n for board in boards for n in board.names):
        row = [
            None if (v := board.of(measure, name).value) is None else sign * v
            for board in boards
            for measure, sign in RANKED
        ]
        known = [v for v in row if v is not None]
        if len(known) == len(row):
            values[name] = known
    return average_ranks(values) if len(values) > 1 else None


def _set_table(board: SetBoard) -> ResultTable:
    columns = [Column(key="method", title="method")]
    columns += [Column(key=k, title=title, unit=unit) for k, title, unit in MEASURES]
    order = sorted(board.names, key=lambda n: -(board.of("ap", n).value or 0))
    rows = [
        (
            text_cell(_shown([board], name)),
            *(_cell(board.of(k, name)) for k, _, _ in MEASURES),
        )
        for name in order
    ]
    null = "no null map has a value" if board.best_null is None else board.best_null
    return ResultTable(
        name=f"leaderboard_{key(board.data)}",
        title=board.data,
        columns=tuple(columns),
        rows=tuple(rows),
        footnotes=(
            f"{board.bags} test bags; {board.positive} positive ones with instances of both "
            f"labels. Best null map: {null}. [lo, hi] are 95 % intervals over groups and "
            "replicates. Bold marks winners, which differ from every other method (Holm-adjusted "
            "p ≤ 0.05). In the columns of differences (gain, P(wrong) minus margin) it marks all "
            "values significantly above 0 (p ≤ 0.05, Holm-adjusted over the methods).",
            *(
                detectable_from_intervals(
                    [(v.low, v.high) for n in board.names if (v := board.of(k, n)).low is not None],
                    what=title,
                )
                for k, title, _ in MEASURES
                if k in DIFFERENCES
            ),
            *board.notes,
        ),
    )


def _cell(v: Value) -> TableCell:
    return TableCell(value=v.value, low=v.low, high=v.high, bold=v.wins)


def _shown(boards: Sequence[SetBoard], name: str) -> str:
    return f"{name} (null)" if any(name in b.nulls for b in boards) else name


def _mean(boards: Sequence[SetBoard], measure: str, name: str) -> float:
    values = [v for b in boards if (v := b.of(measure, name).value) is not None]
    return float(np.mean(values)) if values else float("nan")


def _whole_mean(boards: Sequence[SetBoard], measure: str, name: str) -> float | None:
    """Return the mean over a method's data sets; None if one of them lacks the measure."""
    own = [b for b in boards if name in b.names]
    if any(b.of(measure, name).value is None for b in own):
        return None
    return _mean(own, measure, name)


def _better(boards: Sequence[SetBoard], name: str) -> str:
    known = [b.of("gain", name) for b in boards if b.of("gain", name).value is not None]
    return f"{sum(v.wins for v in known)} of {len(known)}" if known else ""


def _rank(ranks: Ranks | None, name: str) -> float:
    means: Mapping[str, float] = {} if ranks is None else ranks.mean
    return means.get(name, float("inf"))


def _rank_cell(ranks: Ranks | None, name: str) -> TableCell:
    if ranks is None or name not in ranks.mean:
        return TableCell()
    sd = ranks.sd[name]
    return TableCell(value=ranks.mean[name], sd=None if np.isnan(sd) else sd)
