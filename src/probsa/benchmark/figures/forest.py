"""Paired differences to the baseline with their intervals; a winner is marked only if it is one."""

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
class Difference:
    """One method against its baseline on one data set, in points (hundredths)."""

    data: str
    metric: str
    method: str
    model: str
    """For the colour."""
    baseline: str
    pooling: Literal["pooled", "within"] = "pooled"
    """Over the bags of all folds together, or in each fold and then the mean."""
    points: float | None
    """None where it is undefined."""
    low: float | None = None
    high: float | None = None
    p: float | None = None
    """After Holm's correction."""
    distinct: bool = False
    """Whether it is told apart from the baseline."""
    winner: bool = False
    """By the rule of the tables: told apart from every other method too."""
    detectable: float | None = None
    """The smallest difference that such an experiment finds, in points: detectable.py."""


def write_forest(path: Path, differences: Sequence[Difference], *, said: str = "") -> list[Path]:
    """Writes the figure, with what else is to be said of it, and its numbers."""
    columns = (
        "data", "metric", "method", "baseline", "points", "low", "high", "p", "distinct", "winner",
        "detectable", "pooling",
    )  # fmt: skip
    rows = [{c: getattr(d, c) for c in columns} for d in differences]
    return write(draw_forest(differences, said=said), path, rows)


def draw_forest(differences: Sequence[Difference], *, said: str = "") -> Figure:
    """A panel for each data set (rows) and metric (columns), labelled `<data> <metric>`."""
    sets = list(dict.fromkeys(d.data for d in differences))
    metrics = list(dict.fromkeys(d.metric for d in differences))
    names = {s: list(dict.fromkeys(d.method for d in differences if d.data == s)) for s in sets}
    rows = [len(names[s]) for s in sets]
    figure = sheet(WIDTH, 0.7 + sum(0.42 + ROW * n for n in rows))
    grid = figure.subplots(
        len(sets), len(metrics), squeeze=False, height_ratios=[n + 1 for n in rows]
    )
    cut = False
    for line, data in zip(grid, sets, strict=True):
        for ax, metric in zip(line, metrics, strict=True):
            ax.set_label(f"{data} {metric}")
            dress(ax)
            list_names(ax, names[data], shown=metric == metrics[0])
            own = [d for d in differences if (d.data, d.metric) == (data, metric)]
            _panel(ax, own, names=names[data])
            most = reach(
                [d.points for d in own if d.points is not None], [(d.low, d.high) for d in own]
            )
            if most is not None:
                ax.set_xlim(-most, most)
                cut = True
            if metric == metrics[0]:
                ax.set_title(data, fontsize=TITLE, loc="left")
            if data == sets[-1]:
                ax.set_xlabel(f"{metric}: points over the baseline", fontsize=TEXT)
    baselines = ", ".join(dict.fromkeys(d.baseline for d in differences))
    band = any(d.detectable for d in differences)
    note(
        figure,
        f"Baseline: {baselines}, of the method's own kind. Lines: 95 % intervals. Filled: told "
        "apart from the baseline (Holm-adjusted p ≤ 0.05). ★: the winner, told apart from every "
        "other method of its family."
        + (" Grey: smaller than what such an experiment finds four times in five." if band else "")
        + (f" {BEYOND}" if cut else "")
        + (f" {WITHIN}" if any(d.pooling == "within" for d in differences) else "")
        + (f" {said}" if said else ""),
    )
    return figure


def _panel(ax: Axes, own: Sequence[Difference], *, names: Sequence[str]) -> None:
    ax.axvline(0, color=GREY, lw=0.9)
    for d in own:
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
