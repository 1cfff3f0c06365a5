"""AUROC and average precision with three or more classes: of each class, and their averages.

A class is ranked against the rest by its own probability. A class without bags has no AUROC, so the
averages over classes are undefined then, and name that class; the other classes keep their values.
Hand and Till, Machine Learning 2001, average over pairs of classes instead.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from jaxtyping import Bool, Float, Int

from .bootstrap import Draws
from .metric import Metric


def binary_areas(
    y: Bool[np.ndarray, " items"],
    score: Float[np.ndarray, " items"],
    *,
    draws: Draws,
    reason: str | None,
) -> tuple[Metric, Metric]:
    """Return AUROC and average precision in the rows of `draws`.

    reason: the reason why both are undefined, or None if both labels occur.
    """
    if reason is not None:
        return Metric.undefined(reason), Metric.undefined(reason)
    auroc, average_precision = draws.ranks(y, score)
    return Metric.of(auroc), Metric.of(average_precision)


def class_areas(
    y: Int[np.ndarray, " bags"],
    p: Float[np.ndarray, "bags classes"],
    *,
    names: Sequence[str],
    draws: Draws,
) -> tuple[list[Metric], list[Metric]]:
    """Return the AUROC and the average precision of each class against the rest.

    Both are undefined for a class without bags, and if all bags are of one class.

    Args:
        y: the class of each bag.
        p: the probability of each class.
        names: the name of each class, for the reasons.
        draws: resamples, with the data as row 0.
    """
    pairs = [
        binary_areas(y == c, p[:, c], draws=draws, reason=_absent(y, c, name=names[c]))
        for c in range(p.shape[1])
    ]
    return [a for a, _ in pairs], [b for _, b in pairs]


def _absent(y: Int[np.ndarray, " bags"], c: int, *, name: str) -> str | None:
    of_class = int(np.count_nonzero(y == c))
    if of_class == 0:
        return f"no bag of class {name} among {len(y)}"
    return f"all {len(y)} bags are of class {name}" if of_class == len(y) else None


def mean_over_classes(
    per_class: Sequence[Metric], *, weights: Float[np.ndarray, "rows classes"] | None = None
) -> Metric:
    """Return the mean over all classes, undefined if it is undefined for one of them.

    A resample in which a class has no value is nan.

    Args:
        per_class: the metric of each class.
        weights: the weight of each class in each row; None for equal weights (macro).
    """
    for metric in per_class:
        if metric.rows is None:
            return Metric.undefined(f"{metric.reason}: the mean over classes is undefined")
    rows = np.stack([m.rows for m in per_class if m.rows is not None], axis=1)
    weight = np.ones_like(rows) if weights is None else weights
    return Metric.of((rows * weight).sum(1) / weight.sum(1))


def class_weights(
    y: Int[np.ndarray, " bags"], *, classes: int, draws: Draws
) -> Float[np.ndarray, "rows classes"]:
    """Return the number of bags of each class in each row, the weights of the weighted mean."""
    return draws.totals(np.eye(classes)[y])


def micro_areas(
    y: Int[np.ndarray, " bags"], p: Float[np.ndarray, "bags classes"], *, draws: Draws
) -> tuple[Metric, Metric]:
    """Return AUROC and average precision of all pairs of a bag and a class, pooled."""
    n, classes = p.shape
    cells = draws.for_items(np.repeat(np.arange(n), classes))
    is_class = (y[:, None] == np.arange(classes)).ravel()
    return binary_areas(is_class, p.ravel(), draws=cells, reason=None if n else "no bags")


def one_vs_one_auroc(
    y: Int[np.ndarray, " bags"],
    p: Float[np.ndarray, "bags classes"],
    *,
    names: Sequence[str],
    draws: Draws,
) -> Metric:
    """Return Hand and Till's M, the mean over pairs of classes a, b of (A(a|b) + A(b|a)) / 2.

    A(a|b) is the AUROC of p_a for telling bags of class a from bags of class b. It does not depend
    on the shares of the classes.
    """
    for c, name in enumerate(names):
        if not (y == c).any():
            reason = f"no bag of class {name} among {len(y)}: the mean over classes is undefined"
            return Metric.undefined(reason)
    rows = []
    for a, b in combinations(range(p.shape[1]), 2):
        of_pair = np.flatnonzero((y == a) | (y == b))
        pair = draws.for_items(of_pair)
        labels, scores = y[of_pair], p[of_pair]
        rows += [pair.ranks(labels == c, scores[:, c])[0] for c in (a, b)]
    return Metric.of(np.mean(rows, axis=0))
