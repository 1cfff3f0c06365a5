"""Survival between the times at which it is predicted."""

import numpy as np
from jaxtyping import Float

from ..errors import InputError

SMALLEST = 1e-12
"""Survival below this is moved here, so that its logarithm is finite."""


def survival_between(
    survival: Float[np.ndarray, "items t"],
    *,
    times: Float[np.ndarray, " t"],
    wanted: Float[np.ndarray, " w"],
    steps: bool = False,
) -> Float[np.ndarray, "items w"]:
    """Return survival at other times: 1 at 0, and log S linear between the predicted times.

    That is a constant hazard in each interval. The result never rises.

    Args:
        survival: predicted survival of each item at `times`.
        times: rising times, above 0.
        wanted: times from 0 to the last of `times`.
        steps: whether survival is constant until the next time instead.

    Raises:
        InputError: a time lies outside the range, in which nothing is known.
    """
    if not bool(((wanted >= 0) & (wanted <= times[-1])).all()):
        raise InputError(
            f"the times are {wanted.min():g} to {wanted.max():g}, but survival is known from 0 to "
            f"{times[-1]:g}, the last training event"
        )
    grid = np.concatenate([[0.0], times])
    whole = np.hstack([np.ones((len(survival), 1)), survival])
    whole = np.minimum.accumulate(np.clip(whole, 0.0, 1.0), axis=1)
    if steps:
        return whole[:, np.searchsorted(grid, wanted, side="right") - 1]
    logs = np.log(np.maximum(whole, SMALLEST))
    rows = [np.interp(wanted, grid, row) for row in logs]
    return np.exp(np.array(rows, dtype=np.float64).reshape(len(survival), len(wanted)))
