"""How faithful maps are to predictions, without instance labels, and which score a map shows.

Instances are removed, most or least relevant first, and the model predicts again: a faithful map
has a low first curve and a high second one, which read backwards is that of inserting the most
relevant instances. Bags that the model calls positive count: only their maps claim evidence.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.integrate import trapezoid

from ..core import (
    Bag,
    NonNegativeInt,
    PositiveInt,
    TaskName,
    as_record,
    counted,
    random_stream,
    read_record,
    select_instances,
    write_json,
)
from ..errors import BagError, InputError, UnknownName
from ..layers import PoolingRecord, recorded_pooling
from ..statistics import ANY_VALUE, MEAN_CORRELATION, Draws, Metric, Scale
from ..tasks import TASKS
from .context import Context
from .instances.measures import rank_correlation
from .map_scores import MapScore, available_scores, drawn_values, map_values
from .metadata import MapScoreChoice
from .prediction import Prediction
from .predictor import Predictor
from .scores import class_column
from .section import Line, Panel, Section, SectionFigure, metric_grid
from .storage import FAITHFULNESS
from .temperature import scale_probabilities
from .words import shortened

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
ORDER_TITLES = {
    "shown": "the shown score",
    "leave_one_out": "the drop without the single instance",
    "random": "random order (null)",
}
TITLES = {
    **{f"area_{name}": f"area between the curves: {t}" for name, t in ORDER_TITLES.items()},
    **{f"gain_over_{k}": f"… minus that of: {ORDER_TITLES[k]}" for k in REMOVAL_ORDERS[1:]},
    "rank_correlation": "rank correlation with the drop without the single instance",
}
REMOVALS = {"pooling": "instances removed from the pooling", "bag": "shortened bags predicted"}
"""How instances are removed, in words."""
AGAIN = "predict again with --faithfulness"
LINES = {
    ("least_first", "shown"): "least relevant first",
    ("least_first", "random"): None,
    ("most_first", "shown"): "most relevant first",
    ("most_first", "random"): "random orders (null)",
}
"""The mean curves of the figure, with the labels of its legend."""
MEAN_SHARES = np.linspace(0, 0.9, 10)
"""Shares of the removed instances at which curves are averaged."""
TOP_SHARES = (0.05, 0.1, 0.2, 0.4)
"""Shares of the instances that are removed to choose the score of the maps."""
MOST_BAGS = 50
FEWEST_BAGS = 2


# Removal


def predicted_without(
    predictor: Predictor, bag: Bag, *, kept: Iterable[Int[np.ndarray, " rows"]], column: int
) -> Float[np.ndarray, " subsets"]:
    """Return the number that maps explain, see `Task.response`, of some subsets of a bag.

    kept: The rows of the instances of each subset, which keep their order in the bag.
    """
    # one at a time: copies of a large slide would fill the memory
    subsets = (select_instances(bag, torch.from_numpy(np.sort(rows))) for rows in kept)
    for member in predictor.members:
        member.model.explains = False  # shortened bags need no explanation
    try:
        predictions = predictor.stream(subsets, parts=True)
        responses = [p.of_task.response(p, column) for p in predictions]
    finally:
        for member in predictor.members:
            member.model.explains = True
    return np.array(responses, dtype=np.float64)


def drops_after_removal(
    predictor: Predictor,
    bag: Bag,
    p: Prediction,
    *,
    orders: Sequence[Int[np.ndarray, " n"]],
    counts: Sequence[int],
) -> Float[np.ndarray, "orders counts"]:
    """Return by how much the explained number drops without the first instances of each order."""
    column = p.of_task.column(p)
    kept = (order[count:] for order in orders for count in counts)
    after = predicted_without(predictor, bag, kept=kept, column=column)
    return p.of_task.response(p, column) - after.reshape(len(orders), len(counts))


def removable(predictor: Predictor, bag: Bag) -> int:
    """Return how many instances of a bag the model can do without."""
    return max(len(bag) - max(1, predictor.model.min_instances), 0)


def random_order(bag: Bag) -> Int[np.ndarray, " n"]:
    """Return the instances of a bag in a random order, which its name decides."""
    chance = random_stream(0, "deletion", bag.name)
    return torch.randperm(len(bag), generator=chance).numpy()


# Curves of deletion


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
        enough = len(self.counts) > (1 if self.most_first else 0)
        if not (ascending and enough and self.counts[-1] <= self.instances):
            raise InputError("counts are not ascending numbers of instances")
        if self.most_first.keys() != self.least_first.keys():
            raise InputError("most_first and least_first have other orders")
        curves = [*self.most_first.values(), *self.least_first.values()]
        for curve in curves:
            if not all(map(math.isfinite, curve)):
                raise InputError("a probability of a curve is not finite")
        for curve in curves:
            if len(curve) != len(self.counts):
                raise InputError(f"expected {len(self.counts)} probabilities in each curve")

    @property
    def areas(self) -> dict[str, float]:
        """Mean over the removed shares of `least_first` minus `most_first`, by order."""
        width = float(self.counts[-1] - self.counts[0])
        areas = {}
        for name, most_first in self.most_first.items():
            height = np.subtract(self.least_first[name], most_first)
            areas[name] = float(trapezoid(height, self.counts) / width)
        return areas


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
    bag = predictor.with_graph(bag)  # parts of it are predicted with parts of this graph
    with recorded_pooling(samples=SAMPLES) as records:
        (p,) = predictor.predict([bag])
    scores = available_scores(p)
    if shown is not None and shown not in scores:
        raise UnknownName("score", shown, scores)
    # every member that predicts the bag has recorded its pooling: there is a closed form
    closed_form = len(records) == len(predictor.new_to(bag.name))
    most_removed = removable(predictor, bag)
    counts = np.unique([min(round(share * len(bag)), most_removed) for share in SHARES]).tolist()
    curves = DeletionCurves(
        name=p.name,
        shown=shown or scores[0],
        removal="pooling" if closed_form else "bag",
        instances=len(bag),
        counts=tuple(counts),
    )
    if most_removed == 0:
        few = counted(len(bag), "instance")
        reason = f"a bag of {few} has none that this model can do without"
        names = (*REMOVAL_ORDERS, "rank_correlation")
        return p, replace(curves, missing=dict.fromkeys(names, reason))
    relevance = {"shown": class_column(p, map_values(p, curves.shown))}
    correlation = None
    missing: dict[str, str] = {}
    drops = _leave_one_out(predictor, bag, p)
    if isinstance(drops, str):
        missing = dict.fromkeys(("leave_one_out", "rank_correlation"), drops)
    else:
        relevance["leave_one_out"] = drops
        correlation = rank_correlation(relevance["shown"], drops)
        if correlation is None:
            missing["rank_correlation"] = "all instances have the same score, or the same drop"
    relevance["random"] = random_order(bag)
    ranked = {
        name: np.argsort(-values, kind="stable")
        for name, values in relevance.items()
        if name in orders
    }
    if closed_form:
        values = _values_by_closed_form(predictor, p, records, ranked=ranked, counts=counts)
    else:
        values = _values_of_shortened_bags(predictor, bag, p, ranked=ranked, counts=counts)
    most_first, least_first = values.tolist()
    return p, replace(
        curves,
        most_first=dict(zip(ranked, map(tuple, most_first), strict=True)),
        least_first=dict(zip(ranked, map(tuple, least_first), strict=True)),
        rank_correlation=correlation,
        missing=missing,
    )


Ranked = Mapping[str, Int[np.ndarray, " n"]]
"""The instances of a bag by falling relevance, by the name of the order."""


def _values_by_closed_form(
    predictor: Predictor,
    p: Prediction,
    records: Sequence[PoolingRecord],
    *,
    ranked: Ranked,
    counts: Sequence[int],
) -> Float[np.ndarray, "2 orders counts"]:
    """Return the value at each step, most and least relevant first, if only the pooling changes."""
    index = torch.from_numpy(np.stack(list(ranked.values())))
    members = []
    for record in records:
        after = record.after_removal(index.to(record.bias.device), counts)
        members.append(after.detach().cpu().numpy())
    values = np.mean(members, axis=0)
    if predictor.temperature != 1:
        values = scale_probabilities(values, temperature=predictor.temperature)
    return values[..., p.of_task.column(p, values.shape[-1])]


def _values_of_shortened_bags(
    predictor: Predictor,
    bag: Bag,
    p: Prediction,
    *,
    ranked: Ranked,
    counts: Sequence[int],
) -> Float[np.ndarray, "2 orders counts"]:
    """Return the value at each step, most and least relevant first, of bags that are predicted."""
    most_first = list(ranked.values())
    least_first = [order[::-1] for order in most_first]
    drops = drops_after_removal(
        predictor, bag, p, orders=[*most_first, *least_first], counts=counts[1:]
    )
    # at the first step nothing is removed, and nothing drops
    drops = np.pad(drops, ((0, 0), (1, 0))).reshape(2, len(ranked), -1)
    return p.of_task.response(p, p.of_task.column(p)) - drops


def _leave_one_out(predictor: Predictor, bag: Bag, p: Prediction) -> Float[np.ndarray, " n"] | str:
    """Return the drop of the probability without each instance, or the reason why not."""
    if p.leave_one_out is not None:
        return class_column(p, p.leave_one_out)
    if len(bag) > LEAVE_ONE_OUT_UP_TO:
        return f"no closed form, and more than {LEAVE_ONE_OUT_UP_TO} instances to leave out"
    each_first = [np.roll(np.arange(len(bag)), -k) for k in range(len(bag))]
    return drops_after_removal(predictor, bag, p, orders=each_first, counts=[1])[:, 0]


def predicted_with_curves(
    predictor: Predictor, bags: Iterable[Bag], *, into: list[DeletionCurves]
) -> Iterator[Prediction]:
    """Yield the prediction of each bag; append to `into` the curves of the score that maps show."""
    choice = predictor.metadata.map_score
    for bag in bags:
        p, curves = deletion_curves(predictor, bag, shown=None if choice is None else choice.chosen)
        into.append(curves)
        yield p


def write_curves(folder: Path, curves: Sequence[DeletionCurves]) -> None:
    """Write the curves of all bags to a folder of predictions."""
    bags = {}
    for of_bag in map(asdict, curves):
        bags[of_bag.pop("name")] = of_bag
    write_json(folder / FAITHFULNESS, {"rule": RULE, "samples": SAMPLES, "bags": bags})


def read_curves(folder: Path | str) -> dict[str, DeletionCurves] | None:
    """Read the curves of a folder of predictions by bag; None if it has none.

    Raises:
        InputError: The file is damaged.
    """
    folder = Path(folder)
    path = folder / FAITHFULNESS
    if not path.is_file():
        return None
    stored = read_record(_StoredCurves, path, advice=AGAIN)
    curves: dict[str, DeletionCurves] = {}
    for name, values in stored.bags.items():
        where = f"{path}: bag {name!r}"
        curves[name] = as_record(
            DeletionCurves, {**values, "name": name}, where=where, advice=AGAIN
        )
    return curves


@dataclass(frozen=True, kw_only=True, slots=True)
class _StoredCurves:
    """The content of the file of curves."""

    bags: dict[str, dict[str, Any]]


def faithfulness_section(context: Context) -> Section | None:
    """Summarise the stored curves; None if the predictions have none."""
    folder = context.predictions.path
    stored = None if folder is None else read_curves(folder)
    if stored is None:
        return None
    p = context.predictions.probability[list(context.rows)]
    called = context.task.called_positive(p, context.stated)
    positive_bags = [name for name, positive in zip(context.names, called, strict=True) if positive]
    stored_curves = [stored[name] for name in positive_bags if name in stored]
    curves = [c for c in stored_curves if c.most_first]
    removal = Counter(c.removal for c in curves)
    without = Counter(c.missing["shown"] for c in stored_curves if not c.most_first)
    metrics = mean_curves_metrics(
        curves,
        draws=context.resamples([c.name for c in curves], np.ones(len(curves))),
        response=MEAN_CORRELATION if context.task.by_probability else ANY_VALUE,
    )
    means = _mean_curves(curves)
    bags = len(curves)
    panel_title = f"{bags} bags that are called positive"
    area = metrics["area_shown"].value
    if area is not None:
        panel_title += f"\narea between the curves {area:.3f}"
    panel = Panel(
        title=panel_title,
        x="removed instances (%)",
        y="mean probability of the shown class",
        lines=means,
        xlim=(0.0, 90.0),
        ylim=(0.0, 1.0),
        between=("most_first", "least_first", "area between the curves"),
    )
    removals = " and ".join(REMOVALS[kind] for kind in removal) or "-"
    title = f"faithfulness of {counted(bags, 'bag')} ({removals})"
    return Section(
        key="faithfulness",
        values={
            "rule": RULE,
            "bags": bags,
            "shown": list(dict.fromkeys(c.shown for c in curves)),
            "removal": removal,
            "without": without,
            "metrics": metrics,
            "curves": {c.name: {"share": MEAN_SHARES, "probability": c.y} for c in means},
        },
        text=[
            metric_grid(title, metrics, titles=TITLES),
            *(f"{counted(n, 'bag')} without curves: {reason}" for reason, n in without.items()),
        ],
        figure=SectionFigure("deletion", [panel]) if means else None,
        metrics={"faithfulness": metrics},
    )


def mean_curves_metrics(
    curves: Sequence[DeletionCurves],
    *,
    draws: Draws,
    response: Scale,
) -> dict[str, Metric]:
    """Return the means over bags of the areas, of their gains and of the rank correlation.

    A mean is over the bags that have the value. `draws` are resamples of the bags with curves, and
    `response` is the scale of the areas between two curves.
    """
    if not curves:
        reason = "no evaluated bag that the model calls positive has curves"
        return dict.fromkeys(TITLES, Metric.undefined(reason))
    areas_of_bags = [c.areas for c in curves]
    areas = {
        order: np.array([of_bag.get(order, np.nan) for of_bag in areas_of_bags])
        for order in REMOVAL_ORDERS
    }
    ranks = np.array([c.rank_correlation for c in curves], dtype=np.float64)  # nan for None

    def mean(value: np.ndarray, order: str, scale: Scale) -> Metric:
        defined = np.isfinite(value)
        if not defined.any():
            reasons = (c.missing[order] for c in curves if order in c.missing)
            return Metric.undefined(next(reasons, ""))
        return Metric.of(
            draws.ratio(np.where(defined, value, 0.0), defined),
            support=draws.support({None: defined}),
            scale=scale,
        )

    metrics = {f"area_{order}": mean(area, order, response) for order, area in areas.items()}
    for rival in REMOVAL_ORDERS[1:]:
        gain = areas["shown"] - areas[rival]
        metrics[f"gain_over_{rival}"] = mean(gain, rival, response.of_differences)
    metrics["rank_correlation"] = mean(ranks, "rank_correlation", MEAN_CORRELATION)
    return metrics


def _mean_curves(curves: Sequence[DeletionCurves]) -> list[Line]:
    """Return the mean of each curve of `LINES` over the bags that have it."""
    means = []
    for (kind, order), label in LINES.items():
        values = []
        for c in curves:
            if order in c.most_first:
                shares = np.array(c.counts) / c.instances
                values.append(np.interp(MEAN_SHARES, shares, getattr(c, kind)[order]))
        if values:
            means.append(
                Line(
                    name=kind if order == "shown" else f"{kind}_{order}",
                    x=(100 * MEAN_SHARES).tolist(),
                    y=np.mean(values, 0).tolist(),
                    label=label,
                    style="main" if order == "shown" else "null",
                )
            )
    return means


# The score that maps show


def _rule(task: TaskName) -> str:
    response = TASKS[task].words.response
    bags = "validation bags"
    if TASKS[task].unordered_classes:
        response = "probability of the predicted class"
        bags = "validation bags that the model calls positive"
    return (
        f"the score that lowers the {response} most, on average, when the 5, 10, 20 and 40 % of "
        f"instances with the highest score are removed from {bags}. Another score replaces the "
        "model's own only if its drop is larger by more than one standard error of the difference. "
        "The drop of a random order is subtracted; instance labels are not used"
    )


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
    names = sorted(names)
    drops: list[dict[str, float]] = []
    scores: tuple[MapScore, ...] = ()
    for k in torch.randperm(len(names), generator=random_stream(0, "map score")).tolist():
        try:
            bag = read(names[k])
            (p,) = predictor.predict([bag])
            scores = available_scores(p)
            if len(scores) == 1:
                break
            stated = p.stated._replace(threshold=threshold)
            positive = p.of_task.called_positive(p.probability[None], stated)[0]
            if positive and removable(predictor, bag):
                drops.append(deletion_drops(predictor, bag, p))
        except BagError:
            continue
        if len(drops) == MOST_BAGS:
            break
    return choice_of(scores, drops, task=predictor.task) if scores else None


def choice_of(
    scores: Sequence[MapScore], drops_of_bags: Sequence[Mapping[str, float]], *, task: TaskName
) -> MapScoreChoice:
    """Return the choice that follows from the `deletion_drops` of several bags.

    scores: the scores of the model, its own first.
    """
    model_score = scores[0]
    bags = len(drops_of_bags)
    rule = _rule(task)
    if len(scores) == 1 or bags < FEWEST_BAGS:
        reason = f"{model_score}: the only score that this model has"
        if len(scores) > 1:
            reason = (
                f"{model_score}: the model's own score, because only "
                f"{counted(bags, 'validation bag')} can be used (called positive), and "
                f"{FEWEST_BAGS} are needed to compare scores"
            )
        return MapScoreChoice(chosen=model_score, drops={}, bags=bags, reason=reason, rule=rule)
    drops = {}
    for name in scores:
        drops[name] = float(np.mean([drop[name] - drop["random"] for drop in drops_of_bags]))
    best = max(scores, key=lambda name: drops[name])  # of equal ones, the model's own comes first
    gains = np.array([drop[best] - drop[model_score] for drop in drops_of_bags])
    standard_error = float(gains.std(ddof=1)) / bags**0.5
    chosen = best if gains.mean() > standard_error else model_score
    texts = _drop_texts(drops)
    others = " and ".join(f"{texts[name]} for {name}" for name in scores if name != chosen)
    lowers = f"removing its top instances lowers the validation bags' {TASKS[task].words.response}"
    if chosen == best:
        reason = f"{chosen}: {lowers} most, by {texts[chosen]} against {others}"
    else:
        reason = (
            f"{chosen}, the model's own score: {lowers} by {texts[chosen]}, not clearly less than "
            f"{others}"
        )
    return MapScoreChoice(chosen=chosen, drops=drops, bags=bags, reason=reason, rule=rule)


def _drop_texts(drops: Mapping[str, float]) -> dict[str, str]:
    """Return drops with two decimals, or more if different ones would look equal."""
    decimals = 2
    for count in (2, 3, 4):
        if len({round(drop, count) for drop in drops.values()}) == len(drops):
            decimals = count
            break
    return {name: shortened(f"{drop:.{decimals}f}") for name, drop in drops.items()}


def deletion_drops(predictor: Predictor, bag: Bag, p: Prediction) -> dict[str, float]:
    """Return the mean drop of the predicted class's probability, by score and for `random`.

    The bag must have an instance more than the model's smallest bag.
    """
    orders = {
        name: np.argsort(-class_column(p, drawn_values(p, name)), kind="stable")
        for name in available_scores(p)
    }
    orders["random"] = random_order(bag)
    counts = {max(1, round(share * len(bag))) for share in TOP_SHARES}
    counts = sorted(count for count in counts if count <= removable(predictor, bag))
    drops = drops_after_removal(predictor, bag, p, orders=[*orders.values()], counts=counts)
    return dict(zip(orders, drops.mean(1).tolist(), strict=True))
