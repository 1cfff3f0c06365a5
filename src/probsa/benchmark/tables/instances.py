"""How well each method finds instances, and whether σ² flags wrong calls, on one data set."""

from collections.abc import Mapping, Sequence

from ...errors import ProbSAError
from ...evaluation import INSTANCE_DETECTORS, detector_verdict
from ...statistics import Metric, detectable_from_intervals
from ..results.comparing import ResultCache
from ..results.instances import BOOTSTRAP
from ..results.null_maps import nulls_or_reason
from ..results.scores import Scores
from ._columns import METHOD
from ._notes import metadata
from .lesions import lesion_tables
from .table import Column, ResultTable, TableCell, Unit, key, text_cell
from .within_bags import Metrics, within_bags_table

METRIC_COLUMNS: tuple[tuple[str, str, Unit], ...] = (
    ("auroc", "AUROC", "percent"),
    ("average_precision", "AP", "percent"),
    ("auroc_within_bags", "AUROC within bags", "percent"),
    ("dice", "Dice", "percent"),
    ("dice_pooled", "Dice, pooled", "percent"),
)
SHOWN_DETECTORS = ("variance", "doubt", "margin", "entropy")
"""Without the parts of P(wrong), which only an ensemble has."""


def instances_table(
    scores: Sequence[Scores], *, bootstrap: int = BOOTSTRAP, cache: ResultCache | None = None
) -> ResultTable | None:
    """Return the instance metrics of each method, followed by σ² beside its null rivals and FROC.

    Returns: None if no test bag has instance labels.
    """
    cache = cache or ResultCache()
    summaries: dict[str, Metrics] = {}
    failures: list[str] = []
    for s in scores:
        try:
            sampled = cache.metrics(s, bootstrap=bootstrap)
        except ProbSAError as error:
            failures.append(f"{s.method.name} has no instance metrics: {error}.")
            continue
        if sampled is not None:
            summaries[s.method.name] = sampled
    if not summaries:
        return None
    data, with_labels = scores[0].data, [s for s in scores if s.method.name in summaries]
    tables, lesion_notes = lesion_tables(scores, bootstrap=bootstrap)
    columns = [METHOD]
    columns += [Column(key=k, title=title, unit=unit) for k, title, unit in METRIC_COLUMNS]
    rows = [
        (text_cell(name), *(_cell(summary[k]) for k, _, _ in METRIC_COLUMNS))
        for name, summary in summaries.items()
    ]
    nulls = nulls_or_reason(with_labels[0], bootstrap=bootstrap)
    rows += [_null_row(name, of_map) for name, of_map in nulls.metrics.items()]
    return ResultTable(
        name=f"instances_{key(data)}",
        title=f"Instances of {data}",
        columns=tuple(columns),
        rows=tuple(rows),
        footnotes=(
            metadata(scores),
            "Values are in percent, means over replicates; [lo, hi] are 95 % intervals over "
            "patients and replicates. AUROC and AP rank the instances of all test bags together; "
            "with folds, they are means over folds. Null maps have no calls. Dice is "
            "computed on the instances of positive bags, at the threshold chosen on each run's "
            "validation bags.",
            *_reasons(summaries),
            *failures,
            *lesion_notes,
        ),
        follow=(
            _detectors(data, summaries),
            *tables,
            within_bags_table(data, summaries, nulls=nulls),
        ),
    )


def _null_row(name: str, metrics: Metrics) -> tuple[TableCell, ...]:
    """Return the row of a null map, which has only the metrics that rank instances."""
    cells = [_cell(metrics[k]) if k in metrics else TableCell() for k, _, _ in METRIC_COLUMNS]
    return (text_cell(f"null: {name}"), *cells)


def _cell(m: Metric) -> TableCell:
    return TableCell(value=m.value, low=m.low, high=m.high)


def _reasons(summaries: Mapping[str, Metrics]) -> list[str]:
    """Return why metrics are undefined, each reason once."""
    methods_by_reason: dict[str, list[str]] = {}
    for name, summary in summaries.items():
        for k, title, _ in METRIC_COLUMNS:
            if summary[k].value is None:
                methods_by_reason.setdefault(
                    f"{title} is undefined: {summary[k].reason}", []
                ).append(name)
    return [f"{reason} ({', '.join(names)})." for reason, names in methods_by_reason.items()]


def _detectors(data: str, summaries: Mapping[str, Metrics]) -> ResultTable:
    """Return the AUROC with which σ² and its null rivals find wrong instance calls."""
    columns = [
        METHOD,
        Column(key="error_rate", title="wrong calls", unit="percent"),
    ]
    columns += [Column(key=d, title=INSTANCE_DETECTORS[d], unit="percent") for d in SHOWN_DETECTORS]
    columns.append(Column(key="gain", title="σ² minus best rival", unit="points"))
    rows = []
    for name, summary in summaries.items():
        metrics = [summary["error_rate"]]
        metrics += [summary[f"error_auroc_{d}"] for d in SHOWN_DETECTORS]
        metrics.append(summary["error_auroc_gain"])
        rows.append((text_cell(name), *(_cell(m) for m in metrics)))
    variance_key = "error_auroc_variance"
    verdicts = [
        f"{n}: {detector_verdict(s, 'variance')} {detector_verdict(s, 'doubt')}"
        for n, s in summaries.items()
        if s[variance_key].value is not None
    ]
    gains = [s["error_auroc_gain"] for s in summaries.values()]
    return ResultTable(
        name=f"errors_{key(data)}",
        title=f"Detection of wrong instance calls on {data}",
        columns=tuple(columns),
        rows=tuple(rows),
        footnotes=(
            "AUROC in percent for finding wrong calls among the instances of positive bags: σ² and "
            "P(wrong) first, then their null rivals, which cost nothing extra; a random order has "
            "50. Methods without a variance have neither σ² nor P(wrong).",
            *verdicts,
            detectable_from_intervals([(m.low, m.high) for m in gains], what="σ² minus best rival"),
        ),
    )
