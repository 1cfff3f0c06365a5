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

from ..core import counted
from ..errors import InputError
from ..statistics import (
    Draws,
    Metric,
    f1_and_accuracy,
    median_call,
    one_class_reason,
    ratio_of_sums,
)

ECE_BINS = 15

SMALLEST = float(np.finfo(np.float32).eps)
"""Lower limit of the probabilities in the NLL, because they are stored as float32."""

NO_VARIANCE = "this posterior has no variance"


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
        Metric.of(auroc),
        Metric.of(average_precision),
    )


def bag_metrics(
    y: ArrayLike,
    probability: ArrayLike,
    *,
    threshold: float | None,
    groups: Sequence[Hashable] | None = None,
    bootstrap: int = 2000,
    seed: int = 0,
) -> dict[str, Metric]:
    """Return every bag metric by name.

    `f1`, `accuracy` and `balanced_accuracy` are computed at the threshold, `f1_at_0.5` at 0.5; with
    three classes or more, the class with the highest probability is called. `brier` is the mean
    squared error of p(Y = 1), or the sum over the classes.

    Args:
        y: class index of each bag.
        probability: (bags,), (bags, 1) or (bags, 2) for two classes, (bags, classes) for more.
        threshold: chosen on validation bags; without one, metrics of calls are undefined.
        groups: the patient of each bag, for the intervals; None if each bag is its own patient.
        bootstrap: number of resamples; 0 for no intervals.
        seed: seed of the resamples.

    Raises:
        InputError: labels and probabilities do not fit each other.
    """
    labels, p = _check_labels(y, probability)
    if len(labels) == 0:
        return {name: Metric.undefined("no bags") for name in _names(p.shape[1])}
    draws = Draws.stratified(labels, groups=groups, resamples=bootstrap, seed=seed)
    if p.shape[1] > 1:
        return _several_classes(labels, p, draws=draws)
    return _two_classes(labels == 1, p[:, 0], threshold=threshold, draws=draws)


def error_metrics(
    y: ArrayLike,
    probability: ArrayLike,
    *,
    std: ArrayLike,
    threshold: float | None,
    ordered: bool = False,
    groups: Sequence[Hashable] | None = None,
    bootstrap: int = 2000,
    seed: int = 0,
) -> dict[str, Metric]:
    """Return how well the standard deviation over posterior samples finds wrong calls of bags.

    `error_auroc_spread` is the AUROC of the standard deviation (of the called class) for finding
    wrong calls. `error_auroc_margin` is that of its null rival, -|p - threshold| (with three
    classes or more, minus the difference of the two highest probabilities). The threshold defaults
    to 0.5; `ordered` is that of `calls_and_margins`, and the other arguments are those of
    `bag_metrics`.
    """
    labels, p = _check_labels(y, probability)
    sd = np.asarray(std, dtype=np.float64)
    sd = sd[:, None] if sd.ndim == 1 else sd
    if len(sd) != len(labels):
        raise InputError(f"{len(labels)} labels for {len(sd)} standard deviations")
    called, margin = calls_and_margins(p, threshold=threshold, ordered=ordered)
    sd = of_called_class(sd, called) if p.shape[1] > 1 else sd[:, -1]
    draws = Draws.stratified(labels, groups=groups, resamples=bootstrap, seed=seed)
    wrong = called != labels
    return {
        "error_auroc_spread": error_auroc(wrong, sd, draws=draws, constant=NO_VARIANCE),
        "error_auroc_margin": error_auroc(wrong, -margin, draws=draws, constant=None),
    }


def calls_and_margins(
    p: Float[np.ndarray, "bags columns"], *, threshold: float | None, ordered: bool = False
) -> tuple[Int[np.ndarray, " bags"], Float[np.ndarray, " bags"]]:
    """Return the called class of each bag, and the distance of its probability from another call.

    The distance is |p - threshold| for a single column p(Y = 1), with 0.5 as the default threshold,
    or with three columns or more the difference of the two highest probabilities. Of `ordered`
    grades the median is called, and the distance is that of the nearest P(Y ≤ k) from ½.
    """
    if ordered:
        below = np.cumsum(p, axis=1)[:, :-1]
        return median_call(p), np.abs(below - 0.5).min(1)
    if p.shape[1] == 1:
        t = 0.5 if threshold is None else threshold
        return (p[:, 0] >= t).astype(np.int64), np.abs(p[:, 0] - t)
    ascending = np.sort(p, axis=1)
    return p.argmax(1), ascending[:, -1] - ascending[:, -2]


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
    return Metric.of(draws.ranks(wrong, score)[0])


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


def _names(columns: int) -> tuple[str, ...]:
    at_half = ("f1_at_0.5",) if columns == 1 else ()
    calls = ("f1", *at_half, "balanced_accuracy", "accuracy")
    return ("auroc", "average_precision", *calls, "brier", "ece", "nll")


