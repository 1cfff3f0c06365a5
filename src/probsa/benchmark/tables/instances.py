"""How well instances are found, and whether σ² says where not: of one data set, by method."""

from collections.abc import Mapping, Sequence

from ...errors import ProbSAError
from ...evaluation import DETECTORS, TITLES, error_verdict
from ...statistics import Metric
from ..results.cache import Kept
from ..results.instances import AREA, BOOTSTRAP
from ..results.results import Scores
from ._shared import key, metadata
from .lesions import lesion_tables
from .table import Column, Entry, ResultTable, Unit, words

Summary = Mapping[str, Metric]
FOUND: tuple[tuple[str, str, Unit], ...] = (
    ("auroc", "AUROC", "percent"),
    ("average_precision", "AP", "percent"),
    ("auroc_within_bags", "AUROC within bags", "percent"),
    ("dice", "Dice", "percent"),
    ("dice_pooled", "Dice, pooled", "percent"),
    ("isolated_fp", "isolated false positives", "percent"),
    ("isolated_fp_excess", "beyond chance", "points"),
)


def instances_table(
    scores: Sequence[Scores], *, bootstrap: int = BOOTSTRAP, kept: Kept | None = None
) -> ResultTable | None:
    """Instance metrics of each method; below them σ² beside its null rivals, and FROC of slides.

    None where no test bag has instance labels.
    """
    kept = kept or Kept()
    found: dict[str, Summary] = {}
    lost: list[str] = []
    for s in scores:
        try:
            summary = kept.summary(s, bootstrap=bootstrap)
        except ProbSAError as error:
            lost.append(f"{s.method.name} has no instance metrics: {error}.")
            continue
        if summary is not None:
            found[s.method.name] = summary
    if not found:
        return None
    data = scores[0].data
    tables, said = lesion_tables(scores, bootstrap=bootstrap)
    columns = [Column(key="method", title="method")]
    columns += [Column(key=k, title=title, unit=unit) for k, title, unit in FOUND]
    rows = [
        (words(name), *(_entry(summary[k]) for k, _, _ in FOUND)) for name, summary in found.items()
    ]
    return ResultTable(
        name=f"instances_{key(data)}",
        title=f"Instances of {data}",
        columns=tuple(columns),
        rows=tuple(rows),
        footnotes=(
            metadata(scores),
            "Percent, means over replicates; [lo, hi] are 95 % intervals over patients and "
            "replicates. With folds AUROC and AP are means over folds. Dice: of the instances of "
            "positive bags, at the threshold that each run's validation bags fix. Isolated false "
            "positives: of the highest tenth of healthy instances of each bag, the share without "
            "a neighbour among them; beyond chance: less what calls that lie anywhere would have.",
            *_reasons(found),
            *lost,
            *said,
        ),
        follow=(_detectors(data, found), *tables),
    )


def _entry(m: Metric) -> Entry:
    return Entry(value=m.value, low=m.low, high=m.high)


def _reasons(found: Mapping[str, Summary]) -> list[str]:
    """Why something is undefined, each reason once."""
    by: dict[str, list[str]] = {}
    for name, summary in found.items():
        for k, title, _ in FOUND:
            if summary[k].value is None:
                by.setdefault(f"{title} is undefined: {summary[k].reason}", []).append(name)
    return [f"{why} ({', '.join(names)})." for why, names in by.items()]


def _detectors(data: str, found: Mapping[str, Summary]) -> ResultTable:
    """AUROC of finding wrong instance calls in positive bags, by σ² and by what costs nothing."""
    columns = [
        Column(key="method", title="method"),
        Column(key="error_rate", title="wrong calls", unit="percent"),
    ]
    columns += [Column(key=d, title=TITLES[d], unit="percent") for d in DETECTORS]
    columns.append(Column(key="gain", title="σ² less its best rival", unit="points"))
    rows = []
    for name, summary in found.items():
        metrics = [summary[f"error_rate_{AREA}"]]
        metrics += [summary[f"error_auroc_{d}_{AREA}"] for d in DETECTORS]
        metrics.append(summary[f"error_auroc_gain_{AREA}"])
        rows.append((words(name), *(_entry(m) for m in metrics)))
    own = f"error_auroc_variance_{AREA}"
    verdicts = [f"{n}: {error_verdict(s)}" for n, s in found.items() if s[own].value is not None]
    return ResultTable(
        name=f"errors_{key(data)}",
        title=f"Which wrong instance calls of {data} are flagged",
        columns=tuple(columns),
        rows=tuple(rows),
        footnotes=(
            "AUROC in percent of finding wrong calls among the instances of positive bags: σ² "
            "first, then its null rivals, which cost nothing. Methods without a variance have no "
            "σ² and no random map of its spectrum.",
            *verdicts,
        ),
    )
