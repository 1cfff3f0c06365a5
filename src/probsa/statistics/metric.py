"""The value of a metric with its interval, or the reason why it is undefined."""

from dataclasses import asdict, dataclass

import numpy as np
from jaxtyping import Bool, Float

from .bootstrap import interval


@dataclass(frozen=True, slots=True)
class Metric:
    """A value with its 95 % interval, or the reason why there is none."""

    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str | None = None
    left_out: int = 0
    """Resamples in which the metric was undefined; the interval is of the others."""

    def to_dict(self) -> dict[str, float | int | str | None]:
        """For JSON."""
        return asdict(self)


def undefined(reason: str) -> Metric:
    """A metric without a value."""
    return Metric(None, reason=reason)


def measured(value: float | np.floating, resampled: Float[np.ndarray, " resamples"]) -> Metric:
    """A value with the interval of its resamples."""
    low, high, left_out = interval(resampled)
    return Metric(float(value), low=low, high=high, left_out=left_out)


def one_class(y: Bool[np.ndarray, " items"], *, what: str) -> str | None:
    """The reason why nothing can be ranked, if so."""
    if len(y) == 0:
        return f"no {what}"
    if y.all() or not y.any():
        return f"only one class among {len(y)} {what}"
    return None
