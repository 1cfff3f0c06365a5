"""The part of a report on faithfulness: deletion curves over bags, with their rivals.

`probsa predict --faithfulness` stores the curves of each bag beside its predictions. Bags that the
model calls positive are summarised, because only their maps claim to show evidence.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from ...core import Bag, counted, read_record, write_json
from ...errors import InputError
from ...statistics import Draws, Metric
from ..context import INSTANCE_RESAMPLES, Context
from ..map_scores import MapScore
from ..prediction import Prediction
from ..predictor import Predictor
from ..section import Line, Panel, Section, metric_grid
from ..storage import FAITHFULNESS
from .deletion import REMOVAL_ORDERS, RULE, SAMPLES, DeletionCurves, deletion_curves

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
NO_POSITIVE = "no evaluated bag that the model calls positive has curves"


def predicted_with_curves(
    predictor: Predictor,
    bags: Iterable[Bag],
    *,
    shown: MapScore | None,
    into: list[DeletionCurves],
) -> Iterator[Prediction]:
    """Yield the prediction of each bag, and append its curves to `into`."""
    for bag in bags:
        prediction, curves = deletion_curves(predictor, bag, shown=shown)
        into.append(curves)
        yield prediction


def write_curves(folder: Path, curves: Sequence[DeletionCurves]) -> None:
    """Write the curves of all bags to a folder of predictions."""
    bags = {c.name: c.to_dict() for c in curves}
    write_json(folder / FAITHFULNESS, {"rule": RULE, "samples": SAMPLES, "bags": bags})


def read_curves(folder: Path) -> dict[str, DeletionCurves] | None:
    """Read the curves of a folder of predictions by bag; None if it has none.

    Raises:
        InputError: The file is damaged.
    """
    path = folder / FAITHFULNESS
    if not path.is_file():
        return None
    advice = "predict again with --faithfulness"
    stored = read_record(_StoredCurves, path, advice=advice)
    try:
        return {name: DeletionCurves.from_dict(name, v) for name, v in stored.bags.items()}
    except InputError as error:
        raise InputError(f"{path}: {error}. {advice.capitalize()}") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class _StoredCurves:
    """The content of the file of curves."""

    bags: dict[str, dict[str, Any]]


def faithfulness_section(context: Context) -> Section | None:
    """Summarise the stored curves; None if the predictions have none."""
    stored = read_curves(context.predictions.folder)
    if stored is None:
        return None
    p = context.predictions.probability[list(context.rows)].astype(np.float64)
    called = context.task.called_positive(p, context.threshold)
    having = zip(context.names, called, strict=True)
    of_bags = [stored[name] for name, positive in having if positive and name in stored]
    curves = [c for c in of_bags if c.most_first]
    removal = Counter(c.removal for c in curves)
    without = Counter(c.missing["shown"] for c in of_bags if not c.most_first)
    metrics = mean_curves_metrics(
        curves,
        groups=[context.truth.group.get(c.name, c.name) for c in curves],
        resamples=min(context.bootstrap, INSTANCE_RESAMPLES),
        seed=context.seed,
    )
    means = _mean_curves(curves)
    how = " and ".join(REMOVALS[k] for k in removal) or "-"
    title = f"faithfulness of {counted(len(curves), 'bag')} ({how})"
    return Section(
        key="faithfulness",
        values={
            "rule": RULE,
            "bags": len(curves),
            "removal": removal,
            "without": without,
            "metrics": metrics,
            "curves": means,
        },
        text=[
            metric_grid(title, metrics, titles=TITLES),
            *(f"{counted(n, 'bag')} without curves: {why}" for why, n in without.items()),
        ],
        figure=("deletion", [_panel(means, metrics, bags=len(curves))]) if means else None,
        metrics={"faithfulness": metrics},
    )


def _panel(
    means: Mapping[str, Mapping[str, list[float]]], metrics: Mapping[str, Metric], *, bags: int
) -> Panel:
    """Return the mean curves beside those of random orders.

    Read from right to left, the curve of least relevant first is that of inserting the most
    relevant instances into an empty bag.
    """
    labels = {
        "least_first": "least relevant first",
        "least_first_random": None,
        "most_first": "most relevant first",
        "most_first_random": "random orders (null)",
    }
    area = metrics["area_shown"].value
    number = "" if area is None else f"\narea between the curves {area:.3f}"
    return Panel(
        title=f"{bags} bags that are called positive{number}",
        x="removed instances (%)",
        y="mean probability of the shown class",
        lines=[
            Line(
                name=name,
                x=[100 * share for share in means[name]["share"]],
                y=means[name]["probability"],
                label=label,
                style="null" if name.endswith("_random") else "main",
            )
            for name, label in labels.items()
            if name in means
        ],
        xlim=(0.0, 90.0),
        ylim=(0.0, 1.0),
        between=("most_first", "least_first", "area between the curves"),
    )


def mean_curves_metrics(
    curves: Sequence[DeletionCurves], *, groups: Sequence[Hashable], resamples: int, seed: int
) -> dict[str, Metric]:
    """Return the means over bags of the areas, of their gains and of the rank correlation.

    The intervals are Student's over the groups, because percentiles of resamples call a random
    order more faithful than another one too often.

    Args:
        curves: The curves of each bag.
        groups: The group (patient) of each bag.
        resamples: Number of resamples of the groups.
        seed: Seed of the resamples.
    """
    if not curves:
        return dict.fromkeys(TITLES, Metric.undefined(NO_POSITIVE))
    areas = {name: np.array([c.areas.get(name, np.nan) for c in curves]) for name in REMOVAL_ORDERS}
    ranks = np.array([np.nan if c.rank_correlation is None else c.rank_correlation for c in curves])
    values = {f"area_{name}": (area, name) for name, area in areas.items()}
    for rival in REMOVAL_ORDERS[1:]:  # over the bags that have both
        values[f"gain_over_{rival}"] = (areas["shown"] - areas[rival], rival)
    values["rank_correlation"] = (ranks, "rank_correlation")
    draws = Draws.stratified(np.ones(len(curves)), groups=groups, resamples=resamples, seed=seed)
    return {
        name: _mean(value, _reason(curves, order), groups=groups, draws=draws)
        for name, (value, order) in values.items()
    }


def _reason(curves: Sequence[DeletionCurves], name: str) -> str:
    return next((c.missing[name] for c in curves if name in c.missing), "")


def _mean(
    value: Float[np.ndarray, " bags"], reason: str, *, groups: Sequence[Hashable], draws: Draws
) -> Metric:
    """Return the mean over the bags where the value is defined."""
    defined = np.isfinite(value)
    if not defined.any():
        return Metric.undefined(reason)
    mean = Metric.of(draws.ratio(np.where(defined, value, 0.0), defined))
    return mean.student(groups=len({g for g, d in zip(groups, defined, strict=True) if d}))


def _mean_curves(curves: Sequence[DeletionCurves]) -> dict[str, dict[str, list[float]]]:
    """Return the mean curves at tenths of the removed instances, of the shown and a random order.

    Bags without a random order are left out of its curves.
    """
    share = np.linspace(0, 0.9, 10)
    means = {}
    for order, suffix in (("shown", ""), ("random", "_random")):
        having = [c for c in curves if order in c.most_first]
        for kind in ("most_first", "least_first") if having else ():
            at = [np.interp(share, c.counts / c.instances, getattr(c, kind)[order]) for c in having]
            means[kind + suffix] = {
                "share": share.tolist(),
                "probability": np.mean(at, 0).tolist(),
            }
    return means
