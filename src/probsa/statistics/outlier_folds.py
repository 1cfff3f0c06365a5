"""Find folds that differ from the others: flipped or shuffled labels, another site, a failed run.

A fold's AUROC is compared with the mean of the other folds', with DeLong's variance pooled over
the folds (that of a perfect fold alone would be 0). The fold with the smallest p is tested first,
Bonferroni-corrected; an outlier is removed before the next test, so that one flipped fold does not
make the others look like outliers.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Shaped
from numpy.typing import ArrayLike
from scipy.special import ndtr, stdtr

from ..errors import InputError
from .delong_test import delong

ALPHA = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Fold:
    """One fold compared with the others."""

    fold: Hashable
    bags: int
    auroc: float | None
    """Mean over the scores (methods, seeds); None if the fold has one class only."""
    others: float | None
    """The mean AUROC of the folds it was compared with."""
    p: float | None
    """Two-sided, corrected for the number of folds that remained."""
    odd: bool
    """Whether the fold is an outlier: p is at most 0.05."""
    flipped: bool
    """Whether it is an outlier, lower than the others and significantly below 0.5: its labels are
    probably flipped."""
    reason: str | None = None
    """The reason why it was not tested, or the description of an outlier."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _FoldStatistics:
    """A fold's AUROC and the variation of its bags' placements."""

    auroc: float
    positives: int
    negatives: int
    over_positives: float
    """Sum of squared deviations of the positive bags' placements."""
    over_negatives: float
    groups: int
    design: tuple[float, float]
    """The variance with bags treated as independent, and with bags grouped by patient."""


def find_outlier_folds(
    y: ArrayLike,
    scores: ArrayLike,
    *,
    folds: ArrayLike,
    groups: Sequence[Hashable] | Shaped[np.ndarray, " bags"] | None = None,
) -> tuple[Fold, ...]:
    """Compare every fold with the others; return them in the order of their names.

    If all folds are alike, some fold is called an outlier in at most 5 % of all experiments.

    Args:
        y: labels 0 or 1, (bags,).
        scores: (k, bags) scores of all methods and seeds, or (bags,); a fold's AUROC is their mean.
        folds: the fold, split or site of each bag, (bags,).
        groups: the patient of each bag; None if each bag is its own patient.

    Raises:
        InputError: the shapes do not fit, a label is not 0 or 1, or a score is nan.
    """
    labels, s = np.asarray(y), np.atleast_2d(np.asarray(scores, dtype=np.float64))
    fold_of_bag = np.asarray(folds)
    patients = np.arange(len(labels)) if groups is None else np.asarray(groups)
    if {s.shape[1:], fold_of_bag.shape, patients.shape} != {labels.shape} or labels.ndim != 1:
        raise InputError(
            f"{len(labels)} labels, scores of shape {s.shape}, folds of shape {fold_of_bag.shape}, "
            f"groups of shape {patients.shape}: expected one of each per bag"
        )
    names = np.unique(fold_of_bag).tolist()
    inside = {name: fold_of_bag == name for name in names}
    statistics = {
        name: _statistics(labels[rows], s[:, rows], groups=patients[rows])
        for name, rows in inside.items()
        if len(np.unique(labels[rows])) == 2
    }
    tested = _test_in_turn(statistics)
    return tuple(
        tested[name]
        if name in tested
        else _untested(name, int(inside[name].sum()), statistics=statistics.get(name))
        for name in names
    )


def _statistics(
    y: Shaped[np.ndarray, " bags"],
    scores: Float[np.ndarray, "k bags"],
    *,
    groups: Shaped[np.ndarray, " bags"],
) -> _FoldStatistics:
    result = delong(y, scores)
    positive = y == 1
    v10, v01 = result.v10.mean(0), result.v01.mean(0)
    auroc = float(result.auc.mean())
    influence = np.empty(len(y))
    influence[positive] = (v10 - auroc) / len(v10)
    influence[~positive] = (v01 - auroc) / len(v01)
    _, member = np.unique(groups, return_inverse=True)
    by_patient = np.bincount(member, weights=influence)
    g = len(by_patient)
    clustered = float((by_patient**2).sum()) * g / max(g - 2, 1)  # two means were estimated
    return _FoldStatistics(
        auroc=auroc,
        positives=len(v10),
        negatives=len(v01),
        over_positives=float(((v10 - auroc) ** 2).sum()),
        over_negatives=float(((v01 - auroc) ** 2).sum()),
        groups=g,
        design=(float((influence**2).sum()), clustered),
    )


