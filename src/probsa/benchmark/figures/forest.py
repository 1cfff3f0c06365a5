"""Paired differences to the baseline with their intervals, and the winners."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...statistics import ALPHA, minimum_detectable
from ..grid.methods_and_cells import Family
from ..grid.variants import chosen, chosen_note, family_baseline
from ..results.comparing import Pooled
from ..results.method_order import BASELINES
from ..results.scores import Scores
from .style import (
    CUT_NOTE,
    FOLDS_NOTE,
    GREY,
    TEXT,
    TITLE,
    FigureData,
    axis_limit,
    distinct,
    method_panels,
    note,
    paired_rows,
    style_of,
)

KEY = (
    "from the method's family. Lines: 95 % intervals. Filled: significant difference to the "
    "baseline (Holm-adjusted p ≤ 0.05). ★: the winner, which differs significantly from every "
    "other method of its family."
)
DETECTABLE = "Grey: smaller than what such an experiment detects with 80 % power."


@dataclass(frozen=True, kw_only=True, slots=True)
class BaselineDifference:
    """One method against its baseline on one data set, in points (hundredths)."""

    data: str
    metric: str
    method: str
    model: str
    """Determines the colour."""
    baseline: str
    points: float | None
    """None if undefined."""
    low: float | None = None
    high: float | None = None
    p: float | None = None
    """After Holm's correction."""
    distinct: bool = False
    """Whether the difference to the baseline is significant."""
    winner: bool = False
    """Whether the method wins by the tables' rule: it differs significantly from every other."""
    detectable: float | None = None
    """Smallest difference that such an experiment can detect, in points."""
    pooling: Literal["pooled", "within"] = "pooled"
    """Whether bags of all folds are pooled, or the metric is averaged over folds."""


def differences(scores: Sequence[Scores]) -> FigureData:
    """Return every method against its family's baseline, one λ each."""
    result: list[BaselineDifference] = []
    missing: list[str] = []
    one_weight = chosen(scores)
    data_sets = distinct(s.data for s in one_weight)
    for data, family in itertools.product(data_sets, get_args(Family)):
        group = [s for s in one_weight if s.data == data and s.method.family == family]
        if not group:
            continue
        plain = family_baseline([s.method for s in group], family)
        base = next((s for s in group if s.method == plain), None)
        if base is None or len(group) < 2:
            missing.append(f"{data}, {family}: needs {BASELINES[family]} and another method")
            continue
        rows, reasons = paired_rows(group, base, _difference)
        result += rows
        missing += reasons
    return FigureData(result, missing, chosen_note(scores))


def _difference(s: Scores, pooled: Pooled, common: dict[str, Any]) -> BaselineDifference:
    name = s.method.name
    comparison = pooled.comparison
    p = comparison.adjusted[name]
    spread = comparison.differences[name].spread
    return BaselineDifference(
        method=name,
        model=s.method.model,
        baseline=comparison.reference,
        p=p,
        distinct=p <= ALPHA,
        winner=comparison.winner == name,
        detectable=None if spread is None else 100.0 * min(1.0, minimum_detectable(spread)),
        **common,
    )


def draw_forest(differences: Sequence[BaselineDifference], *, remark: str = "") -> Figure:
    """Draw a panel for each data set (rows) and metric (columns), labelled `<data> <metric>`."""
    sets = distinct(d.data for d in differences)
    metrics = distinct(d.metric for d in differences)
    names = {s: distinct(d.method for d in differences if d.data == s) for s in sets}
    figure, panels = method_panels(names, metrics)
    is_cut = False
    for ax, data, metric in panels:
        panel_differences = [d for d in differences if d.data == data and d.metric == metric]
        _panel(ax, panel_differences, names=names[data])
        limit = axis_limit(panel_differences)
        if limit is not None:
            ax.set_xlim(-limit, limit)
            is_cut = True
        if metric == metrics[0]:
            ax.set_title(data, fontsize=TITLE, loc="left")
        if data == sets[-1]:
            ax.set_xlabel(f"{metric}: points over the baseline", fontsize=TEXT)
    baselines = distinct(d.baseline for d in differences)
    note(
        figure,
        f"Baseline: {', '.join(baselines)}, {KEY}",
        DETECTABLE if any(d.detectable for d in differences) else "",
        CUT_NOTE if is_cut else "",
        FOLDS_NOTE if any(d.pooling == "within" for d in differences) else "",
        remark,
    )
    return figure


def _panel(ax: Axes, differences: Sequence[BaselineDifference], *, names: Sequence[str]) -> None:
    ax.axvline(0, color=GREY, lw=0.9)
    for d in differences:
        y = names.index(d.method)
        style = style_of(d.model)
        if d.detectable:
            ax.fill_betweenx(
                [y - 0.42, y + 0.42], -d.detectable, d.detectable, color="#ececec", lw=0, zorder=0
            )
        if d.points is None:
            ax.text(0, y, " undefined", fontsize=TEXT, color=GREY, va="center")
            continue
        if d.low is not None and d.high is not None:
            ax.plot([d.low, d.high], [y, y], color=style.colour, lw=1.2)
        face = style.colour if d.distinct else "white"
        ax.plot(d.points, y, marker=style.marker, mec=style.colour, mfc=face, ms=4.5, mew=1.1)
        if d.winner:
            across = ax.get_yaxis_transform()
            ax.text(1.0, y, "★", transform=across, fontsize=TEXT + 2, ha="right", va="center")
    ax.margins(x=0.08)
