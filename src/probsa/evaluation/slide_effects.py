"""What each slide of a patient contributes: its share of the attention, and the change without it.

The other slides keep their instances and their graph; no edge joins two slides. The noise of the
samples is that of the same patient, so that the difference is due to the slide.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ..core import Bag, select_instances, write_csv
from .faithfulness import class_of
from .prediction import Prediction
from .predictor import Predictor
from .verdicts import response

SLIDES = "slides.csv"
"""The table of the slides in a folder of predictions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlideEffect:
    """A row of the table: a slide of a patient."""

    bag: str
    slide: str
    instances: int
    share: float
    """Its share of the attention of the patient."""
    contribution: float | None
    """What its instances add to the logit, which has no bias here; None without a closed form."""
    prediction: float
    """The patient's number: p of the class or finding, mean grade, mean, or risk."""
    prediction_without: float | None
    """The same without this slide; None where too few instances remain."""
    change: float | None
    """`prediction` minus `prediction_without`: positive if the slide raises it."""


def slide_effects(predictor: Predictor, bag: Bag, p: Prediction) -> list[SlideEffect]:
    """Return a row for each slide of a patient, the highest share first; one prediction for each.

    Args:
        predictor: the model.
        bag: the slides of a patient.
        p: the prediction of the bag.
    """
    assert bag.slide is not None
    column, whole = class_of(p), response(p, column=class_of(p))
    rows = torch.arange(len(bag))
    found = []
    for name, share in p.slide_shares().items():
        others = rows[bag.slide != bag.slides.index(name)]
        without = None
        if len(others) >= predictor.model.min_instances:
            rest = select_instances(bag, others)
            (left,) = predictor.predict([rest], parts=True)
            without = response(left, column=column)
        found.append(
            SlideEffect(
                bag=p.name,
                slide=name,
                instances=len(bag) - len(others),
                share=share.share,
                contribution=share.contribution,
                prediction=whole,
                prediction_without=without,
                change=None if without is None else whole - without,
            )
        )
    return found


def with_slide_effects(
    predictor: Predictor,
    bags: Iterable[Bag],
    *,
    predict: Callable[[Iterable[Bag]], Iterator[Prediction]],
    into: list[SlideEffect],
) -> Iterator[Prediction]:
    """Yield the predictions of `predict`, and append the slides of each patient with several.

    Args:
        predictor: the model.
        bags: the bags.
        predict: yields the prediction of each bag, in order.
        into: the rows so far.
    """
    several: dict[str, Bag] = {}

    def noted() -> Iterator[Bag]:
        for bag in bags:
            if len(bag.slides) > 1:
                several[bag.name] = bag
            yield bag

    for p in predict(noted()):
        bag = several.pop(p.name, None)
        if bag is not None:
            into += slide_effects(predictor, bag, p)
        yield p


def write_slide_effects(folder: Path, rows: Iterable[SlideEffect]) -> None:
    """Write the table into a folder of predictions."""
    header = list(SlideEffect.__dataclass_fields__)
    write_csv(folder / SLIDES, header, [asdict(row) for row in rows])
