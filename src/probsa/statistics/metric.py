"""The value of a metric with all its resamples and its interval, or the reason why it is undefined.

A metric is a function of labels, scores and draws. Row 0 is the data, the other rows are resamples.
Metrics whose rows come from the same draws are paired: their difference is taken row by row.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float, Shaped

from ..errors import InputError
from .intervals import SHARE, NoInterval, Scale, interval
from .resample import Draws, Flags, Rows, Support, Values

ClassNames: TypeAlias = tuple[str, str]
"""What the patients of the negative and of the positive items are called, as “of class 0”."""
CLASSES: ClassNames = ("of class 0", "of class 1")


@dataclass(frozen=True, slots=True)
class PartialMean:
    """A mean over findings that leaves out those for which the metric is undefined."""

    metric: str
    """The name of the mean over all findings, such as `macro_auroc`."""
    defined: int
    """Number of findings that the mean is over."""
    findings: int


@dataclass(frozen=True, slots=True)
class Metric:
    """A value with its 95 % interval, or the reason why there is none."""

    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str | None = None
    left_out: int = 0
    """Number of resamples in which the metric is undefined; the interval leaves them out."""
    no_interval: NoInterval | None = None
    """Why a value has no interval; None if it has one, or was read from a file of version 0.2."""
    rows: np.ndarray | None = field(default=None, repr=False, compare=False)
    """The value in the data (row 0) and in every resample, nan where it is undefined; None for an
    undefined metric, and for one that was read from a file."""
    support: Support | None = field(default=None, repr=False, compare=False)
    """The patients on whom the metric rests; None where `rows` is None."""
    scale: Scale = field(default=SHARE, repr=False, compare=False)
    partial: PartialMean | None = field(default=None, repr=False, compare=False)
    """What the metric leaves out, if it is a mean over some findings only."""

    @classmethod
    def undefined(cls, reason: str) -> "Metric":
        """Return a metric without a value."""
        return cls(None, reason=reason)

    @classmethod
    def of(
        cls, rows: Rows, *, support: Support, scale: Scale = SHARE, reason: str | None = None
    ) -> "Metric":
        """Return the value in the data (row 0) with its interval.

        Args:
            rows: the value in the data and in the resamples of `Draws.patients`.
            support: the patients on whom the metric rests, see `Draws.support`.
            scale: the values that the metric can take; the interval stays within them.
            reason: why the metric is undefined if its value in the data is nan.
        """
        if not np.isfinite(rows[0]):
            return cls.undefined(reason or "it is undefined in the data")
        found = interval(rows, support=support, scale=scale)
        return cls(
            float(rows[0]),
            low=found.low,
            high=found.high,
            left_out=found.left_out,
            no_interval=found.missing,
            rows=rows,
            support=support,
            scale=scale,
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Metric":
        """Return the metric of which `to_dict` returned these values."""
        missing = values.get("no_interval")
        no_interval = None if missing is None else NoInterval(**missing)
        return cls(**{**values, "no_interval": no_interval})

    def map(
        self, function: Callable[[np.ndarray], np.ndarray], *, scale: Scale | None = None
    ) -> "Metric":
        """Return the metric with a function applied to every row, on the same or another scale."""
        if self.rows is None or self.support is None:
            return self
        rows = function(self.rows)
        return Metric.of(rows, support=self.support, scale=self.scale if scale is None else scale)

    def __sub__(self, other: "Metric") -> "Metric":
        """Return the paired difference; both must come from the same draws."""
        if self.rows is None or other.rows is None:
            return Metric.undefined((self.reason if self.rows is None else other.reason) or "")
        assert self.support is not None and other.support is not None, "these have rows"
        fewest = min(self.support, other.support, key=lambda support: support.patients)
        scale = self.scale.of_differences
        return Metric.of(self.rows - other.rows, support=fewest, scale=scale)

    def is_above(self, level: float) -> bool:
        """Return whether the interval lies above a level; False if there is none."""
        return self.low is not None and self.low > level

    def is_below(self, level: float) -> bool:
        """Return whether the interval lies below a level; False if there is none."""
        return self.high is not None and self.high < level

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

    def to_dict(self) -> dict[str, Any]:
        """Return value, interval, reasons and number of undefined resamples for JSON."""
        names = ("value", "low", "high", "reason", "left_out")
        missing = None if self.no_interval is None else asdict(self.no_interval)
        return {**{name: getattr(self, name) for name in names}, "no_interval": missing}


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetMetrics:
    """The metrics of one target: over all bags, and of each class, cut or time."""

    overall: Mapping[str, Metric]
    by_part: Mapping[str, Mapping[str, Metric]]
    """Metrics of each class, cut between grades, finding, interval or time, by its name."""
    notes: tuple[str, ...] = ()
    """Sentences that a report must show beside the metrics, such as bags that are left out."""


def require(condition: bool | np.bool_, message: str) -> None:  # noqa: FBT001
    """Refuse values that do not meet a condition.

    Raises:
        InputError: the condition is false.
    """
    if not condition:
        raise InputError(message)


def one_class_reason(y: Flags, *, what: str) -> str | None:
    """Return the reason why items (`what`) cannot be ranked, or None if both classes are there."""
    if len(y) == 0:
        return f"no {what}"
    return f"only one class among {len(y)} {what}" if y.all() or not y.any() else None


def of_several_classes(
    metric: Metric, labels: Shaped[np.ndarray, "items *targets"], *, called: str, what: str = "bags"
) -> Metric:
    """Return a metric of calls, undefined if all items have the same label.

    To call every item alike would then be right, however bad the model is.

    Args:
        metric: The metric, called `called`.
        labels: The label of each item, or a row of labels.
        called: The name of the metric in the reason.
        what: What the items are.
    """
    if metric.value is None or len(np.unique(labels, axis=0)) > 1:
        return metric
    return Metric.undefined(
        f"only one class among {len(labels)} {what}: {called} is undefined, as it would be perfect "
        "if all were called so"
    )


def class_support(y: Flags, *, draws: Draws, names: ClassNames = CLASSES) -> Support:
    """Return the support of a metric that contrasts positive and negative items.

    names: those of the negative and of the positive class.
    """
    return draws.support({names[0]: ~y, names[1]: y})


def call_support(y: Flags, called: Flags, *, draws: Draws, names: ClassNames = CLASSES) -> Support:
    """Return the support of F1 and of κ, which are shares of the positive and the called items."""
    positive = draws.patients_with(y)
    called_positive = draws.patients_with(called)
    # Wilson's limit of 0 of k - 1.5 trials is not below the exact one (Clopper and Pearson) of 0 of
    # k patients, of which a threshold that misses them all is an example
    trials = max(positive + called_positive - 1.5, 0.5)
    return replace(class_support(y, draws=draws, names=names), trials=trials)


def areas(
    y: Flags,
    score: Values,
    *,
    draws: Draws,
    what: str = "bags",
    names: ClassNames = CLASSES,
    scale: Scale = SHARE,
    reason: str | None = None,
) -> dict[str, Metric]:
    """Return `auroc` and `average_precision`, which share one pass over the resamples.

    Args:
        y: whether each item is positive.
        score: a score of each item.
        draws: resamples of the items.
        what: the items, in the plural.
        names: those of the negative and of the positive class.
        scale: `MEAN_SHARE` for items that are many in each patient.
        reason: why both are undefined if there is one class only.
    """
    one_class = one_class_reason(y, what=what)
    area, precision = draws.ranks(y, score)
    both_classes = class_support(y, draws=draws, names=names)
    # average precision is a mean over the positive items, and depends little on the others
    trials = max(2.0 * draws.patients_with(y) - 1, 0.5)
    return {
        "auroc": Metric.of(
            area,
            support=both_classes,
            scale=scale,
            reason=reason or f"{one_class}: AUROC is undefined",
        ),
        "average_precision": Metric.of(
            precision,
            support=replace(both_classes, trials=trials),
            scale=scale,
            reason=reason or f"{one_class}: average precision is undefined",
        ),
    }


def f1_and_accuracy(y: Flags, called: Flags, *, draws: Draws) -> Float[np.ndarray, "2 rows"]:
    """Return F1 (row 0; nan without a positive item) and accuracy (row 1) of positive calls."""
    columns = np.stack([y & called, y, called, y == called, np.ones_like(y)], axis=1)
    true_positives, positives, calls, correct, n = draws.totals(columns).T
    with np.errstate(invalid="ignore", divide="ignore"):
        f1 = np.where(positives > 0, 2 * true_positives / (positives + calls), np.nan)
        return np.stack([f1, correct / n])


def f1(
    y: Flags,
    called: Flags,
    *,
    draws: Draws,
    what: str = "bags",
    names: ClassNames = CLASSES,
    reason: str | None = None,
) -> Metric:
    """Return the F1 of positive calls; undefined without a positive item.

    `what` names the items and `names` the negative and the positive class.
    """
    return Metric.of(
        f1_and_accuracy(y, called, draws=draws)[0],
        support=call_support(y, called, draws=draws, names=names),
        reason=reason or f"no positive among {len(y)} {what}: F1 is undefined",
    )


def mean_of_items(
    values: Shaped[np.ndarray, " items"], *, draws: Draws, scale: Scale, reason: str = "no bags"
) -> Metric:
    """Return the weighted mean of a value per item in each row; `scale` is that of the mean."""
    rows = draws.ratio(values, np.ones_like(values))
    return Metric.of(rows, support=draws.support(), scale=scale, reason=reason)


def mean_over_classes(per_class: Sequence[Metric]) -> Metric:
    """Return the mean over all classes, undefined if it is undefined for one of them.

    A resample in which a class has no value is nan.
    """
    for metric in per_class:
        if metric.rows is None:
            return Metric.undefined(f"{metric.reason}: the mean over classes is undefined")
    rows = np.stack([m.rows for m in per_class if m.rows is not None], axis=1)
    support = Support.of_mean([m.support for m in per_class if m.support is not None])
    return Metric.of(rows.mean(1), support=support, scale=per_class[0].scale)


def mean_over_replicates(
    replicates: Sequence[Metric],
    *,
    weights: Float[np.ndarray, "rows replicates"],
    same_patients: bool = True,
) -> Metric:
    """Return the mean over the replicates that have a value, weighted by `replicate_weights`.

    same_patients: whether the replicates are of the same patients; those of folds are not.
    """
    defined = [m for m in replicates if m.rows is not None]
    if not defined:
        return Metric.undefined(replicates[0].reason or "")
    undefined = np.full(len(weights), np.nan)
    value = np.stack([undefined if m.rows is None else m.rows for m in replicates], axis=1)
    weight = np.where(np.isfinite(value), weights, 0.0)
    with np.errstate(invalid="ignore"):
        rows = (np.where(weight > 0, value, 0.0) * weight).sum(1) / weight.sum(1)
    supports = [m.support for m in defined if m.support is not None]
    support = min(supports, key=lambda of: of.patients)
    if not same_patients:
        support = Support.of_disjoint(supports)
    return Metric.of(rows, support=support, scale=defined[0].scale, reason=replicates[0].reason)
