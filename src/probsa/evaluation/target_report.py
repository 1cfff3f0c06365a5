"""Evaluate predictions of a task without classes: findings, numbers, or times to an event."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..datasets import TargetOptions, patient_table, read_table
from ..errors import InputError
from .evaluated import Evaluated
from .faithfulness_section import faithfulness_section
from .null_report import within_bags_section
from .patients_section import patients_section
from .report import (
    Part,
    Report,
    bag_warnings,
    instances_of_rows,
    select_part,
    without_instances,
)
from .tables import Predictions
from .target_section import TargetData, target_metrics
from .truth import Truth


def target_report(
    predictions: Predictions,
    labels: Path | None,
    *,
    part: Part,
    bootstrap: int,
    seed: int,
    lesions: Path | None = None,
) -> Report:
    """Return the report of a predictions folder whose task has no classes.

    Instances are judged by their own labels: a bag counts as positive if one of its instances is.

    Args:
        predictions: the predictions.
        labels: table with the columns of the run's target; None for the targets stored with the
            predictions.
        part: as in `evaluate`.
        bootstrap: number of resamples; 0 for no intervals.
        seed: seed of the resamples.
        lesions: must be None, for the scores of lesions are of slides of two classes.

    Raises:
        InputError: no evaluated bag has a target, or lesions are asked for.
        TableError: the table cannot be used.
    """
    if lesions is not None:
        raise InputError(f"scores of lesions need two classes, but the task is {predictions.task}")
    targets, group = _targets(predictions, labels)
    truth = Truth(label=dict.fromkeys(targets, 0), group=group)
    selected, rows = select_part(predictions, truth, part=part)
    parts = Counter(predictions.parts[i] for i in rows)
    names = [predictions.bags[i] for i in rows]
    y = np.array([targets[name] for name in names], dtype=np.float64)
    data = TargetData.of(predictions, rows, y)
    groups = [group.get(n, n) for n in names]
    metrics, section = target_metrics(data, groups=groups, bootstrap=bootstrap, seed=seed)
    of_patients = patients_section(
        data, groups=groups, threshold=None, bootstrap=bootstrap, seed=seed
    )
    report = Report(
        folder=predictions.folder,
        part=selected,
        parts=dict(parts),
        bags=len(rows),
        classes=(),
        per_class=_counted(data),
        threshold=None,
        threshold_source="",
        metrics=metrics,
        instances={},
        instance_bags=0,
        without_label=tuple(b for b in predictions.bags if b not in targets),
        without_prediction=tuple(b for b in targets if b not in set(predictions.bags)),
        warnings=tuple(bag_warnings(parts, "", part=selected)),
        metadata=predictions.metadata,
        sections=(section,) if of_patients is None else (section, of_patients),
    )
    return _with_instances(report, predictions, rows, group, bootstrap=bootstrap, seed=seed)


def _with_instances(
    report: Report,
    predictions: Predictions,
    rows: Sequence[int],
    group: Mapping[str, str],
    *,
    bootstrap: int,
    seed: int,
) -> Report:
    """Return the report with the metrics and sections of instances."""
    truth = _by_instances(predictions, group)
    instances, instance_bags, missing = instances_of_rows(
        predictions, truth, rows=rows, part=report.part, bootstrap=bootstrap, seed=seed
    )
    evaluated = Evaluated(
        predictions=predictions,
        part=report.part,
        rows=tuple(i for i in rows if predictions.bags[i] in truth.label),
        label=truth.label,
        group=truth.group,
        threshold=None,
        bootstrap=bootstrap,
        seed=seed,
    )
    sections = (within_bags_section(evaluated), faithfulness_section(evaluated))
    return replace(
        report,
        instances=instances,
        instance_bags=instance_bags,
        warnings=(*report.warnings, *without_instances(missing)),
        sections=(*report.sections, *(s for s in sections if s is not None)),
    )


def _targets(
    predictions: Predictions, path: Path | None
) -> tuple[dict[str, tuple[float, ...]], dict[str, str]]:
    """Return the targets of the bags that have some, and their groups."""
    if path is None:
        stored = predictions.targets
        assert stored is not None, "a task without classes has targets"
        rows = zip(predictions.bags, stored.tolist(), strict=True)
        return {bag: tuple(row) for bag, row in rows if any(map(math.isfinite, row))}, {}
    columns = predictions.metadata.get("target") or None
    if columns is None and predictions.task == "multilabel":
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


def _by_instances(predictions: Predictions, group: Mapping[str, str]) -> Truth:
    """Return which bags have a positive instance; bags without instance labels are left out."""
    label: dict[str, int] = {}
    for name in predictions.bags:
        if predictions.instance_path(name).is_file():
            own = predictions.instances(name).instance_labels
            if own is not None:
                label[name] = int((own > 0).any())
    return Truth(label=label, group=dict(group))


def _counted(data: TargetData) -> dict[str, int]:
    """Return how many bags have what, for the first line of the report."""
    if data.task == "survival":
        events = int((data.y[:, 1] > 0).sum())
        return {"with the event": events, "censored": len(data.y) - events}
    if data.task == "multilabel":
        of_finding = zip(data.names, data.y.T, strict=True)
        return {f"with {name}": int((column == 1).sum()) for name, column in of_finding}
    return {f"values from {data.y.min():g} to {data.y.max():g}": len(data.y)}
