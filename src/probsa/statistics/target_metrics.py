"""The metrics of one target (a task's labels): over all bags, and of each class, cut or time."""

from collections.abc import Mapping
from dataclasses import dataclass

from .metric import Metric


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetMetrics:
    """Metrics by name, each with its resamples or the reason why it is undefined."""

    overall: Mapping[str, Metric]
    by_part: Mapping[str, Mapping[str, Metric]]
    """Metrics of each class, cut between grades, finding, interval or time, by its name."""
    notes: tuple[str, ...] = ()
    """Sentences that a report must show beside the metrics, such as bags that are left out."""
