"""Means over bags in which each group (patient) counts once, with intervals."""

import numpy as np
from jaxtyping import Bool, Float

from ..statistics import Metric, group_shares, ratio_of_sums
from .evaluated import Evaluated
from .pools import bag_draws


def group_mean(
    evaluated: Evaluated,
    value: Float[np.ndarray, " bags"] | Bool[np.ndarray, " bags"],
    *,
    among: Bool[np.ndarray, " bags"] | None = None,
    weighted: bool = True,
) -> Metric:
    """Return Σ_k mean of group k / number of groups, over the evaluated bags.

    Args:
        evaluated: the bags.
        value: the value of each bag.
        among: the bags to include; None for all.
        weighted: False for the plain mean over bags, in which large groups count more.
    """
    rows = np.arange(len(evaluated.rows)) if among is None else np.flatnonzero(among)
    groups = evaluated.groups([evaluated.rows[i] for i in rows])
    share = group_shares(groups)[0] if weighted else np.ones(len(rows))
    return share_ratio(evaluated, value[rows] * share, share, rows=rows)


def rate_among(
    evaluated: Evaluated, event: Bool[np.ndarray, " bags"], among: Bool[np.ndarray, " bags"]
) -> Metric:
    """Return P(event | among) of a random bag of a random group."""
    share, _ = group_shares(evaluated.groups(evaluated.rows))
    rows = np.arange(len(share))
    return share_ratio(evaluated, share * (event & among), share * among, rows=rows)


def share_ratio(
    evaluated: Evaluated,
    numerator: Float[np.ndarray, " items"],
    denominator: Float[np.ndarray, " items"],
    *,
    rows: np.ndarray,
) -> Metric:
    """Return Σ numerator / Σ denominator with an interval that resamples groups.

    rows: the index of each item's bag among the evaluated bags.
    """
    if denominator.sum() == 0:
        return Metric.undefined("no such bags")
    draws = bag_draws(
        evaluated.names,
        evaluated.y(evaluated.rows) > 0,
        groups=evaluated.group,
        resamples=evaluated.bootstrap,
        seed=evaluated.seed,
    )
    return ratio_of_sums(numerator, denominator, draws=draws.for_items(rows))
