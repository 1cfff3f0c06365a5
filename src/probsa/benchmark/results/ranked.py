"""Rank the methods that have a value in every column, by the paper's rule.

If all data sets have the same task, the columns are pairs of data set and metric. Otherwise each
data set is one column, its primary metric; where lower is better, values are negated.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ...statistics import Ranks, average_ranks
from .sampling import means_of
from .scores import Scores


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranked:
    """Means over splits of the methods that have all of them, and their average ranks."""

    columns: tuple[tuple[str, str], ...]
    """(data set, metric)."""
    values: dict[str, list[float]]
    """Each method's value in each column, by its name; higher is better."""
    unranked: tuple[str, ...]
    """Methods that lack a value and are therefore not ranked."""
    by_primary: bool
    """Whether each data set is one column, its primary metric."""

    @property
    def ranks(self) -> Ranks | None:
        """The ranks; None with fewer than two methods."""
        return average_ranks(self.values) if len(self.values) > 1 else None

    def of(self, metric: str) -> dict[str, list[float]]:
        """Return the values of one metric, one per data set."""
        columns = [i for i, (_, name) in enumerate(self.columns) if name == metric]
        return {name: [row[i] for i in columns] for name, row in self.values.items()}

    def note(self) -> str:
        """Return a sentence that names the methods left out, or an empty string."""
        if not self.unranked:
            return ""
        return f"Not ranked, for lack of a value in some column: {', '.join(self.unranked)}."


def ranked(scores: Sequence[Scores]) -> Ranked:
    """Rank methods that are compared with each other: a family, or the λ of a variant."""
    by_primary = any(s.task.overview == 1 for s in scores)
    signs: dict[tuple[str, str], float] = {}
    for s in scores:
        measures = s.overview[:1] if by_primary else s.overview
        for m in measures:
            signs[s.data, m.name] = 1.0 if m.higher_is_better else -1.0
    means = {(s.method.name, s.data): means_of(s) for s in scores}
    values: dict[str, list[float]] = {}
    unranked: list[str] = []
    for name in dict.fromkeys(s.method.name for s in scores):
        row: list[float] = []
        for (data, metric), sign in signs.items():
            by_metric = means.get((name, data), {})
            mean = by_metric[metric].mean if metric in by_metric else None
            if mean is not None:
                row.append(sign * mean)
        if len(row) == len(signs):
            values[name] = row
        else:
            unranked.append(name)
    return Ranked(
        columns=tuple(signs), values=values, unranked=tuple(unranked), by_primary=by_primary
    )
