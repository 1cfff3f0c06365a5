"""The primary metric of each task: it chooses the epoch, and the first table compares it."""

from dataclasses import dataclass

from ..core import Task


@dataclass(frozen=True, slots=True)
class Primary:
    """The name of a metric, as in `TargetMetrics.overall`, and its direction."""

    name: str
    higher_is_better: bool


PRIMARY: dict[Task, Primary] = {
    "binary": Primary("auroc", higher_is_better=True),
    "multiclass": Primary("auroc", higher_is_better=True),
    "ordinal": Primary("quadratic_kappa", higher_is_better=True),
    "multilabel": Primary("macro_auroc", higher_is_better=True),
    "regression": Primary("mae", higher_is_better=False),
    "survival": Primary("uno_c", higher_is_better=True),
}
"""The primary metric of each task."""
