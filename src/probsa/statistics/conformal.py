"""Guarantees from calibration items that come in groups (patients); each group counts once.

Conformal risk control (Angelopoulos et al., ICLR 2024) with whole groups as the exchangeable units.
With one item per group and the loss 1{s > λ} it is split conformal prediction; with several items
and the mean loss of each group, it is hierarchical conformal prediction (Lee, Barber and Willett,
2023, arXiv:2306.06342).
"""

import math
from bisect import bisect_left
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import beta, betabinom, binom

from .resample import Flags, Groups, Labels, Values, group_index

Scores = Float[np.ndarray, "items classes"]

ROUNDING = 1e-9
"""Sums of shares and levels such as 1 - 0.9 are compared up to this rounding error."""
TAILS = (0.05, 0.95)
"""The percentiles between which the bands of realised coverage lie."""
STAKES = np.array([0.25, 0.5, 0.75, 1.0])
"""The stakes over which a bet is averaged, as shares of the largest one; 1 - e/r is best if the
error rate is e."""


def group_shares(groups: Groups) -> tuple[Values, Labels]:
    """Return the share of each item in its group, which add up to 1, and the group's index."""
    member = group_index(groups)
    return 1 / np.bincount(member)[member] if len(member) else np.zeros(0), member


def least_groups(alpha: float) -> int:
    """Return the smallest number K of calibration groups with a finite threshold: α (K + 1) ≥ 1."""
    return math.ceil((1 - ROUNDING) / alpha - 1)


def smallest_alpha(groups: int) -> float:
    """Return the smallest level that so many groups suffice for, rounded up to thousandths."""
    return math.ceil(1000 / (groups + 1)) / 1000


def risk_threshold(score: Values, share: Values, *, groups: int, alpha: float) -> float:
    """Return the smallest λ whose expected loss in a new group is at most α, or infinity.

    The loss of a group is L_k(λ) = Σ_i share_i 1{s_i > λ}, which lies in [0, 1] and falls with λ.
    If the K calibration groups and the new one are exchangeable,

        λ̂ = inf{λ: (Σ_k L_k(λ) + 1) / (K + 1) ≤ α}   gives   E[L_new(λ̂)] ≤ α.

    Args:
        score: the scores of all items; items above the threshold are lost.
        share: the share of each item in its group; those of a group add up to 1.
        groups: the number K of groups.
        alpha: the largest expected loss.
    """
    # The loss that the groups may have in total; one unit is reserved for the new group.
    allowed = alpha * (groups + 1) - 1 + ROUNDING
    if allowed < 0:
        return math.inf
    ascending, tail = _tails(score, share)
    above = tail[np.searchsorted(ascending, ascending, side="right")]
    return float(ascending[np.argmax(above <= allowed)])


