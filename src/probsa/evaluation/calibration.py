"""The calibration bags of guarantees: other bags than those that the guarantees are for."""

from collections.abc import Sequence
from dataclasses import replace

from ..errors import InputError
from .evaluated import Evaluated
from .guarantee_options import GuaranteeOptions
from .storage import Predictions, read_predictions
from .true_targets import stored_targets
from .truth import class_names, listed

OF_MODEL = ("model", "epoch", "members", "kappa", "runs")
"""Entries of predictions.json that differ between models."""
SHOWN = 3


def calibration_bags(evaluated: Evaluated, options: GuaranteeOptions) -> Evaluated:
    """Return the labelled calibration bags, which share no bag and no group with `evaluated`.

    They are the validation bags of the same predictions, or the test and new bags of another
    folder (its validation bags, if it has no others).

    Raises:
        InputError: there are none, they are of another model, their groups are unknown, or a bag
            or group is on both sides.
    """
    if options.calibration is None:
        found = replace(evaluated, part="val", rows=evaluated.validation_rows)
        if not found.rows:
            raise InputError(
                f"{evaluated.predictions.folder} has no labelled validation bags besides those "
                "evaluated: name a predictions folder of other bags with --calibration"
            )
    else:
        found = _of_folder(evaluated, read_predictions(options.calibration))
    _check_apart(evaluated, found)
    return found


def _of_folder(evaluated: Evaluated, predictions: Predictions) -> Evaluated:
    _check_same_model(evaluated.predictions, predictions)
    stored = zip(predictions.bags, predictions.labels, strict=True)
    label = {**{b: y for b, y in stored if y is not None}, **evaluated.label}
    targets = {**stored_targets(predictions), **evaluated.targets}
    label = {**dict.fromkeys(targets, 0), **label}
    with_label = [i for i, b in enumerate(predictions.bags) if b in label]
    rows = [i for i in with_label if predictions.parts[i] not in ("train", "val")]
    part = "test" if rows else "val"
    rows = rows or [i for i in with_label if predictions.parts[i] == "val"]
    if not rows:
        raise InputError(
            f"{predictions.folder} has no labelled bags to calibrate with: give bags with labels "
            "that the model was not trained on"
        )
    names = [predictions.bags[i] for i in rows]
    unknown = [b for b in names if b not in evaluated.group] if evaluated.group else []
    if unknown:
        raise InputError(
            f"--labels gives the groups of bags, but lacks {listed(unknown)} of "
            f"{predictions.folder}: list the calibration bags in the same table"
        )
    return replace(
        evaluated,
        predictions=predictions,
        part=part,
        rows=tuple(rows),
        label=label,
        targets=targets,
    )


def _check_same_model(one: Predictions, other: Predictions) -> None:
    if one.task != other.task:
        raise InputError(
            f"{one.folder} has the task {one.task}, but {other.folder} has {other.task}: calibrate "
            "with predictions of the same model"
        )
    if class_names(one) != class_names(other):
        raise InputError(
            f"{one.folder} has the classes {', '.join(class_names(one))}, but {other.folder} has "
            f"{', '.join(class_names(other))}: calibrate with predictions of the same model"
        )
    for key in OF_MODEL:
        if key in one.metadata and key in other.metadata:
            values = one.metadata[key], other.metadata[key]
            if values[0] != values[1]:
                raise InputError(
                    f"{one.folder} and {other.folder} are of different models: {key} is "
                    f"{values[0]} and {values[1]}. Calibrate with predictions of the same model"
                )


def _check_apart(evaluated: Evaluated, calibration: Evaluated) -> None:
    for what, one, other in (
        ("bag", evaluated.names, calibration.names),
        ("group", evaluated.groups(evaluated.rows), calibration.groups(calibration.rows)),
    ):
        both = _common(one, other)
        if both:
            shown = ", ".join(repr(name) for name in both[:SHOWN])
            more = f" and {len(both) - SHOWN} more" if len(both) > SHOWN else ""
            raise InputError(
                f"{len(both)} {what}{'' if len(both) == 1 else 's'} ({shown}{more}) are among both "
                "the calibration bags and the bags that the guarantees are for, which makes "
                "guarantees void: keep patients on one side"
            )


def _common(one: Sequence[str], other: Sequence[str]) -> list[str]:
    second = set(other)
    return [name for name in dict.fromkeys(one) if name in second]
