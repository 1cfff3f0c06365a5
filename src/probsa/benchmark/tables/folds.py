"""The primary metric of each fold or split by method."""

from collections.abc import Sequence

from ..results.sampling import means_of, values_by_split
from ..results.scores import Scores
from ._columns import METHOD, digits_of
from ._notes import metadata
from .table import Column, ResultTable, TableCell, key, text_cell


def folds_table(scores: Sequence[Scores]) -> ResultTable:
    """Return one data set's table: a row per method, a column per fold."""
    first = scores[0]
    measure, part = first.task.primary, "fold" if first.folds else "split"
    values = [values_by_split(s)[measure.name] for s in scores]
    splits = sorted({int(k) for s in scores for k in s.split.ravel()})
    names = {key(part, str(k)): f"{part} {k}" for k in splits} | {"mean": "mean"}
    digits = digits_of(first, measure)
    rows = []
    for s, by_split in zip(scores, values, strict=True):
        mean = means_of(s)[measure.name]
        cells = [TableCell(value=by_split.get(k)) for k in splits]
        rows.append((text_cell(s.method.name), *cells, TableCell(value=mean.mean, sd=mean.sd)))
    percent = " in percent" if measure.unit == "percent" else ""
    notes = [f"{measure.title}{percent}, averaged over seeds; mean ± s.d. over the columns."]
    if not measure.higher_is_better:
        notes.append("Lower is better.")
    without = [str(k) for k in splits if all(k not in by_split for by_split in values)]
    if without:
        why = ", which has only one class" if first.task.two_classes else ""
        notes.append(f"{measure.title} is undefined on {part} {', '.join(without)}{why}.")
    return ResultTable(
        name=f"folds_{key(first.data)}",
        title=f"{measure.title} on each {part} of {first.data}",
        columns=(
            METHOD,
            *(
                Column(key=name, title=title, unit=measure.unit, digits=digits)
                for name, title in names.items()
            ),
        ),
        rows=tuple(rows),
        footnotes=(metadata(scores), *notes),
    )
