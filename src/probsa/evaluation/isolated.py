"""Isolated false alarms: positive calls in healthy areas without a neighbouring positive call.

To make methods comparable, each calls the same number of instances per bag: the fraction `CALLED`
of the healthy instances with the highest scores. The fraction of isolated calls is compared with
its expectation if calls keep their degrees but are placed at random, because few calls on a sparse
graph are often isolated by chance.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import gammaln

from ..core import seed_of
from ..statistics import Draws, Metric, ratio_of_sums
from .neighbours import Neighbours
from .prediction import Prediction
from .scores import instance_scores

CALLED = 0.1
"""Fraction of a bag's healthy instances that is called positive."""
ISOLATED = ("isolated_fp", "isolated_fp_expected", "isolated_fp_excess")
"""Fraction of the false alarms without a neighbouring one, its expectation by chance, and the
difference of the two."""


def isolated_samples(
    predictions: Sequence[Prediction],
    *,
    positive: Bool[np.ndarray, " bags"],
    graphs: Mapping[str, Neighbours | str],
    draws: Draws,
) -> dict[str, Metric]:
    """Return the metrics of `ISOLATED`.

    All instances of negative bags are healthy, and those of positive bags that are labelled 0.

    Args:
        predictions: one per bag.
        positive: whether each bag is positive.
        graphs: the graph of each bag, or the reason why it is unknown.
        draws: draws of these bags with the data as row 0.

    Raises:
        BagError: the attention of a bag is not finite.
    """
    counts = np.zeros((len(predictions), 3))
    for b, p in enumerate(predictions):
        graph = graphs[p.name]
        if isinstance(graph, str):
            return dict.fromkeys(ISOLATED, Metric.undefined(graph))
        healthy = _healthy(p, positive=bool(positive[b]))
        if healthy.any():
            counts[b] = _count_in_bag(p, healthy, edges=graph.edges)
    isolated, expected, calls = counts.T
    if calls.sum() == 0:
        reason = "no healthy instance is known"
        return dict.fromkeys(ISOLATED, Metric.undefined(reason))
    observed = ratio_of_sums(isolated, calls, draws=draws)
    chance = ratio_of_sums(expected, calls, draws=draws)
    return dict(zip(ISOLATED, (observed, chance, observed - chance), strict=True))


def isolation_probability(
    degree: Int[np.ndarray, " calls"], *, instances: int
) -> Float[np.ndarray, " calls"]:
    """Return the probability that no neighbour of a call is called, with the others at random.

    It is C(n - 1 - d, k - 1) / C(n - 1, k - 1) for d neighbours, n instances and k calls.
    """
    k, others = len(degree), instances - 1
    remaining = others - degree - (k - 1)  # instances that are neither neighbours nor called
    log = gammaln(others - degree + 1) - gammaln(np.maximum(remaining, 0) + 1)
    log -= gammaln(others + 1) - gammaln(others - k + 2)
    return np.where(remaining >= 0, np.exp(log), 0.0)


def _healthy(p: Prediction, *, positive: bool) -> Bool[np.ndarray, " n"]:
    if not positive:
        return np.ones(len(p.degree), dtype=bool)
    if p.instance_labels is None:
        return np.zeros(len(p.degree), dtype=bool)
    return np.asarray(p.instance_labels == 0)


def _count_in_bag(
    p: Prediction, healthy: Bool[np.ndarray, " n"], *, edges: Int[np.ndarray, "2 e"]
) -> tuple[int, float, int]:
    """Return the isolated false alarms, their expected number, and all false alarms."""
    rows = np.flatnonzero(healthy)
    k = int(np.ceil(CALLED * len(rows)))
    # Ties are broken at random: in row order, equal scores would be called side by side.
    shuffled = np.random.default_rng(seed_of("isolated", p.name)).permutation(rows)
    calls = shuffled[np.argsort(-instance_scores(p)[shuffled], kind="stable")[:k]]
    called = np.zeros(len(healthy), dtype=bool)
    called[calls] = True
    inside = edges[:, healthy[edges[0]] & healthy[edges[1]]]
    degree = np.bincount(inside.ravel(), minlength=len(healthy))
    called_neighbours = np.bincount(inside[:, called[inside].all(0)].ravel(), minlength=len(called))
    isolated = int((called_neighbours[calls] == 0).sum())
    expected = float(isolation_probability(degree[calls], instances=len(rows)).sum())
    return isolated, expected, k
