"""Control an expected risk over new groups (patients) with a threshold from calibration groups.

Conformal risk control (Angelopoulos et al., ICLR 2024) with whole groups as the exchangeable units.
With one item per group and the loss 1{s > λ} it is split conformal prediction; with several items
and the mean loss of each group, it is hierarchical conformal prediction (Lee, Barber and Willett,
2023, arXiv:2306.06342).
"""

import math
from collections.abc import Hashable, Sequence

import numpy as np
from jaxtyping import Float, Int

from .bootstrap import group_strata

ROUNDING = 1e-9
"""Sums of shares and levels such as 1 - 0.9 are compared up to this rounding error."""


def group_shares(
    groups: Sequence[Hashable],
) -> tuple[Float[np.ndarray, " items"], Int[np.ndarray, " items"]]:
    """Return the share of each item in its group, which add up to 1, and the group's index."""
    member, _ = group_strata(groups, [0] * len(groups))
    return 1 / np.bincount(member)[member] if len(member) else np.zeros(0), member


def least_groups(alpha: float) -> int:
    """Return the smallest number K of calibration groups with a finite threshold: K ≥ 1/α - 1."""
    return math.ceil(1 / alpha - 1 - ROUNDING)


def risk_threshold(
    score: Float[np.ndarray, " items"],
    share: Float[np.ndarray, " items"],
    *,
    groups: int,
    alpha: float,
) -> float:
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
    order = np.argsort(score, kind="stable")
    ascending = score[order]
    # The total share of the items at or after each position. The sum runs from the highest score
    # down, so that the small sums that matter are exact.
    tail = np.append(np.cumsum(share[order][::-1])[::-1], 0.0)
    above = tail[np.searchsorted(ascending, ascending, side="right")]
    return float(ascending[np.argmax(above <= allowed)])


def tail_p_values(
    new: Float[np.ndarray, " new"],
    *,
    score: Float[np.ndarray, " items"],
    share: Float[np.ndarray, " items"],
    groups: int,
) -> Float[np.ndarray, " new"]:
    """Return p = (Σ_k Σ_i share_i 1{s_i ≥ s} + 1) / (K + 1) for the scores s of new items.

    If an item of a new group is exchangeable with the calibration groups, P(p ≤ α) ≤ α. Its score
    is at most the threshold of `risk_threshold` exactly if p > α.
    """
    order = np.argsort(score, kind="stable")
    tail = np.append(np.cumsum(share[order][::-1])[::-1], 0.0)
    return (tail[np.searchsorted(score[order], new, side="left")] + 1) / (groups + 1)
