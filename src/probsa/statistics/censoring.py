"""The distribution of censoring times, which weights bags whose event was seen.

Ĝ(t) estimates the probability of not being censored until t. It is fitted on training bags and then
fixed. An event comes before a censoring at the same time, so the bags with an event at t are not at
risk of being censored at t.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from .kaplan_meier import check_times, counts_by_time


@dataclass(frozen=True, kw_only=True, slots=True)
class CensoringCurve:
    """The step curve Ĝ: `value[k]` holds from `time[k]` up to the next time; before, it is 1."""

    time: Float[np.ndarray, " times"]
    value: Float[np.ndarray, " times"]

    @classmethod
    def fit(
        cls, time: Float[np.ndarray, " bags"], event: Bool[np.ndarray, " bags"]
    ) -> "CensoringCurve":
        """Estimate Ĝ from the times of training bags, Π (1 - c / (n - d)).

        At each time, c bags are censored and d have the event, of n at risk.

        Raises:
            InputError: a time is not positive and finite, or there are no bags.
        """
        check_times(time, event)
        distinct, at_risk, events, censored = counts_by_time(time, event)
        remaining = at_risk - events
        hazard = np.divide(censored, remaining, out=np.zeros_like(censored), where=remaining > 0)
        return cls(time=distinct, value=np.cumprod(1 - hazard))

    def at(self, times: Float[np.ndarray, " t"]) -> Float[np.ndarray, " t"]:
        """Return Ĝ at any times; 0 after the last training time, where it is unknown."""
        values = np.append(1.0, self.value)[np.searchsorted(self.time, times, side="right")]
        return np.where(times > self.time[-1], 0.0, values)

    @property
    def limit(self) -> float:
        """The end of the times with Ĝ > 0, which is the last training time.

        Ĝ is positive at the limit itself only if the last training bags all have the event.
        """
        return float(self.time[-1])

    def truncated(self, times: Float[np.ndarray, " t"]) -> int:
        """Return the number of times at which Ĝ is 0 or unknown."""
        return int((self.at(times) == 0).sum())
