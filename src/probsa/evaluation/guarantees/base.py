"""What a guarantee is, and means over bags in which each group (patient) counts once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from ...statistics import Metric, group_shares
from ..context import Context

TITLES = {
    "coverage": "realised coverage (groups count once)",
    "coverage_of_bags": "… if bags count equally (not promised)",
    "set_size": "mean number of classes in a set",
    "empty_sets": "share of empty sets",
    "single_sets": "share of sets of one class",
    "larger_sets": "share of sets of several classes",
    "error_of_single_sets": "error rate of sets of one class (not promised)",
    "width": "mean width, in the unit of the target",
    "below": "share of values below their interval",
    "above": "share of values above their interval",
    "accepted": "share of accepted calls",
    "error_of_accepted": "their error rate",
    "error_of_all": "error rate of all calls",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Guarantee:
    """A promise about some bags that follows from other, labelled ones, the calibration bags."""

    key: str
    """Its key in the JSON report."""
    values: dict[str, Any]
    """What is promised, for JSON."""
    lines: Sequence[str]
    """What is promised, as sentences."""
    columns: dict[str, Sequence[str]]
    """The columns of a table of the bags."""
    summary: dict[str, Any]
    """What the JSON of `probsa sets` has besides `values`, such as numbers of bags."""
    metrics: Callable[[], dict[str, Metric]]
    """Compares the promise with the labels of the bags, which nothing else uses."""


def shares(
    bags: Context, *, among: Bool[np.ndarray, " bags"] | None = None
) -> Float[np.ndarray, " bags"]:
    """Return the share of each bag in its group; bags that are not `among` them have none."""
    rows = np.arange(len(bags.rows)) if among is None else np.flatnonzero(among)
    found = np.zeros(len(bags.rows))
    found[rows] = group_shares([bags.groups[i] for i in rows])[0]
    return found


def weighted_mean(
    bags: Context,
    value: Float[np.ndarray, " bags"] | Bool[np.ndarray, " bags"],
    weight: Float[np.ndarray, " bags"],
) -> Metric:
    """Return Σ weight · value / Σ weight over the bags, in the data and in each resample."""
    above, below = bags.draws.totals(np.stack([weight * value, weight], axis=1)).T
    with np.errstate(invalid="ignore", divide="ignore"):
        return Metric.of(above / below, reason="no such bags")


def metric_line(name: str, metric: Metric) -> str:
    """Return a metric with its title."""
    title = TITLES.get(name, f"coverage of class {name.removeprefix('coverage_')}")
    return f"    {title}: {metric if metric.value is not None else f'- ({metric.reason})'}"
