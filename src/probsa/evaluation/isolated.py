"""Isolated false alarms: calls in healthy areas that no other call is next to.

So that methods are comparable each calls the same number of instances of every bag: its highest
`CALLED` of the healthy ones. Beside the share of them that stand alone is what to expect if the
calls kept their degrees but lay anywhere else: few calls on a sparse graph are lonely by chance.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import gammaln

from ..core import seed_of
from ..errors import InputError
from ..statistics import Draws, Metric, Sampled, none, sampled_difference, share, with_data
from .neighbours import Neighbours, neighbours_or_reason
from .prediction import Prediction
from .scores import instance_scores

CALLED = 0.1
"""Share of a bag's healthy instances that is called."""
ISOLATED = ("isolated_fp", "isolated_fp_expected", "isolated_fp_excess")
"""Share of the false alarms without a neighbouring one; its expectation by chance; the former minus
the latter."""
Healthy = Literal["instances", "bags"]
"""`instances`: all of negative bags, and those labelled 0 of positive ones; `bags`: the former."""


def isolated_false_positives(
    predictions: Sequence[Prediction],
    *,
    positive: Mapping[str, bool],
    called: float = CALLED,
    healthy: Healthy = "instances",
    groups: Mapping[str, Hashable] | None = None,
    bootstrap: int = 500,
    seed: int = 0,
) -> dict[str, Metric]:
    """The metrics of `ISOLATED`, with intervals over bags (or `groups` of them).

    Raises:
        InputError: `called` does not lie between 0 and 1.
        BagError: a bag's attention is not finite.
    """
    if not 0 < called < 1:
        raise InputError(f"called is {called}: a share of instances between 0 and 1 is expected")
    flags = np.array([bool(positive.get(p.name, False)) for p in predictions], dtype=bool)
    names = None if groups is None else [groups.get(p.name, (p.name,)) for p in predictions]
    draws = with_data(Draws.of(flags, groups=names, resamples=bootstrap, seed=seed))
    found = isolated_samples(
        predictions,
        positive=flags,
        graphs={p.name: neighbours_or_reason(p) for p in predictions},
        draws=draws,
        called=called,
        healthy=healthy,
    )
    return {name: s.metric() for name, s in found.items()}


def isolated_samples(
    predictions: Sequence[Prediction],
    *,
    positive: Bool[np.ndarray, " bags"],
    graphs: Mapping[str, Neighbours | str],
    draws: Draws,
    called: float = CALLED,
    healthy: Healthy = "instances",
) -> dict[str, Sampled]:
    """The rows of `isolated_false_positives`; `draws` of these bags with the data as row 0."""
    counts = np.zeros((len(predictions), 3))
    for b, p in enumerate(predictions):
        graph = graphs[p.name]
        if isinstance(graph, str):
            return dict.fromkeys(ISOLATED, none(graph))
        area = _healthy(p, positive=bool(positive[b]), healthy=healthy)
        if area.any():
            counts[b] = _of_bag(p, area, edges=graph.edges, called=called)
    alone, expected, calls = counts.T
    if calls.sum() == 0:
        return dict.fromkeys(ISOLATED, none("no healthy instance is known"))
    observed = share(alone, calls, draws=draws)
    chance = share(expected, calls, draws=draws)
    return dict(
        zip(ISOLATED, (observed, chance, sampled_difference(observed, chance)), strict=True)
    )


def lonely_by_chance(
    degree: Int[np.ndarray, " calls"], *, instances: int
) -> Float[np.ndarray, " calls"]:
    """Probability that none of a call's neighbours is called, if the other calls lie anywhere.

    C(n - 1 - d, k - 1) / C(n - 1, k - 1) for d neighbours, n instances and k calls.
    """
    k, rest = len(degree), instances - 1
    free = rest - degree - (k - 1)  # places left over once no neighbour is called
    log = gammaln(rest - degree + 1) - gammaln(np.maximum(free, 0) + 1)
    log -= gammaln(rest + 1) - gammaln(rest - k + 2)
    return np.where(free >= 0, np.exp(log), 0.0)


def _healthy(p: Prediction, *, positive: bool, healthy: Healthy) -> Bool[np.ndarray, " n"]:
    if not positive:
        return np.ones(len(p.degree), dtype=bool)
    if healthy == "bags" or p.instance_labels is None:
        return np.zeros(len(p.degree), dtype=bool)
    return np.asarray(p.instance_labels == 0)


def _of_bag(
    p: Prediction, area: Bool[np.ndarray, " n"], *, edges: Int[np.ndarray, "2 e"], called: float
) -> tuple[int, float, int]:
    """False alarms that stand alone, how many would by chance, and all of them."""
    inside = np.flatnonzero(area)
    k = int(np.ceil(called * len(inside)))
    # Equal scores are called in random order: rows in order would lie next to each other.
    shuffled = np.random.default_rng(seed_of("isolated", p.name)).permutation(inside)
    calls = shuffled[np.argsort(-instance_scores(p)[shuffled], kind="stable")[:k]]
    alarm = np.zeros(len(area), dtype=bool)
    alarm[calls] = True
    healthy = edges[:, area[edges[0]] & area[edges[1]]]
    degree = np.bincount(healthy.ravel(), minlength=len(area))
    beside = np.bincount(healthy[:, alarm[healthy].all(0)].ravel(), minlength=len(area))
    alone = int((beside[calls] == 0).sum())
    return alone, float(lonely_by_chance(degree[calls], instances=len(inside)).sum()), k
