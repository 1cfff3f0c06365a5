"""Bag-level metrics; an undefined metric has a reason instead of a value.

Values are scikit-learn's, and intervals are percentiles over resampled groups (bootstrap.py). One
or two columns of probabilities give p(Y = 1). With three classes or more, AUROC, average precision,
F1 and recall are one-vs-rest means. ECE has 15 bins of equal width: of p(Y = 1) against the
frequency of Y = 1, or with three classes or more of the highest probability against accuracy.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike
from sklearn.metrics import average_precision_score, roc_auc_score

from ..core import counted
from ..errors import InputError
from ..statistics import (
    Draws,
    Metric,
    one_class_reason,
)
from ..tasks import Task

ECE_BINS = 15

SMALLEST = float(np.finfo(np.float32).eps)
"""Lower limit of the probabilities in the NLL, because they are stored as float32."""

NO_VARIANCE = "this posterior has no variance"
ONE_DEGREE = "every instance has the same number of neighbours"


@dataclass(frozen=True, slots=True)
class Threshold:
    """The threshold of a positive call (p ≥ value); `reason` explains the use of the default."""

    value: float
    reason: str | None = None


def choose_threshold(y: ArrayLike, p: ArrayLike) -> Threshold:
    """Return the threshold with the best F1 on these (validation) bags.

    Candidates are the midpoints between neighbouring distinct scores, and half of the lowest score
    (all positive). Ties are resolved towards 0.5, then towards the lower candidate. Without a
    positive bag, F1 is undefined and the threshold is 0.5, with the reason.
    """
    labels, score = np.asarray(y, dtype=bool), np.asarray(p, dtype=np.float64)
    if len(labels) != len(score):
        raise InputError(f"{len(labels)} labels for {len(score)} probabilities")
    if not labels.any():
        return Threshold(0.5, f"no positive bag among {len(labels)}: F1 is undefined")
    distinct, group = np.unique(score, return_inverse=True)
    below = np.append([0.0], distinct[:-1])
    middle = (below + distinct) / 2
    # Adjacent floats have no midpoint: the upper one separates them.
    middle[1:] = np.where(middle[1:] <= below[1:], distinct[1:], middle[1:])
    positives = np.bincount(group, weights=labels, minlength=len(distinct))
    bags = np.bincount(group, minlength=len(distinct))
    true_positives = positives[::-1].cumsum()[::-1]
    called = bags[::-1].cumsum()[::-1]
    f1 = 2 * true_positives / (called + labels.sum())  # of integers, so that ties are exact
    best = np.flatnonzero(f1 == f1.max())
    return Threshold(float(middle[best[np.argmin(np.abs(middle[best] - 0.5))]]))


def best_threshold(y: ArrayLike, p: ArrayLike) -> float:
    """Return the value of `choose_threshold`: 0.5 without a positive bag."""
    return choose_threshold(y, p).value


def rank_metrics(
    y: Bool[np.ndarray, " items"],
    score: Float[np.ndarray, " items"],
    *,
    draws: Draws,
    what: str = "bags",
) -> tuple[Metric, Metric]:
    """Return AUROC and average precision of a score, undefined with one class only.

    `what` names the items in the reason.
    """
    reason = one_class_reason(y, what=what)
    if reason:
        return (
            Metric.undefined(f"{reason}: AUROC is undefined"),
            Metric.undefined(f"{reason}: average precision is undefined"),
        )
    auroc, average_precision = draws.ranks(y, score)
    return (
        Metric.from_resamples(roc_auc_score(y, score), auroc),
        Metric.from_resamples(average_precision_score(y, score), average_precision),
    )


def error_metrics(
    y: ArrayLike,
    probability: ArrayLike,
    *,
    std: ArrayLike,
    task: Task,
    threshold: float | None,
    groups: Sequence[Hashable] | None = None,
    bootstrap: int = 2000,
    seed: int = 0,
) -> dict[str, Metric]:
    """Return how well the standard deviation over posterior samples finds wrong calls of bags.

    `error_auroc_spread` is the AUROC of the standard deviation (of the called class) for finding
    wrong calls. `error_auroc_margin` is that of its null rival, minus `Task.margins`.

    Args:
        y: class index of each bag.
        probability: (bags,), (bags, 1) or (bags, 2) for two classes, (bags, classes) for more.
        std: its standard deviation over posterior samples.
        task: the task, which calls a class.
        threshold: p(Y = 1) from which a bag of two classes is called positive; None for 0.5.
        groups: the patient of each bag, for the intervals; None if each bag is its own patient.
        bootstrap: number of resamples; 0 for no intervals.
        seed: seed of the resamples.

    Raises:
        InputError: labels and probabilities do not fit each other.
    """
    labels, p = _check_labels(y, probability)
    sd = np.asarray(std, dtype=np.float64)
    sd = sd[:, None] if sd.ndim == 1 else sd
    if len(sd) != len(labels):
        raise InputError(f"{len(labels)} labels for {len(sd)} standard deviations")
    called, margin = task.calls(p, threshold), task.margins(p, threshold)
    sd = of_called_class(sd, called) if p.shape[1] > 1 else sd[:, -1]
    draws = Draws.stratified(labels, groups=groups, resamples=bootstrap, seed=seed)
    wrong = called != labels
    return {
        "error_auroc_spread": error_auroc(wrong, sd, draws=draws, constant=NO_VARIANCE),
        "error_auroc_margin": error_auroc(wrong, -margin, draws=draws, constant=None),
    }


def of_called_class(
    value: Float[np.ndarray, "bags columns"], called: Int[np.ndarray, " bags"]
) -> Float[np.ndarray, " bags"]:
    """Return each bag's value of the class that is called."""
    return np.take_along_axis(value, called[:, None], axis=1)[:, 0]


