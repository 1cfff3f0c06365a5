"""One row of predictions.csv: the label, the prediction and its deviations, by the task."""

from collections.abc import Sequence

import numpy as np

from ..errors import BagError, InputError
from ..tasks import Target
from .prediction import Prediction

SPREAD = "spread_"
"""Start of the columns with standard deviations over samples, for tasks without classes."""

SCORES = ("nll", "crps")
"""Columns with the scores of labelled bags."""


def cells_of(
    p: Prediction, *, target: Target | None, classes: Sequence[str], threshold: float | None
) -> dict[str, object]:
    """Return the cells of a bag's row after its name and part, in the order of the columns.

    Raises:
        BagError: a probability lies outside [0, 1], or a predicted number is not finite.
        InputError: the prediction does not fit the classes.
    """
    if p.of_task.has_classes:
        columns = _class_columns(classes, len(p.probability), bag=p.name)
        cells: dict[str, object] = {"label": target}
        return cells | _class_cells(p, columns, threshold=threshold) | _distances(p)
    values = () if target is None else target if isinstance(target, tuple) else (target,)
    labels = p.of_task.label_columns(classes)
    given = {c: None if np.isnan(v) else f"{v:.9g}" for c, v in zip(labels, values, strict=False)}
    columns = p.of_task.value_columns(p.outputs)
    if not (np.isfinite(p.probability).all() and np.isfinite(p.std).all()):
        raise BagError(
            f"bag {p.name!r} has a prediction that is not finite: its features are far from those "
            "of training, or the training diverged"
        )
    return {
        **{c: given.get(c) for c in labels},
        **{c: str(v) for c, v in zip(columns, p.probability, strict=True)},
        **{f"{SPREAD}{n}": str(v) for n, v in zip(p.outputs, p.std, strict=True)},
        **{k: str(np.float32(v)) for k, v in p.scores.items()},
        **_distances(p),
    }


def _class_columns(classes: Sequence[str], width: int, *, bag: str) -> list[str]:
    """Return the classes that have a column: the last of two for a single logit, else all."""
    if width == 1 and len(classes) in (1, 2):
        return [classes[-1]]
    if width != len(classes):
        raise InputError(
            f"bag {bag!r} has {width} probabilities, but there are {len(classes)} classes "
            f"({', '.join(classes)})"
        )
    return list(classes)


def _class_cells(
    p: Prediction, columns: list[str], *, threshold: float | None
) -> dict[str, object]:
    # The table has the shortest text of each float32, and calls are made on the number in the
    # table, so that readers of the table find the same calls.
    text = [str(v) for v in p.probability]
    value = np.array([float(t) for t in text])
    if not bool(((value >= 0) & (value <= 1)).all()):
        raise BagError(
            f"bag {p.name!r} has the probability {', '.join(text)}, expected 0 to 1: "
            "its features are far from those of training, or the training diverged"
        )
    return {
        "prediction": int(p.of_task.calls(value[None], threshold)[0]),
        **{f"p_{c}": t for c, t in zip(columns, text, strict=True)},
        **{
            f"{k}_{c}": str(v)
            for k, values in _deviations(p).items()
            for c, v in zip(columns, values, strict=True)
        },
    }


def _deviations(p: Prediction) -> dict[str, np.ndarray]:
    """Return the standard deviations of a bag's probabilities, by the start of their columns."""
    parts = {"sd": p.std, "sd_within": p.std_within, "sd_between": p.std_between}
    return {name: value for name, value in parts.items() if value is not None}


def _distances(p: Prediction) -> dict[str, object]:
    used = f"{len(p.slides)}/{p.slides_expected or len(p.slides)}" if p.slides else None
    values = {"ood": p.bag_ood, "ood_distance": p.bag_ood_distance, "slides": used}
    return {name: value for name, value in values.items() if value is not None}
