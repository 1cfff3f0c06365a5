"""One risk for every survival model: the time lost until a horizon, τ - ∫₀^τ S(t) dt.

The integral is the restricted mean survival time (Royston and Parmar, Statistics in Medicine 2011).
Higher is worse. Because it is linear in S, the risk of a mean of curves is the mean of their risks.
"""

from typing import Literal

import numpy as np
from jaxtyping import Float

from ..errors import InputError


def restricted_risk(
    survival: Float[np.ndarray, "... t"],
    times: Float[np.ndarray, " t"],
    *,
    between: Literal["hazard", "step"],
) -> Float[np.ndarray, "..."]:
    """Return τ - ∫₀^τ S(t) dt, with τ the last of `times` and S(0) = 1, in the unit of time.

    Args:
        survival: S at each time, such as (bags, times) or (samples, bags, times).
        times: rising times above 0.
        between: how S falls between times: `hazard` for a constant hazard (log S is linear), as for
            discrete hazards, or `step` for a fall at the times alone, as for Cox' baseline. Of a
            mean over samples, only steps are exact; average the risk of samples instead.

    Raises:
        InputError: the times do not rise from above 0, or S rises or is not in [0, 1].
    """
    if len(times) == 0 or times[0] <= 0 or (np.diff(times) <= 0).any():
        raise InputError("the times of predicted survival must rise, from more than 0")
    before = np.concatenate([np.ones_like(survival[..., :1]), survival[..., :-1]], axis=-1)
    if not bool(((survival >= 0) & (survival <= before)).all()):
        raise InputError("predicted survival must lie in [0, 1] and never rise")
    height = before if between == "step" else _logarithmic_mean(before, survival)
    lived = (height * np.diff(times, prepend=0.0)).sum(-1)
    return np.asarray(times[-1] - lived)


def _logarithmic_mean(
    a: Float[np.ndarray, "... t"], b: Float[np.ndarray, "... t"]
) -> Float[np.ndarray, "... t"]:
    """Return (a - b) / (log a - log b) for a ≥ b, the mean height of an exponential fall."""
    fall = a - b
    with np.errstate(divide="ignore", invalid="ignore"):
        # log1p keeps its precision for small falls; a fall to 0 is at once.
        mean = fall / -np.log1p(-fall / a)
    return np.where(fall > 0, mean, a)
