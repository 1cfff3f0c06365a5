"""Stage 10: the quantities of one class of a bag, their units, colours and ranges."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from ..errors import InputError
from ..evaluation import Prediction, available_scores, drawn_values
from ..maps import flatness, score_name, unit_of, value_range
from .colours import Colours
from .scripts import packed

GALLERY = 10
"""Number of patches in each list of pictures."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantity:
    """One value per instance, or the reason why there is none."""

    key: str
    title: str
    unit: str
    colours: Colours
    values: Float[np.ndarray, " n"] | None
    limits: tuple[float, float] | None = None
    """Fixed limits of the colours; None: from the values."""
    reason: str = ""
    """Why there are no values; the page shows the quantity as unavailable."""

    def to_page(self) -> dict[str, Any]:
        """Return the quantity as the page reads it; `range` is that of this bag."""
        page: dict[str, Any] = {
            "key": self.key,
            "title": self.title,
            "unit": self.unit,
            "colours": self.colours,
            "fixed": self.limits is not None,
        }
        if self.values is None or not np.isfinite(self.values).any():
            return page | {"reason": self.reason or "No patch has a value."}
        signed = self.colours in ("signed", "difference")
        low, high = value_range(self.values)
        if signed:
            low, high = -max(abs(low), abs(high)), max(abs(low), abs(high))
        flat = ""
        if self.limits is None and not signed:
            flat = flatness(self.values, logits=self.key == "mean" and self.unit == "logit")
        return page | {
            "values": packed(self.values, "f4"),
            "range": self.limits or (low, high),
            "signed": signed,
            "flat": flat,
        }


def quantities(p: Prediction, *, column: int, other: Prediction | None = None) -> list[Quantity]:
    """Return the quantities of one class, always in the same order.

    Args:
        p: The prediction.
        column: Column of the attention, for methods with one attention per class.
        other: The prediction of the same bag by another model, of which differences are shown.

    Raises:
        InputError: The instances of `other` are not those of `p`, or its score has another meaning.
    """
    found = [*_own(p, column=column)]
    return found if other is None else [*found, *_differences(p, other, column=column)]


def _own(p: Prediction, *, column: int) -> Iterator[Quantity]:
    mean = column_of(p.attention_mean, column)
    variance = column_of(p.attention_variance, column)
    unit = unit_of(p)
    yield Quantity(
        key="mean",
        title=score_name(p).removesuffix(" μ"),
        unit=unit,
        colours="signed" if p.score_has_level else "mean",
        values=mean,
    )
    yield Quantity(
        key="deviation",
        title="standard deviation",
        unit=unit,
        colours="deviation",
        values=np.sqrt(variance) if variance.any() else None,
        reason="This model gives one value per patch and no variance.",
    )
    yield Quantity(
        key="probability",
        title="P(evidence > 0)",
        unit="probability",
        colours="probability",
        values=_score(p, "probability", column=column),
        limits=(0.0, 1.0),
        reason=f"The score of this model ({p.score_kind}) has no zero that separates evidence for "
        f"{p.of_task.words.aim} from evidence against it.",
    )
    yield from _steps(p)
    yield Quantity(
        key="contribution",
        title=f"contribution to the {p.of_task.words.noun}",
        unit="logit",
        colours="signed",
        values=_score(p, "contribution", column=column),
        reason="This model has no closed form for what a patch adds to the prediction.",
    )
    yield Quantity(
        key="weight",
        title="attention weight",
        unit="share of the bag",
        colours="mean",
        values=column_of(p.weight_mean, column) if p.weight_mean.any() else None,
        reason="This model has no attention weights.",
    )
    labels = p.instance_labels
    known = None if labels is None else np.where(labels < 0, np.nan, labels > 0)
    yield Quantity(
        key="labels",
        title="true label",
        unit="",
        colours="labels",
        values=known,
        limits=(0.0, 1.0),
        reason="The instances of this bag have no labels.",
    )


