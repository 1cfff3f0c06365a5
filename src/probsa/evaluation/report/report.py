"""Evaluate a predictions folder: select the bags and the threshold, and compute all sections.

The report names the part of the run (train, val, test) that it evaluates, so that training bags are
never included unnoticed. Tasks of all kinds go through the same steps.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table as Grid

from ...core import counted, optional_path
from ...datasets import NO_TEST
from ...errors import InputError
from ...statistics import Metric, Threshold
from ...tasks import Task, class_name
from ..claims import Caution, Claim
from ..context import (
    INSTANCE_RESAMPLES,
    Context,
    Truth,
    default_part,
    labelled_rows,
    read_truth,
    threshold_of,
)
from ..faithfulness import faithfulness_section
from ..guarantees import GuaranteeOptions, guarantees_section
from ..instances.measures import DETECTOR_AREAS
from ..instances.metrics import instance_metrics
from ..instances.table import InstanceTable
from ..metadata import PredictionsMetadata, Reservation, ReservationKind
from ..section import Section, metric_grid, plain, print_parts
from ..storage import Predictions, listed, read_predictions
from ..words import (
    DETECTORS_IN_WORDS,
    INSTANCE_TITLES,
    POOLED,
    metric_titles,
    no_interval_text,
    shortened,
)
from .summary import summarise
from .target import patients_section, target_section
from .trust import MapTrust, map_trust
from .uncertainty import calibration_section, doubt_section
from .within import best_of, instance_table, pooled_nulls, validation_table, within_section

Part = Literal["auto", "test", "val", "train", "all"]


NOT_IN_JSON = ("metadata", "sections", "text", "cautions", "call_threshold")
"""The fields of a report that JSON has in another place, or in words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The metrics of one part of a predictions folder, with counts, threshold and warnings."""

    folder: Path | None
    """The predictions folder; None for predictions in memory, whose report has no sections on
    instances, null maps and faithfulness."""
    part: str
    """test (which includes new bags), val, train or all."""
    parts: Mapping[str, int]
    """Number of evaluated bags by their part of the run."""
    bags: int
    classes: tuple[str, ...]
    per_class: Mapping[str, int]
    """Number of bags of each class; for other tasks, of events, findings or values."""
    threshold: float | None
    """None where the most probable class is called, and for tasks without calls."""
    threshold_source: str
    metrics: Mapping[str, Metric]
    instances: Mapping[str, Metric] | None
    """None if no evaluated bag has instance labels."""
    instance_bags: int
    without_label: tuple[str, ...]
    without_prediction: tuple[str, ...]
    warnings: tuple[str, ...]
    metadata: PredictionsMetadata = field(default_factory=PredictionsMetadata)
    sections: tuple[Section, ...] = ()
    text: tuple[Grid | str, ...] = ()
    """The tables of bags and instances."""
    summary: tuple[str, ...] = ()
    """A dozen lines of what a reader asks first."""
    chance: str = ""
    """Says that the model is not shown better than chance; empty if it is."""
    claims: tuple[Claim, ...] = ()
    """What the summary claims beyond the numbers."""
    map_trust: MapTrust = field(default_factory=lambda: map_trust({}))
    """Whether the maps may be shown as explanations, with the reasons."""
    rival: tuple[str, ...] = ()
    """Says that the model is not shown better than the mean features; empty if it is."""
    cautions: tuple[Caution, ...] = ()
    """What the warnings on bags, threshold and outputs are about."""
    call_threshold: Threshold | None = None
    """Where `threshold` comes from; None where there is none."""

    @property
    def unmet(self) -> tuple[str, ...]:
        """Why requested guarantees are missing from the report."""
        reasons: list[str] = []
        for section in self.sections:
            reasons += section.values.get("unmet", {}).values()
        return tuple(reasons)

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        values = {
            f.name: plain(getattr(self, f.name)) for f in fields(self) if f.name not in NOT_IN_JSON
        }
        values["about"] = plain(self.metadata)
        for section in self.sections:
            values[section.key] = plain(section)
        return values

    def to_frame(self) -> pd.DataFrame:
        """Return a row per metric: what it is of, its name, value and interval, or the reason."""
        groups = {"bags": self.metrics, "instances": self.instances or {}}
        for section in self.sections:
            groups |= section.metrics
        rows = []
        for group, metrics in groups.items():
            rows += [{"of": group, "metric": name, **m.to_dict()} for name, m in metrics.items()]
        names = pd.Index(["of", "metric", "value", "low", "high", "reason"])
        numbers = dict.fromkeys(("value", "low", "high"), np.float64)
        return pd.DataFrame(rows, columns=names).astype(numbers)

    @property
    def reservations(self) -> tuple[Reservation, ...]:
        """What a reader must know before believing a map or a call of this model."""
        values = {section.key: section.values for section in self.sections}
        texts: list[tuple[ReservationKind, str]] = []
        if self.chance:
            texts.append(("chance", f"This model is {self.chance}."))
        for text in self.rival:
            texts.append(("mean features", text))
        within = values.get("within_bags", {})
        for comparison in within.get("comparisons", ()):
            if comparison.map == within["shown_map"]:
                texts.append(("null maps", comparison.reservation))
        for section in self.sections:
            if section.key == "doubt":
                for part in section.parts.values():
                    texts.append(("doubt", doubt_reservation(part)))
        if self.part == "val":
            bags = counted(self.bags, "validation bag")
            text = f"The model was evaluated on the {bags} that chose its weights and threshold."
            texts.append(("validation bags", text))
        return tuple(Reservation(kind=kind, text=text) for kind, text in texts if text)

    def render(self, console: Console, *, full: bool = False) -> None:
        """Print the summary, what was asked for, warnings and what to do next; or everything."""
        warnings = [f"warning: {warning}" for warning in self.warnings]
        if full:
            print_parts(console, (*self._heading(), *self.text))
            for section in self.sections:
                section.render(console)
            print_parts(console, (*self._unmatched(), *warnings))
            return
        print_parts(console, self.summary)
        for section in self.sections:
            if section.on_request:
                section.render(console)
        print_parts(console, warnings)
        if self.folder is not None:
            following = (
                f"next: probsa view {self.folder} (the maps as a page), probsa evaluate "
                f"{self.folder} --full (the whole report)"
            )
            print_parts(console, (following,))

    def _heading(self) -> list[str]:
        """Return the lines before the tables of a whole report."""
        parts = ", ".join(f"{n} {part}" for part, n in self.parts.items())
        template = "{} of class {}" if self.classes else "{} {}"
        classes = ", ".join(template.format(n, name) for name, n in self.per_class.items())
        title = "predictions in memory" if self.folder is None else self.folder
        lines = [f"{title}: {counted(self.bags, 'bag')} ({parts}; {classes})"]
        if self.threshold_source:
            lines.append(f"threshold: {self.threshold_source}")
        metadata = self.metadata
        if metadata.prior is not None:
            lines.append(f"classes: {metadata.prior}")
        if metadata.map_score is not None:
            lines.append(f"score of the maps: {metadata.map_score.reason}")
        if metadata.kappa is not None:
            kappa = ", ".join(f"{k:.3g}" for k in np.atleast_1d(metadata.kappa))
            line = f"smoothness: κ = {kappa}"
            others = metadata.neighbour_weight
            if others is not None:
                line += (
                    f"; on average, {others:.0%} of an instance's value comes from its neighbours "
                    f"and {1 - others:.0%} from the instance itself"
                )
            lines.append(line)
        return lines

    def _unmatched(self) -> list[str]:
        """Return the lines on bags that have only a label or only a prediction."""
        lines = []
        if self.without_label:
            lines.append(f"predicted without a label: {listed(self.without_label)}")
        if self.without_prediction:
            lines.append(f"labels without a prediction: {listed(self.without_prediction)}")
        return lines


def evaluate(
    folder: Path | str | Predictions,
    *,
    labels: Path | str | None = None,
    classes: Sequence[str] | None = None,
    part: Part = "auto",
    guarantees: GuaranteeOptions | None = None,
    threshold: str | None = None,
    bootstrap: int = 2000,
    seed: int = 0,
) -> Report:
    """Evaluate a predictions folder.

    Args:
        folder: predictions folder that `probsa predict` or a training run wrote; or predictions.
        labels: table with the columns of the target, and perhaps `group`; None for the targets
            stored with the predictions. The intervals resample its groups (patients).
        classes: class names in the order of their index, if the labels of the table are names.
        part: the part of the run; `auto` selects the test bags (and new bags) if there are any,
            otherwise the validation bags, otherwise all bags.
        guarantees: the guarantees to compute from calibration bags; None for none.
        threshold: a rule that chooses the threshold of positive calls anew on the validation bags,
            such as `sensitivity=0.95`; None for the stored threshold.
        bootstrap: number of resamples; 0 for no intervals.
        seed: seed of the resamples.

    Raises:
        InputError: the folder does not exist, no evaluated bag has a label, a label is not one of
            the classes, or the calibration bags cannot be used.
        UnmetGuarantee: none of the requested guarantees can be given. If some can, `Report.unmet`
            has the reasons for the others.
        TableError: one of the tables cannot be used.
    """
    if isinstance(folder, Predictions):
        predictions = folder
        where = predictions.title
    else:
        predictions = read_predictions(folder)
        where = str(folder)
    task = predictions.of_task
    truth = read_truth(predictions, optional_path(labels), classes=classes)
    part, rows = _evaluated_rows(predictions, truth, part, where=where)
    limit = threshold_of(predictions, truth, rule=threshold)
    context = Context(
        predictions=predictions,
        truth=truth,
        part=part,
        rows=rows,
        threshold=None if limit is None else limit.value,
        bootstrap=bootstrap,
        seed=seed,
    )
    table = instance_table(context)
    metrics, of_target = target_section(context)
    asked = None if limit is None else limit.asked
    if asked is not None:
        metrics[asked] = _share_of_class(context, asked)
    source = _threshold_in_words(limit, task, part=part, metrics=metrics)
    text: list[Grid | str] = [metric_grid("bags", metrics, titles=metric_titles(metrics))]
    sections = [of_target, patients_section(context)]
    instances = None
    if table is not None:
        validation = validation_table(context)
        nulls = pooled_nulls(context, table)
        instances = _instances(context, table, validation)
        text += _instance_text(context, table, instances, nulls)
        sections.append(within_section(context, table, validation, nulls))
    if task.has_classes:
        doubt = doubt_section(context, table)
        areas = doubt.parts["bags"].values["error_auroc"]
        metrics |= {f"error_auroc_{name}": areas[name] for name in ("spread", "margin")}
        sections += [doubt, calibration_section(context, table)]
    sections.append(faithfulness_section(context))
    summary = summarise(context, metrics, tuple(sections), threshold_source=source)
    if guarantees is not None:
        sections.append(guarantees_section(context, guarantees))
    counts = Counter(predictions.parts[i] for i in rows)
    cautions = _cautions(counts, limit, context)
    predicted_bags = set(predictions.bags)
    present = tuple(section for section in sections if section is not None)
    section_warnings = [warning for section in present for warning in section.warnings]
    return Report(
        folder=predictions.path,
        part=part,
        parts=counts,
        bags=len(rows),
        classes=predictions.class_names if task.has_classes else (),
        per_class=task.labels.counts(context.targets, predictions.class_names),
        threshold=context.threshold,
        threshold_source=source,
        metrics=metrics,
        instances=instances,
        instance_bags=0 if table is None else len(table.names),
        without_label=tuple(bag for bag in predictions.bags if bag not in truth.targets),
        without_prediction=tuple(bag for bag in truth.targets if bag not in predicted_bags),
        warnings=(*truth.warnings, *cautions.values(), *section_warnings),
        metadata=predictions.metadata,
        sections=present,
        text=tuple(text),
        summary=summary.lines,
        chance=summary.at_chance,
        claims=summary.claims,
        map_trust=summary.trust,
        rival=summary.reservations,
        cautions=tuple(cautions),
        call_threshold=limit,
    )


def _evaluated_rows(
    predictions: Predictions, truth: Truth, part: Part, *, where: str
) -> tuple[Part, tuple[int, ...]]:
    """Return the part that is evaluated, and the rows of its labelled bags.

    Raises:
        InputError: there are none; the message says what there is in `where`.
    """
    labelled = labelled_rows(predictions, truth)
    if not labelled["all"]:
        raise InputError(
            f"none of the {len(predictions.bags)} bags predicted in {where} has a label "
            f"({listed(predictions.bags)}): give --labels with these names in column 'bag'"
        )
    chosen = default_part(labelled) if part == "auto" else part
    if not labelled[chosen]:
        labelled_parts = Counter(predictions.parts[i] for i in labelled["all"])
        having = ", ".join(f"{count} {name}" for name, count in labelled_parts.items())
        raise InputError(f"{where} has no labelled {chosen} bags; it has {having}")
    return chosen, labelled[chosen]


def doubt_reservation(section: Section) -> str:
    """Say that doubt is not shown to find wrong calls better than the margin; empty if it is.

    A difference that is not shown is no sign of equality: the interval says what is possible.
    """
    values = section.values
    gain: Metric = values["doubt_gain"]
    if gain.value is None or gain.is_above(0.0):
        return ""
    finds = "is not shown to find wrong calls better than"
    if values["claim"] is Claim.DOUBT_IS_WORSE:
        finds = "finds wrong calls worse than"
    difference = shortened(gain.text(sign=True))
    if gain.no_interval is not None:
        difference += f", {no_interval_text(gain.no_interval)}"
    return (
        f"Of {values['of']}, {DETECTORS_IN_WORDS[values['judged']]} {finds} the distance from the "
        f"threshold: difference in AUROC {difference}."
    )


def _share_of_class(context: Context, asked: str) -> Metric:
    """Return the sensitivity or specificity of the evaluated bags at the threshold."""
    positive = context.y > 0
    right = (context.called > 0) == positive
    class_index = 1 if asked == "sensitivity" else 0
    in_class = positive if asked == "sensitivity" else ~positive
    part = f"of class {class_name(context.predictions.class_names, class_index)}"
    return Metric.of(
        context.draws.ratio(in_class & right, in_class),
        support=context.draws.support({part: in_class}),
        reason=f"no bag {part} among {len(positive)}: {asked} is undefined",
    )


def _threshold_in_words(
    threshold: Threshold | None, task: Task, *, part: str, metrics: Mapping[str, Metric]
) -> str:
    """Say from which p(Y = 1) bags are called positive, and where the threshold comes from."""
    if threshold is None:
        rule = task.words.call_rule
        return f"none: {rule}" if rule else ""
    value = f"{threshold.value:.4g}"
    same = ", which are the evaluated bags" if part == "val" else ""
    asked = threshold.asked
    if asked is not None:
        m = metrics[asked]
        evaluated = f"undefined ({m.reason})" if m.value is None else str(m)
        reached = f"{threshold.reached:.3f}"
        if threshold.of_class is not None and threshold.reached is not None:
            right = round(threshold.reached * threshold.of_class)
            kind = "positive" if asked == "sensitivity" else "negative"
            reached = f"{reached} ({right} of {threshold.of_class} {kind} ones)"
        return (
            f"{value}, chosen for a {asked} of at least {threshold.asked_share} on "
            f"{threshold.bags} validation bags{same}: {reached} there, {evaluated} on the "
            "evaluated bags"
        )
    if threshold.origin == "stored":
        return f"{value}, stored with the predictions (chosen on validation bags)"
    if threshold.origin == "chosen":
        rule = "the best F1" if threshold.rule in (None, "f1") else f"by {threshold.rule}"
        return f"{value}, {rule} on {threshold.bags} validation bags{same}"
    missing = "no threshold is stored, and no labelled validation bag was predicted"
    return f"{value}: {threshold.reason or missing}"


def _cautions(
    counts: Mapping[str, int], threshold: Threshold | None, context: Context
) -> dict[Caution, str]:
    """Return what to beware of in the bags, the threshold and the outputs, with its sentence."""
    cautions: dict[Caution, str] = {}
    training_bags = counts["train"]
    if training_bags == len(context.rows):
        cautions[Caution.ONLY_TRAINING_BAGS] = (
            "all evaluated bags are training bags: the metrics are optimistic"
        )
    elif training_bags:
        cautions[Caution.SOME_TRAINING_BAGS] = (
            f"{training_bags} of the evaluated bags are training bags"
        )
    if context.part == "val" and {"test", "new"}.isdisjoint(context.predictions.parts):
        cautions[Caution.NOTHING_HELD_OUT] = NO_TEST
    elif context.part == "val":
        cautions[Caution.CHOSEN_ON_THESE_BAGS] = (
            "model and threshold were chosen on these validation bags: the metrics are optimistic"
        )
    if threshold is not None and threshold.origin == "default":
        cautions[Caution.DEFAULT_THRESHOLD] = (
            "F1 and accuracies are at 0.5, which was not chosen for these predictions"
        )
    names = list(context.names)
    if context.part != "train":
        names += context.validation.names
    missing = [bag for bag in names if not context.predictions.has_instances(bag)]
    if missing:
        cautions[Caution.MISSING_OUTPUTS] = f"no per-instance outputs of {listed(missing)}"
    return cautions


def _instances(
    context: Context, table: InstanceTable, validation: InstanceTable | None
) -> dict[str, Metric]:
    """Return the metrics of the model's own score that a report shows."""
    metrics = instance_metrics(
        [table],
        validation=None if validation is None else [validation],
        groups=context.truth.group,
        bootstrap=min(context.bootstrap, INSTANCE_RESAMPLES),
        seed=context.seed,
    )
    return {name: metrics[name] for name in INSTANCE_TITLES}


def _instance_text(
    context: Context,
    table: InstanceTable,
    instances: Mapping[str, Metric],
    nulls: Mapping[str, Mapping[str, Metric]],
) -> tuple[Grid | str, ...]:
    """Return the table of instances, with the best null map below each pooled measure.

    Detectors of wrong calls are left out where the section on doubt shows them.
    """
    in_doubt = context.task.has_classes and table.called is not None and table.positive.any()
    rows: dict[str, Metric] = {}
    titles = dict(INSTANCE_TITLES)
    for name, metric in instances.items():
        if in_doubt and name in DETECTOR_AREAS:
            continue
        rows[name] = metric
        null_metrics = {null: metrics[name] for null, metrics in nulls.items() if name in metrics}
        best = best_of(null_metrics)
        if best is not None:
            titles[f"null_{name}"] = f"… of the best null map ({best})"
            rows[f"null_{name}"] = null_metrics[best]
    title = f"instances of {counted(len(table.names), 'bag')}"
    return metric_grid(title, rows, titles=titles), POOLED
