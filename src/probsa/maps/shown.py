"""Stage 10: what the maps of a predictions folder show: the score, the sentences below the map that
say so and why, and the fixed scale."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import BagError, InputError
from ..evaluation import (
    MAP_SCORES,
    MapScore,
    MapScoreChoice,
    Prediction,
    Predictions,
    drawable_scores,
    read_predictions,
)
from ..tasks import Task
from .quantities import showing
from .scale import ColourLimits, common_limits

ScoreChoice = MapScore | Literal["auto"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """The score that the maps of a folder show."""

    score: MapScore | None
    """None: each prediction's own."""
    caption: str
    """Text below the maps; empty for folders without a choice."""


def meaning(score: MapScore, task: Task, *, own: bool = False) -> str:
    """Return what a score says about an instance, in a sentence; empty for attention.

    The model's `own` score is not compared with other classes.
    """
    words = task.words
    up, down = words.towards
    several = task.unordered_classes and not task.two_classes
    relative = " It is relative to the mean over the classes." if several else ""
    return {
        "attention": "",
        "contribution": "A contribution is the attention times the class score: red raises "
        f"{words.raised}, blue lowers it.{relative}",
        "evidence": f"Evidence is what the instance says on its own: red {up}, blue {down}."
        + ("" if own else relative),
        "probability": f"The probability that the instance speaks for {words.aim}.",
        "grade": "Each map shows the probability of a grade or a higher one, for a bag that "
        "consists of this instance alone.",
    }[score]


def resolve(table: Predictions, score: ScoreChoice) -> Shown:
    """Return what the maps of a predictions folder show."""
    choice = MapScoreChoice.of(table.metadata, where=table.folder / "predictions.json")
    first = next(_readable(table), None)
    known = None if first is None else drawable_scores(first)
    own = None if known is None else known[0]
    if score != "auto" and known is not None and score not in known:
        raise InputError(
            f"the predictions in {table.folder} have no score {score!r}: they have "
            f"{', '.join(known)}"
        )
    chosen = choice is not None and choice.chosen in MAP_SCORES
    if (score == "auto" and not chosen) or (choice is None and score == own):
        # the model's own score needs words if it is evidence and the task has no class
        silent = own is None or table.of_task.unordered_classes
        caption = "" if own is None or silent else meaning(own, table.of_task, own=True)
        return Shown(score=None if score == "auto" else score, caption=caption)
    if score == "auto":
        assert choice is not None
        score, why = choice.chosen, choice.reason
    else:
        other = "" if choice is None else f" (the validation bags chose {choice.chosen})"
        why = f"{score}: as asked for{other}"
    text = f"{why}. {meaning(score, table.of_task, own=score == own)}".strip()
    return Shown(score=score, caption=text[0].upper() + text[1:])


def map_limits(folder: Path, *, score: MapScore | None = None) -> ColourLimits:
    """Return the fixed scale of a predictions folder, computed from all its bags.

    The limits of the mean are those of `score`; None: of the model's own score. Bags whose
    per-instance file is missing or damaged are skipped; drawing them reports the error.

    Raises:
        InputError, TableError: The folder is not a predictions folder.
        BagError: No bag has attention that could be read.
    """
    return common_limits(_readable(read_predictions(folder), score))


def _readable(table: Predictions, score: MapScore | None = None) -> Iterator[Prediction]:
    for bag in table.bags:
        try:
            p = showing(table.instances(bag), score)
        except (BagError, InputError):
            continue
        yield p
