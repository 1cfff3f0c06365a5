"""What each slide of a patient contributes: its share of the attention, and the change without it.

The other slides keep their instances and their graph; no edge joins two slides. The noise of the
samples is that of the same patient, so that the difference is due to the slide.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ..core import Bag, write_csv
from .faithfulness import predicted_without
from .prediction import Prediction
from .predictor import Predictor
from .storage import SLIDES


@dataclass(frozen=True, kw_only=True, slots=True)
class SlideEffect:
    """A row of the table: a slide of a patient."""

    bag: str
    slide: str
    instances: int
    share: float
    """Its share of the attention of the patient."""
    contribution: float | None
    """What its instances add to the logit, which has no bias here; None without a closed form, and
    where the columns of the logits are no classes."""
    of: str
    """The called class or most probable finding; for other tasks, the value (`Words.response`)."""
    prediction: float
    """The patient's number: p of the class or finding, mean grade, mean, or risk."""
    prediction_without: float | None
    """The same without this slide; None where too few instances remain."""
    change: float | None
    """`prediction` minus `prediction_without`: positive if the slide raises it."""


def slide_effects(predictor: Predictor, bag: Bag, p: Prediction) -> list[SlideEffect]:
    """Return a row for each slide of a patient, the highest share first."""
    assert bag.slide is not None
    task, column, of = p.of_task, 0, p.of_task.words.response
    if task.by_probability:
        column, classes = task.column(p, called=True), predictor.classes
        index = 1 if len(p.probability) == 1 and not task.has_findings else column
        of = classes[index] if index < len(classes) else f"class {index}"
    whole, found = task.response(p, column), []
    for name, share in p.slide_shares(column).items():
        others = np.flatnonzero(bag.slide.numpy() != p.slides.index(name))
        without = None
        if len(others) >= predictor.model.min_instances:
            without = float(predicted_without(predictor, bag, kept=[others], column=column)[0])
        found.append(
            SlideEffect(
                bag=p.name,
                slide=name,
                instances=len(bag) - len(others),
                share=share.share,
                contribution=share.contribution,
                of=of,
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
    into: list[SlideEffect] | None,
) -> Iterator[Prediction]:
    """Yield the predictions of `predict`, and append the slides of each patient with several.

    Args:
        predictor: the model.
        bags: the bags.
        predict: yields the prediction of each bag, in order.
        into: the rows so far; None to leave them out.
    """
    if into is None:
        yield from predict(bags)
        return
    several: dict[str, Bag] = {}

    def noted() -> Iterator[Bag]:
        for bag in bags:
            if len(bag.slides) > 1:
                several[bag.name] = bag
            yield bag

    for p in predict(noted()):
        if p.name in several:
            into += slide_effects(predictor, several.pop(p.name), p)
        yield p


def write_slide_effects(folder: Path | str, rows: Iterable[SlideEffect]) -> None:
    """Write the table into a folder of predictions."""
    folder = Path(folder)
    header = list(SlideEffect.__dataclass_fields__)
    write_csv(folder / SLIDES, header, [asdict(row) for row in rows])
