"""Logistic regression of a bag's label on its mean features, or on single instances.

Features are standardised over the training instances. C is the value of `GRID` with the lowest NLL
of the validation bags, where a bag has the mean of its instances' logits, so that the means of the
bags are all that validation needs. The fits are scikit-learn's.
"""

import warnings
from collections.abc import Mapping
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
WITHOUT_VALIDATION = 1.0
"""C where there are no validation bags with labels."""
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


class FeatureSums:
    """Collects the `BagFeatures` of bags that are read one after another.

    Args:
        per_bag: largest number of instances to sample from a bag; 0 for no sample.
        seed: seed of the sample, together with the bag's name.
    """

    def __init__(self, *, per_bag: int, seed: int = 0) -> None:
        self.per_bag, self.seed = per_bag, seed
        self.y: list[int] = []
        self.sizes: list[int] = []
        self.means: list[np.ndarray] = []
        self.squares: list[np.ndarray] = []
        self.rows: list[np.ndarray] = []

    def __len__(self) -> int:
        return len(self.y)

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
        mean = x.mean(0)
        self.y.append(y)
        self.sizes.append(len(x))
        self.means.append(mean)
        self.squares.append(((x - mean) ** 2).sum(0))
        self.rows.append(features[_sample(name, len(x), self.per_bag, seed=self.seed)])

    def result(self) -> BagFeatures:
        """Return what was collected.

        Raises:
            InputError: there are no bags.
        """
        if not self.y:
            raise InputError("there are no bags to fit a logistic regression on")
        n, centres = np.array(self.sizes), np.stack(self.means)
        mean = n @ centres / n.sum()
        variance = (np.sum(self.squares, 0) + n @ (centres - mean) ** 2) / n.sum()
        deviation = np.sqrt(variance)
        constant = deviation <= 1e-6 * np.maximum(np.abs(mean), 1e-6)
        return BagFeatures(
            y=np.array(self.y, dtype=np.int64),
            means=centres,
            mean=mean,
            deviation=np.where(constant, 1.0, deviation),
            rows=np.concatenate(self.rows).astype(np.float64),
            bag=np.repeat(np.arange(len(self.y)), [len(r) for r in self.rows]),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LogisticFit:
    """A fitted regression of standardised features."""

    weight: Float[np.ndarray, "columns d"]
    """One row for two classes (that of class 1), otherwise one per class."""
    bias: Float[np.ndarray, " columns"]
    c: float
    nll: Mapping[float, float]
    """NLL of the validation bags by C; empty without validation bags."""

    def logits(self, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n columns"]:
        """Return the logits of standardised features."""
        return x @ self.weight.T + self.bias


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
    bag_weight = np.ones(len(train.y)) if class_weights is None else class_weights[train.y]
    if on == "means":
        x, y, weight = train.means, train.y, bag_weight
    else:
        sampled = np.bincount(train.bag, minlength=len(train.y))
        x, y, weight = train.rows, train.y[train.bag], (bag_weight / sampled)[train.bag]
    x = (x - train.mean) / train.deviation
    grid = (WITHOUT_VALIDATION,) if validation is None else GRID
    # from strong to weak penalties, so that each fit starts near its solution
    model = LogisticRegression(max_iter=2000, warm_start=True)
    fits, losses = {}, {}
    for c in grid:
        with warnings.catch_warnings():  # a large C on separable bags has no finite optimum
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.set_params(C=c).fit(x, y, sample_weight=weight)
        fits[c] = np.array(model.coef_), np.array(model.intercept_)
        if validation is not None:
            means = (validation.means - train.mean) / train.deviation
            losses[c] = _nll(means @ fits[c][0].T + fits[c][1], validation.y)
    best = min(losses, key=lambda c: losses[c]) if losses else WITHOUT_VALIDATION
    weight_matrix, bias = fits[best]
    return LogisticFit(weight=weight_matrix, bias=bias, c=best, nll=losses)


def _nll(logits: Float[np.ndarray, "bags columns"], y: Int[np.ndarray, " bags"]) -> float:
    """Return the mean NLL of the bags; a single column is the logit of class 1."""
    if logits.shape[1] == 1:
        logits = np.hstack([np.zeros_like(logits), logits])
    return float(-log_softmax(logits, axis=1)[np.arange(len(y)), y].mean())


def _sample(name: str, n: int, count: int, *, seed: int) -> Int[np.ndarray, " rows"]:
    if n <= count:
        return np.arange(n)
    rng = np.random.default_rng(seed_of(seed, "instances of a fit", name))
    return np.sort(rng.choice(n, count, replace=False))
