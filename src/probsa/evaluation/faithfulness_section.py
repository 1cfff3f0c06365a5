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
from jaxtyping import Bool, Float
from rich.console import Console
from rich.table import Table as Grid

from ..core import Bag, counted, read_record, write_json
from ..errors import InputError
from ..statistics import Draws, Metric, ratio_of_sums, student_interval
from .deletion import REMOVAL_ORDERS, RULE, SAMPLES, DeletionCurves, deletion_curves
from .evaluated import Evaluated
from .map_scores import MapScore
from .prediction import Prediction
from .predictor import Predictor
from .tables import FAITHFULNESS

ORDER_TITLES = {
    "shown": "the shown score",
    "leave_one_out": "the drop without the single instance",
    "centre": "nearness to the centre (null)",
    "random": "random order (null)",
}
TITLES = {
    **{f"area_{name}": f"area between the curves: {t}" for name, t in ORDER_TITLES.items()},
    **{f"gain_over_{k}": f"… minus that of: {ORDER_TITLES[k]}" for k in REMOVAL_ORDERS[1:]},
    "rank_correlation": "rank correlation with the drop without the single instance",
}
RESAMPLES = 500
"""Upper limit of the resamples."""
NO_POSITIVE = "no evaluated bag that the model calls positive has curves"


@dataclass(frozen=True, kw_only=True, slots=True)
class FaithfulnessSection:
    """How far the prediction follows the order of the map."""

    metrics: Mapping[str, Metric]
    bags: int
    """Number of bags that are called positive and have curves."""
    removal: Mapping[str, int]
    """How the instances were removed, and from how many bags."""
    without: Mapping[str, int]
    """Reasons why bags have no curves, with their numbers."""
    curves: Mapping[str, Mapping[str, Sequence[float]]]
    """Mean probability over the bags by removed share: `most_first` and `least_first` of the shown
    score, and both with the ending `_random` of a random order."""
    rule: str = RULE

    @property
    def key(self) -> str:
        """Its key in the JSON report."""
        return "faithfulness"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "rule": self.rule,
            "bags": self.bags,
            "removal": dict(self.removal),
            "without": dict(self.without),
            "metrics": {name: m.to_dict() for name, m in self.metrics.items()},
            "curves": {name: dict(curve) for name, curve in self.curves.items()},
        }

    def render(self, console: Console) -> None:
        """Print it as text."""
        how = " and ".join(
            {"pooling": "instances removed from the pooling", "bag": "shortened bags predicted"}[k]
            for k in self.removal
        )
        grid = Grid(
            title=f"faithfulness of {counted(self.bags, 'bag')} ({how or '-'})",
            title_justify="left",
        )
        grid.add_column("metric")
        grid.add_column("value", justify="right")
        grid.add_column("95 % interval")
        for name, m in self.metrics.items():
            if m.value is None:
                grid.add_row(TITLES[name], "-", m.reason)
                continue
            span = "" if m.low is None or m.high is None else f"[{m.low:.3f}, {m.high:.3f}]"
            grid.add_row(TITLES[name], f"{m.value:.3f}", span)
        console.print(grid)
        for reason, count in self.without.items():
            console.print(
                f"{counted(count, 'bag')} without curves: {reason}", markup=False, soft_wrap=True
            )


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


def faithfulness_section(evaluated: Evaluated) -> FaithfulnessSection | None:
    """Summarise the stored curves; None if the predictions have none."""
    stored = read_curves(evaluated.predictions.folder)
    if stored is None:
        return None
    rows = [
        row
        for row, called in zip(evaluated.rows, _called(evaluated), strict=True)
        if called and evaluated.predictions.bags[row] in stored
    ]
    of_rows = [stored[evaluated.predictions.bags[row]] for row in rows]
    kept = [k for k, c in enumerate(of_rows) if c.most_first]
    curves = [of_rows[k] for k in kept]
    reasons = Counter(c.missing["shown"] for c in of_rows if not c.most_first)
    return FaithfulnessSection(
        metrics=mean_curves_metrics(
            curves,
            groups=[evaluated.group.get(c.name, c.name) for c in curves],
            resamples=min(evaluated.bootstrap, RESAMPLES),
            seed=evaluated.seed,
        ),
        bags=len(curves),
        removal=Counter(c.removal for c in curves),
        without=reasons,
        curves=_mean_curves(curves),
    )


def _called(evaluated: Evaluated) -> Bool[np.ndarray, " bags"]:
    """Return whether each evaluated bag is called positive, see `Task.called_positive`."""
    table = evaluated.predictions
    p = table.probability[list(evaluated.rows)]
    return table.of_task.called_positive(p, evaluated.threshold)


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
    draws = Draws.stratified(
        np.ones(len(curves)), groups=groups, resamples=resamples, seed=seed
    ).with_data()
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
    mean = ratio_of_sums(np.where(defined, value, 0.0), defined, draws=draws)
    return student_interval(
        mean, groups=len({g for g, d in zip(groups, defined, strict=True) if d})
    )


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
