"""Null maps over the instances of all positive bags together, as the model's pooled measures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float

from ..statistics import Draws, Metric
from .metrics import rank_metrics

POOLED_MEASURES = ("auroc_positive_bags", "average_precision_positive_bags")
"""The measures, as in `instance_metrics`."""


@dataclass(kw_only=True)
class PooledNulls:
    """Collects the scores of null maps of positive bags that are read one after another."""

    rows: list[int] = field(default_factory=list)
    """The index of each bag among those that are resampled."""
    y: list[Bool[np.ndarray, " n"]] = field(default_factory=list)
    scores: dict[str, list[Float[np.ndarray, " n"]]] = field(default_factory=dict)

    def add_bag(self, row: int, y: Bool[np.ndarray, " n"]) -> None:
        """Add a positive bag with the labels of its labelled instances."""
        self.rows.append(row)
        self.y.append(y)

    def add_score(self, name: str, score: Float[np.ndarray, " n"]) -> None:
        """Add the scores that a null map gives these instances."""
        self.scores.setdefault(name, []).append(score)

    def metrics(self, names: Sequence[str], *, draws: Draws) -> dict[str, dict[str, Metric]]:
        """Return the measures of null maps that every bag has.

        Args:
            names: the null maps.
            draws: draws of the bags.
        """
        if not self.y:
            return {}
        y = np.concatenate(self.y)
        within = draws.for_items(np.repeat(self.rows, [len(part) for part in self.y]))
        what = "instances of positive bags"
        found = {}
        for name in names:
            score = np.concatenate(self.scores[name]).astype(np.float64)
            measures = rank_metrics(y, score, draws=within, what=what)
            found[name] = dict(zip(POOLED_MEASURES, measures, strict=True))
        return found


def best_null(
    metrics: Mapping[str, Mapping[str, Metric]], measure: str
) -> tuple[str, Metric] | None:
    """Return the null map with the highest value of a measure; None if no map has one."""
    values = {k: m[measure].value for k, m in metrics.items()}
    known = {k: v for k, v in values.items() if v is not None}
    if not known:
        return None
    best = max(known, key=lambda name: known[name])
    return best, metrics[best][measure]
