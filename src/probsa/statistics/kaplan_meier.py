"""Survival curves of a group by Kaplan and Meier (JASA 1958), with Greenwood's intervals.

Times are positive, in any one unit. `event` is True if the event was seen at the time, and False if
the bag was censored there. An event comes before a censoring at the same time.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import norm

from ..errors import InputError
from .metric import COVERAGE

IntervalKind = Literal["log-log", "greenwood"]


@dataclass(frozen=True, kw_only=True, slots=True)
class KaplanMeier:
    """A step curve: `survival[k]` holds from `time[k]` up to the next time; before, it is 1."""

    time: Float[np.ndarray, " times"]
    """The distinct times of events and censorings, rising."""
    at_risk: Float[np.ndarray, " times"]
    """Number of bags without an event or censoring before the time."""
    events: Float[np.ndarray, " times"]
    censored: Float[np.ndarray, " times"]
    survival: Float[np.ndarray, " times"]
    low: Float[np.ndarray, " times"]
    """Lower limit of the 95 % interval at each time; nan where survival is 0."""
    high: Float[np.ndarray, " times"]

    @classmethod
    def fit(
        cls,
        time: Float[np.ndarray, " bags"],
        event: Bool[np.ndarray, " bags"],
        *,
        weights: Float[np.ndarray, " bags"] | None = None,
        interval: IntervalKind = "log-log",
    ) -> "KaplanMeier":
        """Estimate the curve; the intervals treat bags as independent.

        Args:
            time: time of the event or of the censoring.
            event: whether the event was seen.
            weights: number of times each bag counts; None for once.
            interval: `log-log` for limits of log(-log S), which stay between 0 and 1, or
                `greenwood` for S ± 1.96 standard errors, cut off at 0 and 1.

        Raises:
            InputError: a time is not positive and finite, or there are no bags.
        """
        check_times(time, event)
        distinct, at_risk, events, censored = counts_by_time(time, event, weights=weights)
        with np.errstate(invalid="ignore", divide="ignore"):
            survival = np.cumprod(1 - events / at_risk)
            relative = np.cumsum(events / (at_risk * (at_risk - events)))
            low, high = _limits(survival, relative, kind=interval)
        return cls(
            time=distinct,
            at_risk=at_risk,
            events=events,
            censored=censored,
            survival=survival,
            low=low,
            high=high,
        )

    def at(self, times: Float[np.ndarray, " t"]) -> Float[np.ndarray, "3 t"]:
        """Return survival and its two limits at any times.

        They are nan after the last time, where nothing is known unless survival has reached 0.
        """
        step = np.searchsorted(self.time, times, side="right")
        columns = np.stack([self.survival, self.low, self.high])
        values = np.concatenate([np.ones((3, 1)), columns], axis=1)[:, step]
        if self.survival[-1] > 0:
            values[:, times > self.time[-1]] = np.nan
        return values

    @property
    def median(self) -> float | None:
        """The smallest time with S ≤ ½, or None if the curve stays above."""
        return first_at_most_half(self.time, self.survival)


def first_at_most_half(
    time: Float[np.ndarray, " times"], curve: Float[np.ndarray, " times"]
) -> float | None:
    """Return the smallest time at which a falling curve is at most ½ (up to rounding), or None."""
    below = np.flatnonzero(curve <= 0.5 + 1e-12)
    return float(time[below[0]]) if len(below) else None


def _limits(
    survival: Float[np.ndarray, " times"],
    relative: Float[np.ndarray, " times"],
    *,
    kind: IntervalKind,
) -> tuple[Float[np.ndarray, " times"], Float[np.ndarray, " times"]]:
    """Return the limits from Greenwood's relative variance Σ d / (n (n - d)) of S."""
    z = float(norm.ppf((1 + COVERAGE) / 2))
    if kind == "greenwood":
        half = z * survival * np.sqrt(relative)
        low, high = np.maximum(survival - half, 0.0), np.minimum(survival + half, 1.0)
    else:
        half = z * np.sqrt(relative) / np.log(survival)  # negative
        low, high = survival ** np.exp(-half), survival ** np.exp(half)
    # Before the first event, the curve has no variance; at 0, its variance is unknown.
    low, high = (np.where(survival == 1, 1.0, limit) for limit in (low, high))
    return np.where(survival > 0, low, np.nan), np.where(survival > 0, high, np.nan)


def counts_by_time(
    time: Float[np.ndarray, " bags"],
    event: Bool[np.ndarray, " bags"],
    *,
    weights: Float[np.ndarray, " bags"] | None = None,
) -> tuple[
    Float[np.ndarray, " times"],
    Float[np.ndarray, " times"],
    Float[np.ndarray, " times"],
    Float[np.ndarray, " times"],
]:
    """Return the distinct times, and at each the numbers at risk, of events and of censorings."""
    weight = np.ones(len(time)) if weights is None else weights
    drawn = weight > 0
    distinct, index = np.unique(time[drawn], return_inverse=True)
    total = np.bincount(index, weights=weight[drawn], minlength=len(distinct))
    events = np.bincount(index, weights=(weight * event)[drawn], minlength=len(distinct))
    return distinct, np.cumsum(total[::-1])[::-1], events, total - events


def resampled_survival(
    time: Float[np.ndarray, " bags"],
    event: Bool[np.ndarray, " bags"],
    times: Float[np.ndarray, " t"],
    *,
    weights: Float[np.ndarray, "rows bags"],
) -> Float[np.ndarray, "rows t"]:
    """Return the Kaplan-Meier estimate at each of `times` in each row of weights."""
    order = np.argsort(time, kind="stable")
    ascending = time[order]
    weight = weights[:, order]
    starts = np.flatnonzero(np.append([True], ascending[1:] != ascending[:-1]))
    total = np.add.reduceat(weight, starts, axis=1)
    events = np.add.reduceat(weight * event[order], starts, axis=1)
    at_risk = np.cumsum(total[:, ::-1], axis=1)[:, ::-1]
    hazard = np.divide(events, at_risk, out=np.zeros_like(events), where=at_risk > 0)
    curve = np.concatenate([np.ones((len(weight), 1)), np.cumprod(1 - hazard, axis=1)], axis=1)
    return curve[:, np.searchsorted(ascending[starts], times, side="right")]


def check_times(time: Float[np.ndarray, " bags"], event: Bool[np.ndarray, " bags"]) -> None:
    """Check times and events.

    Raises:
        InputError: there are none, their numbers differ, or a time is not positive and finite.
    """
    if len(time) == 0 or len(time) != len(event):
        raise InputError(f"{len(time)} times and {len(event)} events: expected as many, and some")
    wrong = ~(np.isfinite(time) & (time > 0))
    if wrong.any():
        raise InputError(f"a time is {time[wrong][0]:g}, but expected more than 0, in one unit")