def _two_classes(
    y: Bool[np.ndarray, " bags"],
    p: Float[np.ndarray, " bags"],
    *,
    threshold: float | None,
    draws: Draws,
) -> dict[str, Metric]:
    auroc, average_precision = rank_metrics(y, p, draws=draws)
    undefined = Metric.undefined("no threshold was given: choose one on validation bags")
    of_calls = dict.fromkeys(("f1", "balanced_accuracy", "accuracy"), undefined)
    if threshold is not None:
        of_calls = _call_metrics(y, p >= threshold, draws=draws)
    return {
        "auroc": auroc,
        "average_precision": average_precision,
        "f1": of_calls["f1"],
        "f1_at_0.5": _call_metrics(y, p >= 0.5, draws=draws)["f1"],
        "balanced_accuracy": of_calls["balanced_accuracy"],
        "accuracy": of_calls["accuracy"],
        "brier": _mean((p - y) ** 2, draws=draws),
        "ece": _ece(p, y, draws=draws),
        "nll": _mean(-np.log(np.maximum(np.where(y, p, 1 - p), SMALLEST)), draws=draws),
    }


def _several_classes(
    y: Int[np.ndarray, " bags"], p: Float[np.ndarray, "bags classes"], *, draws: Draws
) -> dict[str, Metric]:
    called = p.argmax(1)
    right = called == y
    absent = sorted(set(range(p.shape[1])) - set(y.tolist()))
    macro: dict[str, Metric]
    if absent:
        reason = f"no bag of class {absent[0]} among {len(y)}: the mean over classes is undefined"
        names = ("auroc", "average_precision", "f1", "balanced_accuracy")
        macro = dict.fromkeys(names, Metric.undefined(reason))
    else:
        macro = _macro(y, p, draws=draws)
    one_hot = np.eye(p.shape[1])[y]
    p_of_label = np.take_along_axis(p, y[:, None], axis=1)[:, 0]
    return {
        **macro,
        "accuracy": _mean(right.astype(float), draws=draws),
        "brier": _mean(((p - one_hot) ** 2).sum(1), draws=draws),
        "ece": _ece(p.max(1), right, draws=draws),
        "nll": _mean(-np.log(np.maximum(p_of_label, SMALLEST)), draws=draws),
    }


def _macro(
    y: Int[np.ndarray, " bags"], p: Float[np.ndarray, "bags classes"], *, draws: Draws
) -> dict[str, Metric]:
    """Return one-vs-rest means over classes; every class must have a bag."""
    classes, called = range(p.shape[1]), p.argmax(1)
    ranks = np.stack([draws.ranks(y == c, p[:, c]) for c in classes]).mean(0)
    f1 = [f1_and_accuracy(y == c, called == c, draws=draws)[0] for c in classes]
    recall = [_recall(y == c, called == c, draws=draws) for c in classes]
    return {
        "auroc": Metric.of(ranks[0]),
        "average_precision": Metric.of(ranks[1]),
        "f1": Metric.of(np.mean(f1, axis=0)),
        "balanced_accuracy": Metric.of(np.mean(recall, axis=0)),
    }


def _call_metrics(
    y: Bool[np.ndarray, " bags"], called: Bool[np.ndarray, " bags"], *, draws: Draws
) -> dict[str, Metric]:
    metrics = {"accuracy": _mean((y == called).astype(float), draws=draws)}
    if not y.any():
        metrics["f1"] = Metric.undefined(f"no positive bag among {len(y)}: F1 is undefined")
    else:
        f1, _ = f1_and_accuracy(y, called, draws=draws)
        metrics["f1"] = Metric.of(f1)
    reason = one_class_reason(y, what="bags")
    if reason:
        undefined = Metric.undefined(f"{reason}: balanced accuracy is undefined")
        metrics["balanced_accuracy"] = undefined
    else:
        recalls = _recall(y, called, draws=draws) + _recall(~y, ~called, draws=draws)
        metrics["balanced_accuracy"] = Metric.of(recalls / 2)
    return metrics


def _recall(
    y: Bool[np.ndarray, " bags"], called: Bool[np.ndarray, " bags"], *, draws: Draws
) -> Float[np.ndarray, " resamples"]:
    recall = ratio_of_sums(y & called, y, draws=draws).rows
    assert recall is not None
    return recall


def _mean(value: Float[np.ndarray, " bags"], *, draws: Draws) -> Metric:
    return ratio_of_sums(value, np.ones_like(value), draws=draws)


def equal_width_bins(probability: Float[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Return the bin of each probability, of `ECE_BINS` bins of equal width."""
    return np.minimum((probability * ECE_BINS).astype(np.int64), ECE_BINS - 1)


def _ece(
    confidence: Float[np.ndarray, " bags"], hit: Bool[np.ndarray, " bags"], *, draws: Draws
) -> Metric:
    """Return Σ over bins of |Σ (confidence - hit)| / bags, the gaps of the reliability diagram."""
    gaps = np.eye(ECE_BINS)[equal_width_bins(confidence)] * (confidence - hit)[:, None]
    sums = draws.totals(np.concatenate([gaps, np.ones((len(hit), 1))], axis=1))
    return Metric.of(np.abs(sums[:, :-1]).sum(1) / sums[:, -1])
