"""Find the methods to rank: those with a value in every (data set, metric) column."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from .means import SplitMetric, mean_over_splits
from .results import Scores

METRICS: tuple[SplitMetric, ...] = get_args(SplitMetric)


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Means over splits of the methods that have all of them."""

    columns: tuple[tuple[str, SplitMetric], ...]
    """(data set, metric)."""
    values: dict[str, list[float]]
    """Each method's value in each column, by its name."""
    unranked: tuple[str, ...]
    """Methods that lack a value and are therefore not ranked."""

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


def columns_of(scores: Sequence[Scores]) -> Columns:
    """Return the columns of methods ranked together: a family, or the λ of a variant."""
    columns: list[tuple[str, SplitMetric]] = [
        (d, m) for d in dict.fromkeys(s.data for s in scores) for m in METRICS
    ]
    by_name_and_data = {(s.method.name, s.data): s for s in scores}
    values: dict[str, list[float]] = {}
    incomplete: list[str] = []
    for name in dict.fromkeys(s.method.name for s in scores):
        means = [
            mean_over_splits(by_name_and_data[name, d], m).mean
            if (name, d) in by_name_and_data
            else None
            for d, m in columns
        ]
        known = [v for v in means if v is not None]
        if len(known) == len(columns):
            values[name] = known
        else:
            incomplete.append(name)
    return Columns(columns=tuple(columns), values=values, unranked=tuple(incomplete))
