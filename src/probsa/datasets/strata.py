"""Stage 5: the strata by which splits of a table are balanced, and their names in messages."""

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Int64

from .labels import LabelTable
from .targets import CLASS_TASKS


def needed_strata(table: LabelTable) -> frozenset[int]:
    """Return the strata that have to occur in training: all classes, or the events.

    Quintiles of a regression target only balance a split, and multilabel has one stratum.
    """
    present = {y for y in table.labels if y is not None}
    if table.task in CLASS_TASKS:
        return frozenset(present)
    return frozenset(present & {1}) if table.task == "survival" else frozenset()


def stratum_names(table: LabelTable, strata: Iterable[int]) -> str:
    """Return strata in words that follow "bag", such as `of class tumour` or `with an event`."""
    if table.task in CLASS_TASKS:
        return f"of class {', '.join(table.classes[k] for k in strata)}"
    if table.task == "survival":
        return " or ".join("with an event" if k else "without an event" for k in strata)
    if table.task == "regression":
        return f"in quintile {', '.join(str(k + 1) for k in strata)} of {table.target[0]!r}"
    return "with known findings"


def stratified_by(table: LabelTable) -> str:
    """Return by what splits of the table are balanced, for the origin of a split."""
    return {
        "regression": f"stratified by quintiles of {table.target[0]!r}",
        "survival": "stratified by event",
        "multilabel": "not stratified by findings",
    }.get(table.task, "stratified by class")


def undefined_metric(table: LabelTable) -> str:
    """Return the metric that a part without one of the needed strata leaves undefined."""
    return "the c-index" if table.task == "survival" else "AUROC"


def balanced_strata(
    table: LabelTable, rows: Sequence[int], *, parts: int
) -> Int64[np.ndarray, " rows"]:
    """Return the stratum of each row for a division into `parts`.

    Classes and events are strata as they are. Quintiles of a regression target are merged until
    the largest stratum has a row for each part, which a splitter needs.
    """
    y = np.array([table.labels[r] for r in rows], dtype=np.int64)
    if table.task != "regression":
        return y
    for strata in (5, 4, 3, 2):
        merged = y * strata // 5
        if np.bincount(merged).max() >= parts:
            return merged
    return np.zeros_like(y)
