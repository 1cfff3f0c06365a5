"""Accept only calls above a confidence, so that their error rate is bounded with high probability.

Fixed-sequence testing of thresholds as in Learn then Test (Angelopoulos et al., 2021), with groups
(patients) as the independent units. With one item per group the p-values are exactly binomial;
otherwise they come from the bet of Waudby-Smith and Ramdas (JRSS B 2024).
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import binom

from .group_risk import group_shares

STAKES = np.array([0.25, 0.5, 0.75, 1.0])
"""The stakes over which a bet is averaged, as shares of the largest one; 1 - e/r is best if the
error rate is e."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectiveRule:
    """The lowest certified threshold of the confidence, from which calls are accepted."""

    threshold: float | None
    """None if no threshold is certified; -infinity to accept every call."""
    max_error: float
    delta: float
    """Probability that the error rate is above `max_error` although it is certified."""
    accepted: float
    """Share of the calibration items that are accepted; groups count once."""
    error: float | None
    """Error rate of the accepted calibration items."""
    p_value: float
    """Of the chosen threshold, or of the first one if none is certified."""

    def accepts(self, confidence: Float[np.ndarray, " items"]) -> Bool[np.ndarray, " items"]:
        """Return which calls are accepted; none if no threshold is certified."""
        return confidence >= (math.inf if self.threshold is None else self.threshold)


def least_accepted(*, max_error: float, delta: float) -> int:
    """Return how many accepted groups without an error certify `max_error`: (1 - r)ᵏ ≤ δ."""
    return math.ceil(math.log(delta) / math.log1p(-max_error) - 1e-9)


def certified_threshold(
    thresholds: Float[np.ndarray, " thresholds"],
    *,
    confidence: Float[np.ndarray, " items"],
    wrong: Bool[np.ndarray, " items"],
    groups: Sequence[Hashable],
    max_error: float,
    delta: float,
) -> SelectiveRule:
    """Test thresholds from the strictest one on, and return the last before the first failure.

    The error rate at a threshold is P(wrong | accepted) of a random item of a random group:
    E[W_k] / E[A_k], where W_k and A_k are the shares of the items of group k that are accepted and
    wrong, and accepted. If the groups are independent and identically distributed, and the
    thresholds do not depend on them, P(error rate ≤ r) ≥ 1 - δ.

    Args:
        thresholds: in descending order; they must not depend on the calibration items.
        confidence: confidence of each call; it is accepted at or above the threshold.
        wrong: whether each call is wrong.
        groups: the group of each item.
        max_error: r, the largest error rate of accepted calls.
        delta: δ, the probability of a wrong certificate.
    """
    share, member = group_shares(groups)
    one_each = len(set(groups)) == len(groups)
    rule = None
    for threshold in thresholds:
        accepted = confidence >= threshold
        among = np.bincount(member, weights=share * accepted)
        failed = np.bincount(member, weights=share * (accepted & wrong))
        p = error_p_value(failed, among, max_error=max_error, one_each=one_each)
        if p > delta and rule is not None:
            break
        total = float(among.sum())
        rule = SelectiveRule(
            threshold=float(threshold) if p <= delta else None,
            max_error=max_error,
            delta=delta,
            accepted=float(among.mean()),
            error=float(failed.sum() / total) if total > 0 else None,
            p_value=p,
        )
        if p > delta:
            break
    assert rule is not None, "there must be a threshold"
    return rule


def error_p_value(
    wrong: Float[np.ndarray, " groups"],
    accepted: Float[np.ndarray, " groups"],
    *,
    max_error: float,
    one_each: bool,
) -> float:
    """Return a p-value of the hypothesis E[W] ≥ r E[A], that the error rate is r or higher.

    With one item per group it is the binomial P(Bin(ΣA, r) ≤ ΣW). Otherwise it is one over the
    mean of the wealth Π_k (1 - λ (W_k - r A_k)) over stakes 0 < λ ≤ 1 / (1 - r): the expectation of
    each factor is at most 1 under the hypothesis, and Markov's inequality gives P(p ≤ δ) ≤ δ.

    Args:
        wrong: W, the share of each group that is accepted and wrong.
        accepted: A, the share of each group that is accepted.
        max_error: r.
        one_each: whether each group has one item.
    """
    if one_each:
        return float(binom.cdf(wrong.sum(), accepted.sum(), max_error))
    gain = wrong - max_error * accepted
    stakes = STAKES / (1 - max_error)
    with np.errstate(divide="ignore"):
        wealth = np.log(np.maximum(1 - stakes[:, None] * gain, 0)).sum(1)
    return float(
        min(1.0, math.exp(min(0.0, math.log(len(STAKES)) - float(np.logaddexp.reduce(wealth)))))
    )