def error_auroc(
    wrong: Bool[np.ndarray, " items"],
    score: Float[np.ndarray, " items"],
    *,
    draws: Draws,
    constant: str | None,
    what: str = "bags",
) -> Metric:
    """Return the AUROC of a score for finding wrong calls.

    For a constant score it is undefined, with the reason `constant`, if that is given.
    """
    reason = f"no {what}" if len(wrong) == 0 else all_same_reason(wrong, what=what)
    if reason is None and constant is not None and np.ptp(score) == 0:
        reason = constant
    if reason is not None:
        return Metric.undefined(reason)
    return Metric.from_resamples(roc_auc_score(wrong, score), draws.ranks(wrong, score)[0])


def all_same_reason(wrong: Bool[np.ndarray, " items"], *, what: str) -> str | None:
    """Return the reason why errors cannot be ranked: all calls are right, or all are wrong."""
    if wrong.any() and not wrong.all():
        return None
    absent = "right" if wrong.any() else "wrong"
    calls = counted(len(wrong), what.removesuffix("s"))
    return f"no {absent} call among {calls}: errors cannot be ranked"


def _check_labels(
    y: ArrayLike, probability: ArrayLike
) -> tuple[Int[np.ndarray, " bags"], Float[np.ndarray, "bags columns"]]:
    """Return labels as integers, and probabilities as one column p(Y = 1) or three or more."""
    labels = np.asarray(y).astype(np.int64)
    p = np.asarray(probability, dtype=np.float64)
    p = p[:, None] if p.ndim == 1 else p
    if labels.ndim != 1 or p.ndim != 2 or len(labels) != len(p):
        raise InputError(
            f"labels of shape {labels.shape} and probabilities of shape {p.shape}: "
            "expected one label and one row of probabilities per bag"
        )
    if not bool(((p >= 0) & (p <= 1)).all()):
        raise InputError("probabilities must lie in [0, 1]; some are outside, or nan")
    p = p[:, 1:] if p.shape[1] == 2 else p
    top = max(p.shape[1] - 1, 1)
    if len(labels) and not 0 <= labels.min() <= labels.max() <= top:
        raise InputError(
            f"labels go from {labels.min()} to {labels.max()}, "
            f"but these probabilities are for classes 0 to {top}"
        )
    return labels, p


def equal_width_bins(probability: Float[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Return the bin of each probability, of `ECE_BINS` bins of equal width."""
    return np.minimum((probability * ECE_BINS).astype(np.int64), ECE_BINS - 1)
