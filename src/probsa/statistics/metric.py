"""The value of a metric with all its resamples and its interval, or the reason why it is undefined.

Row 0 is the data, the other rows are resamples. Metrics whose rows come from the same draws are
paired: their difference is taken row by row.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import stdtrit

COVERAGE = 0.95
"""Coverage of every interval: from the 2.5th to the 97.5th percentile of the resamples."""
UNDEFINED = "it is undefined in the data"


@dataclass(frozen=True, slots=True)
class Metric:
    """A value with its 95 % interval, or the reason why there is none."""

    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str | None = None
    left_out: int = 0
    """Number of resamples in which the metric is undefined; the interval leaves them out."""
    rows: np.ndarray | None = field(default=None, repr=False, compare=False)
    """The value in the data (row 0) and in every resample, nan where it is undefined; None for an
    undefined metric, and for one that was read from a file."""

    @classmethod
    def undefined(cls, reason: str) -> "Metric":
        """Return a metric without a value."""
        return cls(None, reason=reason)

    @classmethod
    def of(cls, rows: Float[np.ndarray, " rows"], *, reason: str | None = None) -> "Metric":
        """Return the value in the data with the percentile interval of the resamples.

        Args:
            rows: the value in the data, and in every resample.
            reason: why the metric is undefined if its value in the data is nan.
        """
        if not np.isfinite(rows[0]):
            return cls.undefined(reason or UNDEFINED)
        low, high, left_out = interval(rows[1:])
        return cls(float(rows[0]), low=low, high=high, left_out=left_out, rows=rows)

    def student(self, *, groups: int) -> "Metric":
        """Return the metric with the interval value ± t · s · √(G / (G − 1)), t of G − 1 degrees.

        s is the standard deviation of the resamples. The percentiles of a bootstrap over G groups
        are too narrow if G is small, because they estimate the variance with G instead of G − 1 and
        know no t distribution. If the metric is a mean over groups of one item each, this is the
        interval of the t-test, up to the Monte Carlo error of s. There is no interval with fewer
        than two groups.

        Args:
            groups: number of groups that contribute to the metric.
        """
        if self.rows is None or self.value is None:
            return self
        defined = self.rows[1:][np.isfinite(self.rows[1:])]
        left_out = len(self.rows) - 1 - len(defined)
        if groups < 2 or len(defined) < 2 or left_out > len(defined):
            return Metric(self.value, left_out=left_out, rows=self.rows)
        error = float(defined.std(ddof=1)) * (groups / (groups - 1)) ** 0.5
        half = error * float(stdtrit(groups - 1, (1 + COVERAGE) / 2))
        low, high = self.value - half, self.value + half
        return Metric(self.value, low=low, high=high, left_out=left_out, rows=self.rows)

    def map(self, function: Callable[[np.ndarray], np.ndarray]) -> "Metric":
        """Return the metric with a function applied to every row."""
        return self if self.rows is None else Metric.of(function(self.rows))

    def __sub__(self, other: "Metric") -> "Metric":
        """Return the paired difference; both must come from the same draws."""
        if self.rows is None or other.rows is None:
            return Metric.undefined((self.reason if self.rows is None else other.reason) or "")
        return Metric.of(self.rows - other.rows)

    def text(self, digits: int = 3, *, sign: bool = False) -> str:
        """Return the value and its interval, as `0.812 [0.701, 0.900]`; a dash if undefined."""
        if self.value is None:
            return "-"
        form = f"{'+' if sign else ''}.{digits}f"
        return f"{self.value:{form}}{self.span(digits, sign=sign)}"

    def span(self, digits: int = 3, *, sign: bool = False, before: str = " ") -> str:
        """Return the interval in brackets after `before`; an empty string if there is none."""
        if self.low is None or self.high is None:
            return ""
        form = f"{'+' if sign else ''}.{digits}f"
        return f"{before}[{self.low:{form}}, {self.high:{form}}]"

    def __str__(self) -> str:
        return self.text()

    def to_dict(self) -> dict[str, float | int | str | None]:
        """Return value, interval, reason and number of undefined resamples for JSON."""
        names = ("value", "low", "high", "reason", "left_out")
        return {name: getattr(self, name) for name in names}


def interval(values: Float[np.ndarray, " resamples"]) -> tuple[float | None, float | None, int]:
    """Return the lower and upper limit, and the number of undefined (nan) resamples left out.

    There is no interval without resamples, or if more than half of them are undefined.
    """
    defined = values[np.isfinite(values)]
    left_out = len(values) - len(defined)
    if len(defined) == 0 or left_out > len(defined):
        return None, None, left_out
    tail = (1 - COVERAGE) / 2
    low, high = np.quantile(defined, [tail, 1 - tail])
    return float(low), float(high), left_out


def one_class_reason(y: Bool[np.ndarray, " items"], *, what: str) -> str | None:
    """Return the reason why the items cannot be ranked, or None if both classes are present.

    `what` names the items in the reason, for example "bags".
    """
    if len(y) == 0:
        return f"no {what}"
    if y.all() or not y.any():
        return f"only one class among {len(y)} {what}"
    return None