def _tails(score: Values, share: Values) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted scores, and the total share of the items from each position on.

    The sum runs from the highest score down, so that the small sums that matter are exact.
    """
    order = np.argsort(score, kind="stable")
    return score[order], np.append(np.cumsum(share[order][::-1])[::-1], 0.0)


def coverage_band(
    groups: int, *, alpha: float, test_groups: int | None = None
) -> tuple[float, float]:
    """Return the central interval of the realised coverage over calibration sets of K groups.

    With one item per group and no ties, the coverage of one calibration set, over infinitely many
    new items, is Beta(k, K + 1 - k) distributed with k = ⌈(K + 1)(1 - α)⌉. Several items per
    group vary less, and ties raise the coverage. There must be `least_groups`.

    The coverage observed in m = `test_groups` new groups varies more: the number of covered ones is
    Beta-binomial(m, k, K + 1 - k).
    """
    k = math.ceil((groups + 1) * (1 - alpha) - ROUNDING)
    if test_groups is None:
        band = beta.ppf(TAILS, k, groups + 1 - k)
    else:
        band = betabinom.ppf(TAILS, test_groups, k, groups + 1 - k) / test_groups
    return float(band[0]), float(band[1])


def aps_scores(p: Scores, *, u: Values) -> Scores:
    """Return the score of each class, the probability of the more probable classes plus u · p_y.

    With uniform random numbers u, one per item, coverage is exact. With u = 1, no set is empty, and
    the sets are larger than necessary (Romano, Sesia and Candès, NeurIPS 2020). The other score of
    classes is 1 - p_y (Sadinle, Lei and Wasserman, JASA 2019).
    """
    order = np.argsort(-p, axis=1, kind="stable")
    ranked = np.take_along_axis(p, order, axis=1)
    mass_above = np.cumsum(ranked, axis=1) - ranked
    scores = np.empty_like(p)
    np.put_along_axis(scores, order, mass_above + u[:, None] * ranked, axis=1)
    return scores


@dataclass(frozen=True, kw_only=True, slots=True)
class ConformalSets:
    """Thresholds of the scores of each class, made from calibration items."""

    thresholds: Float[np.ndarray, " classes"]
    calibration: tuple[tuple[Float[np.ndarray, " _"], Float[np.ndarray, " _"], int], ...]
    """Scores behind the threshold of each class, the share of each in its group, and the groups."""

    @classmethod
    def calibrated(
        cls, scores: Scores, y: Labels, *, groups: Groups, alpha: float, per_class: bool = False
    ) -> "ConformalSets":
        """Compute the thresholds for coverage 1 - α.

        A set then contains the class of a random item of a new group with a probability of at
        least 1 - α, if the groups are exchangeable. With `per_class` (Mondrian), this holds for a
        random item of each class, of a new group that has such items. Low scores conform. With
        fewer groups than `least_groups`, the sets hold every class.
        """
        label_scores = np.take_along_axis(scores, y[:, None], axis=1)[:, 0]
        calibration = []
        thresholds = []
        for c in range(scores.shape[1]):
            items = np.flatnonzero(y == c) if per_class else np.arange(len(y))
            share, member = group_shares([groups[i] for i in items.tolist()])
            count = len(np.unique(member))
            calibration.append((label_scores[items], share, count))
            thresholds.append(risk_threshold(label_scores[items], share, groups=count, alpha=alpha))
        return cls(thresholds=np.array(thresholds), calibration=tuple(calibration))

    @property
    def groups(self) -> tuple[int, ...]:
        """Number of calibration groups behind the threshold of each class."""
        return tuple(groups for _, _, groups in self.calibration)

    def sets(self, scores: Scores) -> Bool[np.ndarray, "items classes"]:
        """Return which classes are in the set of each item."""
        return scores <= self.thresholds

    def p_values(self, scores: Scores) -> Scores:
        """Return the conformal p-value of each class; the set holds those above α.

        p = (Σ_k Σ_i share_i 1{s_i ≥ s} + 1) / (K + 1) for the score s of an item. If it is of a
        new group that is exchangeable with the calibration groups, P(p ≤ α) ≤ α.
        """
        columns = []
        for of_class, (calibration, share, groups) in zip(scores.T, self.calibration, strict=True):
            ascending, tail = _tails(calibration, share)
            columns.append((tail[np.searchsorted(ascending, of_class)] + 1) / (groups + 1))
        return np.stack(columns, axis=1)


def conformal_half_width(
    y: Values, predicted: Values, *, spread: Values, groups: Groups, alpha: float
) -> float:
    """Return q, so that the interval ŷ ± q s contains the truth with a probability of 1 - α.

    That is a random item of a new group, if the groups are exchangeable; with one item per group, q
    is the ⌈(K + 1)(1 - α)⌉-th smallest of K scores |y - ŷ| / s (Lei et al., JASA 2018).

    Args:
        y, predicted: numbers of the calibration items, and their predictions.
        spread: the predicted spread s of each item; 1 for intervals of the same width.
        groups: the group of each item.
        alpha: the largest share of numbers outside.
    """
    share, member = group_shares(groups)
    return risk_threshold(
        np.abs(y - predicted) / spread, share, groups=int(member.max()) + 1, alpha=alpha
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectiveRule:
    """The lowest certified threshold of the confidence, from which calls are accepted."""

    threshold: float | None
    """None if no threshold is certified; -infinity to accept every call."""
    accepted: float
    """Share of the calibration items that are accepted; groups count once."""
    error: float | None
    """Error rate of the accepted calibration items."""
    p_value: float
    """Of the chosen threshold, or of the first one if none is certified."""

    def accepts(self, confidence: Values) -> Flags:
        """Return which calls are accepted; none if no threshold is certified."""
        return confidence >= (math.inf if self.threshold is None else self.threshold)


def least_accepted(*, max_error: float, delta: float, one_each: bool) -> int:
    """Return how many accepted groups without an error certify `max_error`, by `error_p_value`.

    With one item per group it is the smallest k with (1 - r)ᵏ ≤ δ. Otherwise it is larger: a group
    multiplies the wealth of the largest stake by 1 / (1 - r), and those of the others by less.
    """
    least = math.ceil(math.log(delta) / math.log1p(-max_error) - ROUNDING)
    if one_each:
        return least
    # the largest stake alone, which is one of several, suffices for so many groups
    most = math.ceil(math.log(delta / len(STAKES)) / math.log1p(-max_error))
    growth = np.log1p(STAKES * max_error / (1 - max_error))
    enough = math.log(len(STAKES) / delta) - ROUNDING
    return bisect_left(
        range(most), enough, lo=least, key=lambda k: float(np.logaddexp.reduce(k * growth))
    )


def certified_threshold(
    thresholds: Float[np.ndarray, " thresholds"],
    *,
    confidence: Values,
    wrong: Flags,
    groups: Groups,
    max_error: float,
    delta: float,
) -> SelectiveRule:
    """Test thresholds from the strictest one on, and return the last before the first failure.

    The error rate at a threshold is P(wrong | accepted) of a random item of a random group:
    E[W_k] / E[A_k], where W_k and A_k are the shares of the items of group k that are accepted and
    wrong, and accepted. If the groups are independent and identically distributed, and the
    descending thresholds do not depend on them, P(error rate ≤ r) ≥ 1 - δ with r = `max_error` and
    δ = `delta` (fixed-sequence testing as in Learn then Test, Angelopoulos et al., 2021). A call is
    accepted if its confidence is at or above the threshold.
    """
    share, member = group_shares(groups)
    one_each = len(set(groups)) == len(groups)
    rule = None
    for threshold in thresholds:
        accepted = confidence >= threshold
        among = np.bincount(member, weights=share * accepted)
        failed = np.bincount(member, weights=share * (accepted & wrong))
        tested = SelectiveRule(
            threshold=float(threshold),
            accepted=float(among.mean()),
            error=float(failed.sum() / among.sum()) if among.any() else None,
            p_value=error_p_value(failed, among, max_error=max_error, one_each=one_each),
        )
        if tested.p_value > delta:
            return rule or replace(tested, threshold=None)
        rule = tested
    assert rule is not None, "there must be a threshold"
    return rule


def error_p_value(wrong: Values, accepted: Values, *, max_error: float, one_each: bool) -> float:
    """Return a p-value of the hypothesis E[W] ≥ r E[A], that the error rate is r or higher.

    With one item per group it is the binomial P(Bin(ΣA, r) ≤ ΣW). Otherwise it is one over the
    mean of the wealth Π_k (1 - λ (W_k - r A_k)) over stakes 0 < λ ≤ 1 / (1 - r): the expectation of
    each factor is at most 1 under the hypothesis, and Markov's inequality gives P(p ≤ δ) ≤ δ
    (Waudby-Smith and Ramdas, JRSS B 2024).
    """
    if one_each:
        return float(binom.cdf(wrong.sum(), accepted.sum(), max_error))
    gain = wrong - max_error * accepted
    stakes = STAKES / (1 - max_error)
    with np.errstate(divide="ignore"):
        log_wealth = np.log(np.maximum(1 - stakes[:, None] * gain, 0)).sum(1)
    log_p = math.log(len(STAKES)) - float(np.logaddexp.reduce(log_wealth))
    return math.exp(min(0.0, log_p))
