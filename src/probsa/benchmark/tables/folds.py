"""AUROC of each fold or split by method."""

from collections.abc import Sequence

from ..results.means import mean_over_splits, split_values
from ..results.results import Scores
from ._shared import key, metadata
from .table import Column, ResultTable, TableCell, text_cell


def folds_table(scores: Sequence[Scores]) -> ResultTable:
    """Return one data set's table: a row per method, a column per fold."""
    first = scores[0]
    part_name = "fold" if first.folds else "split"
    values = [split_values(s, "auroc") for s in scores]
    splits = sorted({int(k) for s in scores for k in s.split.ravel()})
    columns = [Column(key="method", title="method")]
    columns += [
        Column(
            key=key(part_name, str(k)),
            title=f"{part_name} {k}",
            unit="percent",
        )
        for k in splits
    ]
    columns.append(Column(key="mean", title="mean", unit="percent"))
    rows = []
    for s, by_split in zip(scores, values, strict=True):
        mean = mean_over_splits(s, "auroc")
        rows.append(
            (
                text_cell(s.method.name),
                *(TableCell(value=by_split.get(k)) for k in splits),
                TableCell(value=mean.mean, sd=mean.sd),
            )
        )
    notes = [
        metadata(scores),
        "AUROC in percent, averaged over seeds; mean ± s.d. over the columns.",
    ]
    without = [str(k) for k in splits if all(k not in by_split for by_split in values)]
    if without:
        notes.append(
            f"AUROC is undefined on {part_name} {', '.join(without)}, which has only one class."
        )
    return ResultTable(
        name=f"folds_{key(first.data)}",
        title=f"AUROC on each {part_name} of {first.data}",
        columns=tuple(columns),
        rows=tuple(rows),
        footnotes=tuple(notes),
    )
