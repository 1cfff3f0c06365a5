"""Stage 10: the range of values that the colours of a map cover, and numbers as text."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ..errors import BagError
from ..evaluation import Prediction

FLAT = 0.05
"""Relative range below which a panel on the bag's own scale has one colour: the whole palette for
values that are almost equal would show more structure than there is."""
REACH = 0.1
"""Share of a scale of all bags that the values of a bag must reach to be drawn in its colours."""
TAILS = (0.01, 0.99)
"""Quantiles that bound a fixed scale, so that one outlying patch does not grey out all slides."""
Range = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class ColourLimits:
    """Lowest and highest value of the colours, for the mean and for the variance."""

    mean: Range
    variance: Range


def bag_limits(p: Prediction) -> ColourLimits:
    """Return the smallest and largest value of one bag, as in the paper's maps.

    Raises:
        BagError: No value is finite.
    """
    for name, values in (("mean", p.attention_mean), ("variance", p.attention_variance)):
        if not np.isfinite(values).any():
            raise BagError(f"bag {p.name!r}: its attention {name} has no finite value")
    return ColourLimits(
        mean=value_range(p.attention_mean), variance=value_range(p.attention_variance)
    )


def common_limits(predictions: Iterable[Prediction]) -> ColourLimits:
    """Return limits for all bags: the 1 % and 99 % quantiles over all their instances.

    Bags whose variance is 0 everywhere (Dirac) do not contribute to the variance limits, since
    their maps show no variance.

    Raises:
        BagError: There are no bags, or none has a finite value.
    """
    means: list[np.ndarray] = []
    variances: list[np.ndarray] = []
    for p in predictions:
        means.append(p.attention_mean.ravel())
        if p.attention_variance.any():
            variances.append(p.attention_variance.ravel())
    if not any(np.isfinite(m).any() for m in means):
        raise BagError("a fixed scale needs bags with attention to compute it from: got none")
    variance = np.concatenate(variances) if variances else np.zeros(1, np.float32)
    return ColourLimits(
        mean=value_range(np.concatenate(means), tails=TAILS),
        variance=value_range(variance, tails=TAILS),
    )


def value_range(values: np.ndarray, *, tails: Range = (0.0, 1.0)) -> Range:
    """Return quantiles of the finite values, by default the smallest and the largest.

    If they are equal, the colours still need a range: it is centred at the only value.
    """
    values = np.asarray(values, np.float64)
    low, high = np.quantile(values[np.isfinite(values)], tails).tolist()
    half = 0.0
    if low >= high:
        half = abs(low) / 2 or 0.5
    return low - half, high + half


def flatness(values: Float[np.ndarray, " n"], *, logits: bool = False) -> str:
    """Return why values are almost equal, or an empty string if they are not.

    They are if (highest − lowest) / largest absolute value is below `FLAT`.

    Args:
        values: One number for each instance.
        logits: Whether they are logits of a softmax, of which only differences matter: then the
            weights are compared.
    """
    finite = values[np.isfinite(values)]
    if len(finite) < 2:
        return ""
    span = float(np.ptp(finite))
    largest = float(np.abs(finite).max())
    if logits:
        # the lowest weight is exp(−span) times the highest
        share = -np.expm1(-span)
    else:
        share = span / largest if largest else 0.0
    if share >= FLAT:
        return ""
    if not span:
        return "flat: all values are equal"
    return f"flat: {'weights' if logits else 'values'} differ by {100 * share:.2g} %"


def too_low(values: Float[np.ndarray, " n"], limits: Range) -> str:
    """Return that values hardly reach into a scale centred at 0; an empty string if they do."""
    share = float(np.nanmax(np.abs(values))) / max(abs(v) for v in limits)
    if share >= REACH:
        return ""
    return f"flat: values reach {100 * share:.2g} % of the scale"


def range_text(values: Float[np.ndarray, " n"], form: Callable[[float], str] | None = None) -> str:
    """Say how much there is to see: the range of the finite values, as numbers or in a form."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return "no finite value"
    smallest = float(finite.min())
    largest = float(finite.max())
    low, high = (form(smallest), form(largest)) if form else numbers(smallest, largest)
    return low if low == high else f"{low} to {high}"


def numbers(*values: float) -> list[str]:
    """Format numbers with at least three significant digits, and enough to tell them apart.

    >>> numbers(0.1353, 0.1354), numbers(0.5, 1.0)
    (['0.1353', '0.1354'], ['0.5', '1'])
    """
    texts: list[str] = []
    for digits in range(3, 10):
        texts = [f"{v:.{digits}g}".replace("-", "−") for v in values]
        if len(set(texts)) == len(set(values)):
            break
    return texts
