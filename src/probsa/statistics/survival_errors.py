"""The Brier score of predicted survival at given times, and its mean over time.

Bags with an event are weighted by 1 / Ĝ(t_i), bags that are still at risk by 1 / Ĝ(t), to make up
for the censored ones (Graf et al., Statistics in Medicine 1999).
"""

import numpy as np
from jaxtyping import Bool, Float

from ..errors import InputError
from .bootstrap import Draws
from .censoring import CensoringCurve
from .kaplan_meier import check_times
from .metric import Metric


def survival_brier(
    time: Float[np.ndarray, " bags"],
    event: Bool[np.ndarray, " bags"],
    *,
    survival: Float[np.ndarray, "bags t"],
    times: Float[np.ndarray, " t"],
    censoring: CensoringCurve,
    draws: Draws | None = None,
) -> list[Metric]:
    """Return the Brier score at each time; lower is better.

    It is the mean of S(t)² 1[t_i ≤ t, event] / Ĝ(t_i) + (1 - S(t))² 1[t_i > t] / Ĝ(t).

    Args:
        time: time of the event or of the censoring, positive.
        event: whether the event was seen.
        survival: the predicted probability S(t) of no event until each of `times`.
        times: rising times, at which Ĝ must be positive.
        censoring: Ĝ, fitted on the training bags.
        draws: resamples, with the data as row 0; None for the data alone.

    Raises:
        InputError: Ĝ is 0 or unknown at one of `times`, or the shapes do not fit.
    """
    check_survival(time, event, survival=survival, times=times)
    g = check_grid(times, censoring)
    draws = Draws.of_data(len(time)) if draws is None else draws
    own = censoring.at(time)[:, None]
    died = (time[:, None] <= times) & event[:, None]
    # Ĝ(t_i) is at least Ĝ(t) for an event until t, so it is positive there.
    cases = np.divide(survival**2, own, out=np.zeros_like(survival), where=died)
    loss = cases + (time[:, None] > times) * (1 - survival) ** 2 / g
    totals = draws.totals(np.concatenate([loss, np.ones((len(time), 1))], axis=1))
    with np.errstate(invalid="ignore"):
        return [Metric.of(column / totals[:, -1]) for column in totals[:, :-1].T]


def integrated_brier(brier: list[Metric], *, times: Float[np.ndarray, " t"]) -> Metric:
    """Return the Brier score integrated over `times` by trapezoids, divided by their length."""
    if len(brier) < 2:
        return Metric.undefined(f"{len(brier)} times: an integral needs at least two")
    rows = np.stack([metric.rows for metric in brier if metric.rows is not None], axis=1)
    area = ((rows[:, 1:] + rows[:, :-1]) / 2 * np.diff(times)).sum(1)
    return Metric.of(area / (times[-1] - times[0]))


def check_survival(
    time: Float[np.ndarray, " bags"],
    event: Bool[np.ndarray, " bags"],
    *,
    survival: Float[np.ndarray, "bags t"],
    times: Float[np.ndarray, " t"],
) -> None:
    """Check times and predicted survival.

    Raises:
        InputError: shapes do not fit, `times` do not rise, or a probability is not in [0, 1].
    """
    check_times(time, event)
    if survival.shape != (len(time), len(times)):
        raise InputError(
            f"survival of shape {survival.shape} for {len(time)} bags and {len(times)} times: "
            "expected one row per bag and one column per time"
        )
    if not bool((np.diff(times) > 0).all()):
        raise InputError("the times of predicted survival must rise")
    if not bool(((survival >= 0) & (survival <= 1)).all()):
        raise InputError("predicted survival must lie in [0, 1]; some is outside, or nan")


def check_grid(
    times: Float[np.ndarray, " t"], censoring: CensoringCurve
) -> Float[np.ndarray, " t"]:
    """Return Ĝ at each time.

    Raises:
        InputError: it is 0 or unknown at one of them.
    """
    g = censoring.at(times)
    if not bool((g > 0).all()):
        raise InputError(
            f"no training bag tells the censoring at time {times[g == 0][0]:g}: "
            f"use times before {censoring.limit:g}, the last training time"
        )
    return g
