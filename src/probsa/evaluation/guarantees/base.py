"""What is requested, what a guarantee is, and means in which each group (patient) counts once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Shaped

from ...errors import InputError
from ...statistics import Metric, group_shares
from ..context import Context

SetScore = Literal["lac", "aps"]
"""The score of a class: 1 - p, or the probability of the more probable classes and a random part
of its own. Of a number: the distance from the predicted mean, or that in predicted standard
deviations."""
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
class GuaranteeOptions:
    """The requested levels; None for what is not requested.

    Raises:
        InputError: a level is not between 0 and 1, or none is given.
    """

    coverage: float | None = None
    """Probability that the set of a bag contains its class, or the interval its number."""
    max_error: float | None = None
    """Largest error rate of the calls that are accepted."""
    calibration: Path | None = None
    """Predictions folder of the calibration bags; None for the validation bags of the folder."""
    per_class: bool = False
    """Whether coverage holds within each class."""
    score: SetScore = "lac"

    def __post_init__(self) -> None:
        for flag, value in (("--coverage", self.coverage), ("--max-error", self.max_error)):
            if value is not None and not 0 < value < 1:
                raise InputError(f"{flag} is {value:g}; expected a number between 0 and 1")
        if self.coverage is None and self.max_error is None:
            raise InputError("no guarantee is requested: give --coverage or --max-error")


Means = Mapping[str, tuple[Shaped[np.ndarray, " bags"], Shaped[np.ndarray, " bags"]]]
"""Values of bags and their weights, by the name of their mean."""


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
    means: Callable[[], Means]
    """Compares the promise with the labels of the bags, which nothing else uses."""

    def metrics(self, bags: Context) -> dict[str, Metric]:
        """Return Σ weight · value / Σ weight of each of `means`, in the data and each resample."""
        return {
            name: Metric.of(bags.draws.ratio(weight * value, weight), reason="no such bags")
            for name, (value, weight) in self.means().items()
        }


def shares(
    bags: Context, *, among: Bool[np.ndarray, " bags"] | None = None
) -> Float[np.ndarray, " bags"]:
    """Return the share of each bag in its group; bags that are not `among` them have none."""
    rows = np.arange(len(bags.rows)) if among is None else np.flatnonzero(among)
    found = np.zeros(len(bags.rows))
    found[rows] = group_shares([bags.groups[i] for i in rows])[0]
    return found


def metric_line(name: str, metric: Metric) -> str:
    """Return a metric with its title."""
    title = TITLES.get(name, f"coverage of class {name.removeprefix('coverage_')}")
    return f"    {title}: {metric if metric.value is not None else f'- ({metric.reason})'}"
