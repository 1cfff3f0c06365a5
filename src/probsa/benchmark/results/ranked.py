"""Which methods can be ranked: those that have a value in every (data set, metric) column."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from .means import SplitMetric, mean_over_splits
from .results import Scores

METRICS: tuple[SplitMetric, ...] = get_args(SplitMetric)


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Means over splits, of methods that have all of them."""

    columns: tuple[tuple[str, SplitMetric], ...]
    """(data set, metric)."""
    values: dict[str, list[float]]
    """By the method's name: its value in each column."""
    lost: tuple[str, ...]
    """The methods that lack a value, and are not ranked."""

    def of(self, metric: SplitMetric) -> dict[str, list[float]]:
        """The values of one metric: one a data set."""
        return {
            name: [v for v, (_, m) in zip(own, self.columns, strict=True) if m == metric]
            for name, own in self.values.items()
        }

    def note(self) -> str:
        """Who is left out; empty where nobody is."""
        if not self.lost:
            return ""
        return f"Without a value in every column, and so not ranked: {', '.join(self.lost)}."


def columns_of(scores: Sequence[Scores]) -> Columns:
    """Of methods that are ranked together: a family, or the λ of a variant."""
    columns: list[tuple[str, SplitMetric]] = [
        (d, m) for d in dict.fromkeys(s.data for s in scores) for m in METRICS
    ]
    of = {(s.method.name, s.data): s for s in scores}
    values: dict[str, list[float]] = {}
    lost: list[str] = []
    for name in dict.fromkeys(s.method.name for s in scores):
        own = [
            mean_over_splits(of[name, d], m).mean if (name, d) in of else None for d, m in columns
        ]
        whole = [v for v in own if v is not None]
        if len(whole) == len(columns):
            values[name] = whole
        else:
            lost.append(name)
    return Columns(columns=tuple(columns), values=values, lost=tuple(lost))
