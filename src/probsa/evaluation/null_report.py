"""The section of a report on maps within positive bags, beside maps that look at almost nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from rich.console import Console
from rich.table import Table as Grid

from ..statistics import Draws, Metric, ratio_of_sums
from .dice import dice_threshold, no_threshold_reason
from .evaluated import Evaluated
from .faithfulness import MapScoreChoice
from .map_scores import available_scores, map_values
from .null_comparison import NullComparison, compare_to_null_maps
from .null_files import NO_NULL_MAPS, about_null_maps, read_null_scores
from .null_maps import NULL_MAPS, centre
from .pooled_nulls import PooledNulls
from .pools import Pool, bag_draws, labelled, threshold_bags
from .prediction import Prediction
from .scores import class_column
from .storage import METADATA
from .within_bags import (
    NO_MIXED_BAG,
    WITHIN,
    WITHIN_BAGS,
    WITHIN_TITLES,
    is_mixed,
    within_bag,
    within_samples,
)

DICE = "dice"
INSTANCE_RESAMPLES = 500
"""Upper limit of the resamples of pooled instances."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WithinBags:
    """Measures of the model's maps and of null maps within positive bags."""

    maps: Mapping[str, Mapping[str, Metric]]
    """The measures of each map of the model, its own score first."""
    nulls: Mapping[str, Mapping[str, Metric]]
    pooled: Mapping[str, Mapping[str, Metric]]
    """The measures of null maps over the instances of all positive bags together."""
    comparisons: Sequence[NullComparison]
    missing: Mapping[str, str]
    """The null maps that could not be computed, with the reason."""
    counted: int
    """Number of positive bags with instances of both labels, over which means are taken."""
    positive: int
    """Number of positive bags that are evaluated."""
    unlabelled: int
    """Number of evaluated bags without instance labels."""
    threshold: str
    """The threshold of Dice, in words."""
    dice_title: str = "Dice"
    """The title of the column, with the threshold."""
    about: Mapping[str, Any] = field(default_factory=dict)

    key = "within_bags"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "maps": _plain(self.maps),
            "null_maps": _plain(self.nulls),
            "null_maps_pooled": _plain(self.pooled),
            "comparisons": [c.to_dict() for c in self.comparisons],
            "missing": dict(self.missing),
            "counted_bags": self.counted,
            "positive_bags": self.positive,
            "bags_without_instance_labels": self.unlabelled,
            "dice_threshold": self.threshold,
            "about": dict(self.about),
        }

    def render(self, console: Console) -> None:
        """Print the table of maps and the sentences."""
        line = partial(console.print, markup=False, soft_wrap=True)
        title = "maps within positive bags (below the line: null maps)"
        grid = Grid(title=title, title_justify="left")
        grid.add_column("map", no_wrap=True)
        for column in (*WITHIN_TITLES.values(), self.dice_title):
            grid.add_column(column)
        for name, metrics in self.maps.items():
            grid.add_row(name, *(_cell(metrics[k]) for k in (*WITHIN_BAGS, DICE)))
        grid.add_section()
        for name, metrics in self.nulls.items():
            grid.add_row(name, *(_cell(metrics[k]) for k in WITHIN_BAGS), "")
        console.print(grid)
        bags = f"Means over {self.counted} of {self.positive} positive bags: those that have"
        line(
            f"{bags} instances of both labels. Top instance and top 1 %: the share that is "
            f"positive. {self.threshold}"
            + (
                f" {self.unlabelled} evaluated bags have no instance labels."
                if self.unlabelled
                else ""
            )
        )
        for name, reason in self.missing.items():
            line(f"null map {name}: {reason}")
        for comparison in self.comparisons:
            line(comparison.sentence)


