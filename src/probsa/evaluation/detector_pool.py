"""The errors and the detectors of errors of many bags' instances, concatenated."""

from collections.abc import Mapping, Sequence

import numpy as np

from .metrics import NO_VARIANCE
from .prediction import Prediction
from .scores import VARIANCE_PARTS, class_column, doubt, instance_evidence, instance_variances

ONE_MODEL = "one model has no variance between members"


def detector_pool(predictions: Sequence[Prediction]) -> dict[str, np.ndarray]:
    """Return the errors and every detector of the labelled instances of all bags, concatenated.

    `bag` is the index of an instance's bag, `wrong` says whether its call is wrong. Detectors that
    these bags do not have are missing, with the reason in `missing_detectors`.

    predictions: bags with instance labels, at least one.
    """
    members = all(p.variance_between is not None for p in predictions)
    columns: dict[str, list[np.ndarray]] = {}
    for b, p in enumerate(predictions):
        bag_columns = _columns(p)
        if not members:
            del bag_columns["doubt_between"]
        bag_columns["bag"] = np.full(len(bag_columns["wrong"]), b)
        known = np.asarray(p.instance_labels) >= 0
        for name, value in bag_columns.items():
            columns.setdefault(name, []).append(value[known])
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def missing_detectors(pool: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Return why detectors of a `detector_pool` are missing or undefined, by detector."""
    missing = {} if "doubt_between" in pool else {"doubt_between": ONE_MODEL}
    for part in VARIANCE_PARTS:
        name = "doubt" if part == "total" else f"doubt_{part}"
        if name in pool and not pool[f"variance_{part}"].any():
            missing[name] = NO_VARIANCE
    return missing


def _columns(p: Prediction) -> dict[str, np.ndarray]:
    """Return the detectors (high values: probably wrong) and the errors, one per instance."""
    s, variance = instance_evidence(p), instance_variances(p)
    weight = class_column(p, p.weight_mean)
    labels = np.asarray(p.instance_labels)
    return {
        "wrong": (s > 0) != (labels > 0),
        "variance": variance,
        **{
            "doubt" if part == "total" else f"doubt_{part}": doubt(p, part=part)
            for part in VARIANCE_PARTS
        },
        **{f"variance_{part}": instance_variances(p, part=part) for part in VARIANCE_PARTS},
        "margin": -np.abs(s),
        "entropy": -weight * np.log(np.maximum(weight, np.finfo(np.float64).tiny)),
    }
