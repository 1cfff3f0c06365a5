"""The value of a metric with all its resamples and its interval, or the reason why it is undefined.

A metric is a function of labels, scores and draws. Row 0 is the data, the other rows are resamples.
Metrics whose rows come from the same draws are paired: their difference is taken row by row.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Shaped
from scipy.special import stdtrit

from ..errors import InputError
from .resample import Draws, Flags, Rows, Values

COVERAGE = 0.95
"""Coverage of every interval: from the 2.5th to the 97.5th percentile of the resamples."""


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
    def of(cls, rows: Rows, *, reason: str | None = None) -> "Metric":
        """Return the value in the data (row 0) with the percentile interval of the resamples.

        `reason` says why the metric is undefined if its value in the data is nan.
        """
        if not np.isfinite(rows[0]):
            return cls.undefined(reason or "it is undefined in the data")
        low, high, left_out = interval(rows[1:])
        return cls(float(rows[0]), low=low, high=high, left_out=left_out, rows=rows)

    def student(self, *, groups: int) -> "Metric":
        """Return the metric with the interval value ± t · s · √(G / (G − 1)), t of G − 1 degrees.

        s is the standard deviation of the resamples, and G the number of groups that contribute.
        Percentiles over few groups are too narrow: they estimate the variance with G instead of
        G − 1 and know no t distribution. There is no interval with fewer than two groups.
        """
        if self.rows is None or self.value is None:
            return self
        defined, low, high = self.rows[1:][np.isfinite(self.rows[1:])], None, None
        left_out = len(self.rows) - 1 - len(defined)
        if groups > 1 and len(defined) >= max(2, left_out):
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

    def text(self, *, sign: bool = False) -> str:
        """Return the value and its interval, as `0.812 [0.701, 0.900]`; a dash if undefined."""
        if self.value is None:
            return "-"
        return f"{self.value:{'+' if sign else ''}.{self.digits}f}{self.span(sign=sign)}"

    @property
    def digits(self) -> int:
        """Decimals of the three significant digits of the largest number; three up to 1."""
        numbers = (abs(v) for v in (self.value, self.low, self.high) if v is not None)
        largest = max(numbers, default=0.0)
        return 3 if not 1 < largest < np.inf else max(0, 2 - math.floor(math.log10(largest)))

    def span(self, digits: int | None = None, *, sign: bool = False, before: str = " ") -> str:
        """Return the interval in brackets after `before`; an empty string if there is none."""
        if self.low is None or self.high is None:
            return ""
        digits = self.digits if digits is None else digits
        form = f"{'+' if sign else ''}.{digits}f"
        return f"{before}[{self.low:{form}}, {self.high:{form}}]"

    def __str__(self) -> str:
        return self.text()

    def to_dict(self) -> dict[str, float | int | str | None]:
        """Return value, interval, reason and number of undefined resamples for JSON."""
        names = ("value", "low", "high", "reason", "left_out")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetMetrics:
    """The metrics of one target: over all bags, and of each class, cut or time."""

    overall: Mapping[str, Metric]
    by_part: Mapping[str, Mapping[str, Metric]]
    """Metrics of each class, cut between grades, finding, interval or time, by its name."""
    notes: tuple[str, ...] = ()
    """Sentences that a report must show beside the metrics, such as bags that are left out."""


def interval(values: Rows) -> tuple[float | None, float | None, int]:
    """Return the limits, None if most resamples are undefined (nan), and the number of these."""
    defined = values[np.isfinite(values)]
    left_out = len(values) - len(defined)
    if len(defined) == 0 or left_out > len(defined):
        return None, None, left_out
    tail = (1 - COVERAGE) / 2
    low, high = np.quantile(defined, [tail, 1 - tail])
    return float(low), float(high), left_out


def check(rules: Mapping[str, bool | np.bool_]) -> None:
    """Check what was given against rules, each of which is said in words.

    Raises:
        InputError: a rule is broken; the first one is the message.
    """
    for words, kept in rules.items():
        if not kept:
            raise InputError(words)


def one_class_reason(y: Flags, *, what: str) -> str | None:
    """Return the reason why items (`what`) cannot be ranked, or None if both classes are there."""
    if len(y) == 0:
        return f"no {what}"
    return f"only one class among {len(y)} {what}" if y.all() or not y.any() else None


def auroc(y: Flags, score: Values, *, draws: Draws, what: str = "bags") -> Metric:
    """Return the AUROC of a score for finding the positive items; `what` names the items."""
    reason = f"{one_class_reason(y, what=what)}: AUROC is undefined"
    return Metric.of(draws.auroc(y, score), reason=reason)


def areas(
    y: Flags, score: Values, *, draws: Draws, what: str = "bags", reason: str | None = None
) -> dict[str, Metric]:
    """Return `auroc` and `average_precision`, which share one pass over the resamples.

    `reason` says why both are undefined if there is one class only.
    """
    names = {"auroc": "AUROC", "average_precision": "average precision"}
    one_class = one_class_reason(y, what=what)
    return {
        key: Metric.of(rows, reason=reason or f"{one_class}: {name} is undefined")
        for (key, name), rows in zip(names.items(), draws.ranks(y, score), strict=True)
    }


def f1_and_accuracy(y: Flags, called: Flags, *, draws: Draws) -> Float[np.ndarray, "2 rows"]:
    """Return F1 (row 0; nan without a positive item) and accuracy (row 1) of positive calls."""
    columns = np.stack([y & called, y, called, y == called, np.ones_like(y)], axis=1)
    true_positives, positives, calls, correct, n = draws.totals(columns).T
    with np.errstate(invalid="ignore", divide="ignore"):
        f1 = np.where(positives > 0, 2 * true_positives / (positives + calls), np.nan)
        return np.stack([f1, correct / n])


def f1(y: Flags, called: Flags, *, draws: Draws, what: str = "bags") -> Metric:
    """Return the F1 of positive calls; undefined without a positive item."""
    reason = f"no positive among {len(y)} {what}: F1 is undefined"
    return Metric.of(f1_and_accuracy(y, called, draws=draws)[0], reason=reason)


def mean_of_items(values: Shaped[np.ndarray, " items"], *, draws: Draws) -> Metric:
    """Return the weighted mean of a value per bag in each row."""
    return Metric.of(draws.ratio(values, np.ones_like(values)), reason="no bags")


def mean_over_classes(
    per_class: Sequence[Metric], *, weights: Float[np.ndarray, "rows classes"] | None = None
) -> Metric:
    """Return the mean over all classes, undefined if it is undefined for one of them.

    A resample in which a class has no value is nan.
    `weights` are those of each class in each row; None for equal weights (macro).
    """
    for metric in per_class:
        if metric.rows is None:
            return Metric.undefined(f"{metric.reason}: the mean over classes is undefined")
    rows = np.stack([m.rows for m in per_class if m.rows is not None], axis=1)
    weight = np.ones_like(rows) if weights is None else weights
    return Metric.of((rows * weight).sum(1) / weight.sum(1))


def mean_over_replicates(
    replicates: Sequence[Metric], *, weights: Float[np.ndarray, "rows replicates"]
) -> Metric:
    """Return the mean over the replicates that have a value, weighted by `replicate_weights`."""
    undefined = np.full(len(weights), np.nan)
    value = np.stack([undefined if m.rows is None else m.rows for m in replicates], axis=1)
    weight = np.where(np.isfinite(value), weights, 0.0)
    with np.errstate(invalid="ignore"):
        rows = (np.where(weight > 0, value, 0.0) * weight).sum(1) / weight.sum(1)
    return Metric.of(rows, reason=replicates[0].reason or "")