def within_bags_section(e: Evaluated) -> WithinBags | None:
    """Compare the model's maps with null maps within the positive bags; None without labels.

    The maps of the model are its own score and, if it differs, the score that its maps show.
    """
    measured = _Measured.of(e)
    if measured is None:
        return None
    flags = np.array([e.label[name] > 0 for name in measured.names], dtype=bool)

    def drawn(resamples: int) -> Draws:
        return bag_draws(measured.names, flags, groups=e.group, resamples=resamples, seed=e.seed)

    draws = drawn(e.bootstrap)
    mixed = measured.mixed & flags

    def samples(values: Sequence[Float[np.ndarray, " measures"]]) -> dict[str, Metric]:
        return within_samples(np.stack(values), mixed, draws=draws)

    own = {name: samples(values) for name, values in measured.maps.items()}
    nulls = {name: samples(values) for name, values in measured.nulls.items()}
    groups = {e.group.get(n, n) for n, counts in zip(measured.names, mixed, strict=True) if counts}
    comparisons = [
        compare_to_null_maps(
            name, s[WITHIN], {k: v[WITHIN] for k, v in nulls.items()}, groups=len(groups)
        )
        for name, s in own.items()
    ]
    maps = {name: dict(s) for name, s in own.items()}
    undefined = Metric.undefined("only the model's own score has a threshold")
    for place, metrics in enumerate(maps.values()):
        metrics[DICE] = measured.dice(flags, draws=draws) if place == 0 else undefined
    return WithinBags(
        maps=maps,
        nulls={name: dict(s) for name, s in nulls.items()},
        pooled=measured.pooled.metrics(
            list(nulls), draws=drawn(min(e.bootstrap, INSTANCE_RESAMPLES))
        ),
        comparisons=comparisons,
        missing=measured.missing,
        counted=int(mixed.sum()),
        positive=sum(e.label[name] > 0 for name in e.names),
        unlabelled=len(e.rows) - len(measured.names),
        threshold=measured.threshold,
        dice_title=measured.dice_title,
        about=about_null_maps(e.predictions.folder) or {},
    )


