"""Predict some bags of a set, and write what is predicted."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from ..core import Bag, write_csv
from ..datasets import BagSet, PatientBags, Split
from ..errors import BagError, GraphError
from ..evaluation import (
    DISTANCE_VALIDATION_BAGS,
    SEEN_BY_ALL,
    DeletionCurves,
    MapScoreChoice,
    MeansOfRuns,
    Predictor,
    SlideEffect,
    TrainingDistance,
    predicted_with_curves,
    with_slide_effects,
    write_curves,
    write_predictions,
    write_slide_effects,
)
from ..tasks import Target
from ..training import as_label
from .mean_features import MeanFeatures, write_mean_features

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
    """Bags of the table of labels that the folder of features does not have."""
    notes: int = 0
    """Number of bags with remarks in `notes.json`."""
    new_missing: Mapping[str, int] = field(default_factory=dict)
    """How often a covariate is missing that no training patient lacked; it counts as average."""


@dataclass(frozen=True, slots=True)
class BagSelection:
    """Some bags of a set, and how they are compared with those of the training."""

    bags: BagSet
    names: Sequence[str]
    compared: bool = False
    """Whether the bags' metadata are compared with those of the training bags."""
    strict: bool = True
    """Whether bags with other metadata are left out."""
    distance: TrainingDistance | MeansOfRuns | None = None
    """What the bags' distances from training are computed with."""
    rival: MeanFeatures | None = None
    """What also predicts the bags, from the mean of their features."""

    def difference(self, name: str, predictor: Predictor) -> str | None:
        """Return how the metadata of a bag differ from those of the training bags, or None."""
        if not self.compared:
            return None
        try:
            return predictor.difference(name, self.bags.metadata(name))
        except BagError:  # reading the bag reports the problem
            return None


class _Reading:
    """Reads the selected bags one by one, and notes what becomes of them."""

    def __init__(
        self,
        predictor: Predictor,
        selection: BagSelection,
        *,
        targets: Mapping[str, Target | None],
        on_bag: OnBag | None,
    ) -> None:
        self.predictor, self.selection, self.on_bag = predictor, selection, on_bag
        self.targets = targets
        self.failures: Failures = []
        self.other: Failures = []
        self.details: dict[str, dict[str, Any]] = {}
        self.means: dict[str, Tensor] = {}

    def bags(self) -> Iterator[Bag]:
        """Yield the bags that can be read and may be predicted.

        Raises:
            BagError: there are none.
        """
        names = self.selection.names
        for done, name in enumerate(names, 1):
            try:
                yield self._bag(name)
            except (BagError, GraphError) as e:
                self.failures.append((name, str(e)))
            if self.on_bag is not None:
                self.on_bag(done, len(names))
        if self.failures and len(self.failures) == len(names):
            first, reason = self.failures[0]
            raise BagError(
                f"none of the {len(names)} bags of {self.selection.bags.folder} can be predicted. "
                f"{first!r}: {reason}"
            )

    def _bag(self, name: str) -> Bag:
        difference = self.selection.difference(name, self.predictor)
        if difference is not None and self.selection.strict:
            raise BagError(difference)
        if not self.predictor.new_to(name):
            raise BagError(SEEN_BY_ALL)
        bag = self.selection.bags.bag(name)
        self.predictor.check(bag)
        details = self.details.setdefault(name, {})
        if self.selection.distance is not None:
            details |= self.selection.distance.scores(bag)
        if isinstance(self.selection.bags, PatientBags):
            details["slides_expected"] = self.selection.bags.slide_counts(name)[1]
        if self.selection.rival is not None:
            self.means[name] = bag.x.double().mean(0)
        if difference is not None:
            self.other.append((name, difference))
        return replace(bag, y=as_label(self.targets.get(name)))


def predict_bags(  # noqa: PLR0913 - the options are independent
    predictor: Predictor,
    selection: BagSelection,
    *,
    out: Path,
    labels: Mapping[str, Target | None],
    split: Split | None,
    threshold: float | None,
    overwrite: bool,
    on_bag: OnBag | None,
    faithfulness: bool = False,
    slides: bool = True,
    more: OnFolder | None = None,
) -> Predicted:
    """Predict bags, and write the predictions and the reasons why others have none.

    The folder `out` appears when everything is in it; `more` writes further files into it.

    Raises:
        BagError: none of the bags can be predicted.
        OutputExists: see `write_predictions`.
    """
    reading = _Reading(predictor, selection, targets=labels, on_bag=on_bag)
    curves: list[DeletionCurves] | None = [] if faithfulness else None
    effects: list[SlideEffect] | None = [] if slides else None
    predict = predictor.predict
    if curves is not None:
        predict = partial(predicted_with_curves, predictor, into=curves)
    failures = reading.failures
    predictions = with_slide_effects(
        predictor,
        reading.bags(),
        predict=predict,
        into=effects,
    )

    def others(new: Path) -> None:
        if curves is not None:
            write_curves(new, curves)
        if selection.rival is not None:
            write_mean_features(new, selection.rival, reading.means, classes=predictor.classes)
        if effects:
            write_slide_effects(new, effects)
        if failures:
            rows = [{"bag": b, "reason": r} for b, r in failures]
            write_csv(new / "failed.csv", ["bag", "reason"], rows)
        if more is not None:
            more(new)

    write_predictions(
        out,
        (replace(p, **reading.details.pop(p.name, {})) for p in predictions),
        labels={n: labels.get(n) for n in selection.names},
        parts=_parts(predictor, selection.names, split),
        classes=predictor.classes,
        threshold=threshold,
        metadata=predictor.metadata | _compared(selection.distance),
        overwrite=overwrite,
        more=others,
    )
    predicted = len(selection.names) - len(failures)
    return Predicted(folder=out, bags=predicted, failures=failures, other=reading.other)


def _compared(distance: TrainingDistance | MeansOfRuns | None) -> dict[str, int]:
    """Return the number of validation bags that distances of one run are compared with."""
    if not isinstance(distance, TrainingDistance):
        return {}
    return {DISTANCE_VALIDATION_BAGS: len(distance.bags.reference)}


def _parts(predictor: Predictor, names: Sequence[str], split: Split | None) -> dict[str, str]:
    """Return the part of the run's split that each bag belongs to."""
    parts = {n: "new" if split is None else split.part_of(n) for n in names}
    if any(predictor.seen):  # runs that are combined
        return {n: "test" if part == "test" else "new" for n, part in parts.items()}
    return parts


def note_map_score(predictor: Predictor, chosen: MapScoreChoice | None) -> None:
    """State in the metadata of the predictions which score their maps show."""
    if chosen is not None:
        predictor.metadata["map_score"] = asdict(chosen)
