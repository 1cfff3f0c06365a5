"""Where each method finds evidence on one data set: instances, wrong calls, null maps.

The rows of every table are methods and null maps, its columns metrics of instances.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import ProbSAError
from ...evaluation import (
    DICE_OF_MAP,
    INSTANCE_DETECTORS,
    WITHIN,
    WITHIN_TITLES,
    compare_to_null_maps,
    detector_verdict,
)
from ...statistics import Metric, detectable_from_intervals
from ..results.instances import BOOTSTRAP, NullResults, metrics_of, null_results
from ..results.scores import Scores
from ._notes import metadata
from .table import METHOD, Column, ResultTable, Unit, key, metric_cell, text_cell

Metrics = Mapping[str, Metric]

INSTANCES = {
    "auroc": "AUROC",
    "average_precision": "AP",
    "auroc_within_bags": "AUROC within bags",
    "dice": "Dice",
    "dice_pooled": "Dice, pooled",
}
SHOWN_DETECTORS = ("variance", "doubt", "margin", "entropy")
"""Without the parts of P(wrong), which only an ensemble has."""
ERRORS = {
    "error_rate": "wrong calls",
    **{f"error_auroc_{d}": INSTANCE_DETECTORS[d] for d in SHOWN_DETECTORS},
    "error_auroc_gain": "σ² minus best rival",
}


def instances_table(scores: Sequence[Scores], *, bootstrap: int = BOOTSTRAP) -> ResultTable | None:
    """Return the instance metrics of each method, followed by σ² beside its null rivals.

    Returns: None if no test bag has instance labels.
    """
    metrics: dict[str, Metrics] = {}
    failures: list[str] = []
    for s in scores:
        try:
            found = metrics_of(s, bootstrap=bootstrap)
        except ProbSAError as error:
            failures.append(f"{s.method.name} has no instance metrics: {error}.")
            continue
        metrics |= {} if found is None else {s.method.name: found}
    if not metrics:
        return None
    data, with_labels = scores[0].data, [s for s in scores if s.method.name in metrics]
    nulls = null_results(with_labels[0], bootstrap=bootstrap)
    undefined: dict[str, list[str]] = {}
    for name, of_method in metrics.items():
        for k, title in INSTANCES.items():
            if of_method[k].value is None:
                reason = f"{title} is undefined: {of_method[k].reason}"
                undefined.setdefault(reason, []).append(name)
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
            *(f"{reason} ({', '.join(names)})." for reason, names in undefined.items()),
            *failures,
        ),
        follow=(_errors(data, metrics), _within_bags(data, metrics, nulls)),
    )


def _table(
    name: str, title: str, titles: Mapping[str, str], rows: Mapping[str, Metrics], **texts: Any
) -> ResultTable:
    """Return a table of metrics; `titles` are those of its columns, by the name of the metric."""
    columns = [METHOD]
    for k, column in titles.items():
        unit: Unit = "points" if k.endswith("gain") else "percent"
        csv = k.removeprefix("error_auroc_")
        columns.append(Column(key=csv, title=column, unit=unit))
    return ResultTable(
        name=name,
        title=title,
        columns=tuple(columns),
        rows=tuple(
            (text_cell(row), *(metric_cell(metrics.get(k)) for k in titles))
            for row, metrics in rows.items()
        ),
        **texts,
    )


def _named(nulls: NullResults) -> dict[str, Metrics]:
    """Return the rows of the null maps, which have only the metrics that rank instances."""
    return {f"null: {name}": metrics for name, metrics in nulls.metrics.items()}


def _errors(data: str, metrics: Mapping[str, Metrics]) -> ResultTable:
    """Return the AUROC with which σ² and its null rivals find wrong instance calls."""
    gains = [m["error_auroc_gain"] for m in metrics.values()]
    return _table(
        f"errors_{key(data)}",
        f"Detection of wrong instance calls on {data}",
        ERRORS,
        metrics,
        footnotes=(
            "AUROC in percent for finding wrong calls among the instances of positive bags: σ² and "
            "P(wrong) first, then their null rivals, which cost nothing extra; a random order has "
            "50. Methods without a variance have neither σ² nor P(wrong).",
            *(
                f"{name}: {detector_verdict(m, 'variance')} {detector_verdict(m, 'doubt')}"
                for name, m in metrics.items()
                if m["error_auroc_variance"].value is not None
            ),
            detectable_from_intervals([(m.low, m.high) for m in gains], what="σ² minus best rival"),
        ),
    )


def _within_bags(data: str, metrics: Mapping[str, Metrics], nulls: NullResults) -> ResultTable:
    """Return the measures within positive bags of every method and of every null map."""
    notes = [f"null: {name} is missing: {reason}." for name, reason in nulls.missing.items()]
    if nulls.metrics:
        of_nulls = {name: m[WITHIN] for name, m in nulls.metrics.items()}
        compared = [compare_to_null_maps(name, m[WITHIN], of_nulls) for name, m in metrics.items()]
        gains = [c.differences[c.null] for c in compared if c.null is not None]
        ends, what = [(d.low, d.high) for d in gains], "AUROC within bags to the best null map"
        notes += [*(c.sentence for c in compared), detectable_from_intervals(ends, what=what)]
    return _table(
        f"within_bags_{key(data)}",
        f"Maps within positive bags of {data}",
        {**WITHIN_TITLES, DICE_OF_MAP: "Dice"},
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
