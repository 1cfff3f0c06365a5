"""Stage 10: the range of values that the colours of a map cover."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from ..errors import BagError, InputError
from ..evaluation import MapScore, Prediction, Predictions, read_predictions
from .shown import showing

FLAT = 0.05
"""Relative range below which a panel on the bag's own scale has one colour: the whole palette for
values that are almost equal would show more structure than there is."""
TAILS = (0.01, 0.99)
"""Quantiles that bound a fixed scale, so that one outlying patch does not grey out all slides."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ColourLimits:
    """Lowest and highest value of the colours, for the mean and for the variance."""

    mean: tuple[float, float]
    variance: tuple[float, float]


def bag_limits(p: Prediction) -> ColourLimits:
    """Return the smallest and largest value of one bag, as in the paper's maps.

    Raises:
        BagError: No value is finite.
    """
    for name in ("mean", "variance"):
        if not np.isfinite(getattr(p, f"attention_{name}")).any():
            raise BagError(f"bag {p.name!r}: its attention {name} has no finite value")
    return _limits([p.attention_mean], [p.attention_variance], tails=(0.0, 1.0))


def map_limits(folder: Path, *, score: MapScore | None = None) -> ColourLimits:
    """Return the fixed scale of a predictions folder, computed from all its bags.

    The limits of the mean are those of `score`; None: of the model's own score. Bags whose
    per-instance file is missing or damaged are skipped; drawing them reports the error.

    Raises:
        InputError, TableError: The folder is not a predictions folder.
        BagError: No bag has attention that could be read.
    """
    return common_limits(_readable(read_predictions(folder), score))


def _readable(table: Predictions, score: MapScore | None) -> Iterator[Prediction]:
    for bag in table.bags:
        try:
            p = showing(table.instances(bag), score)
        except (BagError, InputError):
            continue
        yield p


def common_limits(predictions: Iterable[Prediction]) -> ColourLimits:
    """Return limits for all bags: the 1 % and 99 % quantiles over all their instances.

    Bags whose variance is 0 everywhere (Dirac) do not contribute to the variance limits, since
    their maps show no variance.

    Raises:
        BagError: There are no bags, or none has a finite value.
    """
    means, variances = [], []
    for p in predictions:
        means.append(p.attention_mean.ravel())
        if p.attention_variance.any():
            variances.append(p.attention_variance.ravel())
    if not any(np.isfinite(m).any() for m in means):
        raise BagError("a fixed scale needs bags with attention to compute it from: got none")
    return _limits(means, variances or [np.zeros(1, np.float32)], tails=TAILS)


def _limits(
    means: list[np.ndarray], variances: list[np.ndarray], *, tails: tuple[float, float]
) -> ColourLimits:
    return ColourLimits(mean=_range(means, tails=tails), variance=_range(variances, tails=tails))


def value_range(values: np.ndarray) -> tuple[float, float]:
    """Return the smallest and the largest finite value, or a range around the only one."""
    return _range([values], tails=(0.0, 1.0))


def _range(parts: list[np.ndarray], *, tails: tuple[float, float]) -> tuple[float, float]:
    values = np.concatenate([np.asarray(v, np.float64).ravel() for v in parts])
    low, high = np.quantile(values[np.isfinite(values)], tails)
    if low == high:  # one instance, or equal values: the colours need a range
        half = abs(low) / 2 or 0.5
        return float(low - half), float(high + half)
    return float(low), float(high)


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
    span, largest = float(np.ptp(finite)), float(np.abs(finite).max())
    share = -np.expm1(-span) if logits else span / largest if largest else 0.0
    what = "weights" if logits else "values"
    if share >= FLAT:
        return ""
    return f"flat: {what} differ by {100 * share:.2g} %" if span else "flat: all values are equal"


def seen(values: Float[np.ndarray, " n"]) -> str:
    """Say how much there is to see: the range of the finite values, as numbers."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return "no finite value"
    low, high = numbers(float(finite.min()), float(finite.max()))
    return low if low == high else f"{low} to {high}"


def number(value: float) -> str:
    """Format a number with three significant digits."""
    return f"{value:.3g}".replace("-", "−")


def numbers(*values: float) -> list[str]:
    """Format numbers with at least three significant digits, and enough to tell them apart.

    >>> numbers(0.1353, 0.1354), numbers(0.5, 1.0)
    (['0.1353', '0.1354'], ['0.5', '1'])
    """
    distinct, digits = len(set(values)), 3
    texts = [f"{v:.3g}" for v in values]
    while len(set(texts)) < distinct and digits < 9:
        digits += 1
        texts = [f"{v:.{digits}g}" for v in values]
    return [text.replace("-", "−") for text in texts]


def extend(values: Float[np.ndarray, " n"], limits: tuple[float, float]) -> str:
    """Return which arrows the colour bar needs: `neither`, `min`, `max` or `both`."""
    finite = values[np.isfinite(values)]
    slack = 1e-6 * (limits[1] - limits[0])  # float32 values are compared with float64 limits
    below = bool((finite < limits[0] - slack).any())
    above = bool((finite > limits[1] + slack).any())
    return {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}[below, above]
