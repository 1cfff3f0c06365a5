"""Combine the predictions of a patient's slides into one; the rule is fixed before evaluation."""

from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float

from ..errors import InputError
from .bootstrap import group_strata

SlideRule = Literal["mean", "max", "noisy-or"]


def combine_slides(
    p: Float[np.ndarray, " slides"] | Float[np.ndarray, "slides columns"],
    patient: Sequence[Hashable],
    *,
    rule: SlideRule = "mean",
) -> tuple[list[Hashable], Float[np.ndarray, "patients *columns"]]:
    """Return the patients in order of their first slide, and their predictions.

    Args:
        p: probabilities of each slide: one, or one per class, finding or time of a survival curve.
        patient: the patient of each slide.
        rule: `mean`; `max`; or `noisy-or`, 1 - Π (1 - p), which assumes that slides are independent
            given the patient. Only the mean keeps classes adding up to 1 and belongs to survival
            curves; the other rules are for columns that are each a probability of its own.

    Raises:
        InputError: there are not as many patients as slides, a probability is not in [0, 1], or the
            rule is none of these.
    """
    if len(p) != len(patient):
        raise InputError(f"{len(patient)} patients for {len(p)} slides: expected one per slide")
    if not bool(((p >= 0) & (p <= 1)).all()):
        raise InputError("probabilities must lie in [0, 1]; some are outside, or nan")
    member, _ = group_strata(patient, [0] * len(patient))
    names = list(dict.fromkeys(patient))
    shape = (len(names), *p.shape[1:])
    if rule == "mean":
        total = np.zeros(shape)
        np.add.at(total, member, p)
        count = np.bincount(member, minlength=len(names)).astype(np.float64)
        return names, total / count.reshape(-1, *[1] * (p.ndim - 1))
    if rule == "max":
        highest = np.zeros(shape)
        np.maximum.at(highest, member, p)
        return names, highest
    if rule == "noisy-or":
        absent = np.ones(shape)
        np.multiply.at(absent, member, 1 - p)
        return names, 1 - absent
    raise InputError(f"the rule for slides is {rule!r}, but expected mean, max or noisy-or")
