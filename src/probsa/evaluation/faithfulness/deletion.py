"""How faithful a bag's map is to its prediction, without instance labels: curves of deletion.

Instances are removed in the order of the shown score, most relevant first and least relevant first.
The faithful map has a low first curve and a high second one. The insertion of the most relevant
instances into an empty bag is the second curve read backwards, since the same instances are kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from scipy.integrate import trapezoid

from ...core import Bag, NonNegativeInt, PositiveInt
from ...errors import InputError, UnknownName
from ...layers import recorded_pooling
from ..instances.measures import rank_correlation
from ..map_scores import MapScore, available_scores, map_values
from ..prediction import Prediction
from ..predictor import Predictor
from ..scores import class_column
from ..temperature import scale_probabilities
from .removal import drops_without, predicted_without, random_order

RemovalOrder = Literal["shown", "leave_one_out", "random"]
"""The shown score, and two rivals: the drop of the probability without the single instance, and
chance."""
REMOVAL_ORDERS: tuple[RemovalOrder, ...] = get_args(RemovalOrder)
Removal = Literal["pooling", "bag"]
"""`pooling`: instances are removed from the attention pooling, and the others keep their vectors
and attention logits; exact for all models with a closed form. `bag`: the model predicts the
shortened bag again, with its shortened graph."""

SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0)
"""Shares of the instances that are removed; enough of them stay for the model."""
SAMPLES = 32
"""Number of posterior samples that the closed form averages over: the prediction's first ones."""
LEAVE_ONE_OUT_UP_TO = 100
"""Largest bag whose instances are left out one by one if there is no closed form."""
RULE = (
    "probability of the shown class after a share of the instances is removed, most and least "
    "relevant first, by the shown score and by rivals (leave-one-out, random). area: mean over "
    "the shares of the curve of least relevant first minus that of most relevant first. No "
    "instance labels are used"
)
Curves = Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeletionCurves:
    """The probability of one bag's shown class while its instances are removed; of other tasks
    what their maps explain, see `Task.response`.

    Raises:
        InputError: the curves do not fit each other, as in a damaged file.
    """

    name: str
    shown: MapScore
    """The score whose order is tested."""
    removal: Removal
    instances: PositiveInt
    counts: tuple[NonNegativeInt, ...]
    """Number of removed instances at each step, from 0."""
    most_first: Curves = field(default_factory=dict)
    """The value at each step, by order."""
    least_first: Curves = field(default_factory=dict)
    rank_correlation: float | None = None
    """Spearman's, between the shown score and the exact drop without each single instance."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Why an order, or `rank_correlation`, is not there."""

    def __post_init__(self) -> None:
        ascending = list(self.counts) == sorted({*self.counts})
        if not ascending or self.counts[-1] > self.instances:
            raise InputError("counts are not ascending numbers of instances")
        if self.most_first.keys() != self.least_first.keys():
            raise InputError("most_first and least_first have other orders")
        steps = {len(v) for c in (self.most_first, self.least_first) for v in c.values()}
        if steps - {len(self.counts)}:
            raise InputError(f"expected {len(self.counts)} probabilities in each curve")

    @property
    def areas(self) -> dict[str, float]:
        """Mean over the removed shares of `least_first` minus `most_first`, by order."""
        width = float(self.counts[-1] - self.counts[0])
        return {
            name: float(trapezoid(np.subtract(self.least_first[name], most), self.counts) / width)
            for name, most in self.most_first.items()
        }


def deletion_curves(
    predictor: Predictor,
    bag: Bag,
    *,
    shown: MapScore | None = None,
    orders: Sequence[RemovalOrder] = REMOVAL_ORDERS,
) -> tuple[Prediction, DeletionCurves]:
    """Predict a bag, and again while its instances are removed.

    Args:
        predictor: The trained model.
        bag: The bag, which needs an instance more than the model's smallest bag.
        shown: The score of the map; None for the model's own.
        orders: The orders in which instances are removed; `shown` is one of them.

    Returns:
        The prediction, and the curves; without any if the bag is too small, with the reason.

    Raises:
        UnknownName: The model does not have the score.
        BagError: The bag cannot be predicted.
    """
    with recorded_pooling(samples=SAMPLES) as records:
        (p,) = predictor.predict([bag])
    known, n, task = available_scores(p), len(bag), p.of_task
    if shown is not None and shown not in known:
        raise UnknownName("score", shown, known)
    closed = len(records) == len(predictor.new_to(bag.name))
    most = max(n - max(1, predictor.model.min_instances), 0)
    counts = np.unique([0, *(min(round(share * n), most) for share in SHARES)]).tolist()
    curves = DeletionCurves(
        name=p.name, shown=shown or known[0], removal="pooling" if closed else "bag",
        instances=n, counts=tuple(counts),
    )  # fmt: skip
    if most == 0:
        few = "1 instance" if n == 1 else f"{n} instances"
        reason = f"a bag of {few} has none that this model can do without"
        names = (*REMOVAL_ORDERS, "rank_correlation")
        return p, replace(curves, missing=dict.fromkeys(names, reason))
    values = class_column(p, map_values(p, curves.shown))
    without, missing = _leave_one_out(predictor, bag, p), {}
    relevance = {"shown": values, "leave_one_out": without, "random": random_order(bag)}
    if isinstance(without, str):
        missing = dict.fromkeys(("leave_one_out", "rank_correlation"), without)
    correlation = None if isinstance(without, str) else rank_correlation(values, without)
    if correlation is None:
        missing.setdefault(
            "rank_correlation", "all instances have the same score, or the same drop"
        )
    ranked = {
        k: np.argsort(-v, kind="stable")
        for k, v in relevance.items()
        if k in orders and not isinstance(v, str)
    }
    if closed:
        index = torch.from_numpy(np.stack(list(ranked.values())))
        after = np.mean(
            [
                record.after_removal(index.to(record.bias.device), counts).detach().cpu().numpy()
                for record in records
            ],
            axis=0,
        )
        if predictor.temperature != 1:
            after = scale_probabilities(after, temperature=predictor.temperature)
        both = after[..., task.shown_column(p, after.shape[-1])]
    else:
        column = task.explained_column(p)
        both = [*ranked.values(), *(order[::-1] for order in ranked.values())]
        kept = (order[count:] for order in both for count in counts[1:])
        after = predicted_without(predictor, bag, kept=kept, column=column)
        after = after.reshape(2, len(ranked), -1)
        whole = np.full((2, len(ranked), 1), task.response(p, column))
        both = np.concatenate([whole, after], axis=2)
    of_orders = [{k: tuple(v) for k, v in zip(ranked, half.tolist(), strict=True)} for half in both]
    return p, replace(
        curves,
        most_first=of_orders[0],
        least_first=of_orders[1],
        rank_correlation=correlation,
        missing=missing,
    )


def _leave_one_out(predictor: Predictor, bag: Bag, p: Prediction) -> Float[np.ndarray, " n"] | str:
    """Return the drop of the probability without each instance, or the reason why not."""
    if p.leave_one_out is not None:
        return class_column(p, p.leave_one_out)
    if len(bag) > LEAVE_ONE_OUT_UP_TO:
        return f"no closed form, and more than {LEAVE_ONE_OUT_UP_TO} instances to leave out"
    rows = np.arange(len(bag))
    return drops_without(predictor, bag, p, (rows[rows != k] for k in rows))
