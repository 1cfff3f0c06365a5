"""Choose the score that a model's maps show, without instance labels: faithfulness by deletion.

A map should show what the prediction rests on. If the instances that a score ranks highest are
removed from the bag and the model predicts again, the probability of the predicted class drops the
more, the better the score. Bags that the model calls positive are used, because only their maps
claim to show evidence; labels are not needed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...core import Bag, TaskName, as_record, counted, random_stream
from ...errors import BagError
from ...tasks import TASKS
from ..map_scores import MapScore, available_scores, drawn_values
from ..prediction import Prediction
from ..predictor import Predictor
from ..scores import class_column
from .removal import drops_without, random_order

FRACTIONS = (0.05, 0.1, 0.2, 0.4)
"""Shares of the instances that are removed."""
MOST_BAGS = 50
FEWEST_BAGS = 2


def _rule(task: TaskName) -> str:
    which, response = "", TASKS[task].words.response
    if TASKS[task].unordered_classes:
        which, response = " that the model calls positive", "probability of the predicted class"
    return (
        "the score whose highest 5, 10, 20 and 40 % of instances, removed from validation "
        f"bags{which}, lower the {response} most on average. The model's own score stays unless "
        "another one lowers it more by over a standard error of the difference. Drops are given "
        "minus that of a random order, and no instance labels are used"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class MapScoreChoice:
    """Which score the maps of a run show, and why."""

    chosen: MapScore
    drops: dict[str, float]
    """Mean drop of the probability by score, minus the drop of a random order."""
    bags: int
    """Number of bags that the drops were measured on."""
    reason: str
    """The reason in words, for captions."""
    rule: str = _rule("binary")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def of(cls, metadata: Mapping[str, Any], *, where: Path | str) -> "MapScoreChoice | None":
        """Return the choice in the metadata of predictions; None if there is none.

        Raises:
            InputError: something else is stored in its place; the message starts with `where`.
        """
        stored = metadata.get("map_score")
        return None if stored is None else as_record(cls, stored, where=f"{where}: map_score")


def choose_map_score(
    predictor: Predictor,
    names: Sequence[str],
    *,
    read: Callable[[str], Bag],
    threshold: float | None,
) -> MapScoreChoice | None:
    """Choose the score of a run's maps by deletion in validation bags.

    Args:
        predictor: The trained model.
        names: The validation bags; at most 50 that are called positive are used, in random order.
        read: Reads a bag; bags that cannot be read are passed over.
        threshold: p(Y = 1) from which a bag is called positive; None for 0.5.

    Returns:
        The choice; None if there are no bags that could be predicted.
    """
    order = torch.randperm(len(names), generator=random_stream(0, "map score")).tolist()
    found: list[dict[str, float]] = []
    scores: tuple[MapScore, ...] = ()
    task: TaskName = "binary"
    for k in order:
        try:
            bag = read(sorted(names)[k])
            (p,) = predictor.predict([bag])
            scores, task = available_scores(p), p.task
            if len(scores) == 1:
                reason = f"{scores[0]}: the only score that this model has"
                return MapScoreChoice(chosen=scores[0], drops={}, bags=0, reason=reason)
            positive = p.of_task.called_positive(p.probability[None], threshold)[0]
            if positive and _counts(bag, predictor):
                found.append(deletion_drops(predictor, bag, p))
        except BagError:
            continue
        if len(found) == MOST_BAGS:
            break
    return choice_of(scores, found, task=task) if scores else None


def choice_of(
    scores: Sequence[MapScore], found: Sequence[Mapping[str, float]], *, task: TaskName = "binary"
) -> MapScoreChoice:
    """Return the choice that follows from the `deletion_drops` of several bags.

    scores: the scores of the model, its own first.
    """
    own, rule, bags = scores[0], _rule(task), len(found)
    if bags < FEWEST_BAGS:
        reason = (
            f"{own}: the model's own score, because only {counted(bags, 'validation bag')} "
            f"can be used (called positive), and {FEWEST_BAGS} are needed to compare scores"
        )
        return MapScoreChoice(chosen=own, drops={}, bags=bags, reason=reason, rule=rule)
    drops = {name: float(np.mean([d[name] - d["random"] for d in found])) for name in scores}
    best = max(scores, key=lambda name: drops[name])  # of equal ones, the model's own comes first
    gains = np.array([d[best] - d[own] for d in found])
    error = float(gains.std(ddof=1)) / bags**0.5
    chosen = best if gains.mean() > error else own
    # more decimals if different drops would look equal
    apart = [d for d in (2, 3, 4) if len({round(v, d) for v in drops.values()}) == len(drops)]
    shown = {
        name: f"{v:.{apart[0] if apart else 2}f}".replace("0.", ".", 1).replace("-", "−")
        for name, v in drops.items()
    }
    others = " and ".join(f"{shown[name]} for {name}" for name in scores if name != chosen)
    lowers = f"removing its top instances lowers the validation bags' {TASKS[task].words.response}"
    if chosen == best:
        reason = f"{chosen}: {lowers} most, by {shown[chosen]} against {others}"
    else:
        reason = f"{chosen}, the model's own score: {lowers} by {shown[chosen]}, not clearly less "
        reason += f"than {others}"
    return MapScoreChoice(chosen=chosen, drops=drops, bags=bags, reason=reason, rule=rule)


def deletion_drops(predictor: Predictor, bag: Bag, p: Prediction) -> dict[str, float]:
    """Return the mean drop of the predicted class's probability, by score and for `random`."""
    ranked = {
        name: np.argsort(-class_column(p, drawn_values(p, name)), kind="stable")
        for name in available_scores(p)
    }
    orders = {**ranked, "random": random_order(bag)}
    kept = (order[count:] for order in orders.values() for count in _counts(bag, predictor))
    found = drops_without(predictor, bag, p, kept).reshape(len(orders), -1).mean(1)
    return dict(zip(orders, found.tolist(), strict=True))


def _counts(bag: Bag, predictor: Predictor) -> list[int]:
    """Return how many instances are removed; enough of them stay for the model."""
    n, least = len(bag), max(1, predictor.model.min_instances)
    counts = {max(1, round(share * n)) for share in FRACTIONS}
    return sorted(count for count in counts if n - count >= least)
