"""Evaluate predictions of a task without classes: findings, numbers, or times to an event."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from .evaluated import Evaluated
from .faithfulness_section import faithfulness_section
from .guarantee_options import GuaranteeOptions
from .guarantees import guarantees_section
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
from .sections import Section
from .tables import Predictions
from .target_section import target_data, target_metrics
from .true_targets import read_true_targets
from .truth import Truth


def target_report(
    predictions: Predictions,
    labels: Path | None,
    *,
    part: Part,
    bootstrap: int,
    seed: int,
    lesions: Path | None = None,
    guarantees: GuaranteeOptions | None = None,
) -> Report:
    """Return the report of a predictions folder whose task has no classes.

    Instances are judged by their own labels: a bag counts as positive if one of its instances is.

    Args:
        predictions: the predictions.
        labels: table with the columns of the run's target; None for the stored targets.
        part: as in `evaluate`.
        bootstrap: number of resamples; 0 for no intervals.
        seed: seed of the resamples.
        lesions: must be None, for the scores of lesions are of slides of two classes.
        guarantees: the guarantees to compute from calibration bags; None for none.

    Raises:
        InputError, TableError: as `evaluate`, or lesions are asked for.
    """
    _refuse_lesions(predictions, lesions)
    targets, group = read_true_targets(predictions, labels)
    truth = Truth(label=_strata(predictions, targets), group=group)
    selected, rows = select_part(predictions, truth, part=part)
    evaluated = Evaluated(
        predictions=predictions, part=selected, rows=tuple(rows), label=truth.label, group=group,
        threshold=None, bootstrap=bootstrap, seed=seed, guarantees=guarantees, targets=targets,
    )  # fmt: skip
    data = target_data(predictions, rows, evaluated.values(rows))
    groups = evaluated.groups(rows)
    options: dict[str, Any] = {"groups": groups, "bootstrap": bootstrap, "seed": seed}
    metrics, section = target_metrics(data, **options)
    parts = Counter(predictions.parts[i] for i in rows)
    of_patients = patients_section(data, **options)
    report = Report(
        folder=predictions.folder,
        part=selected,
        parts=dict(parts),
        bags=len(rows),
        classes=(),
        per_class=predictions.of_task.counts(data.y, data.names),
        threshold=None,
        threshold_source="",
        metrics=metrics,
        instances={},
        instance_bags=0,
        without_label=tuple(b for b in predictions.bags if b not in targets),
        without_prediction=tuple(b for b in targets if b not in set(predictions.bags)),
        warnings=tuple(bag_warnings(parts, "", part=selected)),
        metadata=predictions.metadata,
        sections=(section,),
    )
    report = _with_instances(_with_section(report, of_patients), evaluated)
    return _with_section(report, guarantees_section(evaluated))


def _refuse_lesions(predictions: Predictions, lesions: Path | None) -> None:
    if lesions is not None:
        raise InputError(f"scores of lesions need two classes, but the task is {predictions.task}")


def _with_section(report: Report, section: Section | None) -> Report:
    return report if section is None else replace(report, sections=(*report.sections, section))


def _strata(predictions: Predictions, targets: Mapping[str, tuple[float, ...]]) -> dict[str, int]:
    """Return 1 for bags whose event was seen, by which resamples are stratified; else 0."""
    y = np.array(list(targets.values()), np.float64)
    strata = predictions.of_task.strata(y.reshape(len(targets), -1)).astype(int)
    return dict(zip(targets, strata.tolist(), strict=True))


def _with_instances(report: Report, of_bags: Evaluated) -> Report:
    """Return the report with the metrics and sections of instances."""
    predictions, rows = of_bags.predictions, of_bags.rows
    truth = _by_instances(predictions, of_bags.group)
    instances, instance_bags, missing = instances_of_rows(
        predictions,
        truth,
        rows=rows,
        part=report.part,
        bootstrap=of_bags.bootstrap,
        seed=of_bags.seed,
    )
    evaluated = replace(
        of_bags,
        rows=tuple(i for i in rows if predictions.bags[i] in truth.label),
        label=truth.label,
        guarantees=None,
    )
    sections = (within_bags_section(evaluated), faithfulness_section(of_bags))
    return replace(
        report,
        instances=instances,
        instance_bags=instance_bags,
        warnings=(*report.warnings, *without_instances(missing)),
        sections=(*report.sections, *(s for s in sections if s is not None)),
    )


def _by_instances(predictions: Predictions, group: Mapping[str, str]) -> Truth:
    """Return which bags have a positive instance; bags without instance labels are left out."""
    label: dict[str, int] = {}
    for name in predictions.bags:
        if predictions.instance_path(name).is_file():
            own = predictions.instances(name).instance_labels
            if own is not None:
                label[name] = int((own > 0).any())
    return Truth(label=label, group=dict(group))