def _test_in_turn(statistics: Mapping[Hashable, _FoldStatistics]) -> dict[Hashable, Fold]:
    """Test the most extreme fold, remove it if it is an outlier, and repeat.

    The results of the other folds are those of the last round.
    """
    remaining, results = dict(statistics), {}
    while len(remaining) > 1:
        tests = {name: _test(name, remaining) for name in remaining}
        # Two folds always have the same p: the lower one is named.
        extreme = min(remaining, key=lambda name: (tests[name].p, remaining[name].auroc))
        if not tests[extreme].odd:
            return results | tests
        results[extreme] = tests[extreme]
        del remaining[extreme]
    return results


def _test(name: Hashable, statistics: Mapping[Hashable, _FoldStatistics]) -> Fold:
    tested = statistics[name]
    rest = [s for other, s in statistics.items() if other != name]
    folds = [tested, *rest]
    design = max(1.0, _design_effect(s.design for s in folds))
    up = _pooled_variance((s.over_positives, s.positives) for s in folds)
    down = _pooled_variance((s.over_negatives, s.negatives) for s in folds)
    variance = [up / s.positives + down / s.negatives for s in folds]
    others = float(np.mean([s.auroc for s in rest]))
    bags = tested.positives + tested.negatives
    se = np.sqrt(design * (variance[0] + sum(variance[1:]) / len(rest) ** 2))
    freedom = max(1, sum(s.groups for s in folds) - 2 * len(folds))
    difference = tested.auroc - others
    p = min(1.0, len(folds) * float(2 * stdtr(freedom, -abs(difference) / se)))
    odd = p <= ALPHA
    # The variance of the AUROC of uninformative scores.
    chance = np.sqrt(design * (bags + 1) / (12 * tested.positives * tested.negatives))
    below = float(ndtr((tested.auroc - 0.5) / chance))
    flipped = odd and difference < 0 and below <= ALPHA
    return Fold(
        fold=name,
        bags=bags,
        auroc=tested.auroc,
        others=others,
        p=p,
        odd=odd,
        flipped=flipped,
        reason=_description(tested.auroc, others, p=p, flipped=flipped, pair=len(folds) == 2)
        if odd
        else None,
    )


def _design_effect(designs: Iterable[tuple[float, float]]) -> float:
    """Return the variance with patients divided by that without, over all folds together."""
    independent, clustered = np.sum(list(designs), axis=0)
    return float(clustered / independent) if independent > 0 else 1.0


def _pooled_variance(squares_and_bags: Iterable[tuple[float, int]]) -> float:
    """Return the variance of a placement, pooled within folds.

    One extra pseudo-observation, placed uniformly, keeps the variance positive when all folds but
    one are perfect.
    """
    squares, bags = zip(*squares_and_bags, strict=True)
    return (sum(squares) + 1 / 12) / (sum(bags) - len(bags) + 1)


def _description(auroc: float, others: float, *, p: float, flipped: bool, pair: bool) -> str:
    text = f"AUROC {auroc:.3f}, against {others:.3f} in the other folds (p = {p:.2g})"
    if pair:
        text += "; with two folds, either may be the outlier"
    return f"labels flipped? {text}" if flipped else text


def _untested(name: Hashable, bags: int, *, statistics: _FoldStatistics | None) -> Fold:
    return Fold(
        fold=name,
        bags=bags,
        auroc=None if statistics is None else statistics.auroc,
        others=None,
        p=None,
        odd=False,
        flipped=False,
        reason=f"only one class among {bags} bags"
        if statistics is None
        else "no other fold to compare",
    )
