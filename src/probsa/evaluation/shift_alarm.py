"""An alarm for bags that differ from the calibration bags, for which guarantees do not hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from ..statistics import ShiftTest, shift_test
from .accepted_calls import confidence
from .evaluated import Evaluated
from .tables import Predictions
from .truth import class_names

LEVEL = 0.05
"""Rate of false alarms."""
PERMUTATIONS = 999


@dataclass(frozen=True, kw_only=True, slots=True)
class ShiftAlarm:
    """The comparison of bags with the calibration bags; labels are not used."""

    columns: tuple[str, ...]
    test: ShiftTest

    @property
    def rings(self) -> bool:
        """Whether the bags are unlike the calibration bags."""
        return self.test.p_value <= LEVEL

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "alarm": self.rings,
            "p_value": self.test.p_value,
            "false_alarm_rate": LEVEL,
            "permutations": self.test.permutations,
            "distances": dict(zip(self.columns, self.test.distances, strict=True)),
        }

    def lines(self) -> list[str]:
        """Return the report as a sentence."""
        furthest = int(np.argmax(self.test.distances))
        values = (
            f"the largest distance of distributions is {self.test.distances[furthest]:.2f} "
            f"({_in_words(self.columns[furthest])}), p-value {self.test.p_value:.3f}"
        )
        if self.rings:
            return [
                f"ALARM: these bags differ from the calibration bags, so that the guarantees may "
                f"not hold: {values}; false alarms: {LEVEL:.0%}"
            ]
        return [f"no sign of a shift between calibration bags and these: {values}"]


def _in_words(column: str) -> str:
    """Return the name of a column for a sentence with a p-value."""
    return column.replace("p of class", "probability of class", 1)


def shift_alarm(evaluated: Evaluated, calibration: Evaluated) -> ShiftAlarm:
    """Test whether bags look like the calibration bags to the model.

    It compares the probabilities of the classes and the confidences, of other tasks what is
    predicted; the standard deviations; and the distance from the training bags where the
    predictions have one.
    """
    both = (calibration, evaluated)
    values = [_columns(e, e.rows) for e in both]
    names = tuple(name for name in values[0] if name in values[1])
    table = [np.stack([v[name] for name in names], axis=1) for v in values]
    groups = [g for e in both for g in e.groups(e.rows)]
    new = np.repeat([False, True], [len(t) for t in table])
    test = shift_test(
        np.concatenate(table),
        new=new,
        groups=groups,
        permutations=PERMUTATIONS,
        seed=evaluated.seed,
    )
    return ShiftAlarm(columns=names, test=test)


def _columns(evaluated: Evaluated, rows: Sequence[int]) -> dict[str, Float[np.ndarray, " bags"]]:
    std = evaluated.predictions.std[list(rows)]
    if not evaluated.predictions.of_task.has_classes:
        watched = evaluated.predictions.of_task.watched(evaluated.predictions.outputs)
        columns = {n: evaluated.output(n, rows) for n in watched}
        columns |= {"standard deviation of the attention": std[:, 0].astype(np.float64)}
        outlier = _outlier_distances(evaluated.predictions, rows)
        return columns if outlier is None else {**columns, "distance from training": outlier}
    names = class_names(evaluated.predictions)
    p = evaluated.p(rows)
    columns = {f"p of class {name}": p[:, c] for c, name in enumerate(names) if c > 0}
    columns |= {"confidence": confidence(evaluated, rows), "standard deviation": std.max(1)}
    outlier = _outlier_distances(evaluated.predictions, rows)
    return columns if outlier is None else {**columns, "distance from training": outlier}


def _outlier_distances(
    predictions: Predictions, rows: Sequence[int]
) -> Float[np.ndarray, " bags"] | None:
    if predictions.ood_distance is None:
        return None
    values = predictions.ood_distance[list(rows)].astype(np.float64)
    return values if np.isfinite(values).all() else None
