"""Prediction sets, and accepted calls, of new bags: a table for the user of a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ..core import counted, write_csv
from ..errors import InputError, OutputExists
from ..statistics import ConformalSets, SelectiveRule, coverage_band
from .accepted_calls import confidence, selective_rule, undecided_range
from .calibration import calibration_bags
from .evaluated import Evaluated
from .guarantee_options import GuaranteeOptions, SetScore
from .guarantees import caution, origin
from .prediction_sets import requested_sets, set_scores
from .shift_alarm import ShiftAlarm, shift_alarm
from .tables import Predictions, read_predictions
from .target_guarantees import calibrated_rule, check_target_options
from .true_targets import read_true_targets
from .truth import Truth, class_names, read_truth
from .unmet_guarantees import noted, refusal


@dataclass(frozen=True, kw_only=True, slots=True)
class NewSets:
    """What was written about new bags, and what it is based on."""

    table: Path
    bags: int
    sizes: dict[int, int]
    """Number of bags by the number of classes in their set; empty without sets."""
    accepted: int | None
    """Number of accepted calls; None if no error rate was requested."""
    rule: SelectiveRule | None
    undecided: tuple[float, float] | None
    coverage: float | None
    bands: dict[str, tuple[float, float]]
    """Where the realised coverage lies for 9 of 10 calibration sets of this size."""
    calibration: str
    caution: str | None
    alarm: ShiftAlarm
    limits: str = ""
    """How the limits of numbers or survival times follow from a prediction; empty for classes."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        rule = self.rule
        return {
            "table": str(self.table),
            "bags": self.bags,
            "calibration": self.calibration,
            "coverage": self.coverage,
            **({"limits": self.limits} if self.limits else {}),
            "bands": {k: list(v) for k, v in self.bands.items()},
            "sizes": {str(k): n for k, n in self.sizes.items()},
            "accepted": self.accepted,
            "max_error": rule and rule.max_error,
            "certified": rule and rule.threshold is not None,
            "undecided": self.undecided and list(self.undecided),
            "shift": self.alarm.to_dict(),
            "caution": self.caution,
        }

    def render(self, console: Console) -> None:
        """Print a summary."""
        line = partial(console.print, markup=False, soft_wrap=True, highlight=False)
        line(f"{self.table}: {counted(self.bags, 'bag')}, calibrated with {self.calibration}")
        if self.coverage is not None:
            sizes = ", ".join(f"{n} of size {k}" for k, n in self.sizes.items())
            made = f"limits at a coverage of {self.coverage:.3g}: {self.limits}"
            line(made if self.limits else f"sets at a coverage of {self.coverage:.3g}: {sizes}")
            for name, (low, high) in self.bands.items():
                of_class = "" if name == "all" else f" of class {name}"
                line(
                    f"  realised coverage{of_class}: between {low:.3f} and {high:.3f} for 9 of 10 "
                    "calibration sets of this size"
                )
        if self.rule is not None:
            promise = f"an error rate of at most {self.rule.max_error:.3g}"
            if self.rule.threshold is None:
                line(f"no call is accepted: the calibration bags cannot certify {promise}")
            else:
                line(f"{self.accepted} of {self.bags} calls are accepted, with {promise}")
        for text in self.alarm.lines():
            line(text)
        if self.caution is not None:
            line(f"caution: {self.caution}")


def write_sets(
    folder: Path,
    options: GuaranteeOptions,
    *,
    out: Path,
    labels: Path | None = None,
    classes: Sequence[str] | None = None,
    overwrite: bool = False,
    seed: int = 0,
) -> NewSets:
    """Write prediction sets of the test and new bags of a predictions folder, without labels.

    The table has the columns bag, set (class names joined by `|`), p_value_<class>, and with
    `options.max_error`, accepted. For numbers it has the columns bag, low and high, for survival
    times bag and lower_bound.

    Args:
        folder: predictions folder of the new bags.
        options: the requested guarantees, and the calibration bags.
        out: the CSV table to write.
        labels: table with the labels and groups of the calibration bags; None for the labels that
            are stored with their predictions.
        classes: class names in the order of their index, if the labels of the table are names.
        overwrite: replace an existing table.
        seed: seed of the permutations of the alarm.

    Raises:
        OutputExists: the table exists and `overwrite` is not set.
        InputError: the calibration bags cannot be used, or there are no new bags.
        UnmetGuarantee: they are too few for a request; gives every reason.
    """
    if out.exists() and not overwrite:
        raise OutputExists(f"{out} exists: give another --out, or --overwrite")
    new = _new_bags(read_predictions(folder), labels=labels, classes=classes, seed=seed)
    if not new.predictions.of_task.has_classes:
        return _write_limits(new, options, out)
    calibration = calibration_bags(new, options)
    sets, rule = _requested(new, calibration, options)
    columns: dict[str, Sequence[object]] = {"bag": new.names}
    if sets is not None:
        columns |= _set_columns(new, sets, score=options.score)
    if rule is not None:
        accepts = rule.accepts(confidence(new, new.rows))
        columns["accepted"] = ["yes" if a else "no" for a in accepts]
    _write_columns(out, columns)
    return NewSets(
        table=out,
        bags=len(new.rows),
        sizes={} if sets is None else _sizes(new, sets, score=options.score),
        accepted=None if rule is None else list(columns["accepted"]).count("yes"),
        rule=rule,
        undecided=None if rule is None else undecided_range(new, rule),
        coverage=options.coverage,
        bands={} if sets is None else _bands(new, sets),
        **_circumstances(new, calibration, options),
    )


