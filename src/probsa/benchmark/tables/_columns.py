"""The columns and cells that tables of data sets of any task share."""

import math
from collections.abc import Mapping, Sequence

from ...statistics import Pooling
from ...tasks import Measure
from ..results.comparing import ROUNDING, Compared, Pooled
from ..results.ranked import Ranked
from ..results.sampling import kinds_of
from ..results.scores import Scores
from .table import Column, TableCell, key

METHOD = Column(key="method", title="method")
RANK = Column(key="rank", title="average rank", unit="rank")


def method_names(scores: Sequence[Scores]) -> list[str]:
    """Return every method once, in the order given."""
    return list(dict.fromkeys(s.method.name for s in scores))


def rank_cell(ranked: Ranked, name: str) -> TableCell:
    """Return a method's average rank ± s.d. over the columns (ddof = 1)."""
    ranks = ranked.ranks
    if ranks is None or name not in ranks.mean:
        return TableCell()
    sd = ranks.sd[name]
    return TableCell(value=ranks.mean[name], sd=None if math.isnan(sd) else sd)


def digits_of(scores: Scores, measure: Measure) -> int | None:
    """Return the decimals of a metric in the unit of the target; None for the usual ones."""
    deviation = float(scores.targets[:, 0].std())
    if not measure.of_target or deviation == 0:
        return None
    return min(12, max(0, 3 - math.floor(math.log10(deviation))))


def mean_columns(scores: Scores) -> list[Column]:
    """Return the columns of a data set in a table of several: means over splits."""
    return [
        Column(
            key=key(scores.data, m.name),
            title=m.title,
            group=scores.data,
            unit=m.unit,
            digits=digits_of(scores, m),
        )
        for m in scores.task.measures[: scores.task.overview]
    ]


def mean_cells(name: str, scores: Scores, compared: Compared | None) -> list[TableCell]:
    """Return a method's means ± s.d. over splits, with the best mean of a winner in bold.

    They are empty without a comparison or a run of the method on the data set.
    """
    cells = []
    for m in scores.task.measures[: scores.task.overview]:
        means = {} if compared is None else {n: of[m.name] for n, of in compared.means.items()}
        own = means.get(name)
        if compared is None or own is None or own.mean is None:
            cells.append(TableCell())
            continue
        sign = 1 if m.higher_is_better else -1
        best = max(sign * mean.mean for mean in means.values() if mean.mean is not None)
        decided = compared.deciding(m.name)
        wins = decided is not None and decided.comparison.winner == name
        bold = wins and sign * own.mean > best - ROUNDING
        cells.append(TableCell(value=own.mean, sd=own.sd, bold=bold))
    return cells


def _kinds(scores: Scores) -> list[tuple[Measure, Pooling, str, str]]:
    """Return what is compared, each with a name for CSV and a heading."""
    kinds, found = kinds_of(scores), []
    for m, pooling in kinds:
        both, name, title = (m, "pooled") in kinds and (m, "within") in kinds, m.name, m.title
        if pooling == "within":
            name, title = key(name, "within") if both else name, f"{title} within folds"
        elif both:
            title = f"pooled {title}"
        found.append((m, pooling, name, title))
    return found


def difference_columns(scores: Scores) -> list[Column]:
    """Return the columns of values, differences and p of everything that is compared."""
    columns: list[Column] = []
    for m, _, name, group in _kinds(scores):
        digits, unit = digits_of(scores, m), "points" if m.unit == "percent" else "difference"
        columns += [
            Column(key=name, title="value", group=group, unit=m.unit, digits=digits),
            Column(key=key(name, "difference"), title="Δ", group=group, unit=unit, digits=digits),
            Column(key=key(name, "p_holm"), title="Holm p", group=group, unit="p"),
        ]
    return columns


def difference_cells(name: str, scores: Scores, compared: Compared) -> list[TableCell]:
    """Return a method's row for these columns, with the values by which it wins in bold."""
    cells: list[TableCell] = []
    for m, pooling in kinds_of(scores):
        pooled = compared.of(m.name, pooling)
        cells += _cells(name, pooled, decides=pooled is compared.deciding(m.name))
    return cells


def _cells(name: str, pooled: Pooled | None, *, decides: bool) -> list[TableCell]:
    value = None if pooled is None else pooled.values.get(name)
    if pooled is None or value is None:
        return [TableCell()] * 3
    comparison = pooled.comparison
    wins = decides and comparison.winner == name
    cell = TableCell(value=value.value, low=value.low, high=value.high, bold=wins)
    d = comparison.differences.get(name)
    if d is None:
        return [cell, TableCell(), TableCell()]
    difference = TableCell(value=d.difference, low=d.low, high=d.high)
    return [cell, difference, TableCell(value=None if d.p is None else comparison.adjusted[name])]


def rival_cells(scores: Scores, rival: Mapping[str, float]) -> list[TableCell]:
    """Return the row of a null rival for the same columns: its values over all bags alone."""
    cells: list[TableCell] = []
    for m, pooling in kinds_of(scores):
        both = pooling == "within" and (m, "pooled") in kinds_of(scores)
        cells += [TableCell(value=None if both else rival.get(m.name)), TableCell(), TableCell()]
    return cells
