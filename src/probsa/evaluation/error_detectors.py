"""Does σ² find wrong instance calls, or would a map that costs nothing find them as well?

The null rivals: 1/degree, nearness to the edge of the tissue, nearness of the call to its
threshold, the weight's share of the entropy, the s.d. over replicates, and a random map with the
spectrum of σ². Judged by the AUROC of finding wrong calls, and by AUGRC (risk.py; lower is better).
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Literal, get_args

import numpy as np
from jaxtyping import Bool, Float

from ..core import seed_of
from ..errors import InputError
from ..statistics import (
    Draws,
    Metric,
    Sampled,
    augrc_of_ranks,
    auroc,
    none,
    sampled_difference,
    share,
    with_data,
)
from .metrics import NO_SPREAD
from .neighbours import Neighbours, near_boundary, neighbours_or_reason
from .pools import kind_of, labelled
from .prediction import Prediction
from .random_field import field_on
from .scores import instance_evidence, instance_variances, one_column

Area = Literal["all", "positive_bags", "boundary"]
"""All labelled instances; those of positive bags; those at most two steps from the other label."""
Detector = Literal["variance", "degree", "edge", "margin", "entropy", "seeds", "field"]
AREAS: tuple[Area, ...] = get_args(Area)
DETECTORS: tuple[Detector, ...] = get_args(Detector)
RIVALS = DETECTORS[1:]

RING = 2
TITLES = {
    "variance": "σ²",
    "degree": "1/degree",
    "edge": "nearness to the edge of the tissue",
    "margin": "-|s - threshold|",
    "entropy": "-w log w",
    "seeds": "s.d. over replicates",
    "field": "a random map with the spectrum of σ²",
}
CONSTANT = {
    "variance": NO_SPREAD,
    "degree": "every instance has the same number of neighbours",
    "edge": "every instance is as near to the edge",
    "field": NO_SPREAD,
}
SOURCE = {"field": "variance"}
"""What must vary for a detector to be one, where that is not its own map."""
WHAT: dict[Area, str] = {
    "all": "instances",
    "positive_bags": "instances of positive bags",
    "boundary": "instances near a lesion's boundary",
}


def error_detectors(
    predictions: Sequence[Prediction],
    *,
    positive: Mapping[str, bool],
    others: Sequence[Sequence[Prediction]] = (),
    threshold: float = 0.0,
    groups: Mapping[str, Hashable] | None = None,
    bootstrap: int = 500,
    seed: int = 0,
) -> dict[str, Metric]:
    """`error_rate_<area>`, `error_auroc_<detector>_<area>`, `augrc_<detector>_<area>`, and
    `error_auroc_gain_<area>`: σ² minus the best rival, paired.

    An instance is called positive where its evidence (scores.py) is above `threshold`. Bags without
    instance labels are left out. Intervals resample bags (or `groups` of them).

    Args:
        predictions: of the bags to judge.
        positive: whether a bag is positive; a bag that is missing here is not.
        others: of the same bags by other replicates of the model, for `seeds`.
        threshold: of the evidence; 0 is uniform attention, or a probability of 1/2.
        groups: patient of each bag; a bag that is missing here is its own.
        bootstrap: resamples; 0 gives no intervals.
        seed: of the resamples, and of the random map.

    Raises:
        InputError: predictions of several kinds, or `others` lack a bag.
        BagError: a bag's attention is not finite.
    """
    kept = labelled(predictions)
    flags = np.array([bool(positive.get(p.name, False)) for p in kept], dtype=bool)
    names = None if groups is None else [groups.get(p.name, (p.name,)) for p in kept]
    draws = with_data(Draws.of(flags, groups=names, resamples=bootstrap, seed=seed))
    graphs = {p.name: neighbours_or_reason(p) for p in kept}
    found = detector_samples(
        kept,
        positive=flags,
        graphs=graphs,
        spread=spread_over([predictions, *others]) if others else None,
        draws=draws,
        threshold=threshold,
        seed=seed,
    )
    for area in AREAS:
        found[f"error_auroc_gain_{area}"] = gain(found, area=area)
    return {name: s.metric() for name, s in found.items()}


def error_verdict(found: Mapping[str, Metric], *, area: Area = "positive_bags") -> str:
    """One sentence on σ² against its best rival, from what `error_detectors` found."""
    own = found[f"error_auroc_variance_{area}"]
    difference = found[f"error_auroc_gain_{area}"]
    if own.value is None or difference.value is None:
        return f"σ² cannot be judged among {WHAT[area]}: {difference.reason or own.reason}."
    best = best_rival({k: m.value for k, m in found.items()}, area=area)
    assert best is not None
    rival = found[f"error_auroc_{best}_{area}"]
    figures = (
        f"AUROC {own.value:.3f} against {rival.value:.3f} of {TITLES[best]}, its best null rival, "
        f"among {WHAT[area]}"
    )
    if difference.low is None or difference.high is None:
        return f"Nothing is known of whether σ² finds wrong calls better: {figures}; no interval."
    span = f"difference {difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"
    if difference.low > 0:
        return f"σ² finds wrong calls better than what costs nothing: {figures}; {span}."
    if difference.high < 0:
        return f"σ² finds wrong calls worse than what costs nothing: {figures}; {span}."
    return f"σ² is not shown to find wrong calls better than what costs nothing: {figures}; {span}."


def best_rival(values: Mapping[str, float | None], *, area: Area) -> Detector | None:
    """The rival with the highest AUROC in the data; None where none has one."""
    best, highest = None, -np.inf
    for detector in RIVALS:
        value = values.get(f"error_auroc_{detector}_{area}")
        if value is not None and value > highest:
            best, highest = detector, value
    return best


def gain(found: Mapping[str, Sampled], *, area: Area) -> Sampled:
    """AUROC of σ² minus that of the rival that is best in the data, row by row."""
    own = found[f"error_auroc_variance_{area}"]
    best = best_rival({k: s.value for k, s in found.items()}, area=area)
    if own.rows is None or best is None:
        return none(own.reason or "no rival is defined")
    return sampled_difference(own, found[f"error_auroc_{best}_{area}"])


def spread_over(
    replicates: Sequence[Sequence[Prediction]],
) -> dict[str, Float[np.ndarray, " n"]]:
    """The s.d. of the evidence of each instance over replicates, by bag.

    Raises:
        InputError: a replicate lacks a bag, or has it with another number of instances.
    """
    by_name = [{p.name: p for p in r} for r in replicates]
    found = {}
    for name, first in by_name[0].items():
        same = [r.get(name) for r in by_name]
        sizes = {None if p is None else len(p.degree) for p in same}
        if sizes != {len(first.degree)}:
            raise InputError(
                f"bag {name!r} has {len(first.degree)} instances in one replicate, but is missing "
                "or has another number in another: predict the same bags with each"
            )
        of = np.stack([instance_evidence(p) for p in same if p is not None])
        found[name] = of.std(axis=0, ddof=1) if len(of) > 1 else np.zeros(of.shape[1])
    return found


def detector_samples(
    predictions: Sequence[Prediction],
    *,
    positive: Bool[np.ndarray, " bags"],
    graphs: Mapping[str, Neighbours | str],
    spread: Mapping[str, Float[np.ndarray, " n"]] | None,
    draws: Draws,
    threshold: float = 0.0,
    seed: int = 0,
) -> dict[str, Sampled]:
    """The rows of every metric of `error_detectors` but the gains; bags must have labels.

    draws: of these bags, with the data as row 0.
    """
    if not predictions:
        return _all_undefined("no bag has instance labels")
    if kind_of(predictions) == "relevance":
        return _all_undefined("relevance has no point where calls change")
    unknown = next((g for g in graphs.values() if isinstance(g, str)), None)
    columns: dict[str, list[np.ndarray]] = {}
    for b, p in enumerate(predictions):
        graph = graphs[p.name]
        of = _columns(
            p,
            graph=None if unknown or isinstance(graph, str) else graph,
            spread=None if spread is None else spread[p.name],
            threshold=threshold,
            seed=seed,
        )
        of["bag"] = np.full(len(p.degree), b)
        kept = np.asarray(p.instance_labels) >= 0
        for name, value in of.items():
            columns.setdefault(name, []).append(value[kept])
    pool = {name: np.concatenate(parts) for name, parts in columns.items()}
    lacking = {
        "edge": unknown or "",
        "field": unknown or "",
        "seeds": "one replicate has no spread over replicates",
    }
    areas = {
        "all": np.ones(len(pool["bag"]), dtype=bool),
        "positive_bags": positive[pool["bag"]],
        "boundary": pool.get("boundary"),
    }
    found: dict[str, Sampled] = {}
    for area in AREAS:
        inside = areas[area]
        if inside is None:
            found |= _all_undefined(unknown or "", areas=(area,))
        else:
            found |= _area(pool, inside, draws=draws, area=area, lacking=lacking)
    return found


def _columns(
    p: Prediction,
    *,
    graph: Neighbours | None,
    spread: Float[np.ndarray, " n"] | None,
    threshold: float,
    seed: int,
) -> dict[str, np.ndarray]:
    """What each detector says of each instance (high: probably wrong), and whether it is wrong."""
    s, variance = instance_evidence(p) - threshold, instance_variances(p)
    weight = one_column(p, p.weight_mean)
    labels = np.asarray(p.instance_labels)
    found = {
        "wrong": (s > 0) != (labels > 0),
        "variance": variance,
        # In the order of 1/degree, finite for an isolated instance.
        "degree": -p.degree.astype(np.float64),
        "margin": -np.abs(s),
        "entropy": -weight * np.log(np.maximum(weight, np.finfo(np.float64).tiny)),
    }
    if graph is not None:
        found["edge"] = -graph.to_edge
        found["field"] = field_on(graph.cells, variance, seed=seed_of(seed, "field", p.name))
        found["boundary"] = near_boundary(labels, edges=graph.edges, within=RING)
    if spread is not None:
        found["seeds"] = spread
    return found


def _area(
    pool: Mapping[str, np.ndarray],
    inside: Bool[np.ndarray, " n"],
    *,
    draws: Draws,
    area: Area,
    lacking: Mapping[str, str],
) -> dict[str, Sampled]:
    within, wrong = draws.items(pool["bag"][inside]), pool["wrong"][inside]
    if len(wrong) == 0:
        return _all_undefined(f"no {WHAT[area]}", areas=(area,))
    rate = share(wrong, np.ones_like(wrong), draws=within)
    found = {f"error_rate_{area}": rate}
    for detector in DETECTORS:
        score = pool.get(detector)
        if score is None:
            ranks = none(lacking[detector])
        elif not wrong.any() or wrong.all():
            which = "wrong" if not wrong.any() else "right"
            ranks = none(f"no {which} call among {len(wrong)} {WHAT[area]}: nothing to tell apart")
        elif detector in CONSTANT and not _varies(
            pool["variance" if detector == "field" else detector][inside]
        ):
            ranks = none(CONSTANT[detector])
        else:
            ranks = auroc(wrong, score[inside].astype(np.float64), draws=within, what=WHAT[area])
        found[f"error_auroc_{detector}_{area}"] = ranks
        found[f"augrc_{detector}_{area}"] = (
            ranks
            if ranks.rows is None or rate.rows is None
            else Sampled(rows=augrc_of_ranks(rate.rows, ranks.rows))
        )
    return found


def _varies(value: np.ndarray) -> bool:
    return bool((value != value[0]).any())


def _all_undefined(reason: str, *, areas: Sequence[Area] = AREAS) -> dict[str, Sampled]:
    names = [
        name
        for area in areas
        for name in (
            f"error_rate_{area}",
            *(f"{what}_{d}_{area}" for d in DETECTORS for what in ("error_auroc", "augrc")),
        )
    ]
    return dict.fromkeys(names, none(reason))
