"""The section of a report on doubt: which scores find wrong calls of bags and of instances."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float
from rich.console import Console
from scipy.special import entr, ndtr

from ..statistics import Draws
from .beyond_validation import BeyondValidation, beyond_validation
from .detections import Detections, detect
from .detector_pool import ONE_MODEL, detector_pool, no_graph_reason
from .error_detectors import INSTANCES_OF, detectors_of
from .evaluated import Evaluated
from .metrics import NO_VARIANCE, of_called_class
from .neighbours import neighbours_or_reason
from .pools import NO_CALLS, NO_INSTANCE_LABELS, bag_draws, labelled, score_kind_of
from .prediction import Prediction
from .scores import distance_ratio

INSTANCE_RESAMPLES = 500
"""Upper limit of the resamples for instances."""
BAG_TITLES = {
    "doubt": "P(wrong)",
    "spread": "s, the standard deviation of p",
    "within": "s within members",
    "between": "s between members",
    "ood": "distance from training",
    "margin": "−|p − t| (null)",
    "entropy": "entropy of p (null)",
}
SYMBOLS_OF_BAGS = (
    "P(wrong) = Φ(−|p − t|/s) with the probability p, the threshold t and the standard deviation s."
)
OF_SEVERAL_CLASSES = {
    "spread": "s of the called class",
    "margin": "margin of the call (null)",
}
"""The titles that differ with three classes or more."""
INSTANCE_TITLES = {
    "doubt": "P(wrong)",
    "doubt_within": "P(wrong) with σ within members",
    "doubt_between": "P(wrong) with σ between members",
    "variance": "σ²",
    "ood": "distance from training",
    "margin": "−|e| (null)",
    "entropy": "−w log w (null)",
    "degree": "1/degree (null)",
    "edge": "nearness to the edge of the tissue (null)",
    "field": "random map with the spectrum of σ² (null)",
}
SYMBOLS_OF_INSTANCES = (
    "P(wrong) = Φ(−|e|/σ) with the evidence e, which is the distance of the score from its "
    "threshold, and its standard deviation σ; w is the weight in the bag."
)
SEVERAL_CLASSES = "it needs two classes"
NO_DISTANCE = "the predictions have no distances from training"


@dataclass(frozen=True, kw_only=True, slots=True)
class DoubtSection:
    """Detectors of wrong calls, at bags and at instances of positive bags."""

    bags: Detections
    instances: Detections | None
    reason: str | None = None
    """Why there is nothing on instances."""
    beyond: BeyondValidation | None = None
    """None without distances from training."""

    @property
    def key(self) -> str:
        """Its key in the JSON report."""
        return "doubt"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "bags": self.bags.to_dict(),
            "instances": None if self.instances is None else self.instances.to_dict(),
            "instances_reason": self.reason,
            "beyond_validation": None if self.beyond is None else self.beyond.to_dict(),
        }

    @property
    def bag_titles(self) -> dict[str, str]:
        """The titles of the detectors of bags that are shown."""
        several = self.bags.auroc["doubt"].reason == SEVERAL_CLASSES
        return {**BAG_TITLES, **OF_SEVERAL_CLASSES} if several else BAG_TITLES

    @property
    def instance_titles(self) -> dict[str, str]:
        """The titles of the detectors of instances that are shown."""
        found = self.instances
        if found is None or found.auroc["doubt_between"].reason != ONE_MODEL:
            return INSTANCE_TITLES
        # of a single model, the part within members is the whole
        return {k: v for k, v in INSTANCE_TITLES.items() if k != "doubt_within"}

    def render(self, console: Console) -> None:
        """Print the metrics and the verdicts."""
        line = partial(console.print, markup=False, soft_wrap=True)
        self.bags.render(console, self.bag_titles)
        if self.bags.auroc["doubt"].reason != SEVERAL_CLASSES:
            line(SYMBOLS_OF_BAGS)
        if self.beyond is not None:
            line(self.beyond.sentence)
        if self.instances is not None:
            self.instances.render(console, self.instance_titles)
            line(SYMBOLS_OF_INSTANCES)


def doubt_section(evaluated: Evaluated) -> DoubtSection:
    """Return the section of these predictions."""
    instances = _instances(evaluated)
    return DoubtSection(
        bags=_bags(evaluated),
        instances=None if isinstance(instances, str) else instances,
        reason=instances if isinstance(instances, str) else None,
        beyond=beyond_validation(evaluated),
    )


def _bags(evaluated: Evaluated) -> Detections:
    rows = list(evaluated.rows)
    table = evaluated.predictions
    y, p = evaluated.y(rows), evaluated.p(rows)
    two_classes = p.shape[1] == 2
    called = table.of_task.calls(p, evaluated.threshold)
    margin = table.of_task.margins(p, evaluated.threshold)

    def deviation(
        value: Float[np.ndarray, "bags columns"] | None, *, missing: str
    ) -> Float[np.ndarray, " evaluated"] | str:
        if value is None:
            return missing
        chosen = value[rows]
        column = chosen[:, -1] if two_classes else of_called_class(chosen, called)
        return column if column.any() else NO_VARIANCE

    spread = deviation(table.std, missing=NO_VARIANCE)
    doubt: Float[np.ndarray, " bags"] | str = spread if two_classes else SEVERAL_CLASSES
    if not isinstance(doubt, str):
        doubt = ndtr(-distance_ratio(margin, doubt))
    draws = Draws.stratified(
        y,
        groups=evaluated.groups(rows),
        resamples=evaluated.bootstrap,
        seed=evaluated.seed,
    )
    return detect(
        called != y,
        {
            "doubt": doubt,
            "spread": spread,
            "within": deviation(table.std_within, missing=ONE_MODEL),
            "between": deviation(table.std_between, missing=ONE_MODEL),
            "margin": -margin,
            "entropy": entr(p).sum(1),
            "ood": NO_DISTANCE if table.ood_distance is None else table.ood_distance[rows],
        },
        draws=draws.with_data(),
        what="bags",
    )


def _instances(evaluated: Evaluated) -> Detections | str:
    """Return the detectors on instances of positive bags, or why there are none."""
    bags = labelled(list(evaluated.instances(evaluated.rows)))
    if not bags:
        return NO_INSTANCE_LABELS
    if score_kind_of(bags) == "relevance":
        return NO_CALLS
    flags = np.array([evaluated.label[p.name] > 0 for p in bags], dtype=bool)
    draws = bag_draws(
        [p.name for p in bags],
        flags,
        groups=evaluated.group,
        resamples=min(evaluated.bootstrap, INSTANCE_RESAMPLES),
        seed=evaluated.seed,
    )
    rows, what = np.flatnonzero(flags), INSTANCES_OF["positive_bags"]
    inside = [bags[b] for b in rows]
    if not any((np.asarray(p.instance_labels) >= 0).any() for p in inside):
        return f"no {what}"
    graphs = {p.name: neighbours_or_reason(p) for p in inside}
    pool = detector_pool(inside, graphs=graphs, seed=evaluated.seed)
    everything = np.ones(len(pool["bag"]), dtype=bool)
    found = dict(detectors_of(pool, everything, no_graph=no_graph_reason(graphs) or ""))
    detectors = {**found, "ood": _distances(inside)}
    return detect(
        pool["wrong"],
        {name: detectors[name] for name in INSTANCE_TITLES},
        draws=draws.with_data().for_items(rows[pool["bag"]]),
        what=what,
    )


def _distances(bags: Sequence[Prediction]) -> Float[np.ndarray, " n"] | str:
    """Return the distances from training of the labelled instances, or why there are none."""
    parts: list[np.ndarray] = []
    for p in bags:
        if p.ood_distance is None:
            return NO_DISTANCE
        parts.append(p.ood_distance[np.asarray(p.instance_labels) >= 0].astype(np.float64))
    return np.concatenate(parts)
