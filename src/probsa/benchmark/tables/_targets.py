"""Columns, cells and notes of data sets whose task is not two classes."""

import math
from collections.abc import Mapping, Sequence

from ...tasks import TASKS, Measure
from ..results.pooled import ROUNDING
from ..results.target_comparison import TargetCompared
from ..results.target_scores import TargetScores
from .table import Column, TableCell, key


def digits_of(scores: TargetScores, metric: Measure) -> int | None:
    """Return the decimals of a metric in the unit of the target; None for the usual ones."""
    deviation = float(scores.y[:, 0].std())
    if not metric.of_target or deviation == 0:
        return None
    return min(12, max(0, 3 - math.floor(math.log10(deviation))))


def target_columns(scores: TargetScores) -> list[Column]:
    """Return the column of the primary metric."""
    metric = TASKS[scores.task].primary
    return [
        Column(
            key=key(scores.data, metric.name),
            title=metric.title,
            group=scores.data,
            unit=metric.unit,
            digits=digits_of(scores, metric),
        )
    ]


def target_cells(
    name: str, scores: Sequence[TargetScores], compared: TargetCompared
) -> list[TableCell]:
    """Return a method's mean of the primary metric; the best mean is bold if it is a winner."""
    metric = TASKS[scores[0].task].primary
    sign = 1 if metric.higher_is_better else -1
    means = {method: by_metric[metric.name] for method, by_metric in compared.means.items()}
    own = means.get(name)
    if own is None or own.mean is None:
        return [TableCell()]
    best = max(sign * m.mean for m in means.values() if m.mean is not None)
    pooled = compared.pooled[metric.name]
    wins = pooled is not None and pooled.comparison.winner == name
    bold = wins and sign * own.mean > best - ROUNDING
    return [TableCell(value=own.mean, sd=own.sd, bold=bold)]


def metric_columns(scores: TargetScores, compared: TargetCompared) -> list[Column]:
    """Return the columns of values, differences and p of every metric of the task."""
    columns: list[Column] = []
    for metric in TASKS[scores.task].measures:
        pooled = compared.pooled[metric.name]
        within = pooled is not None and pooled.pooling == "within"
        group = f"{metric.title} within folds" if within else metric.title
        digits, percent = digits_of(scores, metric), metric.unit == "percent"
        columns += [
            Column(
                key=metric.name, title="value", group=group, unit=metric.unit, digits=digits
            ),
            Column(
                key=key(metric.name, "difference"), title="Δ", group=group,
                unit="points" if percent else "difference", digits=digits,
            ),
            Column(key=key(metric.name, "p_holm"), title="Holm p", group=group, unit="p"),
        ]  # fmt: skip
    return columns


def metric_cells(name: str, scores: TargetScores, compared: TargetCompared) -> list[TableCell]:
    """Return a method's row for these columns; a value is bold if the method wins."""
    cells: list[TableCell] = []
    for metric in TASKS[scores.task].measures:
        pooled = compared.pooled[metric.name]
        value = None if pooled is None else pooled.values.get(name)
        if pooled is None or value is None:
            cells += [TableCell()] * 3
            continue
        comparison = pooled.comparison
        wins = comparison.winner == name
        cells.append(TableCell(value=value.value, low=value.low, high=value.high, bold=wins))
        d = comparison.differences.get(name)
        if d is None:
            cells += [TableCell()] * 2
            continue
        cells.append(TableCell(value=d.difference, low=d.low, high=d.high))
        cells.append(TableCell(value=None if d.p is None else comparison.adjusted[name]))
    return cells


def rival_cells(task_scores: TargetScores, rival: Mapping[str, float]) -> list[TableCell]:
    """Return the row of a null rival for the same columns: its values alone."""
    cells: list[TableCell] = []
    for metric in TASKS[task_scores.task].measures:
        cells += [TableCell(value=rival.get(metric.name)), TableCell(), TableCell()]
    return cells


def primary_notes(scores: Sequence[TargetScores]) -> list[str]:
    """Return a sentence that names each data set's task, metric and direction."""
    firsts = {s.data: s for s in reversed(scores)}
    notes = []
    for data in dict.fromkeys(s.data for s in scores):
        task = firsts[data].task
        metric = TASKS[task].primary
        unit = ", in percent" if metric.unit == "percent" else ""
        unit = ", in the unit of the target" if metric.of_target else unit
        better = "higher" if metric.higher_is_better else "lower"
        notes.append(f"{data} ({task}): {metric.title}{unit}; {better} is better.")
    return notes
