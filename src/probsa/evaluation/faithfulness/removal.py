"""What a model predicts of a bag without some of its instances."""

from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Float, Int

from ...core import Bag, random_stream, select_instances
from ..prediction import Prediction
from ..predictor import Predictor


def predicted_without(
    predictor: Predictor, bag: Bag, *, kept: Iterable[Int[np.ndarray, " rows"]], column: int
) -> Float[np.ndarray, " subsets"]:
    """Return the number that maps explain, see `Task.response`, of some subsets of a bag.

    Args:
        predictor: The trained model.
        bag: The bag.
        kept: The rows of the instances of each subset, which keep their order in the bag.
        column: The class or finding.
    """
    # one at a time: copies of a large slide would fill the memory
    subsets = (select_instances(bag, torch.from_numpy(np.sort(rows))) for rows in kept)
    for member in predictor.members:
        member.model.explains = False  # shortened bags need no explanation
    try:
        found = [p.of_task.response(p, column) for p in predictor.predict(subsets, parts=True)]
    finally:
        for member in predictor.members:
            member.model.explains = True
    return np.array(found, dtype=np.float64)


def drops_without(
    predictor: Predictor, bag: Bag, p: Prediction, kept: Iterable[Int[np.ndarray, " rows"]]
) -> Float[np.ndarray, " subsets"]:
    """Return by how much the explained number of a prediction is lower for some subsets."""
    column = p.of_task.explained_column(p)
    after = predicted_without(predictor, bag, kept=kept, column=column)
    return p.of_task.response(p, column) - after


def random_order(bag: Bag) -> Int[np.ndarray, " n"]:
    """Return the instances of a bag in a random order, which its name decides."""
    chance = random_stream(0, "deletion", bag.name)
    return torch.randperm(len(bag), generator=chance).numpy()
