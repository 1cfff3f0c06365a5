"""Logistic regression of a bag's label on its mean features, or on single instances.

Features are standardised over the training instances. C is the value of `GRID` with the lowest NLL
of the validation bags, where a bag has the mean of its instances' logits, so that the means of the
bags are all that validation needs. The fits are scikit-learn's.
"""

import math
import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int, Shaped
from scipy.special import log_softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from ..core import seed_of
from ..errors import BagError, InputError

GRID = tuple(10.0**k for k in range(-4, 3))
"""The values of C."""
MOST_PER_BAG = 200
"""Largest number of instances of a training bag that a fit uses."""
MOST_INSTANCES = 20_000
"""Largest number of training instances of a fit, over all bags (at least one per bag)."""

FitOn = Literal["means", "instances"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BagFeatures:
    """What a fit needs of some bags: their means, the scale of their instances, and a sample."""

    y: Int[np.ndarray, " bags"]
    means: Float[np.ndarray, "bags d"]
    mean: Float[np.ndarray, " d"]
    """Mean of all instances."""
    deviation: Float[np.ndarray, " d"]
    """Standard deviation of all instances; 1 for a constant feature."""
    rows: Float[np.ndarray, "sampled d"]
    """Sampled instances."""
    bag: Int[np.ndarray, " sampled"]
    """The bag of each sampled instance."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _BagSums:
    """What `FeatureSums` keeps of a bag."""

    y: int
    n: int
    """Number of instances."""
    mean: np.ndarray
    squares: np.ndarray
    """Sums of squared differences from the mean, (d,)."""
    sample: np.ndarray
    """Sampled instances, (sampled, d)."""


class FeatureSums:
    """Collects the `BagFeatures` of bags that are read one after another.

    Args:
        per_bag: largest number of instances to sample from a bag; 0 for no sample.
        seed: seed of the sample, together with the bag's name.
    """

    def __init__(self, *, per_bag: int, seed: int = 0) -> None:
        self.per_bag = per_bag
        self.seed = seed
        self._bags: list[_BagSums] = []

    def __len__(self) -> int:
        return len(self._bags)

    def add(self, name: str, features: Shaped[np.ndarray, "n d"], *, y: int) -> None:
        """Add a bag with its label.

        Raises:
            BagError: its features are not finite.
        """
        x = features.astype(np.float64)
        if not np.isfinite(x).all():
            row = int(np.flatnonzero(~np.isfinite(x).all(1))[0])
            raise BagError(
                f"bag {name!r}: its features hold NaN or infinity, first in row {row}. Extract "
                "that bag again, or leave it out"
            )
        n = len(x)
        mean = x.mean(0)
        sample = features
        if n > self.per_bag:
            rng = np.random.default_rng(seed_of(self.seed, "instances of a fit", name))
            sample = features[np.sort(rng.choice(n, self.per_bag, replace=False))]
        squares = ((x - mean) ** 2).sum(0)
        self._bags.append(_BagSums(y=y, n=n, mean=mean, squares=squares, sample=sample))

    def result(self) -> BagFeatures:
        """Return what was collected.

        Raises:
            InputError: there are no bags.
        """
        if not self._bags:
            raise InputError("there are no bags to fit a logistic regression on")
        n = np.array([bag.n for bag in self._bags])
        means = np.stack([bag.mean for bag in self._bags])
        mean = n @ means / n.sum()
        # within bags and between them: no difference of large sums of squares
        within = np.sum([bag.squares for bag in self._bags], 0)
        variance = (within + n @ (means - mean) ** 2) / n.sum()
        deviation = np.sqrt(variance)
        constant = deviation <= 1e-6 * np.maximum(np.abs(mean), 1e-6)
        samples = [bag.sample for bag in self._bags]
        return BagFeatures(
            y=np.array([bag.y for bag in self._bags], dtype=np.int64),
            means=means,
            mean=mean,
            deviation=np.where(constant, 1.0, deviation),
            rows=np.concatenate(samples).astype(np.float64),
            bag=np.repeat(np.arange(len(n)), [len(sample) for sample in samples]),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LogisticFit:
    """A fitted regression of standardised features."""

    weight: Float[np.ndarray, "columns d"]
    """One row for two classes (that of class 1), otherwise one per class."""
    bias: Float[np.ndarray, " columns"]
    c: float


def sample_size(bags: int) -> int:
    """Return how many instances of each of so many training bags a fit uses at most."""
    return max(1, min(MOST_PER_BAG, MOST_INSTANCES // max(bags, 1)))


def fit_logistic(
    train: BagFeatures,
    validation: BagFeatures | None,
    *,
    on: FitOn,
    classes: int = 2,
    class_weights: Float[np.ndarray, " classes"] | None = None,
) -> LogisticFit:
    """Fit a logistic regression for each C of the grid, and return the best one on validation.

    Args:
        train: the training bags, with a sample of instances for `on="instances"`.
        validation: the validation bags; None for C = 1.
        on: `means`: one row per bag. `instances`: one row per sampled instance with the label of
            its bag, where every bag has weight 1.
        classes: number of classes, two or more.
        class_weights: weight of each class's bags; None for 1.

    Raises:
        InputError: the training bags lack a class.
    """
    missing = sorted(set(range(classes)) - set(train.y.tolist()))
    if missing:
        raise InputError(
            f"none of the {len(train.y)} training bags has class {missing[0]}: a logistic "
            "regression needs bags of every class"
        )
    x = train.means
    y = train.y
    weight = np.ones(len(y)) if class_weights is None else class_weights[y]
    if on == "instances":
        x = train.rows
        y = train.y[train.bag]
        counts = np.bincount(train.bag, minlength=len(weight))
        weight = (weight / counts)[train.bag]
    x = (x - train.mean) / train.deviation
    model = LogisticRegression(max_iter=2000, warm_start=True)

    def fit(c: float) -> LogisticFit:
        with warnings.catch_warnings():  # a large C on separable bags has no finite optimum
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.set_params(C=c).fit(x, y, sample_weight=weight)
        return LogisticFit(weight=np.array(model.coef_), bias=np.array(model.intercept_), c=c)

    if validation is None:
        return fit(1.0)
    means = (validation.means - train.mean) / train.deviation
    best: LogisticFit | None = None
    lowest = math.inf
    for c in GRID:  # from strong to weak penalties, so that each fit starts near its solution
        candidate = fit(c)
        nll = _nll(means @ candidate.weight.T + candidate.bias, validation.y)
        if best is None or nll < lowest:
            best = candidate
            lowest = nll
    assert best is not None
    return best


def _nll(logits: Float[np.ndarray, "bags columns"], y: Int[np.ndarray, " bags"]) -> float:
    """Return the mean NLL of the bags; a single column is the logit of class 1."""
    if logits.shape[1] == 1:
        logits = np.hstack([np.zeros_like(logits), logits])
    return float(-log_softmax(logits, axis=1)[np.arange(len(y)), y].mean())
