"""The calibration bags of guarantees, and whether the bags that guarantees are for look like them.

Guarantees hold if nothing but chance decides which groups (patients) calibrated.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from ...errors import InputError
from ...statistics import shift_test
from ..context import SEEN, Context, stored_targets
from ..storage import Predictions, listed, read_predictions
from .accepted import confidence

OF_MODEL = ("model", "epoch", "members", "kappa", "runs")
"""Entries of predictions.json that differ between models."""
FALSE_ALARMS = 0.05
"""Rate of false alarms of the test for shift."""
PERMUTATIONS = 999


def calibration_bags(bags: Context, folder: Path | None) -> Context:
    """Return the labelled calibration bags, which share no bag and no group with `bags`.

    They are the validation bags of the same predictions, or the test and new bags of another
    folder (its validation bags, if it has no others).

    Raises:
        InputError: there are none, they are of another model, their groups are unknown, or a bag
            or group is on both sides.
    """
    found = bags.validation if folder is None else _of_folder(bags, read_predictions(folder))
    if not found.rows:
        raise InputError(
            f"{found.predictions.folder} has no labelled validation bags besides those evaluated: "
            "name a predictions folder of other bags, with labels, with --calibration"
        )
    both = {"bag": (bags.names, found.names), "group": (bags.groups, found.groups)}
    for what, (one, other) in both.items():
        names = [name for name in dict.fromkeys(one) if name in set(other)]
        if names:
            raise InputError(
                f"{listed(names, what=what)} are among both the calibration bags and the bags that "
                "the guarantees are for, which makes guarantees void: keep patients on one side"
            )
    return found


def _of_folder(bags: Context, predictions: Predictions) -> Context:
    """Return the calibration bags among other predictions of the same model."""
    one, other = _of_model(bags.predictions), _of_model(predictions)
    for key in (key for key in one if key in other and one[key] != other[key]):
        raise InputError(
            f"{bags.predictions.folder} and {predictions.folder} are of different models: {key} is "
            f"{one[key]} and {other[key]}. Calibrate with predictions of the same model"
        )
    truth = replace(bags.truth, targets={**stored_targets(predictions), **bags.truth.targets})
    labelled = [i for i, name in enumerate(predictions.bags) if name in truth.targets]
    rows = tuple(i for i in labelled if predictions.parts[i] not in SEEN)
    found = replace(bags, predictions=predictions, truth=truth, part="test", rows=rows)
    found = found if rows else found.validation
    unknown = [name for name in found.names if name not in truth.group]
    if truth.group and unknown:
        raise InputError(
            f"--labels gives the groups of bags, but lacks {listed(unknown)} of "
            f"{predictions.folder}: list the calibration bags in the same table"
        )
    return found


def _of_model(predictions: Predictions) -> dict[str, Any]:
    """Return what predictions of the same model have in common."""
    about = {k: predictions.metadata[k] for k in OF_MODEL if k in predictions.metadata}
    return {"task": predictions.task, "classes": ", ".join(predictions.class_names), **about}


def shift_alarm(bags: Context, calibration: Context) -> tuple[dict[str, Any], str]:
    """Test whether bags look like the calibration bags to the model; labels are not used.

    The test compares the probabilities of the classes and the confidences, of other tasks what is
    predicted; the standard deviations; and the distance from the training bags where the
    predictions have one.

    Returns:
        The result for JSON, and as a sentence.
    """
    old, new = _watched(calibration), _watched(bags)
    names = [name for name in old if name in new]
    table = [np.stack([columns[name] for name in names], axis=1) for columns in (old, new)]
    test = shift_test(
        np.concatenate(table),
        new=np.repeat([False, True], [len(rows) for rows in table]),
        groups=calibration.groups + bags.groups,
        permutations=PERMUTATIONS,
        seed=bags.seed,
    )
    values = {
        "alarm": test.p_value <= FALSE_ALARMS,
        "p_value": test.p_value,
        "false_alarm_rate": FALSE_ALARMS,
        "permutations": PERMUTATIONS,
        "distances": dict(zip(names, test.distances, strict=True)),
    }
    furthest = names[int(np.argmax(test.distances))].replace("p of class", "probability of class")
    verdict = "no sign of a shift between calibration bags and these"
    if values["alarm"]:
        verdict = "ALARM: these bags differ from the calibration bags; guarantees may not hold"
    return values, (
        f"{verdict}: the largest distance of distributions is {max(test.distances):.2f} "
        f"({furthest}), p-value {test.p_value:.3f}; false alarms: {FALSE_ALARMS:.0%}"
    )


def _watched(bags: Context) -> dict[str, Float[np.ndarray, " bags"]]:
    """Return what the test for shift compares, by its name."""
    predictions, rows = bags.predictions, list(bags.rows)
    std = predictions.std[rows].astype(np.float64)
    if bags.task.has_classes:
        names = enumerate(predictions.class_names)
        columns = {f"p of class {name}": bags.p[:, c] for c, name in names if c > 0}
        columns |= {"confidence": confidence(bags), "standard deviation": std.max(1)}
    else:
        columns = {n: bags.output(n) for n in bags.task.watched(predictions.outputs)}
        columns["standard deviation of the attention"] = std[:, 0]
    if predictions.ood_distance is not None:
        distance = predictions.ood_distance[rows].astype(np.float64)
        if np.isfinite(distance).all():
            columns["distance from training"] = distance
    return columns


def caution(bags: Context, calibration: Context) -> str | None:
    """Return why the guarantees hold only approximately, or None."""
    reasons = {
        "the weights and the threshold of the model were chosen on the calibration bags, which may "
        "therefore look better than new bags; name bags that the run has not seen with "
        "--calibration": calibration.part == "val",
        "no groups are known, so that every bag counts as a patient of its own; if patients have "
        "several bags, give --labels with a column group": not bags.truth.group,
        "training bags are evaluated, for which nothing is promised": bags.part in ("train", "all"),
    }
    return "; ".join(reason for reason, holds in reasons.items() if holds) or None
