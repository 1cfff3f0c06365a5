"""The scores of the instances that a map can show, and which of them a prediction has."""

from typing import Literal, get_args

import numpy as np

from ..errors import InputError
from .prediction import Prediction

MapScore = Literal["attention", "contribution", "evidence", "probability", "grade"]
"""`attention`: the score that the model pools with, or that the method calls its attention.
`contribution`: what the instance adds to the bag's logit, its weight times its class score.
`evidence`: the class score of the instance, or the field f of a model whose f has a level.
`probability`: the probability that the instance is positive, see `Prediction`.
`grade`: for grades, the probability of each grade or a higher one of the instance on its own.
"""
MAP_SCORES: tuple[MapScore, ...] = get_args(MapScore)


def _scores(p: Prediction) -> dict[MapScore, np.ndarray]:
    """Return the scores that maps can show, with their values; the first is the model's own."""
    model_score: MapScore = "evidence" if p.score_has_level else "attention"
    scores: dict[MapScore, np.ndarray] = {model_score: p.attention_mean}
    explanations: dict[MapScore, np.ndarray | None] = {
        "contribution": p.contribution,
        "evidence": p.class_score,
        "probability": p.instance_probability,
        "grade": p.at_least,
    }
    for name, values in explanations.items():
        if name != model_score and values is not None:
            scores[name] = values
    return scores


def available_scores(p: Prediction) -> tuple[MapScore, ...]:
    """Return the scores that a prediction has; the first is the model's own.

    `grade` has a column for each step of the scale, so that it orders instances in several ways,
    and is therefore no candidate where one order is needed.
    """
    return tuple(name for name in _scores(p) if name != "grade")


def drawable_scores(p: Prediction) -> tuple[MapScore, ...]:
    """Return the scores that maps can show: the available ones and, for grades, `grade`."""
    return tuple(_scores(p))


def map_values(p: Prediction, score: MapScore) -> np.ndarray:
    """Return a score of each instance: (n,), or (n, classes) with a column per class.

    Raises:
        InputError: the prediction does not have this score.
    """
    scores = _scores(p)
    if score not in scores:
        raise InputError(
            f"the prediction of bag {p.name!r} has no score {score!r}: it has {', '.join(scores)}"
        )
    return scores[score]


def drawn_values(p: Prediction, score: MapScore) -> np.ndarray:
    """Return a score of each instance as maps show it, see `map_values`.

    A softmax ignores what is added to the logits of all classes. Contributions and class scores of
    three or more classes are therefore differences from their mean over the classes. Differences of
    contributions sum over the bag to the logit, without its bias, minus the mean logit.

    Raises:
        InputError: the prediction does not have this score.
    """
    values = map_values(p, score)
    if score not in ("contribution", "evidence") or score == available_scores(p)[0]:
        return values
    classes = values.shape[1] if values.ndim == 2 else 1
    # independent classes, of a sigmoid each, do not sum to 1
    is_softmax = classes == len(p.probability) and abs(float(p.probability.sum()) - 1) < 1e-3
    if not p.of_task.unordered_classes or classes < 3 or not is_softmax:
        return values
    return values - values.mean(1, keepdims=True)
