"""Bag-level metrics. A metric that is undefined says why: it is never 0.5, nan or a crash.

Values are scikit-learn's, intervals percentiles over resampled groups (bootstrap.py). One column of
probabilities (or two) is p(Y = 1); three or more are classes, and ranks, F1 and recall are means
over classes, each against the rest. ECE has 15 bins of equal width: of p(Y = 1) against the
frequency of Y = 1; with three classes or more, of the greatest probability against accuracy.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

from ..errors import InputError
from ..statistics import Draws, Metric, measured, one_class, undefined

ECE_BINS = 15

SMALLEST = float(np.finfo(np.float32).eps)
"""Probabilities are stored as float32: the NLL takes none as nearer to 0 or 1 than this."""

NO_SPREAD = "this posterior has no variance"


@dataclass(frozen=True, slots=True)
class Threshold:
    """Where p(Y = 1) becomes a positive call (p ≥ value), and why there if nothing was chosen."""

    value: float
    reason: str | None = None


def choose_threshold(y: ArrayLike, p: ArrayLike) -> Threshold:
    """The threshold with the best F1 on these (validation) bags.

    Candidates are the midpoints between neighbouring distinct scores, and half of the lowest score
    (all positive). Of candidates with the same F1 the one nearest 0.5 is taken, then the lower.
    Without a positive bag no threshold has an F1: 0.5, with the reason.
    """
    labels, score = np.asarray(y, dtype=bool), np.asarray(p, dtype=np.float64)
    if len(labels) != len(score):
        raise InputError(f"{len(labels)} labels for {len(score)} probabilities")
    if not labels.any():
        return Threshold(0.5, f"no positive bag among {len(labels)}: no threshold has an F1")
    distinct, group = np.unique(score, return_inverse=True)
    below = np.append([0.0], distinct[:-1])
    middle = (below + distinct) / 2
    # Between two neighbouring floats there is no middle: the upper one divides them.
    middle[1:] = np.where(middle[1:] <= below[1:], distinct[1:], middle[1:])
    positives = np.bincount(group, weights=labels, minlength=len(distinct))
    everyone = np.bincount(group, minlength=len(distinct))
    true = positives[::-1].cumsum()[::-1]
    called = everyone[::-1].cumsum()[::-1]
    f1 = 2 * true / (called + labels.sum())  # integers: ties are exact
    best = np.flatnonzero(f1 == f1.max())
    return Threshold(float(middle[best[np.argmin(np.abs(middle[best] - 0.5))]]))


def best_threshold(y: ArrayLike, p: ArrayLike) -> float:
    """`choose_threshold` without its reason: 0.5 where there is no positive bag."""
    return choose_threshold(y, p).value


def rank_metrics(
    y: Bool[np.ndarray, " items"],
    score: Float[np.ndarray, " items"],
    *,
    draws: Draws,
    what: str = "bags",
) -> tuple[Metric, Metric]:
    """AUROC and average precision of a score for finding `y`, undefined with one class only."""
    reason = one_class(y, what=what)
    if reason:
        return undefined(f"{reason}: AUROC is undefined"), undefined(
            f"{reason}: average precision is undefined"
        )
    auroc, precision = draws.ranks(y, score)
    return (
        measured(roc_auc_score(y, score), auroc),
        measured(average_precision_score(y, score), precision),
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
    """Every bag metric by name, with bootstrap intervals over `groups` (over bags without them).

    probability: (bags,), (bags, 1) or (bags, 2) for two classes, (bags, classes) for more.
    `f1`, `accuracy` and `balanced_accuracy` are at `threshold` (chosen on validation; without one
    they are undefined), `f1_at_0.5` at 0.5; with three classes or more they follow the greatest
    probability. `brier` is the mean squared error of p(Y = 1), or the sum of it over the classes.
    Raises InputError where labels and probabilities do not fit each other.
    """
    labels, p = checked(y, probability)
    if len(labels) == 0:
        return {name: undefined("no bags") for name in _names(p.shape[1])}
    draws = Draws.of(labels, groups=groups, resamples=bootstrap, seed=seed)
    if p.shape[1] > 1:
        return _several_classes(labels, p, draws=draws)
    return _two_classes(labels == 1, p[:, 0], threshold=threshold, draws=draws)


def error_metrics(
    y: ArrayLike,
    probability: ArrayLike,
    *,
    std: ArrayLike,
    threshold: float | None,
    groups: Sequence[Hashable] | None = None,
    bootstrap: int = 2000,
    seed: int = 0,
) -> dict[str, Metric]:
    """Does the spread over posterior samples find the wrong bags better than the bare margin?

    `error_auroc_spread`: AUROC of the standard deviation (of the called class) for finding wrong
    calls; `error_auroc_margin`: the same for its null rival, -|p - threshold| (with three classes
    or more, minus the distance of the two greatest probabilities). Without a threshold: 0.5.
    """
    labels, p = checked(y, probability)
    sd = np.asarray(std, dtype=np.float64)
    sd = sd[:, None] if sd.ndim == 1 else sd
    if len(sd) != len(labels):
        raise InputError(f"{len(labels)} labels for {len(sd)} spreads")
    if p.shape[1] == 1:
        t = 0.5 if threshold is None else threshold
        called, margin, sd = (p[:, 0] >= t).astype(np.int64), np.abs(p[:, 0] - t), sd[:, -1]
    else:
        called = p.argmax(1)
        top = np.sort(p, axis=1)
        margin, sd = top[:, -1] - top[:, -2], np.take_along_axis(sd, called[:, None], axis=1)[:, 0]
    draws = Draws.of(labels, groups=groups, resamples=bootstrap, seed=seed)
    return {
        "error_auroc_spread": finds_errors(called != labels, sd, draws=draws, constant=NO_SPREAD),
        "error_auroc_margin": finds_errors(called != labels, -margin, draws=draws, constant=None),
    }


def finds_errors(
    wrong: Bool[np.ndarray, " items"],
    score: Float[np.ndarray, " items"],
    *,
    draws: Draws,
    constant: str | None,
    what: str = "bags",
) -> Metric:
    """AUROC of a score for finding wrong calls; undefined for `constant` where it is constant."""
    if len(wrong) == 0:
        return undefined(f"no {what}")
    if not wrong.any() or wrong.all():
        which = "wrong" if not wrong.any() else "right"
        return undefined(f"no {which} call among {len(wrong)} {what}: nothing to tell apart")
    if constant is not None and np.ptp(score) == 0:
        return undefined(constant)
    return measured(roc_auc_score(wrong, score), draws.ranks(wrong, score)[0])


def checked(
    y: ArrayLike, probability: ArrayLike
) -> tuple[Int[np.ndarray, " bags"], Float[np.ndarray, "bags columns"]]:
    """Labels as integers, probabilities as one column p(Y = 1) or one a class (three or more)."""
    labels = np.asarray(y).astype(np.int64)
    p = np.asarray(probability, dtype=np.float64)
    p = p[:, None] if p.ndim == 1 else p
    if labels.ndim != 1 or p.ndim != 2 or len(labels) != len(p):
        raise InputError(
            f"labels of shape {labels.shape} and probabilities of shape {p.shape}: "
            "one label and one row of probabilities a bag are expected"
        )
    if not bool(((p >= 0) & (p <= 1)).all()):
        raise InputError("probabilities must lie in [0, 1]; some are outside, or nan")
    p = p[:, 1:] if p.shape[1] == 2 else p
    top = max(p.shape[1] - 1, 1)
    if len(labels) and not 0 <= labels.min() <= labels.max() <= top:
        raise InputError(
            f"labels go from {labels.min()} to {labels.max()}, "
            f"but these probabilities are of classes 0 to {top}"
        )
    return labels, p


def _names(columns: int) -> tuple[str, ...]:
    both = ("auroc", "average_precision", "f1", "balanced_accuracy", "accuracy")
    at_half = ("f1_at_0.5",) if columns == 1 else ()
    return (*both[:3], *at_half, *both[3:], "brier", "ece", "nll")


def _two_classes(
    y: Bool[np.ndarray, " bags"],
    p: Float[np.ndarray, " bags"],
    *,
    threshold: float | None,
    draws: Draws,
) -> dict[str, Metric]:
    auroc, precision = rank_metrics(y, p, draws=draws)
    none = undefined("no threshold was given: it is chosen on validation bags")
    at = dict.fromkeys(("f1", "balanced_accuracy", "accuracy"), none)
    if threshold is not None:
        at = _decisions(y, p >= threshold, draws=draws)
    return {
        "auroc": auroc,
        "average_precision": precision,
        "f1": at["f1"],
        "f1_at_0.5": _decisions(y, p >= 0.5, draws=draws)["f1"],
        "balanced_accuracy": at["balanced_accuracy"],
        "accuracy": at["accuracy"],
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
    if absent:
        reason = f"no bag of class {absent[0]} among {len(y)}: the mean over classes is undefined"
        means = dict.fromkeys(("auroc", "average_precision", "f1", "balanced_accuracy"), reason)
        macro = {name: undefined(reason) for name, reason in means.items()}
    else:
        macro = _macro(y, p, draws=draws)
    truth = np.eye(p.shape[1])[y]
    own = np.take_along_axis(p, y[:, None], axis=1)[:, 0]
    return {
        **macro,
        "accuracy": _mean(right.astype(float), draws=draws),
        "brier": _mean(((p - truth) ** 2).sum(1), draws=draws),
        "ece": _ece(p.max(1), right, draws=draws),
        "nll": _mean(-np.log(np.maximum(own, SMALLEST)), draws=draws),
    }


def _macro(
    y: Int[np.ndarray, " bags"], p: Float[np.ndarray, "bags classes"], *, draws: Draws
) -> dict[str, Metric]:
    """Means over classes, each against the rest; all classes are there."""
    classes, called = range(p.shape[1]), p.argmax(1)
    ranks = np.stack([draws.ranks(y == c, p[:, c]) for c in classes]).mean(0)
    of_class = [_confusion(y == c, called == c, draws=draws) for c in classes]
    return {
        "auroc": measured(np.mean([roc_auc_score(y == c, p[:, c]) for c in classes]), ranks[0]),
        "average_precision": measured(
            np.mean([average_precision_score(y == c, p[:, c]) for c in classes]), ranks[1]
        ),
        "f1": measured(
            f1_score(y, called, average="macro"), np.mean([_f1(k) for k in of_class], axis=0)
        ),
        "balanced_accuracy": measured(
            np.mean([np.mean(called[y == c] == c) for c in classes]),
            np.mean([_recall(k) for k in of_class], axis=0),
        ),
    }


def _decisions(
    y: Bool[np.ndarray, " bags"], called: Bool[np.ndarray, " bags"], *, draws: Draws
) -> dict[str, Metric]:
    found = _confusion(y, called, draws=draws)
    out = {"accuracy": _mean((y == called).astype(float), draws=draws)}
    if not y.any():
        out["f1"] = undefined(f"no positive bag among {len(y)}: F1 is undefined")
    else:
        out["f1"] = measured(f1_score(y, called), _f1(found))
    reason = one_class(y, what="bags")
    if reason:
        out["balanced_accuracy"] = undefined(f"{reason}: balanced accuracy is undefined")
    else:
        value = (np.mean(called[y]) + np.mean(~called[~y])) / 2
        # The other class's recall is this one's with the roles exchanged.
        recalls = (_recall(found) + _recall(found[:, ::-1])) / 2
        out["balanced_accuracy"] = measured(float(value), recalls)
    return out


def _confusion(
    y: Bool[np.ndarray, " bags"], called: Bool[np.ndarray, " bags"], *, draws: Draws
) -> Float[np.ndarray, "resamples 4"]:
    """True positives, missed positives, false alarms, true negatives of each resample."""
    return draws.totals(np.stack([y & called, y & ~called, ~y & called, ~y & ~called], axis=1))


def _f1(found: Float[np.ndarray, "resamples 4"]) -> Float[np.ndarray, " resamples"]:
    true, missed, false, _ = found.T
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(true + missed > 0, 2 * true / (2 * true + missed + false), np.nan)


def _recall(found: Float[np.ndarray, "resamples 4"]) -> Float[np.ndarray, " resamples"]:
    true, missed, *_ = found.T
    with np.errstate(invalid="ignore", divide="ignore"):
        return true / (true + missed)


def _mean(value: Float[np.ndarray, " bags"], *, draws: Draws) -> Metric:
    sums = draws.totals(np.stack([value, np.ones_like(value)], axis=1))
    return measured(float(value.mean()), sums[:, 0] / sums[:, 1])


def _ece(
    confidence: Float[np.ndarray, " bags"], hit: Bool[np.ndarray, " bags"], *, draws: Draws
) -> Metric:
    """Σ over bins of |Σ (confidence - hit)| / bags: the gaps of the reliability diagram."""
    bins = np.minimum((confidence * ECE_BINS).astype(np.int64), ECE_BINS - 1)
    gaps = np.eye(ECE_BINS)[bins] * (confidence - hit)[:, None]
    value = np.abs(gaps.sum(0)).sum() / len(hit)
    sums = draws.totals(np.concatenate([gaps, np.ones((len(hit), 1))], axis=1))
    return measured(float(value), np.abs(sums[:, :-1]).sum(1) / sums[:, -1])
