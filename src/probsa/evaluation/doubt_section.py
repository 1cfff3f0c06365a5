"""The section of a report on doubt: which scores find wrong calls of bags and of instances."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from rich.console import Console
from scipy.special import entr, ndtr

from ..statistics import Draws
from .detections import Detections, detect
from .detector_pool import ONE_MODEL, detector_pool, missing_detectors
from .error_detectors import INSTANCES_OF
from .evaluated import Evaluated
from .metrics import NO_VARIANCE, calls_and_margins, of_called_class
from .pools import NO_CALLS, NO_INSTANCE_LABELS, bag_draws, labelled, score_kind_of
from .scores import distance_ratio

INSTANCE_RESAMPLES = 500
"""Upper limit of the resamples for instances."""
BAG_TITLES = {
    "doubt": "P(wrong) = Φ(-|p - threshold|/s)",
    "spread": "s.d. of the probability, s",
    "within": "… within members",
    "between": "… between members",
    "margin": "-|p - threshold| (null)",
    "entropy": "entropy of the probability (null)",
    "ood": "distance from training",
}
INSTANCE_TITLES = {
    "doubt": "P(wrong) = Φ(-|s|/σ)",
    "doubt_within": "… with σ within members",
    "doubt_between": "… with σ between members",
    "variance": "σ²",
    "margin": "-|s| (null)",
    "entropy": "-w log w (null)",
    "ood": "distance from training",
}
SEVERAL_CLASSES = "it needs two classes"
NO_DISTANCE = "the predictions have no distances from training"


@dataclass(frozen=True, kw_only=True, slots=True)
class DoubtSection:
    """Detectors of wrong calls, at bags and at instances of positive bags."""

    bags: Detections
    instances: Detections | None
    reason: str | None = None
    """Why there is nothing on instances."""

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
        }

    def render(self, console: Console) -> None:
        """Print the metrics and the verdicts."""
        console.print(self.bags.grid(BAG_TITLES))
        console.print(self.bags.verdict, markup=False, soft_wrap=True)
        if self.instances is not None:
            console.print(self.instances.grid(INSTANCE_TITLES))
            console.print(self.instances.verdict, markup=False, soft_wrap=True)


def doubt_section(evaluated: Evaluated) -> DoubtSection:
    """Return the section of these predictions."""
    instances = _instances(evaluated)
    return DoubtSection(
        bags=_bags(evaluated),
        instances=None if isinstance(instances, str) else instances,
        reason=instances if isinstance(instances, str) else None,
    )


def _bags(evaluated: Evaluated) -> Detections:
    rows = list(evaluated.rows)
    table = evaluated.predictions
    y, p = evaluated.y(rows), evaluated.p(rows)
    two_classes = p.shape[1] == 2
    called, margin = calls_and_margins(
        p[:, 1:] if two_classes else p,
        threshold=evaluated.threshold,
        ordered=table.task == "ordinal",
    )

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
    pool = detector_pool(bags, graphs={})
    distances = [p.ood_distance for p in bags]
    if all(d is not None for d in distances):
        pool["ood"] = np.concatenate(
            [np.asarray(p.ood_distance)[np.asarray(p.instance_labels) >= 0] for p in bags]
        ).astype(np.float64)
    inside = flags[pool["bag"]]
    what = INSTANCES_OF["positive_bags"]
    if not inside.any():
        return f"no {what}"
    pool = {name: value[inside] for name, value in pool.items()}
    missing = missing_detectors(pool, no_graph="") | {"ood": NO_DISTANCE}
    if not pool["variance"].any():
        missing["variance"] = NO_VARIANCE
    detectors = {
        name: missing[name] if name not in pool or (name in missing and name != "ood")
        else pool[name].astype(np.float64)
        for name in INSTANCE_TITLES
    }  # fmt: skip
    return detect(
        pool["wrong"], detectors, draws=draws.with_data().for_items(pool["bag"]), what=what
    )
