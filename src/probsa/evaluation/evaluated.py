"""What a section of a report is computed from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from .guarantee_options import GuaranteeOptions
from .prediction import Prediction
from .storage import Predictions


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    """The evaluated bags of a predictions folder, with their labels and groups."""

    predictions: Predictions
    part: str
    """test, val, train or all."""
    rows: tuple[int, ...]
    """The rows of the evaluated bags in `predictions`; all of them have a label."""
    label: Mapping[str, int]
    group: Mapping[str, str]
    """Groups (patients); a bag that is missing is its own group."""
    threshold: float | None
    """p(Y = 1) from which a bag is called positive; None with three classes or more."""
    bootstrap: int
    """Number of resamples of intervals; 0 for none."""
    seed: int
    guarantees: GuaranteeOptions | None = None
    """The requested guarantees; None for none."""
    targets: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """What each bag is labelled with, for tasks without classes: a value per target. `label` then
    holds 1 for bags with the event or a positive instance, else 0."""

    @property
    def names(self) -> list[str]:
        """The names of the evaluated bags."""
        return [self.predictions.bags[i] for i in self.rows]

    @property
    def validation_rows(self) -> tuple[int, ...]:
        """The rows of the labelled validation bags, unless these are evaluated themselves."""
        if self.part in ("val", "all"):
            return ()
        rows = enumerate(zip(self.predictions.bags, self.predictions.parts, strict=True))
        return tuple(i for i, (bag, part) in rows if part == "val" and bag in self.label)

    def y(self, rows: Sequence[int]) -> Int[np.ndarray, " bags"]:
        """Return the class index of the bags in these rows."""
        return np.array([self.label[self.predictions.bags[i]] for i in rows], dtype=np.int64)

    def values(self, rows: Sequence[int]) -> Float[np.ndarray, "bags targets"]:
        """Return the targets of the bags in these rows, for tasks without classes."""
        found = [self.targets[self.predictions.bags[i]] for i in rows]
        return np.array(found, dtype=np.float64)

    def output(self, name: str, rows: Sequence[int]) -> Float[np.ndarray, " bags"]:
        """Return a predicted column of the bags in these rows, for tasks without classes."""
        column = self.predictions.outputs.index(name)
        return self.predictions.probability[list(rows), column].astype(np.float64)

    def p(self, rows: Sequence[int]) -> Float[np.ndarray, "bags classes"]:
        """Return the probabilities of all classes, two columns for a single logit."""
        p = self.predictions.probability[list(rows)].astype(np.float64)
        return np.hstack([1 - p, p]) if p.shape[1] == 1 else p

    def groups(self, rows: Sequence[int]) -> list[str]:
        """Return the group of each bag."""
        names = [self.predictions.bags[i] for i in rows]
        return [self.group.get(name, name) for name in names]

    def instances(self, rows: Sequence[int]) -> Iterator[Prediction]:
        """Read the instances of the bags, one bag at a time; bags without any are left out."""
        for i in rows:
            name = self.predictions.bags[i]
            if self.predictions.instance_path(name).is_file():
                yield self.predictions.instances(name)
