"""Calibration of predicted survival: in groups at one time, and over all times.

Groups of equal size by predicted risk are compared with their Kaplan-Meier curves. D-calibration
(Haider et al., JMLR 2020) tests that the predicted survival at the bags' own times is uniform.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import chi2

from ..errors import InputError
from .calibration import equal_mass_bins
from .kaplan_meier import KaplanMeier, check_times

GROUPS = 5
"""Number of groups by predicted risk (quintiles)."""

D_BINS = 10
"""Number of bins of predicted survival for D-calibration."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SurvivalCalibration:
    """Predicted and observed probabilities of an event until a time, from low to high risk."""

    count: tuple[int, ...]
    predicted: tuple[float, ...]
    """Mean predicted probability of the bags of each group."""
    observed: tuple[float | None, ...]
    """One minus Kaplan-Meier of the group; None if all its bags left before the time."""
    low: tuple[float | None, ...]
    """Limits of the 95 % interval of `observed`, which treats bags as independent."""
    high: tuple[float | None, ...]


def survival_calibration(
    time: Float[np.ndarray, " bags"],
    event: Bool[np.ndarray, " bags"],
    *,
    survival: Float[np.ndarray, " bags"],
    at: float,
    groups: int = GROUPS,
) -> SurvivalCalibration:
    """Compare the predicted probability of an event until `at` with what was observed, by group.

    Bags with equal predictions are never divided, so there may be fewer groups.

    Args:
        time: time of the event or of the censoring, positive.
        event: whether the event was seen.
        survival: the predicted probability S(at) of no event until then.
        at: the time, in the unit of `time`.
        groups: number of groups of about equal size.

    Raises:
        InputError: a time is not positive and finite, or a probability is not in [0, 1].
    """
    check_times(time, event)
    _check_probabilities(time, survival)
    dead = 1 - survival
    member = equal_mass_bins(dead, bins=groups)
    count, predicted, limits = [], [], []
    for group in range(member.max() + 1):
        inside = member == group
        curve = KaplanMeier.fit(time[inside], event[inside])
        observed, high, low = (1 - curve.at(np.array([float(at)])))[:, 0]
        count.append(int(inside.sum()))
        predicted.append(float(dead[inside].mean()))
        limits.append([None if np.isnan(v) else float(v) for v in (observed, low, high)])
    return SurvivalCalibration(
        count=tuple(count),
        predicted=tuple(predicted),
        observed=tuple(values[0] for values in limits),
        low=tuple(values[1] for values in limits),
        high=tuple(values[2] for values in limits),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class DCalibration:
    """The share of bags by their predicted survival at their own time; uniform if calibrated."""

    share: tuple[float, ...]
    """From the bin of the lowest survival to that of the highest."""
    statistic: float
    """Pearson's χ² against equal shares."""
    p: float
    """From χ² with one degree of freedom less than bins, which treats bags as independent."""


def d_calibration(
    survival: Float[np.ndarray, " bags"], event: Bool[np.ndarray, " bags"], *, bins: int = D_BINS
) -> DCalibration:
    """Test whether predicted survival at the bags' own times is uniform.

    A bag with an event counts in the bin of its survival s. A censored bag is spread evenly over
    [0, s], where its survival at the unknown time of the event lies.

    Args:
        survival: the predicted survival of each bag at its time of event or censoring.
        event: whether the event was seen.
        bins: number of bins of equal width.

    Raises:
        InputError: there are no bags, or a probability is not in [0, 1].
    """
    _check_probabilities(event, survival)
    low = np.arange(bins) / bins
    own = np.minimum((survival * bins).astype(np.int64), bins - 1)
    # The part of [0, s] in each bin; at s = 0 everything is in the lowest bin.
    part = np.clip(survival[:, None] - low, 0, 1 / bins)
    spread = np.divide(part, survival[:, None], out=np.eye(bins)[own], where=survival[:, None] > 0)
    count = np.where(event[:, None], np.eye(bins)[own], spread).sum(0)
    n = len(survival)
    statistic = float(((count - n / bins) ** 2).sum() / (n / bins))
    share = tuple((count / n).tolist())
    return DCalibration(share=share, statistic=statistic, p=float(chi2.sf(statistic, bins - 1)))


def _check_probabilities(bags: np.ndarray, survival: Float[np.ndarray, " bags"]) -> None:
    if len(survival) == 0 or len(survival) != len(bags):
        raise InputError(f"{len(survival)} predictions for {len(bags)} bags: expected as many")
    if not bool(((survival >= 0) & (survival <= 1)).all()):
        raise InputError("predicted survival must lie in [0, 1]; some is outside, or nan")
