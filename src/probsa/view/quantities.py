"""Stage 10: the quantities of one class of a bag for the page, and the lists of its pictures."""

from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import UInt8

from ..errors import InputError
from ..evaluation import SCORE_MEANINGS, Prediction, no_probability_reason
from ..maps import (
    KINDS,
    NO_VARIANCE,
    Quantity,
    column_of,
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
    unit, words = unit_of(p), p.of_task.words
    unstated = no_probability_reason(p)

    def stored(key: str, title: str, unit: str, absent: str = "") -> Quantity:
        return value_of(p, key, name=title, column=column, unit=unit, absent=absent)

    mean = column_of(p.attention_mean, column)
    title = score_name(p)
    own = "evidence" if p.score_has_level else "mean"
    found = {
        "mean": quantity(own, mean, name=title, unit=unit),
        "deviation": stored("deviation", "standard deviation", unit, NO_VARIANCE),
        "probability": stored(
            "probability", "probability", "probability",
            f"{unstated[0].upper()}{unstated[1:]}.",
        ),
    }  # fmt: skip
    if p.at_least is not None:  # each grade or a higher one, of the patch on its own
        columns = p.at_least.reshape(len(mean), -1).T
        names = p.outputs.names[1:] or [str(k + 1) for k in range(len(columns))]
        for k, (name, values) in enumerate(zip(names, columns, strict=True), start=1):
            title = f"P(at least {name}), alone"
            found[f"grade-{k}"] = quantity("probability", values, name=title, unit="probability")
    found |= {
        "contribution": stored(
            "contribution", f"contribution to the {words.noun}", "logit",
            "This model has no closed form for what a patch adds to the prediction.",
        ),
        "weight": stored(
            "weight", "attention weight", "share of the bag",
            "This model has no attention weights.",
        ),
        "labels": stored("labels", "true label", "", "The instances of this bag have no labels."),
    }  # fmt: skip
    if other is None:
        return found
    check_comparable(p, other)
    score = mean - column_of(other.attention_mean, column)
    theirs = value_of(other, "probability", name="", column=column)
    chance = found["probability"].values - theirs.values
    difference = quantity(
        "difference", chance, name="difference of P, this − other", unit="probability"
    )
    none = "" if np.isfinite(chance).any() else "Not both models have a probability of each patch."
    title = "difference of means, this − other"
    return found | {
        "difference": quantity("difference", score, name=title, unit=unit),
        "difference-probability": replace(difference, absent=none),
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
        ours, theirs = (
            f"that of {name} is {SCORE_MEANINGS[of.score_kind]}"
            for name, of in zip(names, (p, other), strict=True)
        )
        raise InputError(
            f"The models' own scores have different meanings: {ours}, and {theirs}. A difference "
            "is of own scores, whatever score the maps show."
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


def galleries(found: dict[str, Quantity]) -> list[dict[str, Any]]:
    """Return two lists of patches for the pictures: the most and the least certain ones.

    With a probability P of each patch, these are the patches of largest P, and those nearest to 0.5
    with P between 0.25 and 0.75; otherwise those of largest mean, and of largest standard deviation
    where there is one that differs.
    """
    mean, deviation, chance = (found[key] for key in ("mean", "deviation", "probability"))
    if not chance.absent:
        # many patches may have a P of 1 in float32: then the mean decides
        rank = np.lexsort((-mean.values, -chance.values))
        far = np.abs(chance.values - 0.5)
        unsure = np.argsort(far, kind="stable")
        unsure = unsure[far[unsure] < UNCERTAIN]
        lists = [
            ("Highest probability", "probability", rank),
            ("Least certain: probability nearest to 0.5", "probability", unsure),
        ]
    else:
        lists = [(f"Highest {mean.title}", "mean", np.argsort(-mean.values, kind="stable"))]
        if not deviation.absent and not flattened(deviation).flat:
            rank = np.argsort(-deviation.values, kind="stable")
            lists.append(("Least certain: largest s.d.", "deviation", rank))
    return [
        {"title": title, "key": key, "rows": rank[:GALLERY].tolist()} for title, key, rank in lists
    ]
