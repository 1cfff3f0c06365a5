"""AUROC of every method on every split."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .style import GREY, ROW, TEXT, TITLE, WIDTH, dress, list_names, sheet, style_of, write


@dataclass(frozen=True, kw_only=True, slots=True)
class FoldScores:
    """One method's AUROC on the test bags of each split, averaged over seeds."""

    data: str
    method: str
    model: str
    auroc: Mapping[int, float]


def write_folds(path: Path, scores: Sequence[FoldScores]) -> list[Path]:
    """Write the figure and its numbers."""
    rows = [
        {"data": s.data, "method": s.method, "split": k, "auroc": v}
        for s in scores
        for k, v in s.auroc.items()
    ]
    return write(draw_folds(scores), path, rows)


def draw_folds(scores: Sequence[FoldScores]) -> Figure:
    """Draw a panel for each data set, labelled with its name."""
    sets = list(dict.fromkeys(s.data for s in scores))
    names = list(dict.fromkeys(s.method for s in scores))
    figure = sheet(WIDTH, 1.05 + ROW * len(names))
    grid = figure.subplots(1, len(sets), squeeze=False)[0]
    for ax, data in zip(grid, sets, strict=True):
        ax.set_label(data)
        dress(ax)
        list_names(ax, names, shown=data == sets[0])
        _panel(ax, [s for s in scores if s.data == data], names=names)
        ax.set_title(data, fontsize=TITLE, loc="left")
        ax.set_xlabel("AUROC on a split's test bags", fontsize=TEXT)
    marks = [
        Line2D([], [], ls="", marker="o", color="0.35", ms=3.5, alpha=0.7, label="one split"),
        Line2D([], [], ls="", marker="|", color="0.35", ms=9, mew=2, label="mean over splits"),
    ]
    figure.legend(handles=marks, loc="outside lower left", ncols=3, fontsize=TEXT, frameon=False)
    return figure


def _panel(ax: Axes, scores: Sequence[FoldScores], *, names: Sequence[str]) -> None:
    ax.axvline(0.5, color=GREY, lw=0.8, ls=":")
    for s in scores:
        y, colour = names.index(s.method), style_of(s.model).colour
        values = list(s.auroc.values())
        ax.plot(values, [y] * len(values), ls="", marker="o", color=colour, ms=3.5, alpha=0.7)
        if values:
            ax.plot(float(np.mean(values)), y, marker="|", color=colour, ms=9, mew=2)
    ax.margins(x=0.06)
