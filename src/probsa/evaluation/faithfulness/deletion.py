"""How faithful a bag's map is to its prediction, without instance labels: curves of deletion.

Instances are removed in the order of the shown score, most relevant first and least relevant first.
The faithful map has a low first curve and a high second one. The insertion of the most relevant
instances into an empty bag is the second curve read backwards, since the same instances are kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.integrate import trapezoid

from ...core import (
    Bag,
    NonNegativeInt,
    PositiveInt,
    as_record,
)
from ...errors import InputError, UnknownName
from ...layers import PoolingRecord, recorded_pooling
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


@dataclass(frozen=True, kw_only=True, slots=True)
class DeletionCurves:
    """The probability of one bag's shown class while its instances are removed; of other tasks
    what their maps explain, see `response`."""

    name: str
    shown: MapScore
    """The score whose order is tested."""
    removal: Removal
    counts: Int[np.ndarray, " steps"]
    """Number of removed instances at each step, from 0."""
    instances: int
    most_first: Mapping[str, Float[np.ndarray, " steps"]] = field(default_factory=dict)
    """By order; float64."""
    least_first: Mapping[str, Float[np.ndarray, " steps"]] = field(default_factory=dict)
    rank_correlation: float | None = None
    """Spearman's, between the shown score and the exact drop without each single instance."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Why an order, or `rank_correlation`, is not there."""

    @property
    def areas(self) -> dict[str, float]:
        """Mean over the removed shares of `least_first` minus `most_first`, by order."""
        width = float(self.counts[-1] - self.counts[0])
        return {
            name: float(trapezoid(self.least_first[name] - most, self.counts) / width)
            for name, most in self.most_first.items()
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "shown": self.shown,
            "removal": self.removal,
            "instances": self.instances,
            "counts": self.counts.tolist(),
            "most_first": {k: v.tolist() for k, v in self.most_first.items()},
            "least_first": {k: v.tolist() for k, v in self.least_first.items()},
            "rank_correlation": self.rank_correlation,
            "missing": dict(self.missing),
        }

    @classmethod
    def from_dict(cls, name: str, values: Mapping[str, Any]) -> "DeletionCurves":
        """Read what `to_dict` returned.

        Raises:
            InputError: something is missing, or does not fit the rest.
        """
        where = f"the curves of bag {name!r}"
        stored = as_record(_StoredCurves, values, where=where)
        counts = np.array(stored.counts, dtype=np.int64)
        steps = len(counts)
        ascending = steps > 1 and counts[0] >= 0 and bool((np.diff(counts) > 0).all())
        if not ascending or counts[-1] > stored.instances:
            raise InputError(f"{where}: counts are not ascending numbers of instances")
        both = (stored.most_first, stored.least_first)
        if both[0].keys() != both[1].keys():
            raise InputError(f"{where}: most_first and least_first have other orders")
        if any(len(v) != steps for curves in both for v in curves.values()):
            raise InputError(f"{where}: expected {steps} probabilities in each curve")
        most, least = (
            {k: np.array(v, np.float64) for k, v in c.items() if k in REMOVAL_ORDERS} for c in both
        )
        return cls(
            name=name,
            shown=stored.shown,
            removal=stored.removal,
            counts=counts,
            instances=stored.instances,
            rank_correlation=stored.rank_correlation,
            missing=stored.missing,
            most_first=most,
            least_first=least,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _StoredCurves:
    """The curves of a bag as they are stored."""

    shown: MapScore
    removal: Removal
    instances: PositiveInt
    counts: tuple[NonNegativeInt, ...]
    most_first: dict[str, tuple[float, ...]]
    least_first: dict[str, tuple[float, ...]]
    rank_correlation: float | None
    missing: dict[str, str]


def deletion_curves(
    predictor: Predictor,
    bag: Bag,
    *,
    shown: MapScore | None = None,
    orders: Sequence[RemovalOrder] = REMOVAL_ORDERS,
    shares: Sequence[float] = SHARES,
    samples: int = SAMPLES,
    seed: int = 0,
) -> tuple[Prediction, DeletionCurves]:
    """Predict a bag, and again while its instances are removed.

    Args:
        predictor: The trained model.
        bag: The bag, which needs an instance more than the model's smallest bag.
        shown: The score of the map; None for the model's own.
        orders: The orders in which instances are removed; `shown` is one of them.
        shares: Shares of the instances to remove.
        samples: Number of posterior samples of the closed form.
        seed: Seed of the random order.

    Returns:
        The prediction, and the curves; without any if the bag is too small, with the reason.

    Raises:
        UnknownName: The model does not have the score.
        BagError: The bag cannot be predicted.
    """
    with recorded_pooling(samples=samples) as records:
        (p,) = predictor.predict([bag])
    known = available_scores(p)
    if shown is not None and shown not in known:
        raise UnknownName("score", shown, known)
    removal: Removal = "pooling" if len(records) == len(predictor.new_to(bag.name)) else "bag"
    counts = _counts(len(bag), shares, least=max(1, predictor.model.min_instances))
    curves = DeletionCurves(
        name=p.name, shown=shown or known[0], removal=removal, counts=counts, instances=len(bag)
    )
    if len(counts) < 2:
        few = "1 instance" if len(bag) == 1 else f"{len(bag)} instances"
        reason = f"a bag of {few} has none that this model can do without"
        names = (*REMOVAL_ORDERS, "rank_correlation")
        return p, replace(curves, missing=dict.fromkeys(names, reason))
    return p, _with_curves(curves, predictor, bag, p, orders=orders, records=records, seed=seed)


def _with_curves(
    empty: DeletionCurves,
    predictor: Predictor,
    bag: Bag,
    p: Prediction,
    *,
    orders: Sequence[RemovalOrder],
    records: Sequence[PoolingRecord],
    seed: int,
) -> DeletionCurves:
    values = class_column(p, map_values(p, empty.shown))
    without, missing = _leave_one_out(predictor, bag, p)
    relevance = _relevance(bag, values, without, seed=seed)
    relevance = {name: v for name, v in relevance.items() if name in orders}
    ranked = [np.argsort(-v, kind="stable") for v in relevance.values()]
    if empty.removal == "pooling":
        after = _from_records(records, np.stack(ranked), empty.counts)
        if predictor.temperature != 1:
            after = scale_probabilities(after, temperature=predictor.temperature)
        most, least = after[..., p.of_task.column(p, after.shape[-1])]
    else:
        both = [*ranked, *(order[::-1] for order in ranked)]
        after = _by_prediction(predictor, bag, p, orders=both, counts=empty.counts)
        most, least = np.split(after, 2)
    correlation = None if without is None else rank_correlation(values, without)
    if without is not None and correlation is None:
        missing["rank_correlation"] = "all instances have the same score, or the same drop"
    return replace(
        empty,
        most_first=dict(zip(relevance, most, strict=True)),
        least_first=dict(zip(relevance, least, strict=True)),
        rank_correlation=correlation,
        missing=missing,
    )


def _counts(n: int, shares: Sequence[float], *, least: int) -> Int[np.ndarray, " steps"]:
    """Return the numbers to remove, from 0, so that `least` instances stay."""
    return np.unique([0, *(min(round(share * n), max(n - least, 0)) for share in shares)])


def _leave_one_out(
    predictor: Predictor, bag: Bag, p: Prediction
) -> tuple[Float[np.ndarray, " n"] | None, dict[str, str]]:
    """Return the drop of the probability without each instance, or the reason why not."""
    if p.leave_one_out is not None:
        return class_column(p, p.leave_one_out), {}
    n = len(bag)
    if n > LEAVE_ONE_OUT_UP_TO:
        reason = f"no closed form, and more than {LEAVE_ONE_OUT_UP_TO} instances to leave out"
        return None, dict.fromkeys(("leave_one_out", "rank_correlation"), reason)
    rows = np.arange(n)
    return drops_without(predictor, bag, p, (rows[rows != k] for k in range(n))), {}


def _relevance(
    bag: Bag,
    values: Float[np.ndarray, " n"],
    without: Float[np.ndarray, " n"] | None,
    *,
    seed: int,
) -> dict[RemovalOrder, Float[np.ndarray, " n"]]:
    """Return the scores that the orders follow."""
    relevance: dict[RemovalOrder, np.ndarray] = {"shown": values}
    if without is not None:
        relevance["leave_one_out"] = without
    relevance["random"] = random_order(bag, seed=seed).astype(np.float64)
    return relevance


def _from_records(
    records: Sequence[PoolingRecord],
    orders: Int[np.ndarray, "orders n"],
    counts: Int[np.ndarray, " steps"],
) -> Float[np.ndarray, "2 orders steps classes"]:
    """Return both curves of each order in closed form, the mean of all members."""
    index, steps = torch.from_numpy(orders), counts.tolist()
    after = [
        record.after_removal(index.to(record.bias.device), steps).detach().cpu().numpy()
        for record in records
    ]
    return np.mean(after, axis=0)


def _by_prediction(
    predictor: Predictor,
    bag: Bag,
    p: Prediction,
    *,
    orders: Sequence[Int[np.ndarray, " n"]],
    counts: Int[np.ndarray, " steps"],
) -> Float[np.ndarray, "orders steps"]:
    """Return the probabilities of the shortened bags, each of which is predicted."""
    column = p.of_task.column(p)
    kept = (order[count:] for order in orders for count in counts[1:])
    after = predicted_without(predictor, bag, kept=kept, column=column).reshape(len(orders), -1)
    return np.pad(after, ((0, 0), (1, 0)), constant_values=p.of_task.response(p, column))
