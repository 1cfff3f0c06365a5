"""What is predicted of a bag of a table and what it is labelled with, in words."""

from ..tasks import Stated, Verdict, class_name
from .prediction import Prediction
from .storage import Predictions


def stated_of(table: Predictions) -> Stated:
    """Return the names and thresholds that a table of predictions states."""
    thresholds, target = (table.metadata.get(key) for key in ("thresholds", "target"))
    return Stated(table.classes, table.threshold, thresholds, target or ())


def verdict_of(table: Predictions, p: Prediction) -> Verdict:
    """Return what is predicted of a bag of a table, with its names and thresholds."""
    return p.of_task.verdict(p, stated_of(table))


def truth_of(table: Predictions, row: int) -> str:
    """Return what a bag of a table is labelled with, in words; empty if it is not known."""
    if table.targets is not None:
        return table.of_task.labels.truth_text(table.targets[row].tolist(), table.classes)
    label = table.labels[row]
    return "" if label is None else class_name(table.classes, label)
