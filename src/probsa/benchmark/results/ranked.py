"""Find the methods to rank: those with a value in every column.

If all data sets have two classes, the columns are pairs of data set and metric. Otherwise each data
set is one column, its primary metric; where lower is better, values are negated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from ...tasks import TASKS
from .means import SplitMetric, mean_of_splits, mean_over_splits
from .results import AnyScores
from .target_samples import values_by_split
from .target_scores import TargetScores

METRICS: tuple[SplitMetric, ...] = get_args(SplitMetric)


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Means over splits of the methods that have all of them; higher is better."""

    columns: tuple[tuple[str, str], ...]
    """(data set, metric)."""
    values: dict[str, list[float]]
    """Each method's value in each column, by its name."""
    unranked: tuple[str, ...]
    """Methods that lack a value and are therefore not ranked."""
    by_primary: bool = False
    """Whether each data set is one column, its primary metric."""

    def of(self, metric: SplitMetric) -> dict[str, list[float]]:
        """Return the values of one metric, one per data set."""
        return {
            name: [v for v, (_, m) in zip(row, self.columns, strict=True) if m == metric]
            for name, row in self.values.items()
        }

    def note(self) -> str:
        """Return a sentence that names the methods left out, or an empty string."""
        if not self.unranked:
            return ""
        return f"Not ranked, for lack of a value in some column: {', '.join(self.unranked)}."


def columns_of(scores: Sequence[AnyScores]) -> Columns:
    """Return the columns of methods ranked together: a family, or the λ of a variant."""
    by_primary = any(isinstance(s, TargetScores) for s in scores)
    columns: dict[tuple[str, str], None] = {}
    for s in scores:
        if isinstance(s, TargetScores):
            columns[s.data, TASKS[s.task].primary.name] = None
        else:
            columns |= {(s.data, m): None for m in (METRICS[:1] if by_primary else METRICS)}
    means = {(s.method.name, s.data): _means(s) for s in scores}
    values: dict[str, list[float]] = {}
    incomplete: list[str] = []
    for name in dict.fromkeys(s.method.name for s in scores):
        row = [means.get((name, d), {}).get(m) for d, m in columns]
        known = [v for v in row if v is not None]
        if len(known) == len(columns):
            values[name] = known
        else:
            incomplete.append(name)
    return Columns(
        columns=tuple(columns), values=values, unranked=tuple(incomplete), by_primary=by_primary
    )


def _means(scores: AnyScores) -> dict[str, float | None]:
    """Return the means over splits by metric, negated where lower is better."""
    if not isinstance(scores, TargetScores):
        return {m: mean_over_splits(scores, m).mean for m in METRICS}
    primary = TASKS[scores.task].primary
    mean = mean_of_splits(values_by_split(scores)[primary.name]).mean
    if mean is not None and not primary.higher_is_better:
        mean = -mean
    return {primary.name: mean}
