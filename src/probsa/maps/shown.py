"""Stage 10: which score a map shows, and the sentences below the map that say so and why."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ..errors import BagError, InputError
from ..evaluation import (
    MAP_SCORES,
    MapScore,
    MapScoreChoice,
    Prediction,
    Predictions,
    available_scores,
    map_values,
)

ScoreChoice = MapScore | Literal["auto"]
SHOWN_KINDS: dict[str, MapScore] = {
    "share of the logit": "contribution",
    "class score, in logits": "evidence",
    "f > 0": "probability",
}
"""`score_kind` of a prediction made by `showing`, which the maps print as the unit."""
MEANING: dict[MapScore, str] = {
    "attention": "",
    "contribution": "A contribution is the attention times the class score: red raises the logit "
    "of the class, blue lowers it.",
    "evidence": "Evidence is what the instance says on its own: red speaks for the class, blue "
    "against it.",
    "probability": "The probability that the instance speaks for the class.",
}


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
    values = map_values(p, score)
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
    if score == "auto":
        if choice is None or choice.chosen not in MAP_SCORES:
            return Shown(score=None, caption="")
        meaning = MEANING[choice.chosen]
        return Shown(score=choice.chosen, caption=_sentence(f"{choice.reason}. {meaning}"))
    known = _known(table)
    if known is not None and score not in known:
        raise InputError(
            f"the predictions in {table.folder} have no score {score!r}: they have "
            f"{', '.join(known)}"
        )
    if choice is None and known is not None and score == known[0]:
        return Shown(score=score, caption="")
    other = "" if choice is None else f" (the validation bags chose {choice.chosen})"
    return Shown(score=score, caption=_sentence(f"{score}: as asked for{other}. {MEANING[score]}"))


def _sentence(text: str) -> str:
    return (text[0].upper() + text[1:]).strip()


def _known(table: Predictions) -> tuple[MapScore, ...] | None:
    """Return the scores of the first bag that can be read; None if there is none."""
    for bag in table.bags:
        try:
            return available_scores(table.instances(bag))
        except BagError:
            continue
    return None
