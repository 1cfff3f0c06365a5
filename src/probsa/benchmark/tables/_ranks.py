"""Average ranks of complete methods over (data set, metric) columns, by the paper's rule."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...statistics import Ranks, average_ranks
from ..results.ranked import columns_of
from ..results.results import AnyScores
from .table import TableCell


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranked:
    """The ranks of the methods that have a value in every column."""

    ranks: Ranks | None
    """None with fewer than two methods."""
    values: dict[str, list[float]]
    """Each method's value in each column."""
    notes: tuple[str, ...]
    by_primary: bool = False
    """Whether each data set is one column, its primary metric."""

    def cell(self, name: str) -> TableCell:
        """Return a method's average rank ± s.d. over the columns (ddof = 1)."""
        if self.ranks is None or name not in self.ranks.mean:
            return TableCell()
        sd = self.ranks.sd[name]
        return TableCell(value=self.ranks.mean[name], sd=None if math.isnan(sd) else sd)


def ranked(scores: Sequence[AnyScores]) -> Ranked:
    """Rank methods by their means over splits in every column of `columns_of`."""
    columns = columns_of(scores)
    ranks = average_ranks(columns.values) if len(columns.values) > 1 else None
    return Ranked(
        ranks=ranks,
        values=columns.values,
        notes=(columns.note(),) if columns.unranked else (),
        by_primary=columns.by_primary,
    )
