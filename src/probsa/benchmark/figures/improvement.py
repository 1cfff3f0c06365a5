"""The paper's figure 3: the gain of λ over the plain baseline per variant, in points.

Thin lines are data sets with their intervals, the thick line is their mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..grid.variants import variants_of
from ..results.comparing import Pooled
from ..results.scores import Scores
from .style import (
    CUT_NOTE,
    FOLDS_NOTE,
    GREY,
    MARKERS,
    TEXT,
    FigureData,
    axis_limit,
    distinct,
    dress,
    note,
    paired_rows,
    sheet,
    shortened,
    style_of,
)

MEAN = "mean over data sets"
SCHEDULES = ("linear", "cyclical")
"""The schedules of λ, in the order in which they are drawn."""
SHIFT = 0.14
"""Distance between the data sets at a λ, so that their intervals do not overlap."""
NAME = 24
"""Largest number of characters of a name above a panel or in the legend."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """The gain of one λ of one variant on one data set."""

    metric: str
    variant: str
    """`abmil-probsa-diag`."""
    kl_weight: str
    """λ as tables write it: `0.1`, `cyclical`."""
    data: str
    points: float
    """In hundredths: an AUROC of 0.91 against 0.90 is one point."""
    low: float | None = None
    high: float | None = None
    pooling: Literal["pooled", "within", ""] = ""
    """Whether bags of all folds are pooled, or the metric is averaged over folds; empty for a mean
    of both kinds."""


def gains(scores: Sequence[Scores]) -> FigureData:
    """Return every λ against its plain baseline on the same seeds, and the means over data sets."""
    by_data: list[Gain] = []
    missing: list[str] = []
    for variant_scores in variants_of(scores).values():
        for data in distinct(s.data for s in variant_scores if s.method.kl_weight is not None):
            data_scores = [s for s in variant_scores if s.data == data]
            plain = data_scores[0]
            if plain.method.kl_weight is not None:
                base = plain.method.baseline
                missing += [
                    f"{s.method.name} on {data}: {base} with the same arguments was not run"
                    for s in data_scores
                ]
                continue
            rows, reasons = paired_rows(data_scores, plain, _gain)
            by_data += rows
            missing += reasons
    return FigureData([*by_data, *means(by_data)], missing)


def _gain(s: Scores, _: Pooled, common: dict[str, Any]) -> Gain:
    return Gain(variant=s.method.label, kl_weight=s.method.kl_label, **common)


def means(gains: Sequence[Gain]) -> list[Gain]:
    """Return the mean over data sets of each λ that all data sets of its variant have."""
    mean_gains: list[Gain] = []
    for metric, variant in distinct((g.metric, g.variant) for g in gains):
        group = [g for g in gains if g.metric == metric and g.variant == variant]
        data_sets = {g.data for g in group}
        for kl_weight in kl_order(group):
            summands = [g for g in group if g.kl_weight == kl_weight]
            if {g.data for g in summands} != data_sets:
                continue
            poolings = {g.pooling for g in summands}
            mean_gain = replace(
                summands[0],
                data=MEAN,
                points=float(np.mean([g.points for g in summands])),
                low=None,
                high=None,
                pooling=summands[0].pooling if len(poolings) == 1 else "",
            )
            mean_gains.append(mean_gain)
    return mean_gains


def kl_order(gains: Sequence[Gain]) -> list[str]:
    """Return every λ: numbers, then the schedules."""
    kl_weights = {g.kl_weight for g in gains}
    numbers = kl_weights.difference(SCHEDULES)
    return [*sorted(numbers, key=float), *(s for s in SCHEDULES if s in kl_weights)]


def draw_improvement(gains: Sequence[Gain], *, remark: str = "") -> Figure:
    """Draw a panel for each metric (rows) and variant (columns), labelled `<metric> <variant>`."""
    variants = distinct(g.variant for g in gains)
    metrics = distinct(g.metric for g in gains)
    sets = distinct(g.data for g in gains if g.data != MEAN)
    order = kl_order(gains)
    is_cut = False
    figure = sheet(1.2 + 1.5 * max(2, len(variants)), 0.75 + 1.75 * len(metrics))
    grid = figure.subplots(len(metrics), len(variants), squeeze=False, sharey="row", sharex=True)
    for row, metric in zip(grid, metrics, strict=True):
        metric_gains = [g for g in gains if g.metric == metric]
        for ax, variant in zip(row, variants, strict=True):
            ax.set_label(f"{metric} {variant}")
            panel_gains = [g for g in metric_gains if g.variant == variant]
            _panel(ax, panel_gains, order=order, sets=sets)
            dress(ax)
            if metric == metrics[0]:
                ax.set_title(shortened(variant, NAME), fontsize=TEXT + 0.5)
            if metric == metrics[-1]:
                ax.set_xlabel("λ", fontsize=TEXT)
        limit = axis_limit(metric_gains)
        if limit is not None:
            row[0].set_ylim(-limit, limit)
            is_cut = True
        row[0].set_ylabel(f"{metric}: points over\nthe baseline (λ = 0)", fontsize=TEXT)
    _legend(figure, sets)
    note(
        figure,
        CUT_NOTE if is_cut else "",
        FOLDS_NOTE if any(g.pooling == "within" for g in gains) else "",
        remark,
    )
    return figure


def _legend(figure: Figure, sets: Sequence[str]) -> None:
    """Write a legend of the data sets, and of their mean if there are several, above the panels."""
    marks = []
    for k, data in enumerate(sets):
        label = f"{shortened(data, NAME)} (95 % interval)"
        marker = MARKERS[k % len(MARKERS)]
        marks.append(Line2D([], [], color="0.35", lw=0.8, ms=3.5, marker=marker, label=label))
    if len(sets) > 1:
        marks.append(Line2D([], [], color="0.35", lw=2.4, label=MEAN))
    width = figure.get_figwidth()
    if width < 5:
        columns = 1
    elif width <= 6:
        columns = 2
    else:
        columns = 3
    place = "outside upper center"
    figure.legend(handles=marks, loc=place, ncols=columns, fontsize=TEXT, frameon=False)


def _panel(ax: Axes, gains: Sequence[Gain], *, order: list[str], sets: list[str]) -> None:
    ax.axhline(0, color=GREY, lw=0.8)
    colour = style_of(gains[0].variant).colour if gains else GREY
    column_of = {kl_weight: x for x, kl_weight in enumerate(order)}
    for k, data in enumerate(sets):
        line = [g for g in gains if g.data == data]
        if not line:
            continue
        line.sort(key=lambda g: column_of[g.kl_weight])
        shift = SHIFT * (k - (len(sets) - 1) / 2)
        x = np.array([column_of[g.kl_weight] for g in line]) + shift
        y = [g.points for g in line]
        low = [g.points if g.low is None else g.low for g in line]
        high = [g.points if g.high is None else g.high for g in line]
        ax.vlines(x, low, high, color=colour, lw=0.7, alpha=0.75)
        marker = MARKERS[k % len(MARKERS)]
        ax.plot(x, y, color=colour, lw=0.8, marker=marker, ms=3, alpha=0.75)
    mean = [g for g in gains if g.data == MEAN]
    if mean and len(sets) > 1:
        x = [column_of[g.kl_weight] for g in mean]
        y = [g.points for g in mean]
        ax.plot(x, y, color=colour, lw=2.4, solid_capstyle="round")
    turned = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if len(order) > 4 else {}
    ax.set_xticks(range(len(order)), order, **turned)
    ax.set_xlim(-0.4, len(order) - 0.6)
