"""Average ranks over (data set, metric) columns by the paper's rule, of methods that have all."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...statistics import Ranks, average_ranks
from ..results.ranked import columns_of
from ..results.results import Scores
from .table import Entry


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


def ranked(scores: Sequence[Scores]) -> Ranked:
    """Ranks methods by their means over splits, in every (data set, metric) column."""
    found = columns_of(scores)
    ranks = average_ranks(found.values) if len(found.values) > 1 else None
    return Ranked(ranks=ranks, values=found.values, notes=(found.note(),) if found.lost else ())