def _steps(p: Prediction) -> Iterator[Quantity]:
    """Yield the probability of each grade or a higher one, of the patch on its own."""
    if p.at_least is None:
        return
    columns = p.at_least.reshape(len(p.at_least), -1).T
    names = p.outputs[1:] or [str(k + 1) for k in range(len(columns))]
    for k, (name, values) in enumerate(zip(names, columns, strict=True)):
        yield Quantity(
            key=f"grade-{k + 1}",
            title=f"P(at least {name}), alone",
            unit="probability",
            colours="probability",
            values=values,
            limits=(0.0, 1.0),
        )


def _differences(p: Prediction, other: Prediction, *, column: int) -> Iterator[Quantity]:
    check_comparable(p, other)
    yield Quantity(
        key="difference",
        title="difference of means, this − other",
        unit=unit_of(p),
        colours="difference",
        values=column_of(p.attention_mean, column) - column_of(other.attention_mean, column),
    )
    one, two = (_score(v, "probability", column=column) for v in (p, other))
    yield Quantity(
        key="difference-probability",
        title="difference of P, this − other",
        unit="probability",
        colours="difference",
        values=None if one is None or two is None else one - two,
        reason="Not both models have P(evidence > 0).",
    )


def check_comparable(p: Prediction, other: Prediction) -> None:
    """Check that the scores of two predictions of a bag can be subtracted.

    Raises:
        InputError: they have other instances, coordinates, classes, or scores of another meaning.
    """
    if p.score_kind != other.score_kind:
        raise InputError(
            f"The scores have different meanings ({p.score_kind} and {other.score_kind})."
        )
    if p.attention_mean.shape != other.attention_mean.shape:
        raise InputError(
            f"The predictions have {len(p.attention_mean):,} and {len(other.attention_mean):,} "
            "instances, or other classes."
        )
    if (p.coords is None) != (other.coords is None) or (
        p.coords is not None and not np.array_equal(p.coords, np.asarray(other.coords))
    ):
        raise InputError("The predictions are of instances at other coordinates.")


def column_of(values: np.ndarray, column: int) -> Float[np.ndarray, " n"]:
    """Return one class of a per-instance array, (n,) or (n, classes)."""
    if values.ndim == 1:
        return values
    return values[:, column if column < values.shape[1] else -1]


def chosen_column(p: Prediction) -> int:
    """Return the column that is shown first: that of the called class; see `Task`."""
    columns = 1 if p.attention_mean.ndim == 1 else p.attention_mean.shape[1]
    return p.of_task.column(p, columns, called=True)


def _score(p: Prediction, score: Any, *, column: int) -> Float[np.ndarray, " n"] | None:
    if score not in available_scores(p):
        return None
    return column_of(drawn_values(p, score), column)


def galleries(found: list[Quantity]) -> list[dict[str, Any]]:
    """Return two lists of patches for the pictures: the most and the least certain ones.

    With P(evidence > 0), these are the patches of largest P, and those nearest to 0.5; otherwise
    those of largest mean, and of largest standard deviation where there is one.
    """
    by_key = {q.key: q for q in found}
    mean, deviation = by_key["mean"].values, by_key["deviation"].values
    probability = by_key["probability"].values
    assert mean is not None
    if probability is not None:
        # many patches may have a P of 1 in float32: then the mean decides
        rank = np.lexsort((-mean, -probability))
        unsure = np.argsort(np.abs(probability - 0.5), kind="stable")
        return [
            _list("Highest P(evidence > 0)", "probability", rank),
            _list("Least certain: P nearest to 0.5", "probability", unsure),
        ]
    score = by_key["mean"].title
    lists = [_list(f"Highest {score}", "mean", np.argsort(-mean, kind="stable"))]
    if deviation is not None:
        rank = np.argsort(-deviation, kind="stable")
        lists.append(_list("Least certain: largest s.d.", "deviation", rank))
    return lists


def _list(title: str, key: str, rank: np.ndarray) -> dict[str, Any]:
    return {"title": title, "key": key, "rows": rank[:GALLERY].tolist()}
