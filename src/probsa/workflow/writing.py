"""Predict some bags of a set, and write what is predicted."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from ..core import Bag, write_csv
from ..datasets import BagSet, PatientBags, Split
from ..errors import BagError, GraphError
from ..evaluation import (
    SEEN_BY_ALL,
    VALIDATION_PATIENTS,
    DeletionCurves,
    MeansOfRuns,
    Predictor,
    TrainingDistance,
    at_chance,
    predicted_with_curves,
    write_curves,
    write_predictions,
)
from ..tasks import Target
from ..training import as_label
from .mean_features import MeanFeatures

Failures = list[tuple[str, str]]
"""(bag, reason) pairs of bags that could not be processed."""
OnBag = Callable[[int, int], None]
"""Called with (number of bags done, total number)."""
OnFolder = Callable[[Path], object]
"""Called with the folder of predictions before it appears."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """The result of predicting a folder of bags."""

    folder: Path
    bags: int
    failures: Failures = field(default_factory=list)
    other: Failures = field(default_factory=list)
    """(bag, difference) pairs of bags that were predicted although they differ from every training
    bag."""
    without_features: tuple[str, ...] = ()
    """Bags of the table of labels, and patched slides of the work folder, without features."""
    notes: int = 0
    """Number of bags with remarks in `notes.json`."""
    most_noted: str = ""
    """The most frequent of these remarks, in words."""
    new_missing: Mapping[str, int] = field(default_factory=dict)
    """How often a covariate is missing that no training patient lacked; it counts as average."""
    chance: str = ""
    """The remark that the model was not shown better than chance; empty if it was."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BagSelection:
    """Some bags of a set, how they are compared with those of the training, and what is written."""

    bags: BagSet
    names: Sequence[str]
    out: Path
    labels: Mapping[str, Target | None]
    groups: Mapping[str, str]
    """By bag, of those that have one; stored so that an evaluation resamples them."""
    split: Split | None
    threshold: float | None
    compared: bool = False
    """Whether the bags' metadata are compared with those of the training bags."""
    strict: bool = True
    """Whether bags with other metadata are left out."""
    distance: TrainingDistance | MeansOfRuns | None = None
    """What the bags' distances from training are computed with."""
    rival: MeanFeatures | None = None
    """What also predicts the bags, from the mean of their features."""
    faithfulness: bool = False
    overwrite: bool = True
    on_bag: OnBag | None = None
    more: OnFolder | None = None
    """What writes further files into the folder, which appears when everything is in it."""

    def predict(self, predictor: Predictor) -> Predicted:
        """Predict the bags, and write the predictions and the reasons why others have none.

        Raises:
            BagError: none of the bags can be predicted.
            OutputExists: see `write_predictions`.
        """
        failures: Failures = []
        other: Failures = []
        details: dict[str, dict[str, Any]] = {}
        means: dict[str, Tensor] = {}

        def read(name: str) -> Bag:
            difference = None
            if self.compared:
                with suppress(BagError):  # reading the bag reports the problem
                    difference = predictor.difference(name, self.bags.metadata(name))
            if difference is not None and self.strict:
                raise BagError(difference)
            if not predictor.new_to(name):
                raise BagError(SEEN_BY_ALL)
            bag = self.bags.bag(name)
            predictor.check(bag)
            details[name] = {} if self.distance is None else dict(self.distance.scores(bag))
            if name in self.groups:
                details[name]["group"] = self.groups[name]
            if isinstance(self.bags, PatientBags):
                details[name]["slides_expected"] = self.bags.slide_counts(name)[1]
            if self.rival is not None:
                means[name] = bag.x.double().mean(0)
            if difference is not None:
                other.append((name, difference))
            return replace(bag, y=as_label(self.labels.get(name)))

        def readable() -> Iterator[Bag]:
            for done, name in enumerate(self.names, 1):
                try:
                    yield read(name)
                except (BagError, GraphError) as e:
                    failures.append((name, str(e)))
                if self.on_bag is not None:
                    self.on_bag(done, len(self.names))
            if failures and len(failures) == len(self.names):
                raise BagError(
                    f"none of the {len(self.names)} bags of {self.bags.folder} can be predicted. "
                    f"{failures[0][0]!r}: {failures[0][1]}"
                )

        curves: list[DeletionCurves] = []
        predict = predictor.stream
        if self.faithfulness:
            predict = partial(predicted_with_curves, predictor, into=curves)
        predictions = predict(readable())
        parts = {n: "new" if self.split is None else self.split.part_of(n) for n in self.names}
        if any(predictor.seen):  # of runs that are combined, a bag is a test bag or a new one
            parts = {n: "test" if part == "test" else "new" for n, part in parts.items()}
        metadata = predictor.metadata
        if isinstance(self.distance, TrainingDistance):
            metadata = replace(
                metadata,
                distance_validation_bags=len(self.distance.bags.reference),
                distance_validation_patients=self.distance.about.get(VALIDATION_PATIENTS),
            )

        def others(new: Path) -> None:
            if self.faithfulness:
                write_curves(new, curves)
            if self.rival is not None:
                self.rival.write(new, means, classes=predictor.classes)
            if failures:
                rows = [{"bag": b, "reason": r} for b, r in failures]
                write_csv(new / "failed.csv", ["bag", "reason"], rows)
            if self.more is not None:
                self.more(new)

        write_predictions(
            self.out,
            (replace(p, **details.pop(p.name, {})) for p in predictions),
            labels={n: self.labels.get(n) for n in self.names},
            parts=parts,
            classes=predictor.classes,
            threshold=self.threshold,
            metadata=metadata.to_dict(),
            overwrite=self.overwrite,
            more=others,
        )
        predicted = len(self.names) - len(failures)
        return Predicted(
            folder=self.out,
            bags=predicted,
            failures=failures,
            other=other,
            chance=at_chance(metadata.reservations),
        )
