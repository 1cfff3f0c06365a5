"""Predict some bags of a set, and write what is predicted."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..core import Bag, write_csv
from ..datasets import BagSet, FeatureMetadata, Split
from ..errors import BagError
from ..evaluation import (
    SEEN_BY_ALL,
    DeletionCurves,
    Ensemble,
    MapScoreChoice,
    Prediction,
    Predictor,
    TrainingDistance,
    predicted_with_curves,
    write_curves,
    write_predictions,
)

Failures = list[tuple[str, str]]
"""(bag, reason) pairs of bags that could not be processed."""
OnBag = Callable[[int, int], None]
"""Called with (number of bags done, total number)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """The result of predicting a folder of bags."""

    folder: Path
    bags: int
    failures: Failures = field(default_factory=list)
    other: Failures = field(default_factory=list)
    """(bag, difference) pairs of bags that were predicted although they differ from every training
    bag."""


@dataclass(frozen=True, slots=True)
class BagSelection:
    """Some bags of a set, and the metadata that they are expected to have."""

    bags: BagSet
    names: Sequence[str]
    expected: FeatureMetadata | None = None
    strict: bool = True
    """Whether bags with other metadata are left out."""
    distance: TrainingDistance | None = None
    """What the bags' distances from training are computed with."""

    def difference(self, name: str) -> str | None:
        """Return how the metadata of a bag differ from what is expected, or None."""
        if self.expected is None:
            return None
        try:
            return self.expected.difference(self.bags.metadata(name))
        except BagError:  # reading the bag reports the problem
            return None


def predict_bags(  # noqa: PLR0913 - the options are independent
    predictor: Predictor,
    selection: BagSelection,
    *,
    out: Path,
    labels: dict[str, int | None],
    split: Split | None,
    threshold: float | None,
    overwrite: bool,
    on_bag: OnBag | None,
    faithfulness: bool = False,
) -> Predicted:
    failures: Failures = []
    other: Failures = []
    names = selection.names
    distances: dict[str, dict[str, Any]] = {}
    done = 0

    def readable() -> Iterator[Bag]:
        nonlocal done
        for name in names:
            difference = selection.difference(name)
            try:
                if difference is not None and selection.strict:
                    raise BagError(difference)
                if isinstance(predictor, Ensemble) and not predictor.may_predict(name):
                    raise BagError(SEEN_BY_ALL)
                bag = selection.bags.bag(name)
                if selection.distance is not None:
                    distances[name] = selection.distance.of(bag)
                yield bag
                if difference is not None:
                    other.append((name, difference))
            except BagError as e:
                failures.append((name, str(e)))
            done += 1
            if on_bag is not None:
                on_bag(done, len(names))
        if failures and len(failures) == len(names):
            first, reason = failures[0]
            raise BagError(
                f"none of the {len(names)} bags of {selection.bags.folder} can be predicted. "
                f"{first!r}: {reason}"
            )

    curves: list[DeletionCurves] | None = [] if faithfulness else None
    write_predictions(
        out,
        (
            replace(p, **distances.pop(p.name, {}))
            for p in _predictions(predictor, readable(), curves=curves)
        ),
        labels={n: labels.get(n) for n in names},
        parts=_parts(predictor, names, split),
        classes=predictor.classes,
        threshold=threshold,
        metadata=predictor.metadata,
        overwrite=overwrite,
    )
    if curves is not None:
        write_curves(out, curves)
    if failures:
        rows = [{"bag": b, "reason": r} for b, r in failures]
        write_csv(out / "failed.csv", ["bag", "reason"], rows)
    predicted = len(names) - len(failures)
    return Predicted(folder=out, bags=predicted, failures=failures, other=other)


def _parts(predictor: Predictor, names: Sequence[str], split: Split | None) -> dict[str, str]:
    """Return the part of the run's split that each bag belongs to."""
    parts = {n: "new" if split is None else split.part_of(n) for n in names}
    if isinstance(predictor, Ensemble) and any(predictor.seen):  # runs that are combined
        return {n: "test" if part == "test" else "new" for n, part in parts.items()}
    return parts


def _predictions(
    predictor: Predictor, bags: Iterable[Bag], *, curves: list[DeletionCurves] | None
) -> Iterator[Prediction]:
    """Predict bags, and append to `curves` those of the score that the maps of the run show."""
    if curves is None:
        return predictor.predict(bags)
    chosen = MapScoreChoice.from_dict(predictor.metadata.get("map_score"))
    shown = None if chosen is None else chosen.chosen
    return predicted_with_curves(predictor, bags, shown=shown, into=curves)


def note_map_score(predictor: Predictor, chosen: MapScoreChoice | None) -> None:
    """State in the metadata of the predictions which score their maps show."""
    if chosen is not None:
        predictor.metadata["map_score"] = chosen.to_dict()
