"""Where in the positive bags each method finds evidence, beside null maps, on one data set."""

from collections.abc import Mapping, Sequence

from ...errors import ProbSAError
from ...evaluation import WITHIN, WITHIN_BAGS, WITHIN_TITLES, compare_to_null_maps
from ...statistics import SampledMetric, detectable_from_intervals
from ..results.instances import BOOTSTRAP
from ..results.null_maps import NullResults, null_results
from ..results.results import Scores
from ._shared import key
from .table import Column, ResultTable, TableCell, text_cell

Samples = Mapping[str, SampledMetric]


def within_bags_table(
    scores: Sequence[Scores], samples: Mapping[str, Samples], *, bootstrap: int = BOOTSTRAP
) -> ResultTable:
    """Return the measures within positive bags of every method and of every null map.

    Args:
        scores: The scores of the methods on one data set.
        samples: The instance metrics of the methods, by name.
        bootstrap: Number of resamples, as those of `samples`.
    """
    data = scores[0].data
    try:
        nulls = null_results(scores[0], bootstrap=bootstrap)
    except ProbSAError as error:
        nulls = NullResults(samples={}, missing={"all": str(error)}, groups=0)
    columns = [Column(key="method", title="method")]
    columns += [Column(key=k, title=WITHIN_TITLES[k], unit="percent") for k in WITHIN_BAGS]
    rows = [_row(name, s) for name, s in samples.items()]
    rows += [_row(f"null: {name}", s) for name, s in nulls.samples.items()]
    return ResultTable(
        name=f"within_bags_{key(data)}",
        title=f"Maps within positive bags of {data}",
        columns=tuple(columns),
        rows=tuple(rows),
        footnotes=(
            "Means over the positive test bags that have instances of both labels; [lo, hi] are "
            "95 % intervals over patients and replicates. Top instance and top 1 % (at least one "
            "instance): the share that is positive. Null maps hardly look at the image; those that "
            "learn have seen the same training bags (docs/null-maps.md).",
            *(f"null: {name} is missing: {reason}." for name, reason in nulls.missing.items()),
            *_verdicts(samples, nulls),
        ),
    )


def _verdicts(samples: Mapping[str, Samples], nulls: NullResults) -> list[str]:
    """Return, for each method, whether its map finds evidence better than every null map."""
    of_nulls = {name: s[WITHIN] for name, s in nulls.samples.items()}
    if not of_nulls:
        return []
    compared = [
        compare_to_null_maps(name, s[WITHIN], of_nulls, groups=nulls.groups)
        for name, s in samples.items()
    ]
    gains = [c.differences[c.null] for c in compared if c.null is not None]
    return [
        *(c.sentence for c in compared),
        detectable_from_intervals(
            [(d.low, d.high) for d in gains], what="AUROC within bags to the best null map"
        ),
    ]


def _row(name: str, samples: Samples) -> tuple[TableCell, ...]:
    metrics = [samples[k].metric() for k in WITHIN_BAGS]
    return (text_cell(name), *(TableCell(value=m.value, low=m.low, high=m.high) for m in metrics))
