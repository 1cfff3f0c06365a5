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
    """Number of resamples in which the metric is undefined; the interval leaves them out."""

    @classmethod
    def undefined(cls, reason: str) -> "Metric":
        """Return a metric without a value."""
        return cls(None, reason=reason)

    @classmethod
    def from_resamples(
        cls, value: float | np.floating, resamples: Float[np.ndarray, " resamples"]
    ) -> "Metric":
        """Return a value with the percentile interval of its resamples."""
        low, high, left_out = interval(resamples)
        return cls(float(value), low=low, high=high, left_out=left_out)

    def to_dict(self) -> dict[str, float | int | str | None]:
        """Return the fields for JSON."""
        return asdict(self)


def one_class_reason(y: Bool[np.ndarray, " items"], *, what: str) -> str | None:
    """Return the reason why the items cannot be ranked, or None if both classes are present.

    `what` names the items in the reason, for example "bags".
    """
    if len(y) == 0:
        return f"no {what}"
    if y.all() or not y.any():
        return f"only one class among {len(y)} {what}"
    return None
