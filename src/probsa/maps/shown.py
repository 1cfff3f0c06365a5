"""Stage 10: which score a map shows, and the sentences below the map that say so and why."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ..core import TaskName
from ..errors import BagError, InputError
from ..evaluation import (
    MAP_SCORES,
    MapScore,
    MapScoreChoice,
    Prediction,
    Predictions,
    available_scores,
    drawable_scores,
    drawn_values,
)
from ..tasks import TASKS

ScoreChoice = MapScore | Literal["auto"]
SHOWN_KINDS: dict[str, MapScore] = {
    "share of the logit": "contribution",
    "class score, in logits": "evidence",
    "f > 0": "probability",
    "P(at least)": "grade",
}
"""`score_kind` of a prediction made by `showing`, which the maps print as the unit."""


def meaning(score: MapScore, *, task: TaskName = "binary", own: bool = False) -> str:
    """Return what a score says about an instance, in a sentence; empty for attention.

    Args:
        score: The score of the map.
        task: The task of the model, which says what evidence is for.
        own: Whether it is the model's own score, which is not compared with other classes.
    """
    words = TASKS[task].words
    up, down = words.towards
    if score == "contribution":
        said = (
            f"A contribution is the attention times the class score: red raises {words.raised}, "
            + ("blue lowers it.")
        )
        return said + _relative(task)
    if score == "evidence":
        said = f"Evidence is what the instance says on its own: red {up}, blue {down}."
        return said if own else said + _relative(task)
    if score == "probability":
        return f"The probability that the instance speaks for {words.aim}."
    if score == "grade":
        return (
            "Each map shows the probability of a grade or a higher one, for a bag that consists "
            "of this instance alone."
        )
    return ""


def _relative(task: TaskName) -> str:
    kind = TASKS[task]
    several = kind.unordered_classes and not kind.two_classes
    return " It is relative to the mean over the classes." if several else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """The score that the maps of a folder show."""

    score: MapScore | None
    """None: each prediction's own."""
    caption: str
    """Text below the maps; empty for folders without a choice."""


def showing(p: Prediction, score: MapScore | None) -> Prediction:
    """Return the prediction with a score in the place of the attention.

    Raises:
        InputError: the prediction does not have this score.
    """
    if score in (None, available_scores(p)[0]):
        return p
    values = drawn_values(p, score)
    kind = next(kind for kind, name in SHOWN_KINDS.items() if name == score)
    return replace(
        p, attention_mean=values, attention_variance=np.zeros_like(values), score_kind=kind
    )


def score_of(p: Prediction) -> MapScore:
    """Return which score is in the place of the attention."""
    own: MapScore = "evidence" if p.score_has_level else "attention"
    return SHOWN_KINDS.get(p.score_kind, own)


def resolve(table: Predictions, score: ScoreChoice) -> Shown:
    """Return what the maps of a predictions folder show.

    Args:
        table: The predictions.
        score: The score asked for; `auto`: the run's choice that is stored with the predictions,
            or the model's own score if none is stored.

    Raises:
        InputError: The predictions do not have this score.
    """
    choice = MapScoreChoice.of(table.metadata, where=table.folder / "predictions.json")
    known = _known(table)
    own = None if known is None else known[0]
    if score == "auto":
        if choice is None or choice.chosen not in MAP_SCORES:
            return Shown(score=None, caption=_of_other_tasks(table, own))
        said = meaning(choice.chosen, task=table.task, own=choice.chosen == own)
        return Shown(score=choice.chosen, caption=_sentence(f"{choice.reason}. {said}"))
    if known is not None and score not in known:
        raise InputError(
            f"the predictions in {table.folder} have no score {score!r}: they have "
            f"{', '.join(known)}"
        )
    if choice is None and score == own:
        return Shown(score=score, caption=_of_other_tasks(table, own))
    other = "" if choice is None else f" (the validation bags chose {choice.chosen})"
    said = meaning(score, task=table.task, own=score == own)
    return Shown(score=score, caption=_sentence(f"{score}: as asked for{other}. {said}"))


def _of_other_tasks(table: Predictions, own: MapScore | None) -> str:
    """Return the meaning of the model's own score, if it is evidence and the task has no class."""
    if own is None or table.of_task.unordered_classes:
        return ""
    return meaning(own, task=table.task, own=True)


def _sentence(text: str) -> str:
    return (text[0].upper() + text[1:]).strip()


def _known(table: Predictions) -> tuple[MapScore, ...] | None:
    """Return the scores of the first bag that can be read; None if there is none."""
    for bag in table.bags:
        try:
            return drawable_scores(table.instances(bag))
        except BagError:
            continue
    return None
