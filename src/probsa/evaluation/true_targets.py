"""The targets and groups that predictions of tasks without classes are evaluated against."""

import math
from pathlib import Path

from ..datasets import patient_table, read_table
from ..tasks import TargetOptions
from .tables import Predictions


def read_true_targets(
    predictions: Predictions, path: Path | None
) -> tuple[dict[str, tuple[float, ...]], dict[str, str]]:
    """Return the targets of the bags that have some, and their groups.

    Args:
        predictions: the predictions.
        path: table with the columns of the run's target; None for the stored targets, without
            groups.

    Raises:
        TableError: the table cannot be used.
    """
    if path is None:
        return stored_targets(predictions), {}
    columns = predictions.metadata.get("target") or None
    if columns is None and predictions.of_task.has_findings:
        columns = predictions.classes
    options = TargetOptions(
        task=predictions.task, target=None if columns is None else tuple(columns)
    )
    table = read_table(
        path,
        labels_required=False,
        target=options,
        covariates=predictions.metadata.get("covariates", ()),
    )
    if predictions.metadata.get("unit") == "patient":
        table = patient_table(table)
    targets = {b: v for b, v in zip(table.bags, table.values, strict=True) if v is not None}
    group = {} if table.groups is None else dict(zip(table.bags, table.groups, strict=True))
    return targets, group


def stored_targets(predictions: Predictions) -> dict[str, tuple[float, ...]]:
    """Return the targets that are stored with predictions, of the bags that have some."""
    if predictions.targets is None:
        return {}
    rows = zip(predictions.bags, predictions.targets.tolist(), strict=True)
    return {bag: tuple(row) for bag, row in rows if any(map(math.isfinite, row))}
