"""Folds that are not like the others: labels flipped or shuffled, another site, a failed run.

A fold's AUROC is compared to the mean of the others', with DeLong's variance pooled over folds (of
one perfect fold it would be 0). The oddest fold is tested first, Bonferroni's way; if it is odd it
is taken out before the next, so that one flipped fold does not make the others look odd.
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
    """One fold beside the others."""

    fold: Hashable
    bags: int
    auroc: float | None
    """Mean over the scores (methods, seeds); None with one class only."""
    others: float | None
    """The mean AUROC of the folds it was compared to."""
    p: float | None
    """Two-sided, corrected for as many folds as were still there."""
    odd: bool
    """p at most 0.05."""
    flipped: bool
    """Odd, lower than the others, and below 0.5 by more than chance: look at its labels first."""
    reason: str | None = None
    """Why it was not tested, or what is odd, in words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """A fold's AUROC and how the placements of its bags scatter."""

    auroc: float
    positives: int
    negatives: int
    over_positives: float
    """Σ of squared deviations of the positive bags' placements."""
    over_negatives: float
    groups: int
    design: tuple[float, float]
    """Variance with bags taken as independent, and with patients."""


def odd_folds(
    y: ArrayLike,
    scores: ArrayLike,
    *,
    folds: ArrayLike,
    groups: Sequence[Hashable] | Shaped[np.ndarray, " bags"] | None = None,
) -> tuple[Fold, ...]:
    """Every fold beside the others, in the order of their names.

    In folds that are alike, one is called odd in at most 5 % of all experiments.

    Args:
        y: (bags,) 0 or 1.
        scores: (k, bags) of all methods and seeds, or (bags,): a fold is judged by their mean.
        folds: (bags,) the fold, split or site of each bag.
        groups: the patient of each bag; None: each bag is its own.

    Raises:
        InputError: shapes that do not fit, labels other than 0 and 1, a score that is nan.
    """
    labels, s = np.asarray(y), np.atleast_2d(np.asarray(scores, dtype=np.float64))
    of = np.asarray(folds)
    who = np.arange(len(labels)) if groups is None else np.asarray(groups)
    if {s.shape[1:], of.shape, who.shape} != {labels.shape} or labels.ndim != 1:
        raise InputError(
            f"{len(labels)} labels, scores of shape {s.shape}, folds of shape {of.shape}, groups "
            f"of shape {who.shape}: one of each a bag is expected"
        )
    names = np.unique(of).tolist()
    inside = {f: of == f for f in names}
    parts = {
        f: _part(labels[i], s[:, i], groups=who[i])
        for f, i in inside.items()
        if len(np.unique(labels[i])) == 2
    }
    found = _one_after_another(parts)
    out = []
    for f in names:
        bags = int(inside[f].sum())
        out.append(found[f] if f in found else _untested(f, bags, part=parts.get(f)))
    return tuple(out)


def _part(
    y: Shaped[np.ndarray, " bags"],
    scores: Float[np.ndarray, "k bags"],
    *,
    groups: Shaped[np.ndarray, " bags"],
) -> _Part:
    found = delong(y, scores)
    positive = y == 1
    v10, v01 = found.v10.mean(0), found.v01.mean(0)
    auroc = float(found.auc.mean())
    pull = np.empty(len(y))
    pull[positive], pull[~positive] = (v10 - auroc) / len(v10), (v01 - auroc) / len(v01)
    _, member = np.unique(groups, return_inverse=True)
    patients = np.bincount(member, weights=pull)
    g = len(patients)
    return _Part(
        auroc=auroc,
        positives=len(v10),
        negatives=len(v01),
        over_positives=float(((v10 - auroc) ** 2).sum()),
        over_negatives=float(((v01 - auroc) ** 2).sum()),
        groups=g,
        # Two means, of either class, were taken from the patients.
        design=(float((pull**2).sum()), float((patients**2).sum()) * g / max(g - 2, 1)),
    )


def _one_after_another(parts: Mapping[Hashable, _Part]) -> dict[Hashable, Fold]:
    """Test the oddest fold, take it out if it is odd, and so on; the rest is told by the last."""
    left, out = dict(parts), {}
    while len(left) > 1:
        tests = {f: _test(f, left) for f in left}
        # Of two folds each is as odd as the other: the lower one is named.
        oddest = min(left, key=lambda f: (tests[f].p, left[f].auroc))
        if not tests[oddest].odd:
            return out | tests
        out[oddest] = tests[oddest]
        del left[oddest]
    return out


def _test(fold: Hashable, parts: Mapping[Hashable, _Part]) -> Fold:
    own = parts[fold]
    rest = [p for f, p in parts.items() if f != fold]
    everyone = [own, *rest]
    design = max(1.0, _share(p.design for p in everyone))
    up = _scatter((p.over_positives, p.positives) for p in everyone)
    down = _scatter((p.over_negatives, p.negatives) for p in everyone)
    variance = [up / p.positives + down / p.negatives for p in everyone]
    others = float(np.mean([p.auroc for p in rest]))
    bags = [p.positives + p.negatives for p in everyone]
    se = np.sqrt(design * (variance[0] + sum(variance[1:]) / len(rest) ** 2))
    freedom = max(1, sum(p.groups for p in everyone) - 2 * len(everyone))
    difference = own.auroc - others
    p = min(1.0, len(parts) * float(2 * stdtr(freedom, -abs(difference) / se)))
    odd = p <= ALPHA
    # The variance of an AUROC whose scores know nothing.
    chance = np.sqrt(design * (bags[0] + 1) / (12 * own.positives * own.negatives))
    below = float(ndtr((own.auroc - 0.5) / chance))
    flipped = odd and difference < 0 and below <= ALPHA
    return Fold(
        fold=fold,
        bags=bags[0],
        auroc=own.auroc,
        others=others,
        p=p,
        odd=odd,
        flipped=flipped,
        reason=_words(own.auroc, others, p=p, flipped=flipped, pair=len(parts) == 2)
        if odd
        else None,
    )


def _share(designs: Iterable[tuple[float, float]]) -> float:
    """The variance with patients over that without, of all folds together."""
    independent, clustered = np.sum(list(designs), axis=0)
    return float(clustered / independent) if independent > 0 else 1.0


def _scatter(of: Iterable[tuple[float, int]]) -> float:
    """Variance of a placement, pooled within folds, with one more bag that is placed by chance.

    Without that bag, folds that are perfect but for one would leave no room for chance at all.
    """
    squares, bags = zip(*of, strict=True)
    return (sum(squares) + 1 / 12) / (sum(bags) - len(bags) + 1)


def _words(auroc: float, others: float, *, p: float, flipped: bool, pair: bool) -> str:
    said = f"AUROC {auroc:.3f}, the other folds' {others:.3f} (p = {p:.2g})"
    if pair:
        said += "; of two folds either may be the odd one"
    return f"labels flipped? {said}" if flipped else said


def _untested(fold: Hashable, bags: int, *, part: _Part | None) -> Fold:
    return Fold(
        fold=fold,
        bags=bags,
        auroc=None if part is None else part.auroc,
        others=None,
        p=None,
        odd=False,
        flipped=False,
        reason=f"only one class among {bags} bags" if part is None else "no other fold to compare",
    )
