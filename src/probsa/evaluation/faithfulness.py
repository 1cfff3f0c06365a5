"""How faithful maps are to predictions, without instance labels, and which score a map shows.

Instances are removed, most or least relevant first, and the model predicts again: a faithful map
has a low first curve and a high second one, which read backwards is that of inserting the most
relevant instances. Bags that the model calls positive count: only their maps claim evidence.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
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
    group_keys,
    random_stream,
    read_record,
    select_instances,
    write_json,
)
from ..errors import BagError, InputError, UnknownName
from ..layers import recorded_pooling
from ..statistics import ANY_VALUE, MEAN_CORRELATION, Draws, Metric, Scale
from ..tasks import TASKS
from .context import INSTANCE_RESAMPLES, Context
from .instances.measures import rank_correlation
from .map_scores import MapScore, available_scores, drawn_values, map_values
from .metadata import MapScoreChoice
from .prediction import Prediction
from .predictor import Predictor
from .scores import class_column
from .section import Line, Panel, Section, SectionFigure, metric_grid
from .storage import FAITHFULNESS
from .temperature import scale_probabilities

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
        found = [p.of_task.response(p, column) for p in predictor.stream(subsets, parts=True)]
    finally:
        for member in predictor.members:
            member.model.explains = True
    return np.array(found, dtype=np.float64)


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
        both = self.most_first, self.least_first
        if self.most_first.keys() != self.least_first.keys():
            raise InputError("most_first and least_first have other orders")
        if not all(math.isfinite(p) for c in both for of in c.values() for p in of):
            raise InputError("a probability of a curve is not finite")
        steps = {len(v) for c in both for v in c.values()}
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
    bag = predictor.with_graph(bag)  # parts of it are predicted with parts of this graph
    with recorded_pooling(samples=SAMPLES) as records:
        (p,) = predictor.predict([bag])
    known, task, most = available_scores(p), p.of_task, removable(predictor, bag)
    if shown is not None and shown not in known:
        raise UnknownName("score", shown, known)
    closed = len(records) == len(predictor.new_to(bag.name))
    counts = np.unique([min(round(share * len(bag)), most) for share in SHARES]).tolist()
    curves = DeletionCurves(
        name=p.name, shown=shown or known[0], removal="pooling" if closed else "bag",
        instances=len(bag), counts=tuple(counts),
    )  # fmt: skip
    if most == 0:
        few = counted(len(bag), "instance")
        reason = f"a bag of {few} has none that this model can do without"
        names = (*REMOVAL_ORDERS, "rank_correlation")
        return p, replace(curves, missing=dict.fromkeys(names, reason))
    relevance = {"shown": class_column(p, map_values(p, curves.shown))}
    without, correlation, missing = _leave_one_out(predictor, bag, p), None, {}
    if isinstance(without, str):
        missing = dict.fromkeys(("leave_one_out", "rank_correlation"), without)
    else:
        relevance["leave_one_out"] = without
        correlation = rank_correlation(relevance["shown"], without)
        if correlation is None:
            missing["rank_correlation"] = "all instances have the same score, or the same drop"
    relevance["random"] = random_order(bag)
    ranked = {k: np.argsort(-v, kind="stable") for k, v in relevance.items() if k in orders}
    if closed:
        index = torch.from_numpy(np.stack(list(ranked.values())))
        of_members = [r.after_removal(index.to(r.bias.device), counts) for r in records]
        after = np.mean([found.detach().cpu().numpy() for found in of_members], axis=0)
        if predictor.temperature != 1:
            after = scale_probabilities(after, temperature=predictor.temperature)
        both = after[..., task.column(p, after.shape[-1])]
    else:
        each_end = [*ranked.values(), *(order[::-1] for order in ranked.values())]
        drops = drops_after_removal(predictor, bag, p, orders=each_end, counts=counts[1:])
        drops = np.pad(drops, ((0, 0), (1, 0))).reshape(2, len(ranked), -1)
        both = task.response(p, task.column(p)) - drops
    most_first, least_first = (
        {k: tuple(v) for k, v in zip(ranked, half.tolist(), strict=True)} for half in both
    )
    return p, replace(
        curves, most_first=most_first, least_first=least_first, rank_correlation=correlation,
        missing=missing,
    )  # fmt: skip


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
    bags = {c.name: {k: v for k, v in asdict(c).items() if k != "name"} for c in curves}
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
    return {
        name: as_record(
            DeletionCurves, {**of_bag, "name": name}, where=f"{path}: bag {name!r}", advice=AGAIN
        )
        for name, of_bag in stored.bags.items()
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class _StoredCurves:
    """The content of the file of curves."""

    bags: dict[str, dict[str, Any]]


def faithfulness_section(context: Context) -> Section | None:
    """Summarise the stored curves; None if the predictions have none."""
    stored = read_curves(context.predictions.folder)
    if stored is None:
        return None
    p = context.predictions.probability[list(context.rows)]
    called = context.task.called_positive(p, context.stated)
    having = zip(context.names, called, strict=True)
    of_bags = [stored[name] for name, positive in having if positive and name in stored]
    curves = [c for c in of_bags if c.most_first]
    removal = Counter(c.removal for c in curves)
    without = Counter(c.missing["shown"] for c in of_bags if not c.most_first)
    metrics = mean_curves_metrics(
        curves,
        groups=group_keys([c.name for c in curves], context.truth.group),
        response=MEAN_CORRELATION if context.task.by_probability else ANY_VALUE,
        resamples=min(context.bootstrap, INSTANCE_RESAMPLES),
        seed=context.seed,
    )
    means, bags = _mean_curves(curves), len(curves)
    area = metrics["area_shown"].value
    panel = Panel(
        title=f"{bags} bags that are called positive"
        + ("" if area is None else f"\narea between the curves {area:.3f}"),
        x="removed instances (%)",
        y="mean probability of the shown class",
        lines=means,
        xlim=(0.0, 90.0),
        ylim=(0.0, 1.0),
        between=("most_first", "least_first", "area between the curves"),
    )
    how = " and ".join(REMOVALS[k] for k in removal) or "-"
    title = f"faithfulness of {counted(bags, 'bag')} ({how})"
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
            *(f"{counted(n, 'bag')} without curves: {why}" for why, n in without.items()),
        ],
        figure=SectionFigure("deletion", [panel]) if means else None,
        metrics={"faithfulness": metrics},
    )


def mean_curves_metrics(
    curves: Sequence[DeletionCurves],
    *,
    groups: Sequence[Hashable],
    response: Scale,
    resamples: int,
    seed: int,
) -> dict[str, Metric]:
    """Return the means over bags of the areas, of their gains and of the rank correlation.

    A mean is over the bags that have the value. `groups` holds the group (patient) of each bag,
    and `response` is the scale of the areas between two curves.
    """
    if not curves:
        reason = "no evaluated bag that the model calls positive has curves"
        return dict.fromkeys(TITLES, Metric.undefined(reason))
    draws = Draws.patients(np.ones(len(curves)), groups=groups, resamples=resamples, seed=seed)
    areas = {k: np.array([c.areas.get(k, np.nan) for c in curves]) for k in REMOVAL_ORDERS}
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

    of_area, of_gain = response, response.of_differences
    metrics = {f"area_{k}": mean(area, k, of_area) for k, area in areas.items()}
    for k in REMOVAL_ORDERS[1:]:
        metrics[f"gain_over_{k}"] = mean(areas["shown"] - areas[k], k, of_gain)
    return {**metrics, "rank_correlation": mean(ranks, "rank_correlation", MEAN_CORRELATION)}


def _mean_curves(curves: Sequence[DeletionCurves]) -> list[Line]:
    """Return the mean of each curve of `LINES` over the bags that have it."""
    means = []
    for (kind, order), label in LINES.items():
        values = [
            np.interp(MEAN_SHARES, np.array(c.counts) / c.instances, getattr(c, kind)[order])
            for c in curves
            if order in c.most_first
        ]
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
    which, response = "", TASKS[task].words.response
    if TASKS[task].unordered_classes:
        which, response = " that the model calls positive", "probability of the predicted class"
    return (
        f"the score that lowers the {response} most, on average, when the 5, 10, 20 and 40 % of "
        f"instances with the highest score are removed from validation bags{which}. Another score "
        "replaces the model's own only if its drop is larger by more than one standard error of "
        "the difference. The drop of a random order is subtracted; instance labels are not used"
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
    found: list[dict[str, float]] = []
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
                found.append(deletion_drops(predictor, bag, p))
        except BagError:
            continue
        if len(found) == MOST_BAGS:
            break
    return choice_of(scores, found, task=predictor.task) if scores else None


def choice_of(
    scores: Sequence[MapScore], found: Sequence[Mapping[str, float]], *, task: TaskName
) -> MapScoreChoice:
    """Return the choice that follows from the `deletion_drops` of several bags.

    scores: the scores of the model, its own first.
    """
    own, bags, rule = scores[0], len(found), _rule(task)
    if len(scores) == 1 or bags < FEWEST_BAGS:
        reason = f"{own}: the only score that this model has"
        if len(scores) > 1:
            reason = (
                f"{own}: the model's own score, because only {counted(bags, 'validation bag')} can "
                f"be used (called positive), and {FEWEST_BAGS} are needed to compare scores"
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
