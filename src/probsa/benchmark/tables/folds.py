"""AUROC of each fold (or split) by method: where a fold stands out, its data deserve a look."""

from collections.abc import Sequence

from ..results.means import mean_over_splits, split_values
from ..results.outlier_folds import odd_splits
from ..results.results import Scores
from ._shared import key, metadata
from .table import Column, Entry, ResultTable, words


def folds_table(scores: Sequence[Scores]) -> ResultTable:
    """Of one data set: methods below each other, folds side by side."""
    first = scores[0]
    what = "fold" if first.folds else "split"
    values = [split_values(s, "auroc") for s in scores]
    splits = sorted({int(k) for s in scores for k in s.split.ravel()})
    odd = odd_splits(scores)
    columns = [Column(key="method", title="method")]
    columns += [
        Column(key=key(what, str(k)), title=f"{what} {k}{'*' if k in odd else ''}", unit="percent")
        for k in splits
    ]
    columns.append(Column(key="mean", title="mean", unit="percent"))
    rows = []
    for s, of in zip(scores, values, strict=True):
        mean = mean_over_splits(s, "auroc")
        rows.append(
            (
                words(s.method.name),
                *(Entry(value=of.get(k), mark=k in odd) for k in splits),
                Entry(value=mean.mean, sd=mean.sd),
            )
        )
    notes = [
        metadata(scores),
        "AUROC in percent, averaged over seeds; the mean ± s.d. is over them.",
    ]
    notes += [f"* {what} {k}: {why}." for k, why in odd.items()]
    without = [str(k) for k in splits if all(k not in of for of in values)]
    if without:
        notes.append(f"AUROC is undefined on {what} {', '.join(without)}: one class only.")
    return ResultTable(
        name=f"folds_{key(first.data)}",
        title=f"AUROC on each {what} of {first.data}",
        columns=tuple(columns),
        rows=tuple(rows),
        footnotes=tuple(notes),
    )
