"""The log-rank test of two survival curves (Mantel, Cancer Chemotherapy Reports 1966).

It is descriptive here: groups by a risk that was chosen on the same bags are not independent of it,
so cut at the median of the training bags.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import chi2

from .kaplan_meier import check_times, counts_by_time


@dataclass(frozen=True, kw_only=True, slots=True)
class LogRank:
    """Observed and expected events of the group that is tested, and the test."""

    observed: float
    expected: float
    """Number of events if both groups had the same hazard."""
    statistic: float | None
    """(O - E)² / V, which is χ² distributed with one degree of freedom; None without variance."""
    p: float | None
    reason: str | None = None
    """The reason why there is no test."""


def log_rank(
    time: Float[np.ndarray, " bags"],
    event: Bool[np.ndarray, " bags"],
    *,
    group: Bool[np.ndarray, " bags"],
) -> LogRank:
    """Test whether two groups of bags have the same hazard; bags are treated as independent.

    Args:
        time: time of the event or of the censoring, positive.
        event: whether the event was seen.
        group: whether a bag belongs to the tested group, such as that of high risk.

    Raises:
        InputError: a time is not positive and finite, or there are no bags.
    """
    check_times(time, event)
    distinct, n, d, _ = counts_by_time(time, event)
    n1 = (time[group] >= distinct[:, None]).sum(1).astype(np.float64)
    share = n1 / n
    observed, expected = float(event[group].sum()), float((d * share).sum())
    # The last bag at risk has no variance.
    variance = float((d * share * (1 - share) * (n - d) / np.maximum(n - 1, 1)).sum())
    if variance == 0:
        reason = "no event occurs while both groups are at risk: the test is undefined"
        return LogRank(observed=observed, expected=expected, statistic=None, p=None, reason=reason)
    statistic = (observed - expected) ** 2 / variance
    return LogRank(
        observed=observed,
        expected=expected,
        statistic=statistic,
        p=float(chi2.sf(statistic, 1)),
    )
