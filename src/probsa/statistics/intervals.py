"""The 95 % interval of a metric from its standard error over resampled patients.

With two limits, as 0 and 1 of an AUROC, it is Wilson's score interval (JASA 1927). Its trials are
those that give the standard error, at most the number of patients (Korn and Graubard, Survey
Methodology 1998), so that an AUROC of 1 has one, too. With one limit, as 0 of a loss, it is
Student's interval of the logarithm of the distance from it; without limits, Student's interval.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtri, stdtrit

from .resample import Rows, Support

COVERAGE = 0.95
"""Coverage of every interval."""
FEWEST_PATIENTS = 3
"""With fewer patients of a class than this, a metric that depends on it has no interval."""
NORMAL = float(ndtri((1 + COVERAGE) / 2))

LARGEST_EXPONENT = 700.0
"""The exponential function of more than about 709 is infinite."""

Cause = Literal[
    "few patients", "no resamples", "undefined resamples", "no variation", "at the limit"
]
"""Why a value has no interval: there are fewer than three patients of a class; no resamples were
asked for; most resamples are undefined; the value is the same in all of them; or it varies, but is
itself the only limit of its scale, from which a distance of 0 has no logarithm."""


@dataclass(frozen=True, slots=True)
class NoInterval:
    """The reason why a value has no interval."""

    cause: Cause
    patients: int | None = None
    """With few patients: their number."""
    part: str | None = None
    """With few patients: the class of which there are so few; None if there are few at all."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The limits of an interval, or the reason why there is none."""

    low: float | None = None
    high: float | None = None
    missing: NoInterval | None = None
    left_out: int = 0
    """Number of resamples in which the value is undefined; the interval leaves them out."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The values that a metric can take."""

    low: float = 0.0
    high: float = 1.0
    is_share: bool = True
    """Whether it is a share of patients or like one, so that few of them cannot make it certain."""

    def interval(
        self, value: float, error: float, *, support: Support
    ) -> tuple[float, float] | None:
        """Return the limits of the interval within this scale.

        It is None if the value does not vary, or lies at the only limit of the scale.

        error: the standard error of the value.
        """
        student = float(stdtrit(support.patients - 1, (1 + COVERAGE) / 2))
        bounded_below, bounded_above = math.isfinite(self.low), math.isfinite(self.high)
        if bounded_below and bounded_above:
            return self._score_interval(value, error, student=student, trials=support.trials)
        if error == 0:
            return None
        if not bounded_below and not bounded_above:
            return value - student * error, value + student * error
        distance = value - self.low if bounded_below else self.high - value
        if distance <= 0:
            return None
        # by the delta method, the logarithm of the distance has the standard error error / distance
        factor = math.exp(min(student * error / distance, LARGEST_EXPONENT))
        if bounded_below:
            return self.low + distance / factor, self.low + distance * factor
        return self.high - distance * factor, self.high - distance / factor

    def _score_interval(
        self, value: float, error: float, *, student: float, trials: float
    ) -> tuple[float, float] | None:
        """Return all shares θ from which the value is less than z standard errors away.

        The variance of a share is θ (1 - θ) / n. The trials n are those of the standard error,
        lowered by (z / t)² because few patients estimate it badly.
        """
        width = self.high - self.low
        share = min(max((value - self.low) / width, 0.0), 1.0)
        # half a success and half a failure more, so that a share of 0 or 1 has a variance
        inner = (trials * share + 0.5) / (trials + 1)
        effective = math.inf
        if error > 0:
            effective = inner * (1 - inner) * (width / error * NORMAL / student) ** 2
        if self.is_share:
            effective = min(effective, trials)
        if math.isinf(effective):
            return None
        relative = NORMAL**2 / effective
        centre = (share + relative / 2) / (1 + relative)
        variance = share * (1 - share) / effective + relative / (4 * effective)
        half = NORMAL * math.sqrt(variance) / (1 + relative)
        low, high = max(centre - half, 0.0), min(centre + half, 1.0)
        # rounding errors must not exclude the value itself
        return self.low + width * min(low, share), self.low + width * max(high, share)

    @property
    def of_differences(self) -> "Scale":
        """The scale of the difference of two values."""
        return Scale(self.low - self.high, self.high - self.low, is_share=False)


SHARE = Scale()
MEAN_SHARE = Scale(is_share=False)
"""The mean of values between 0 and 1 that differ between patients, such as a Brier score."""
CORRELATION = Scale(-1.0, 1.0)
MEAN_CORRELATION = Scale(-1.0, 1.0, is_share=False)
LOSS = Scale(0.0, math.inf)
UP_TO_ONE = Scale(-math.inf, 1.0)
ANY_VALUE = Scale(-math.inf, math.inf)


ROUNDING = 1e-12
"""A standard error below this, relative to the value, is a rounding error."""


def interval(rows: Rows, *, support: Support, scale: Scale) -> Interval:
    """Return the interval of a value, given the value (row 0) and its resamples (nan: undefined).

    The resamples are those of `Draws.patients`, whose variance is unbiased.
    """
    value = float(rows[0])
    resamples = rows[1:]
    defined = resamples[np.isfinite(resamples)]
    left_out = len(resamples) - len(defined)
    if support.patients < FEWEST_PATIENTS:
        few = NoInterval("few patients", support.patients, support.part)
        return Interval(missing=few, left_out=left_out)
    if not len(resamples):
        return Interval(missing=NoInterval("no resamples"))
    # a standard error needs two values, and most resamples must be defined
    if len(defined) < 2 or len(defined) < left_out:
        return Interval(missing=NoInterval("undefined resamples"), left_out=left_out)
    error = float(defined.std(ddof=1))
    if error < ROUNDING * max(abs(value), abs(float(defined.max())), abs(float(defined.min()))):
        error = 0.0
    limits = scale.interval(value, error, support=support)
    if limits is None:
        cause: Cause = "no variation" if error == 0 else "at the limit"
        return Interval(missing=NoInterval(cause), left_out=left_out)
    low, high = limits
    return Interval(low, high, left_out=left_out)