@dataclass(kw_only=True)
class _Measured:
    """Measures of every bag with instance labels, in order."""

    names: list[str] = field(default_factory=list)
    mixed: Bool[np.ndarray, " bags"] = field(default_factory=lambda: np.zeros(0, dtype=bool))
    maps: dict[str, list[np.ndarray]] = field(default_factory=dict)
    nulls: dict[str, list[np.ndarray]] = field(default_factory=dict)
    pooled: PooledNulls = field(default_factory=PooledNulls)
    missing: dict[str, str] = field(default_factory=dict)
    threshold: str = ""
    dice_title: str = "Dice"
    dice_reason: str | None = None
    dices: list[float] = field(default_factory=list)
    """NaN for a bag without a positive instance."""

    @classmethod
    def of(cls, e: Evaluated) -> "_Measured | None":
        """Measure the bags one after another; None if none has instance labels."""
        found, mixed = cls(), []
        stored = about_null_maps(e.predictions.folder) is not None
        limit: float | None = None
        for p in e.instances(e.rows):
            if p.instance_labels is None:
                continue
            if not found.names:
                limit = found.choose_threshold(e, p)
            known = p.instance_labels >= 0
            y = p.instance_labels[known] > 0
            if e.label[p.name] > 0:
                found.pooled.add_bag(len(found.names), y)
            found.names.append(p.name)
            mixed.append(is_mixed(y))
            for name in _shown(p, e):
                values = class_column(p, map_values(p, name))[known]
                found.maps.setdefault(name, []).append(_measures(y, values))
            found._add_nulls(e, p, known=known, y=y, stored=stored)
            found._add_dice(p, limit)
        if not found.names:
            return None
        found.mixed = np.array(mixed, dtype=bool)
        found.maps = {k: v for k, v in found.maps.items() if len(v) == len(found.names)}
        found._leave_out_incomplete()
        if not stored:
            found.missing["others"] = NO_NULL_MAPS
        return found

    def _add_nulls(
        self,
        e: Evaluated,
        p: Prediction,
        *,
        known: Bool[np.ndarray, " n"],
        y: Bool[np.ndarray, " k"],
        stored: bool,
    ) -> None:
        scores: dict[str, np.ndarray | str] = {"centre": centre(p.coords)}
        if stored:
            scores = read_null_scores(e.predictions.folder, p.name, instances=len(known))
        for name, score in scores.items():
            if isinstance(score, str):
                self.missing.setdefault(name, score)
            else:
                self.nulls.setdefault(name, []).append(_measures(y, score[known]))
                if e.label[p.name] > 0:
                    self.pooled.add_score(name, score[known])

    def _leave_out_incomplete(self) -> None:
        """Keep the null maps that every bag has, and in the usual order."""
        total = len(self.names)
        for name, values in self.nulls.items():
            lacking = total - len(values)
            if lacking:
                self.missing.setdefault(name, "some bags have no stored scores of it")
                self.missing[name] += f" ({lacking} of {total} bags)"
        self.nulls = {k: self.nulls[k] for k in NULL_MAPS if k in self.nulls.keys() - self.missing}

    def choose_threshold(self, e: Evaluated, first: Prediction) -> float | None:
        """Return the threshold of Dice; None if there is none."""
        if first.score_has_level:
            self.threshold = "Dice: instances with evidence e above 0 are called positive."
            self.dice_title = "Dice\nat e > 0"
            return 0.0
        rows = [i for i in e.validation_rows if e.label[e.predictions.bags[i]] > 0]
        bags = threshold_bags(
            labelled(list(e.instances(rows))),
            positive=dict.fromkeys((e.predictions.bags[i] for i in rows), True),
            kind=first.score_kind,
        )
        pool = Pool.of(bags)
        self.dice_reason = no_threshold_reason(pool)
        if self.dice_reason:
            self.threshold = f"Dice is undefined: {self.dice_reason}."
            return None
        self.threshold = "Dice: at the threshold with the best Dice on the validation bags."
        self.dice_title = "Dice at the\nvalidation\nthreshold"
        return dice_threshold(pool.y, pool.decision)

    def _add_dice(self, p: Prediction, limit: float | None) -> None:
        pool = Pool.of([p])
        if limit is None or not pool.y.any():
            self.dices.append(np.nan)
            return
        called = pool.evidence > 0 if p.score_has_level else pool.decision >= limit
        self.dices.append(float(2 * (pool.y & called).sum() / (pool.y.sum() + called.sum())))

    def dice(self, positive: Bool[np.ndarray, " bags"], *, draws: Draws) -> Metric:
        """Return the mean over the positive bags that have a positive instance."""
        if self.dice_reason:
            return Metric.undefined(self.dice_reason)
        counts = positive & np.isfinite(self.dices)
        if not counts.any():
            return Metric.undefined(NO_MIXED_BAG)
        return ratio_of_sums(np.where(counts, self.dices, 0.0), counts, draws=draws)


def _measures(
    y: Bool[np.ndarray, " n"], score: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " measures"]:
    return within_bag(y, score) if is_mixed(y) else np.full(len(WITHIN_BAGS), np.nan)


def _shown(p: Prediction, e: Evaluated) -> list[Any]:
    """Return the model's own score and, if it is another, the one that its maps show."""
    known = available_scores(p)
    choice = MapScoreChoice.of(e.predictions.metadata, where=e.predictions.folder / METADATA)
    shown = known[0] if choice is None else choice.chosen
    return list(dict.fromkeys((known[0], shown if shown in known else known[0])))


def _cell(m: Metric) -> str:
    if m.value is None:
        return "-"
    span = "" if m.low is None or m.high is None else f"\n[{m.low:.2f}, {m.high:.2f}]"
    return f"{m.value:.3f}{span}"


def _plain(maps: Mapping[str, Mapping[str, Metric]]) -> dict[str, Any]:
    return {name: {k: m.to_dict() for k, m in v.items()} for name, v in maps.items()}
