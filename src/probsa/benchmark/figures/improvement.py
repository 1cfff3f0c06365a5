"""The paper's figure 3: the gain of λ over the plain baseline per variant, in points.

Thin lines are data sets with their intervals, the thick line is their mean.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .style import (
    BEYOND,
    GREY,
    TEXT,
    WITHIN,
    dress,
    note,
    reach,
    sheet,
    shortened,
    style_of,
    write,
)

Key = TypeVar("Key", bound=Hashable)
MARKERS = "osD^vP<ph"
"""Markers of the data sets."""
MEAN = "mean over data sets"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """The gain of one λ of one variant on one data set."""

    data: str
    variant: str
    """`abmil-probsa-diag`."""
    kl_weight: str
    """λ as tables write it: `0.1`, `cyclical`."""
    metric: str
    points: float
    """In hundredths: an AUROC of 0.91 against 0.90 is one point."""
    pooling: Literal["pooled", "within", ""] = ""
    """Whether bags of all folds are pooled, or the metric is averaged over folds; empty for a mean
    of both kinds."""
    low: float | None = None
    high: float | None = None


def write_improvement(path: Path, gains: Sequence[Gain]) -> list[Path]:
    """Write the figure and its numbers, including the means."""
    columns = ("metric", "variant", "kl_weight", "data", "points", "low", "high", "pooling")
    all_gains = [*gains, *means(gains)]
    return write(
        draw_improvement(gains), path, [{c: getattr(g, c) for c in columns} for g in all_gains]
    )


def means(gains: Sequence[Gain]) -> list[Gain]:
    """Return the mean over data sets of each λ that all data sets of its variant have."""
    mean_gains: list[Gain] = []
    for key in _distinct((g.metric, g.variant) for g in gains):
        group = [g for g in gains if (g.metric, g.variant) == key]
        sets = {g.data for g in group}
        for kl in kl_order(group):
            at_kl = [g for g in group if g.kl_weight == kl]
            if {g.data for g in at_kl} == sets:
                mean = float(np.mean([g.points for g in at_kl]))
                mean_gain = replace(at_kl[0], data=MEAN, points=mean, low=None, high=None)
                same_pooling = len({g.pooling for g in at_kl}) == 1
                mean_gains.append(mean_gain if same_pooling else replace(mean_gain, pooling=""))
    return mean_gains


def kl_order(gains: Sequence[Gain]) -> list[str]:
    """Return every λ: numbers, then the schedules."""
    words = ("linear", "cyclical")

    def place(kl: str) -> tuple[int, float]:
        return (1, float(words.index(kl))) if kl in words else (0, float(kl))

    return sorted({g.kl_weight for g in gains}, key=place)


def draw_improvement(gains: Sequence[Gain]) -> Figure:
    """Draw a panel for each metric (rows) and variant (columns), labelled `<metric> <variant>`."""
    variants = _distinct(g.variant for g in gains)
    metrics = _distinct(g.metric for g in gains)
    sets = _distinct(g.data for g in gains)
    order = kl_order(gains)
    notes: list[str] = []
    figure = sheet(1.2 + 1.5 * max(2, len(variants)), 0.75 + 1.75 * len(metrics))
    grid = figure.subplots(len(metrics), len(variants), squeeze=False, sharey="row", sharex=True)
    for row, metric in zip(grid, metrics, strict=True):
        for ax, variant in zip(row, variants, strict=True):
            panel_gains = [g for g in gains if g.metric == metric and g.variant == variant]
            ax.set_label(f"{metric} {variant}")
            _panel(ax, panel_gains, order=order, sets=sets)
            dress(ax)
            if metric == metrics[0]:
                ax.set_title(shortened(variant, 24), fontsize=TEXT + 0.5)
            if metric == metrics[-1]:
                ax.set_xlabel("λ", fontsize=TEXT)
        metric_gains = [g for g in gains if g.metric == metric]
        limit = reach([g.points for g in metric_gains], [(g.low, g.high) for g in metric_gains])
        if limit is not None:
            row[0].set_ylim(-limit, limit)
            notes.append(BEYOND)
        row[0].set_ylabel(f"{metric}: points over\nthe baseline (λ = 0)", fontsize=TEXT)
    _legend(figure, sets)
    if any(g.pooling == "within" for g in gains):
        notes.append(WITHIN)
    if notes:
        note(figure, " ".join(dict.fromkeys(notes)))
    return figure


def _panel(ax: Axes, gains: Sequence[Gain], *, order: list[str], sets: list[str]) -> None:
    ax.axhline(0, color=GREY, lw=0.8)
    for k, data in enumerate(sets):
        line = sorted((g for g in gains if g.data == data), key=lambda g: order.index(g.kl_weight))
        if not line:
            continue
        # shift data sets sideways so that intervals do not overlap
        x = np.array([order.index(g.kl_weight) for g in line]) + 0.14 * (k - (len(sets) - 1) / 2)
        y = [g.points for g in line]
        ends = [[g.points if e is None else e for e in (g.low, g.high)] for g in line]
        colour = style_of(line[0].variant).colour
        ax.vlines(x, [e[0] for e in ends], [e[1] for e in ends], color=colour, lw=0.7, alpha=0.75)
        ax.plot(x, y, color=colour, lw=0.8, marker=MARKERS[k % len(MARKERS)], ms=3, alpha=0.75)
    line = means(gains) if len(sets) > 1 else []
    if line:
        x, y = [order.index(g.kl_weight) for g in line], [g.points for g in line]
        ax.plot(x, y, color=style_of(line[0].variant).colour, lw=2.4, solid_capstyle="round")
    turned = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if len(order) > 4 else {}
    ax.set_xticks(range(len(order)), order, **turned)
    ax.set_xlim(-0.4, len(order) - 0.6)


def _legend(figure: Figure, sets: list[str]) -> None:
    handles = [
        Line2D(
            [],
            [],
            color="0.35",
            lw=0.8,
            ms=3.5,
            marker=MARKERS[k % len(MARKERS)],
            label=f"{shortened(data, 24)} (95 % interval)",
        )
        for k, data in enumerate(sets)
    ]
    if len(sets) > 1:
        handles.append(Line2D([], [], color="0.35", lw=2.4, label=MEAN))
    columns = 3 if figure.get_figwidth() > 6 else 1 if figure.get_figwidth() < 5 else 2
    figure.legend(
        handles=handles, loc="outside upper center", ncols=columns, fontsize=TEXT, frameon=False
    )


def _distinct(keys: Iterable[Key]) -> list[Key]:
    """Return each key once, in order."""
    return list(dict.fromkeys(keys))
