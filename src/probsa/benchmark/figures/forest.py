"""Paired differences to the baseline with their intervals, and the winners."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .style import (
    BEYOND,
    GREY,
    ROW,
    TEXT,
    TITLE,
    WIDTH,
    WITHIN,
    dress,
    list_names,
    note,
    reach,
    sheet,
    style_of,
    write,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class BaselineDifference:
    """One method against its baseline on one data set, in points (hundredths)."""

    data: str
    metric: str
    method: str
    model: str
    """Determines the colour."""
    baseline: str
    pooling: Literal["pooled", "within"] = "pooled"
    """Whether bags of all folds are pooled, or the metric is averaged over folds."""
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


def write_forest(
    path: Path, differences: Sequence[BaselineDifference], *, remark: str = ""
) -> list[Path]:
    """Write the figure, with a further note below it, and its numbers."""
    columns = (
        "data", "metric", "method", "baseline", "points", "low", "high", "p", "distinct", "winner",
        "detectable", "pooling",
    )  # fmt: skip
    rows = [{c: getattr(d, c) for c in columns} for d in differences]
    return write(draw_forest(differences, remark=remark), path, rows)


def draw_forest(differences: Sequence[BaselineDifference], *, remark: str = "") -> Figure:
    """Draw a panel for each data set (rows) and metric (columns), labelled `<data> <metric>`."""
    sets = list(dict.fromkeys(d.data for d in differences))
    metrics = list(dict.fromkeys(d.metric for d in differences))
    names = {s: list(dict.fromkeys(d.method for d in differences if d.data == s)) for s in sets}
    rows = [len(names[s]) for s in sets]
    figure = sheet(WIDTH, 0.7 + sum(0.42 + ROW * n for n in rows))
    grid = figure.subplots(
        len(sets), len(metrics), squeeze=False, height_ratios=[n + 1 for n in rows]
    )
    is_cut = False
    for line, data in zip(grid, sets, strict=True):
        for ax, metric in zip(line, metrics, strict=True):
            ax.set_label(f"{data} {metric}")
            dress(ax)
            list_names(ax, names[data], shown=metric == metrics[0])
            panel_differences = [d for d in differences if (d.data, d.metric) == (data, metric)]
            _panel(ax, panel_differences, names=names[data])
            most = reach(
                [d.points for d in panel_differences if d.points is not None],
                [(d.low, d.high) for d in panel_differences],
            )
            if most is not None:
                ax.set_xlim(-most, most)
                is_cut = True
            if metric == metrics[0]:
                ax.set_title(data, fontsize=TITLE, loc="left")
            if data == sets[-1]:
                ax.set_xlabel(f"{metric}: points over the baseline", fontsize=TEXT)
    baselines = ", ".join(dict.fromkeys(d.baseline for d in differences))
    has_detectable = any(d.detectable for d in differences)
    note(
        figure,
        f"Baseline: {baselines}, from the method's family. Lines: 95 % intervals. Filled: "
        "significant "
        "difference to the baseline (Holm-adjusted p ≤ 0.05). ★: the winner, which differs "
        "significantly from every other method of its family."
        + (
            " Grey: smaller than what such an experiment detects with 80 % power."
            if has_detectable
            else ""
        )
        + (f" {BEYOND}" if is_cut else "")
        + (f" {WITHIN}" if any(d.pooling == "within" for d in differences) else "")
        + (f" {remark}" if remark else ""),
    )
    return figure


def _panel(ax: Axes, differences: Sequence[BaselineDifference], *, names: Sequence[str]) -> None:
    ax.axvline(0, color=GREY, lw=0.9)
    for d in differences:
        y, style = names.index(d.method), style_of(d.model)
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
