"""Where in the positive bags each method finds evidence, beside null maps, on one data set."""

from collections.abc import Mapping

from ...evaluation import (
    DICE_OF_MAP,
    WITHIN,
    WITHIN_BAGS,
    WITHIN_TITLES,
    compare_to_null_maps,
)
from ...statistics import Metric, detectable_from_intervals
from ..results.null_maps import NullResults
from ._columns import METHOD
from .table import Column, ResultTable, TableCell, key, text_cell

Metrics = Mapping[str, Metric]


def within_bags_table(
    data: str, metrics: Mapping[str, Metrics], *, nulls: NullResults
) -> ResultTable:
    """Return the measures within positive bags of every method and of every null map.

    Args:
        data: The name of the data set.
        metrics: The instance metrics of the methods, by name.
        nulls: Those of the null maps, with as many resamples.
    """
    columns = [METHOD]
    columns += [Column(key=k, title=WITHIN_TITLES[k], unit="percent") for k in WITHIN_BAGS]
    columns.append(Column(key=DICE_OF_MAP, title="Dice", unit="percent"))
    rows = [_row(name, s) for name, s in metrics.items()]
    rows += [_row(f"null: {name}", s) for name, s in nulls.metrics.items()]
    return ResultTable(
        name=f"within_bags_{key(data)}",
        title=f"Maps within positive bags of {data}",
        columns=tuple(columns),
        rows=tuple(rows),
        footnotes=(
            "Means over the positive test bags that have instances of both labels; [lo, hi] are "
            "95 % intervals over patients and replicates. Top instance and top 1 % (at least one "
            "instance): the share that is positive. Dice: at e > 0 for models of evidence e, "
            "otherwise at the threshold with the best Dice on the validation bags. Null maps "
            "hardly look at the image; those that learn have seen the same training bags "
            "(docs/null-maps.md).",
            *(f"null: {name} is missing: {reason}." for name, reason in nulls.missing.items()),
            *_verdicts(metrics, nulls),
        ),
    )


def _verdicts(metrics: Mapping[str, Metrics], nulls: NullResults) -> list[str]:
    """Return, for each method, whether its map finds evidence better than every null map."""
    of_nulls = {name: s[WITHIN] for name, s in nulls.metrics.items()}
    if not of_nulls:
        return []
    compared = [
        compare_to_null_maps(name, s[WITHIN], of_nulls, groups=nulls.groups)
        for name, s in metrics.items()
    ]
    gains = [c.differences[c.null] for c in compared if c.null is not None]
    return [
        *(c.sentence for c in compared),
        detectable_from_intervals(
            [(d.low, d.high) for d in gains], what="AUROC within bags to the best null map"
        ),
    ]


def _row(name: str, metrics: Metrics) -> tuple[TableCell, ...]:
    known = [metrics[k] for k in (*WITHIN_BAGS, DICE_OF_MAP) if k in metrics]
    cells = [TableCell(value=m.value, low=m.low, high=m.high) for m in known]
    no_dice = [TableCell()] * (DICE_OF_MAP not in metrics)
    return (text_cell(name), *cells, *no_dice)
