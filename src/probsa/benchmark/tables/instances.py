"""Where each method finds evidence on one data set: instances, wrong calls, null maps.

The rows of every table are methods and null maps, its columns metrics of instances.
"""

from collections.abc import Mapping, Sequence

from ...errors import ProbSAError
from ...evaluation import (
    DICE_OF_MAP,
    WITHIN,
    WITHIN_TITLES,
    compare_to_null_maps,
    detector_titles,
    detector_verdict,
)
from ...statistics import Metric, detectable_from_intervals
from ..results.instances import BOOTSTRAP, NullResults, metrics_of, null_results
from ..results.scores import Scores
from ._notes import metadata
from .table import METHOD, Column, ResultTable, key, metric_cell, text_cell

Metrics = Mapping[str, Metric]
MetricColumns = Mapping[str, Column]
"""The columns of a table by the name of the metric that each shows."""

SHOWN_DETECTORS = ("variance", "doubt", "margin", "entropy")
"""Without the parts of P(wrong), which only an ensemble has."""


def _percent(name: str, title: str) -> Column:
    return Column(key=name, title=title, unit="percent")


INSTANCES: MetricColumns = {
    "auroc": _percent("auroc", "AUROC"),
    "average_precision": _percent("average_precision", "AP"),
    "auroc_within_bags": _percent("auroc_within_bags", "AUROC within bags"),
    "dice": _percent("dice", "Dice"),
    "dice_pooled": _percent("dice_pooled", "Dice, pooled"),
}
ERRORS: MetricColumns = {
    "error_rate": _percent("error_rate", "wrong calls"),
    **{f"error_auroc_{d}": _percent(d, detector_titles()[d]) for d in SHOWN_DETECTORS},
    "error_auroc_gain": Column(key="gain", title="σ² minus best rival", unit="points"),
}
WITHIN_BAGS: MetricColumns = {
    **{name: _percent(name, title) for name, title in WITHIN_TITLES.items()},
    DICE_OF_MAP: _percent(DICE_OF_MAP, "Dice"),
}


def instances_table(scores: Sequence[Scores], *, bootstrap: int = BOOTSTRAP) -> ResultTable | None:
    """Return the instance metrics of each method, followed by σ² beside its null rivals.

    Returns: None if no test bag has instance labels.
    """
    metrics: dict[str, Metrics] = {}
    failures: list[str] = []
    for s in scores:
        try:
            method_metrics = metrics_of(s, bootstrap=bootstrap)
        except ProbSAError as error:
            failures.append(f"{s.method.name} has no instance metrics: {error}.")
            continue
        if method_metrics is not None:
            metrics[s.method.name] = method_metrics
    if not metrics:
        return None
    data = scores[0].data
    first = next(s for s in scores if s.method.name in metrics)
    nulls = null_results(first, bootstrap=bootstrap)
    return _table(
        f"instances_{key(data)}",
        f"Instances of {data}",
        INSTANCES,
        {**metrics, **_named(nulls)},
        footnotes=(
            metadata(scores),
            "Values are in percent, means over replicates; [lo, hi] are 95 % intervals over "
            "patients and replicates. AUROC and AP rank the instances of all test bags together; "
            "with folds, they are means over folds. Null maps have no calls. Dice is "
            "computed on the instances of positive bags, at the threshold chosen on each run's "
            "validation bags.",
            *_undefined_notes(metrics),
            *failures,
        ),
        follow=(_errors(data, metrics), _within_bags(data, metrics, nulls)),
    )


def _undefined_notes(metrics: Mapping[str, Metrics]) -> list[str]:
    """Return why metrics of instances are undefined; methods with the same reason are joined."""
    methods: dict[str, list[str]] = {}
    for method, method_metrics in metrics.items():
        for name, column in INSTANCES.items():
            metric = method_metrics[name]
            if metric.value is None:
                reason = f"{column.title} is undefined: {metric.reason}"
                methods.setdefault(reason, []).append(method)
    return [f"{reason} ({', '.join(names)})." for reason, names in methods.items()]


def _table(
    name: str,
    title: str,
    columns: MetricColumns,
    rows: Mapping[str, Metrics],
    *,
    footnotes: Sequence[str],
    follow: tuple[ResultTable, ...] = (),
) -> ResultTable:
    """Return a table of metrics; a row is a method or a null map."""
    table_rows = []
    for row, metrics in rows.items():
        cells = [metric_cell(metrics.get(metric)) for metric in columns]
        table_rows.append((text_cell(row), *cells))
    return ResultTable(
        name=name,
        title=title,
        columns=(METHOD, *columns.values()),
        rows=tuple(table_rows),
        footnotes=tuple(footnotes),
        follow=follow,
    )


def _named(nulls: NullResults) -> dict[str, Metrics]:
    """Return the rows of the null maps, which have only the metrics that rank instances."""
    return {f"null: {name}": metrics for name, metrics in nulls.metrics.items()}


def _errors(data: str, metrics: Mapping[str, Metrics]) -> ResultTable:
    """Return the AUROC with which σ² and its null rivals find wrong instance calls."""
    gains = [m["error_auroc_gain"] for m in metrics.values()]
    verdicts = []
    for name, m in metrics.items():
        if m["error_auroc_variance"].value is not None:
            sentences = (detector_verdict(m, "variance"), detector_verdict(m, "doubt"))
            verdicts.append(f"{name}: {' '.join(sentences)}")
    return _table(
        f"errors_{key(data)}",
        f"Detection of wrong instance calls on {data}",
        ERRORS,
        metrics,
        footnotes=(
            "AUROC in percent for finding wrong calls among the instances of positive bags: σ² and "
            "P(wrong) first, then their null rivals, which cost nothing extra; a random order has "
            "50. Methods without a variance have neither σ² nor P(wrong).",
            *verdicts,
            detectable_from_intervals([(m.low, m.high) for m in gains], what="σ² minus best rival"),
        ),
    )


def _within_bags(data: str, metrics: Mapping[str, Metrics], nulls: NullResults) -> ResultTable:
    """Return the measures within positive bags of every method and of every null map."""
    notes = [f"null: {name} is missing: {reason}." for name, reason in nulls.missing.items()]
    if nulls.metrics:
        null_metrics = {name: m[WITHIN] for name, m in nulls.metrics.items()}
        intervals = []
        for name, m in metrics.items():
            comparison = compare_to_null_maps(name, m[WITHIN], null_metrics)
            notes.append(comparison.sentence)
            if comparison.null is not None:
                gain = comparison.differences[comparison.null]
                intervals.append((gain.low, gain.high))
        what = "AUROC within bags to the best null map"
        notes.append(detectable_from_intervals(intervals, what=what))
    return _table(
        f"within_bags_{key(data)}",
        f"Maps within positive bags of {data}",
        WITHIN_BAGS,
        {**metrics, **_named(nulls)},
        footnotes=(
            "Means over the positive test bags that have instances of both labels; [lo, hi] are "
            "95 % intervals over patients and replicates. Top instance and top 1 % (at least one "
            "instance): the share that is positive. Dice: at e > 0 for models of evidence e, "
            "otherwise at the threshold with the best Dice on the validation bags. Null maps "
            "hardly look at the image; those that learn have seen the same training bags "
            "(docs/null-maps.md).",
            *notes,
        ),
    )
