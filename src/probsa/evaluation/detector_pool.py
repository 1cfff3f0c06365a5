"""The errors and the detectors of errors of many bags' instances, concatenated."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from ..core import seed_of
from .metrics import NO_VARIANCE
from .neighbours import Neighbours, near_boundary
from .prediction import Prediction
from .random_field import field_on
from .scores import VARIANCE_PARTS, class_column, doubt, instance_evidence, instance_variances

BOUNDARY_STEPS = 2
ONE_REPLICATE = "one replicate has no s.d. over replicates"
ONE_MODEL = "one model has no variance between members"


def detector_pool(
    predictions: Sequence[Prediction],
    *,
    graphs: Mapping[str, Neighbours | str],
    stds: Mapping[str, Float[np.ndarray, " n"]] | None = None,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Return the errors and every detector of the labelled instances of all bags, concatenated.

    `bag` is the index of an instance's bag, `wrong` says whether its call is wrong. Detectors that
    these bags do not have are missing, with the reason in `missing_detectors`.

    Args:
        predictions: bags with instance labels, at least one.
        graphs: the graph of each bag, or the reason why it is unknown; without graphs, the
            detectors that need them are missing.
        stds: the result of `std_over_replicates`; None with a single replicate.
        seed: seed of the random map.
    """
    no_graph = no_graph_reason(graphs)
    members = all(p.variance_between is not None for p in predictions)
    columns: dict[str, list[np.ndarray]] = {}
    for b, p in enumerate(predictions):
        graph = graphs.get(p.name)
        bag_columns = _columns(
            p,
            graph=None if no_graph or isinstance(graph, str) else graph,
            std=None if stds is None else stds[p.name],
            seed=seed,
        )
        if not members:
            del bag_columns["doubt_between"]
        bag_columns["bag"] = np.full(len(p.degree), b)
        known = np.asarray(p.instance_labels) >= 0
        for name, value in bag_columns.items():
            columns.setdefault(name, []).append(value[known])
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def missing_detectors(pool: Mapping[str, np.ndarray], *, no_graph: str) -> dict[str, str]:
    """Return why detectors of a `detector_pool` are missing or undefined, by detector.

    no_graph: the reason why bags have no graph.
    """
    reasons = {
        "edge": no_graph,
        "field": no_graph,
        "seeds": ONE_REPLICATE,
        "doubt_between": ONE_MODEL,
    }
    missing = {name: reason for name, reason in reasons.items() if name not in pool}
    for part in VARIANCE_PARTS:
        name = "doubt" if part == "total" else f"doubt_{part}"
        if name in pool and not pool[f"variance_{part}"].any():
            missing[name] = NO_VARIANCE
    return missing


def no_graph_reason(graphs: Mapping[str, Neighbours | str]) -> str | None:
    """Return why the graph of some bag is unknown; None if all are known."""
    return next((g for g in graphs.values() if isinstance(g, str)), None)


def _columns(
    p: Prediction,
    *,
    graph: Neighbours | None,
    std: Float[np.ndarray, " n"] | None,
    seed: int,
) -> dict[str, np.ndarray]:
    """Return the detectors (high values: probably wrong) and the errors, one per instance."""
    s, variance = instance_evidence(p), instance_variances(p)
    weight = class_column(p, p.weight_mean)
    labels = np.asarray(p.instance_labels)
    columns = {
        "wrong": (s > 0) != (labels > 0),
        "variance": variance,
        **{
            "doubt" if part == "total" else f"doubt_{part}": doubt(p, part=part)
            for part in VARIANCE_PARTS
        },
        **{f"variance_{part}": instance_variances(p, part=part) for part in VARIANCE_PARTS},
        # The same order as 1/degree, but finite for an instance without neighbours.
        "degree": -p.degree.astype(np.float64),
        "margin": -np.abs(s),
        "entropy": -weight * np.log(np.maximum(weight, np.finfo(np.float64).tiny)),
    }
    if graph is not None:
        columns["edge"] = -graph.to_edge
        columns["field"] = field_on(graph.cells, variance, seed=seed_of(seed, "field", p.name))
        columns["boundary"] = near_boundary(labels, edges=graph.edges, steps=BOUNDARY_STEPS)
    if std is not None:
        columns["seeds"] = std
    return columns