def _requested(
    new: Evaluated, calibration: Evaluated, options: GuaranteeOptions
) -> tuple[ConformalSets | None, SelectiveRule | None]:
    """Return the sets and the rule of accepted calls, as far as they are requested.

    Raises:
        UnmetGuarantee: one of them cannot be given; gives every reason, as a table without a column
            that was requested would be mistaken for a whole one.
    """
    sets = rule = None
    unmet: dict[str, str] = {}
    with noted(unmet, "--coverage"):
        if options.coverage is not None:
            sets = requested_sets(calibration, options, coverage=options.coverage)
    with noted(unmet, "--max-error"):
        if options.max_error is not None:
            level = confidence(new, new.rows)
            rule = selective_rule(calibration, level, max_error=options.max_error)
    if unmet:
        raise refusal(unmet)
    return sets, rule


def _write_limits(new: Evaluated, options: GuaranteeOptions, out: Path) -> NewSets:
    """Write the intervals of numbers, or the bounds of survival times."""
    check_target_options(new.predictions.of_task, options)
    calibration = calibration_bags(new, options)
    assert options.coverage is not None, "nothing else can be asked for"
    rule = calibrated_rule(calibration, options, coverage=options.coverage)
    limits = {k: [f"{v:.6g}" for v in c] for k, c in rule.columns(new).items()}
    _write_columns(out, {"bag": new.names, **limits})
    return NewSets(
        table=out,
        bags=len(new.rows),
        sizes={},
        accepted=None,
        rule=None,
        undecided=None,
        coverage=options.coverage,
        limits=rule.text,
        bands={"all": coverage_band(rule.made.groups, alpha=1 - options.coverage)},
        **_circumstances(new, calibration, options),
    )


def _circumstances(
    new: Evaluated, calibration: Evaluated, options: GuaranteeOptions
) -> dict[str, Any]:
    """Return what calibrates, and why the promise may not hold."""
    return {
        "calibration": f"{_counts(calibration)} {origin(calibration, options)}",
        "caution": caution(new, calibration),
        "alarm": shift_alarm(new, calibration),
    }


def _write_columns(out: Path, columns: Mapping[str, Sequence[object]]) -> None:
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    write_csv(out, list(columns), rows)


def _counts(calibration: Evaluated) -> str:
    groups = len(set(calibration.groups(calibration.rows)))
    return f"{counted(len(calibration.rows), 'bag')} of {counted(groups, 'group')}"


def _new_bags(
    predictions: Predictions, *, labels: Path | None, classes: Sequence[str] | None, seed: int
) -> Evaluated:
    targets: dict[str, tuple[float, ...]] = {}
    if predictions.of_task.has_classes:
        truth = read_truth(predictions, labels, classes=classes)
    else:
        targets, group = read_true_targets(predictions, labels)
        truth = Truth(label=dict.fromkeys(targets, 0), group=group)
    parts = predictions.parts
    rows = tuple(i for i, part in enumerate(parts) if part not in ("train", "val"))
    if not rows:
        raise InputError(
            f"{predictions.folder} has only training and validation bags, for which nothing can be "
            "guaranteed: predict new bags with `probsa predict`"
        )
    threshold = None
    if predictions.of_task.two_classes and len(class_names(predictions)) == 2:
        threshold = 0.5 if predictions.threshold is None else predictions.threshold
    return Evaluated(
        predictions=predictions,
        part="new",
        rows=rows,
        label=truth.label,
        group=truth.group,
        threshold=threshold,
        bootstrap=0,
        seed=seed,
        targets=targets,
    )


def _set_columns(
    new: Evaluated, sets: ConformalSets, *, score: SetScore
) -> dict[str, Sequence[object]]:
    names = class_names(new.predictions)
    scores = set_scores(new, new.rows, score=score)
    inside, p_values = sets.sets(scores), sets.p_values(scores)
    columns: dict[str, Sequence[object]] = {
        "set": ["|".join(n for n, i in zip(names, row, strict=True) if i) for row in inside]
    }
    for name, column in zip(names, p_values.T, strict=True):
        columns[f"p_value_{name}"] = [f"{v:.6g}" for v in column]
    return columns


def _sizes(new: Evaluated, sets: ConformalSets, *, score: SetScore) -> dict[int, int]:
    inside = sets.sets(set_scores(new, new.rows, score=score))
    return dict(enumerate(np.bincount(inside.sum(1), minlength=inside.shape[1] + 1).tolist()))


def _bands(new: Evaluated, sets: ConformalSets) -> dict[str, tuple[float, float]]:
    names = class_names(new.predictions) if sets.per_class else ("all",)
    return {
        name: coverage_band(k, alpha=sets.alpha)
        for name, k in zip(names, sets.groups, strict=False)
    }
