"""Evaluate a predictions folder: select the bags and the threshold, and compute the metrics.

The report names the part of the run (train, val, test) that it evaluates, so that training bags are
never included unnoticed.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console

from ..core import DataFrame, counted
from ..errors import InputError
from ..statistics import Metric
from .guarantee_options import GuaranteeOptions
from .guarantees import Guarantees
from .instances import instance_metrics
from .lesion_report import TITLES as LESION_TITLES
from .lesion_report import LesionReport, footnotes, lesion_report
from .metrics import bag_metrics, choose_threshold, error_metrics
from .patients_section import patients_section
from .pools import labelled
from .report_text import metric_grid, print_bags, print_instances
from .sections import SECTIONS, Evaluated, Section
from .smoothness import smoothness_sentence
from .table_rows import has_classes
from .tables import Predictions, read_predictions
from .target_section import TargetData, target_metrics
from .truth import Truth, class_names, listed, read_truth

Part = Literal["auto", "test", "val", "train", "all"]

SAME = ("macro_auroc", "macro_average_precision", "macro_f1")
"""Metrics of classes that `bag_metrics` gives under the names without `macro_`."""
INSTANCE_RESAMPLES = 500
"""Upper limit of the resamples for instances, which are many and slow to rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The metrics of one part of a predictions folder, with counts, threshold and warnings."""

    folder: Path
    part: str
    """test (which includes new bags), val, train or all."""
    parts: dict[str, int]
    """Number of evaluated bags by their part of the run."""
    bags: int
    classes: tuple[str, ...]
    per_class: dict[str, int]
    """Number of bags of each class; for other tasks, of events, findings or values."""
    threshold: float | None
    """None with three classes or more, where the most probable class is called."""
    threshold_source: str
    metrics: dict[str, Metric]
    instances: dict[str, Metric] | None
    """None if no evaluated bag has instance labels."""
    instance_bags: int
    without_label: tuple[str, ...]
    without_prediction: tuple[str, ...]
    warnings: tuple[str, ...]
    metadata: dict[str, Any] = field(default_factory=dict)
    lesions: LesionReport | None = None
    """None without annotations."""
    sections: tuple[Section, ...] = ()
    """Further parts of the report, in the order of `sections.SECTIONS`."""

    @property
    def unmet(self) -> tuple[str, ...]:
        """Why requested guarantees are missing from the report."""
        found = (s for s in self.sections if isinstance(s, Guarantees))
        return tuple(reason for s in found for reason in s.unmet.values())

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {
            "folder": str(self.folder),
            "part": self.part,
            "parts": self.parts,
            "bags": self.bags,
            "classes": list(self.classes),
            "per_class": self.per_class,
            "threshold": self.threshold,
            "threshold_source": self.threshold_source,
            "metrics": {k: m.to_dict() for k, m in self.metrics.items()},
            "instances": self.instances and {k: m.to_dict() for k, m in self.instances.items()},
            "instance_bags": self.instance_bags,
            "without_label": list(self.without_label),
            "without_prediction": list(self.without_prediction),
            "warnings": list(self.warnings),
            "about": self.metadata,
            **({} if self.lesions is None else {"lesions": self.lesions.to_dict()}),
            **{section.key: section.to_dict() for section in self.sections},
        }

    def to_frame(self) -> DataFrame:
        """Return a data frame with one row per metric: value, 95 % interval, or the reason."""
        from .frames import report_frame

        return report_frame(self)

    def render(self, console: Console) -> None:
        """Print the report as text."""
        line = partial(console.print, markup=False, soft_wrap=True)

        parts = ", ".join(f"{n} {part}" for part, n in self.parts.items())
        of_class = "{} of class {}" if self.classes else "{} {}"
        classes = ", ".join(of_class.format(n, c) for c, n in self.per_class.items())
        line(f"{self.folder}: {counted(self.bags, 'bag')} ({parts}; {classes})")
        if self.threshold_source:
            line(f"threshold: {self.threshold_source}")
        if "prior" in self.metadata:
            line(f"classes: {self.metadata['prior']}")
        if "kappa" in self.metadata:
            line(smoothness_sentence(self.metadata))
        print_bags(console, self.metrics, sections=self.sections)
        if self.instances is not None:
            print_instances(
                console, self.instances, bags=self.instance_bags, sections=self.sections
            )
        if self.lesions is not None:
            title = f"lesions of {counted(self.lesions.slides, 'slide')}"
            console.print(metric_grid(title, self.lesions.metrics, titles=LESION_TITLES))
            for footnote in footnotes(self.lesions, listed=listed):
                line(footnote)
        for section in self.sections:
            section.render(console)
        if self.without_label:
            line(f"predicted without a label: {listed(self.without_label)}")
        if self.without_prediction:
            line(f"labels without a prediction: {listed(self.without_prediction)}")
        for warning in self.warnings:
            line(f"warning: {warning}")


def evaluate(  # noqa: PLR0913 - the options are independent
    folder: Path,
    *,
    labels: Path | None = None,
    classes: Sequence[str] | None = None,
    part: Part = "auto",
    lesions: Path | None = None,
    mpp: float | None = None,
    guarantees: GuaranteeOptions | None = None,
    bootstrap: int = 2000,
    seed: int = 0,
) -> Report:
    """Evaluate a predictions folder.

    Args:
        folder: predictions folder that `probsa predict` or a training run wrote.
        labels: table `bag,label[,group]`; None for the labels stored with the predictions. The
            intervals resample its groups (patients).
        classes: class names in the order of their index, if the labels of the table are names.
        part: the part of the run; `auto` selects the test bags (and new bags) if there are any,
            otherwise the validation bags, otherwise all bags.
        lesions: folder of tumour annotations of the slides; None for no lesion metrics.
        mpp: micrometres per level-0 pixel, for `lesions`; None for 0.243, as in CAMELYON16.
        guarantees: the guarantees to compute from calibration bags; None for none.
        bootstrap: number of resamples; 0 for no intervals.
        seed: seed of the resamples.

    Raises:
        InputError: the folder does not exist, no evaluated bag has a label, a label is not one of
            the classes, or the calibration bags cannot be used.
        UnmetGuarantee: none of the requested guarantees can be given. If some can, `Report.unmet`
            has the reasons for the others.
        TableError: one of the tables cannot be used.
        BagError: lesions are evaluated and a bag has no coordinates.
    """
    predictions = read_predictions(folder)
    options: dict[str, Any] = {"bootstrap": bootstrap, "seed": seed, "guarantees": guarantees}
    if not has_classes(predictions.task):
        from .target_report import target_report

        return target_report(predictions, labels, part=part, lesions=lesions, **options)
    truth = read_truth(predictions, labels, classes=classes)
    selected, rows = select_part(predictions, truth, part=part)
    report = _report(predictions, truth, part=selected, rows=rows, **options)
    if lesions is None:
        return report
    of_lesions = lesion_report(
        predictions,
        lesions,
        bags=[predictions.bags[i] for i in rows],
        positive={b: y > 0 for b, y in truth.label.items()},
        groups=truth.group,
        mpp=mpp,
        bootstrap=min(bootstrap, INSTANCE_RESAMPLES),
        seed=seed,
    )
    return replace(report, lesions=of_lesions)


def _report(
    predictions: Predictions,
    truth: Truth,
    *,
    part: str,
    rows: Sequence[int],
    guarantees: GuaranteeOptions | None,
    bootstrap: int,
    seed: int,
) -> Report:
    """Return the report of bags and instances, without lesions."""
    threshold, source = _threshold(predictions, truth, part=part)
    counts = Counter(predictions.parts[i] for i in rows)
    warnings = [*truth.warnings, *bag_warnings(counts, source, part=part)]
    bags = [predictions.bags[i] for i in rows]
    y, groups = [truth.label[b] for b in bags], [truth.group.get(b, b) for b in bags]
    p, sd = predictions.probability[rows], predictions.std[rows]
    names, ordered = class_names(predictions), predictions.task == "ordinal"
    data = TargetData.of(predictions, rows, np.array(y, dtype=np.float64)[:, None])
    options: dict[str, Any] = {"groups": groups, "bootstrap": bootstrap, "seed": seed}
    bag, of_target = bag_metrics(y, p, threshold=threshold, **options), []
    if len(names) > 2:
        overall, *of_target = target_metrics(data, **options)
        bag = _of_classes(bag, overall, ordinal=ordered)
    errors = error_metrics(y, p, std=sd, threshold=threshold, ordered=ordered, **options)
    instances, instance_bags, missing = instances_of_rows(
        predictions, truth, rows=rows, part=part, bootstrap=bootstrap, seed=seed
    )
    warnings += without_instances(missing)
    evaluated = Evaluated(
        predictions=predictions,
        part=part,
        rows=tuple(rows),
        label=truth.label,
        group=truth.group,
        threshold=threshold,
        bootstrap=bootstrap,
        seed=seed,
        guarantees=guarantees,
    )
    of_patients = patients_section(data, threshold=threshold, **options)
    of_bags = [*of_target, of_patients, *(make(evaluated) for make in SECTIONS)]
    return Report(
        folder=predictions.folder,
        part=part,
        parts=dict(counts),
        bags=len(rows),
        classes=names,
        per_class={c: y.count(i) for i, c in enumerate(names)},
        threshold=threshold,
        threshold_source=source,
        metrics={**bag, **errors},
        instances=instances,
        instance_bags=instance_bags,
        without_label=tuple(b for b in predictions.bags if b not in truth.label),
        without_prediction=tuple(b for b in truth.label if b not in set(predictions.bags)),
        warnings=tuple(warnings),
        metadata=predictions.metadata,
        sections=tuple(s for s in of_bags if s is not None),
    )


def without_instances(missing: Sequence[str]) -> list[str]:
    """Return the warning that bags have no outputs of instances, if some have none."""
    return [f"no per-instance outputs of {listed(missing)}"] if missing else []


def _of_classes(
    bag: Mapping[str, Metric], overall: Mapping[str, Metric], *, ordinal: bool
) -> dict[str, Metric]:
    """Return the metrics of more than two classes, each under one name."""
    if ordinal:
        return dict(overall)
    return {**bag, **{k: m for k, m in overall.items() if k not in bag and k not in SAME}}


def select_part(predictions: Predictions, truth: Truth, *, part: Part) -> tuple[str, list[int]]:
    """Return the evaluated part and its labelled rows."""
    with_label = [i for i, b in enumerate(predictions.bags) if b in truth.label]
    if not with_label:
        raise InputError(
            f"none of the {len(predictions.bags)} bags predicted in {predictions.folder} has a "
            f"label ({listed(predictions.bags)}): give --labels with these names in column 'bag'"
        )
    rows = {
        "test": [i for i in with_label if predictions.parts[i] not in ("train", "val")],
        "val": [i for i in with_label if predictions.parts[i] == "val"],
        "train": [i for i in with_label if predictions.parts[i] == "train"],
        "all": with_label,
    }
    if part == "auto":
        part = "test" if rows["test"] else "val" if rows["val"] else "all"
    if not rows[part]:
        counts = Counter(predictions.parts[i] for i in with_label)
        raise InputError(
            f"{predictions.folder} has no labelled {part} bags; it has "
            + ", ".join(f"{n} {name}" for name, n in counts.items())
        )
    return part, rows[part]


def _threshold(predictions: Predictions, truth: Truth, *, part: str) -> tuple[float | None, str]:
    """Return the threshold of p(Y = 1) for positive calls, and a text on its origin."""
    if predictions.task == "ordinal":
        return None, "none: the median grade is called"
    if predictions.probability.shape[1] > 2:
        return None, "none: the most probable class is called"
    if predictions.threshold is not None:
        t = predictions.threshold
        return t, f"{t:.4g}, stored with the predictions (chosen on validation bags)"
    rows = [
        i
        for i, b in enumerate(predictions.bags)
        if predictions.parts[i] == "val" and b in truth.label
    ]
    if not rows:
        return 0.5, "0.5: no threshold is stored, and no labelled validation bag was predicted"
    y = [truth.label[predictions.bags[i]] for i in rows]
    t = choose_threshold(y, predictions.probability[rows, -1])
    if t.reason is not None:
        return t.value, f"{t.value:.4g}: {t.reason}"
    same = ", which are the evaluated bags" if part == "val" else ""
    return t.value, f"{t.value:.4g}, the best F1 on {len(rows)} validation bags{same}"


def bag_warnings(counts: Mapping[str, int], source: str, *, part: str) -> list[str]:
    """Return warnings about the parts of the evaluated bags, and about the threshold."""
    warnings = []
    if counts["train"] == sum(counts.values()):
        warnings.append("all evaluated bags are training bags: the metrics are optimistic")
    elif counts["train"]:
        warnings.append(f"{counts['train']} of the evaluated bags are training bags")
    if part == "val":
        warnings.append(
            "model and threshold were chosen on these validation bags: the metrics are optimistic"
        )
    if source.startswith("0.5: "):
        warnings.append("F1 and accuracies are at 0.5, which was not chosen for these predictions")
    return warnings


def instances_of_rows(
    predictions: Predictions,
    truth: Truth,
    *,
    rows: Sequence[int],
    part: str,
    bootstrap: int,
    seed: int,
) -> tuple[dict[str, Metric] | None, int, list[str]]:
    """Return instance metrics, their number of bags, and the bags without per-instance outputs."""
    names = [predictions.bags[i] for i in rows]
    missing = [b for b in names if not predictions.instance_path(b).is_file()]
    bags = labelled([predictions.instances(b) for b in names if b not in set(missing)])
    if not bags:
        return None, 0, missing
    validation = None
    if part in ("test", "train"):
        names = [
            b
            for b, part_of_bag in zip(predictions.bags, predictions.parts, strict=True)
            if part_of_bag == "val" and truth.label.get(b)
        ]
        lacking = {b for b in names if not predictions.instance_path(b).is_file()}
        missing += sorted(lacking)
        validation = [predictions.instances(b) for b in names if b not in lacking]
    metrics = instance_metrics(
        bags,
        positive={b: y > 0 for b, y in truth.label.items()},
        validation=validation,
        groups=truth.group,
        bootstrap=min(bootstrap, INSTANCE_RESAMPLES),
        seed=seed,
    )
    return metrics, len(bags), missing
