"""Stage 10: the range of values that the colours of a map cover."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from ..errors import BagError, InputError
from ..evaluation import MapScore, Prediction, Predictions, read_predictions
from .shown import showing

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


def extend(values: Float[np.ndarray, " n"], limits: tuple[float, float]) -> str:
    """Return which arrows the colour bar needs: `neither`, `min`, `max` or `both`."""
    finite = values[np.isfinite(values)]
    slack = 1e-6 * (limits[1] - limits[0])  # float32 values are compared with float64 limits
    below = bool((finite < limits[0] - slack).any())
    above = bool((finite > limits[1] + slack).any())
    return {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}[below, above]
