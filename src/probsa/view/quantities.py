"""Stage 10: the quantities of one class of a bag for the page, and the lists of its pictures."""

from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import UInt8

from ..errors import InputError
from ..evaluation import (
    INSTANCE_QUANTITIES,
    SCORE_MEANINGS,
    Prediction,
    column_of,
    no_probability_reason,
)
from ..maps import (
    KINDS,
    NO_VARIANCE,
    Quantity,
    columns_of,
    flattened,
    quantity,
    same_instances,
    score_name,
    unit_of,
    value_of,
)
from .scripts import packed

GALLERY = 10
"""Number of patches in each list of pictures."""
UNCERTAIN = 0.25
"""Largest |P − 0.5| of a patch that counts as uncertain."""


def look_up_table(key: str) -> UInt8[np.ndarray, "256 3"]:
    """Return the red, green and blue of 256 equal steps from the lowest to the highest value."""
    rgba = np.asarray(KINDS[key].colours(np.linspace(0, 1, 256)))
    return np.rint(rgba[:, :3] * 255).astype(np.uint8)


def quantities(
    p: Prediction, *, column: int, other: Prediction | None = None
) -> dict[str, Quantity]:
    """Return the quantities of one class by the page's keys, always in the same order."""
    unit = unit_of(p)
    by_key: dict[str, Quantity] = {}

    def add(key: str, title: str, unit: str, absent: str) -> None:
        by_key[key] = value_of(p, key, name=title, column=column, unit=unit, absent=absent)

    score_key = "evidence" if p.score_has_level else "mean"
    mean = column_of(p.attention_mean, column)
    by_key["mean"] = quantity(score_key, mean, name=score_name(p), unit=unit)
    add("deviation", "standard deviation", unit, NO_VARIANCE)
    reason = no_probability_reason(p)
    add("probability", "probability", "probability", f"{reason[0].upper()}{reason[1:]}.")
    by_key |= _grades(p)
    add(
        "contribution",
        f"contribution to the {p.of_task.words.noun}",
        "logit",
        "This model has no closed form for what a patch adds to the prediction.",
    )
    add(
        "weight",
        "attention weight",
        "share of the bag",
        "This model has no attention weights.",
    )
    add("labels", "true label", "", "The instances of this bag have no labels.")
    if other is not None:
        check_comparable(p, other)
        by_key |= _differences(p, other, column=column)
    return by_key


def _grades(p: Prediction) -> dict[str, Quantity]:
    """Return the probability of each grade or a higher one, of the patch on its own."""
    values = INSTANCE_QUANTITIES["at least"](p)
    if values is None:
        return {}
    columns = values.reshape(len(values), -1).T
    names = p.outputs.names[1:] or [str(k + 1) for k in range(len(columns))]
    grades = {}
    for k, (name, column) in enumerate(zip(names, columns, strict=True), start=1):
        title = f"P(at least {name}), alone"
        grades[f"grade-{k}"] = quantity("probability", column, name=title, unit="probability")
    return grades


def _differences(p: Prediction, other: Prediction, *, column: int) -> dict[str, Quantity]:
    """Return the differences of the scores and of the probabilities of two models."""
    score = column_of(p.attention_mean, column) - column_of(other.attention_mean, column)
    probability, other_probability = (
        value_of(model, "probability", name="", column=column).values for model in (p, other)
    )
    chance = probability - other_probability
    absent = ""
    if not np.isfinite(chance).any():
        absent = "Not both models have a probability of each patch."
    title = "difference of means, this − other"
    probability_title = "difference of P, this − other"
    difference = quantity("difference", chance, name=probability_title, unit="probability")
    return {
        "difference": quantity("difference", score, name=title, unit=unit_of(p)),
        "difference-probability": replace(difference, absent=absent),
    }


def as_page(key: str, q: Quantity) -> dict[str, Any]:
    """Return a quantity as the page reads it; `range` is that of this bag."""
    page: dict[str, Any] = {
        "key": key,
        "title": q.title,
        "unit": q.unit,
        "colours": q.key,
        "fixed": q.kind.limits is not None,
    }
    if q.absent or not np.isfinite(q.values).any():
        return page | {"reason": q.absent or "No patch has a value."}
    return page | {
        "values": packed(q.values, "f4"),
        "range": q.limits,
        "signed": q.kind.signed,
        "flat": flattened(q, logits=q.unit == "logit").flat,
    }


def check_comparable(
    p: Prediction, other: Prediction, *, names: tuple[str, str] = ("this model", "the other model")
) -> None:
    """Check that the scores of two predictions of a bag can be subtracted.

    names: what the two models are called in the words of the error.

    Raises:
        InputError: they cannot be subtracted.
    """
    if p.score_kind != other.score_kind:
        name, other_name = names
        raise InputError(
            f"The models' own scores have different meanings: that of {name} is "
            f"{SCORE_MEANINGS[p.score_kind]}, and that of {other_name} is "
            f"{SCORE_MEANINGS[other.score_kind]}. A difference is of own scores, whatever score "
            "the maps show."
        )
    if p.attention_mean.shape != other.attention_mean.shape:
        raise InputError(
            f"The predictions have {len(p.attention_mean):,} and {len(other.attention_mean):,} "
            "instances, or other classes."
        )
    if not same_instances(p, other):
        raise InputError("The predictions are of instances at other coordinates.")


def chosen_column(p: Prediction) -> int:
    """Return the column that is shown first: that of the called class; see `Task`."""
    return p.of_task.column(p, columns_of(p), called=True)


def galleries(by_key: dict[str, Quantity]) -> list[dict[str, Any]]:
    """Return two lists of patches for the pictures: the most and the least certain ones.

    With a probability P of each patch, these are the patches of largest P, and those nearest to 0.5
    with P between 0.25 and 0.75; otherwise those of largest mean, and of largest standard deviation
    where there is one that differs.
    """
    mean = by_key["mean"]
    deviation = by_key["deviation"]
    probability = by_key["probability"]
    if not probability.absent:
        # many patches may have a P of 1 in float32: then the mean decides
        highest = np.lexsort((-mean.values, -probability.values))
        distance = np.abs(probability.values - 0.5)
        nearest = np.argsort(distance, kind="stable")
        nearest = nearest[distance[nearest] < UNCERTAIN]
        return [
            _gallery("Highest probability", "probability", highest),
            _gallery("Least certain: probability nearest to 0.5", "probability", nearest),
        ]
    highest = np.argsort(-mean.values, kind="stable")
    lists = [_gallery(f"Highest {mean.title}", "mean", highest)]
    if not deviation.absent and not flattened(deviation).flat:
        widest = np.argsort(-deviation.values, kind="stable")
        lists.append(_gallery("Least certain: largest s.d.", "deviation", widest))
    return lists


def _gallery(title: str, key: str, rows: np.ndarray) -> dict[str, Any]:
    return {"title": title, "key": key, "rows": rows[:GALLERY].tolist()}
