"""What is predicted of a bag of a table and what it is labelled with, in words."""

import math

from ..tasks import Stated, Verdict
from .prediction import Prediction
from .storage import Predictions


def _stated(table: Predictions) -> Stated:
    """Return the names and thresholds that a table of predictions states."""
    thresholds, target = (table.metadata.get(key) for key in ("thresholds", "target"))
    return Stated(table.classes, table.threshold, thresholds, target or ())


def verdict_of(table: Predictions, p: Prediction) -> Verdict:
    """Return what is predicted of a bag of a table, with its names and thresholds."""
    return p.of_task.verdict(p, _stated(table))


def is_wrong(table: Predictions, p: Prediction, row: int) -> bool | None:
    """Return whether the label of a bag of a table contradicts its prediction; None without one."""
    return p.of_task.contradicts(p, _targets(table, row), _stated(table))


def truth_of(table: Predictions, row: int) -> str:
    """Return what a bag of a table is labelled with, in words; empty if it is not known."""
    return table.of_task.labels.truth_text(_targets(table, row), table.classes)


def _targets(table: Predictions, row: int) -> list[float]:
    """Return the stored targets of a bag; nan where they are not known."""
    label, targets = table.labels[row], table.targets
    return [math.nan if label is None else label] if targets is None else targets[row].tolist()
