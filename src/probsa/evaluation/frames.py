"""Predictions and reports as data frames of pandas."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core import DataFrame
from ..statistics import Metric
from .instance_files import PER_INSTANCE
from .prediction import Prediction
from .table_rows import SPREAD, has_classes, label_columns, value_columns
from .verdicts import column_names

if TYPE_CHECKING:
    from .report import Report
    from .tables import Predictions

AXES = {1: ("position",), 2: ("x", "y")}
"""Names of the columns of coordinates, by their number."""


def instances_frame(p: Prediction) -> DataFrame:
    """Return one row per instance: the bag, its coordinates, and every array of the prediction."""
    import pandas as pd

    columns: dict[str, Any] = {"bag": [p.name] * len(p.attention_mean)}
    if p.coords is not None:
        axes = AXES.get(p.coords.shape[1]) or [f"axis_{k}" for k in range(p.coords.shape[1])]
        columns |= dict(zip(axes, p.coords.T, strict=True))
    for name in PER_INSTANCE:
        values = getattr(p, name)
        if values is not None and name != "coords":
            columns |= _columns(name, values, p)
    return pd.DataFrame(columns)


def bags_frame(p: "Predictions") -> DataFrame:
    """Return one row per bag, with the columns of predictions.csv."""
    import pandas as pd

    columns: dict[str, Any] = {"bag": list(p.bags), "part": list(p.parts)}
    if not has_classes(p.task):
        return pd.DataFrame(columns | _of_targets(p) | _distances(p))
    width = p.probability.shape[1]
    names = p.classes if len(p.classes) == width else p.classes[-1:]
    # pandas has a missing whole number only in its own type
    columns["label"] = _nullable(p.labels)
    for start, values in (
        ("p", p.probability),
        ("sd", p.std),
        ("sd_within", p.std_within),
        ("sd_between", p.std_between),
    ):
        if values is not None:
            columns |= {f"{start}_{n}": v for n, v in zip(names, values.T, strict=True)}
    return pd.DataFrame(columns | _distances(p))


def _of_targets(p: "Predictions") -> dict[str, Any]:
    """Return the columns of a task without classes: targets, predictions, spreads and scores."""
    labels = label_columns(p.task, p.classes)
    assert p.targets is not None, "a task without classes has targets"
    return {
        **dict(zip(labels, p.targets.T, strict=True)),
        **dict(zip(value_columns(p.task, p.outputs), p.probability.T, strict=True)),
        **{f"{SPREAD}{n}": v for n, v in zip(p.outputs, p.std.T, strict=True)},
        **p.scores,
    }


def _distances(p: "Predictions") -> dict[str, Any]:
    values = {name: getattr(p, name) for name in ("ood", "ood_distance")}
    return {name: v for name, v in values.items() if v is not None}


def report_frame(report: "Report") -> DataFrame:
    """Return one row per metric: its subject, name, value and 95 % interval, or the reason."""
    import pandas as pd

    groups: dict[str, Mapping[str, Metric]] = {"bags": report.metrics}
    if report.instances is not None:
        groups["instances"] = report.instances
    if report.lesions is not None:
        groups["lesions"] = report.lesions.metrics
    rows = [
        (of, name, metric) for of, metrics in groups.items() for name, metric in metrics.items()
    ]
    columns: dict[str, Any] = {"of": [r[0] for r in rows], "metric": [r[1] for r in rows]}
    for name in ("value", "low", "high"):
        columns[name] = np.array([_number(getattr(r[2], name)) for r in rows])
    columns["reason"] = [r[2].reason for r in rows]
    return pd.DataFrame(columns)


def _columns(name: str, values: np.ndarray, p: Prediction) -> dict[str, np.ndarray]:
    if values.ndim == 1:
        return {name: values}
    of = column_names(p, values.shape[1]) or range(values.shape[1])
    return {f"{name}_{k}": column for k, column in zip(of, values.T, strict=True)}


def _nullable(labels: Iterable[int | None]) -> Any:
    import pandas as pd

    values = list(labels)
    return pd.Series(values).astype("Int64")


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)
