"""Average ranks over (data set, metric) columns by the paper's rule, of methods that all have."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...evaluation.ranking import Ranks, average_ranks
from ..means import SplitMetric, mean_over_splits
from ..results import Scores
from ..table import Entry
from ._shared import METRICS, by_data, find


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranked:
    """The ranks of the methods that have a value in every column."""

    ranks: Ranks | None
    """None with fewer than two of them."""
    values: dict[str, list[float]]
    """By method: its value in each column."""
    notes: tuple[str, ...]

    def entry(self, name: str) -> Entry:
        """The average rank of a method, ± its deviation over the columns (ddof = 1)."""
        if self.ranks is None or name not in self.ranks.mean:
            return Entry()
        sd = self.ranks.sd[name]
        return Entry(value=self.ranks.mean[name], sd=None if math.isnan(sd) else sd)


def ranked(scores: Sequence[Scores], names: Sequence[str]) -> Ranked:
    """Ranks methods by their means over splits, in every (data set, metric) column."""
    columns: list[tuple[list[Scores], SplitMetric]] = [
        (own, metric) for own in by_data(scores).values() for metric, _ in METRICS
    ]
    values: dict[str, list[float]] = {}
    lost = []
    for name in names:
        means = [_mean(find(own, name), metric) for own, metric in columns]
        whole = [m for m in means if m is not None]
        if len(whole) == len(columns):
            values[name] = whole
        else:
            lost.append(name)
    notes = (
        (f"Without a value in every column, and so not ranked: {', '.join(lost)}.",) if lost else ()
    )
    ranks = average_ranks(values) if len(values) > 1 else None
    return Ranked(ranks=ranks, values=values, notes=notes)


def _mean(scores: Scores | None, metric: SplitMetric) -> float | None:
    return None if scores is None else mean_over_splits(scores, metric).mean
