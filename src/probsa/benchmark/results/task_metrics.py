"""The metrics by which the tables compare methods on a task: the primary one comes first."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...core import Task
from ...statistics import PRIMARY


@dataclass(frozen=True, kw_only=True, slots=True)
class TableMetric:
    """A metric of `TargetMetrics.overall`, and how tables show it."""

    name: str
    title: str
    higher_is_better: bool
    unit: Literal["percent", "number"]
    """`number`: as it is, for regression in the unit of the target."""
    by_fold: bool = False
    """Whether it is averaged over folds if possible, since it ranks bags or has a run's times."""
    of_target: bool = False
    """Whether its unit is that of the target."""
    low: float = -np.inf
    high: float = np.inf


def _area(name: str, title: str) -> TableMetric:
    return TableMetric(
        name=name,
        title=title,
        higher_is_better=True,
        unit="percent",
        by_fold=True,
        low=0.0,
        high=1.0,
    )


def _share(name: str, title: str) -> TableMetric:
    return TableMetric(
        name=name, title=title, higher_is_better=True, unit="percent", low=0.0, high=1.0
    )


def _loss(name: str, title: str, *, of_target: bool = False, low: float = 0.0) -> TableMetric:
    return TableMetric(
        name=name, title=title, higher_is_better=False, unit="number", of_target=of_target, low=low
    )


def _index(name: str, title: str, *, low: float = -np.inf) -> TableMetric:
    return TableMetric(
        name=name, title=title, higher_is_better=True, unit="number", low=low, high=1.0
    )


KAPPA = _index("quadratic_kappa", "quadratic κ", low=-1.0)
BRIER = TableMetric(
    name="integrated_brier",
    title="integrated Brier",
    higher_is_better=False,
    unit="number",
    by_fold=True,
    low=0.0,
)
MEASURES: dict[Task, tuple[TableMetric, ...]] = {
    "multiclass": (
        _area("auroc", "macro AUROC"),
        _share("accuracy", "accuracy"),
        _share("f1", "macro F1"),
        KAPPA,
    ),
    "ordinal": (
        KAPPA,
        _loss("mae", "MAE of grades"),
        _loss("rps", "RPS"),
        _loss("nll", "NLL"),
    ),
    "multilabel": (
        _area("macro_auroc", "macro AUROC"),
        _area("macro_average_precision", "macro AP"),
        _loss("nll", "NLL"),
    ),
    "regression": (
        _loss("mae", "MAE", of_target=True),
        _loss("rmse", "RMSE", of_target=True),
        _index("r_squared", "R²"),
        _loss("crps", "CRPS", of_target=True),
    ),
    "survival": (
        _area("uno_c", "Uno's c"),
        BRIER,
        _area("mean_auroc", "mean AUROC(t)"),
    ),
}
"""By task, for all but two classes; the first has the name of `PRIMARY`."""


def primary_of(task: Task) -> TableMetric:
    """Return the metric that decides ranks."""
    metric = MEASURES[task][0]
    assert metric.name == PRIMARY[task].name
    return metric
