"""AUROC of every method on every split; outlier splits may have wrong labels or unusual bags."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .style import GREY, OUTLIER, ROW, TEXT, TITLE, WIDTH, dress, list_names, sheet, style_of, write

Outliers = Mapping[str, Collection[int]]
"""Outlier splits by data set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoldScores:
    """One method's AUROC on the test bags of each split, averaged over seeds."""

    data: str
    method: str
    model: str
    auroc: Mapping[int, float]


def write_folds(path: Path, scores: Sequence[FoldScores], *, outliers: Outliers) -> list[Path]:
    """Write the figure and its numbers."""
    rows = [
        {
            "data": s.data,
            "method": s.method,
            "split": k,
            "auroc": v,
            "odd": k in outliers.get(s.data, ()),
        }
        for s in scores
        for k, v in s.auroc.items()
    ]
    return write(draw_folds(scores, outliers=outliers), path, rows)


def draw_folds(scores: Sequence[FoldScores], *, outliers: Outliers) -> Figure:
    """Draw a panel for each data set, labelled with its name."""
    sets = list(dict.fromkeys(s.data for s in scores))
    names = list(dict.fromkeys(s.method for s in scores))
    figure = sheet(WIDTH, 1.05 + ROW * len(names))
    grid = figure.subplots(1, len(sets), squeeze=False)[0]
    for ax, data in zip(grid, sets, strict=True):
        ax.set_label(data)
        dress(ax)
        list_names(ax, names, shown=data == sets[0])
        _panel(
            ax, [s for s in scores if s.data == data], names=names, outliers=outliers.get(data, ())
        )
        ax.set_title(data, fontsize=TITLE, loc="left")
        ax.set_xlabel("AUROC on a split's test bags", fontsize=TEXT)
    marks = [
        Line2D([], [], ls="", marker="o", color="0.35", ms=3.5, alpha=0.7, label="one split"),
        Line2D([], [], ls="", marker="|", color="0.35", ms=9, mew=2, label="mean over splits"),
    ]
    if any(outliers.values()):
        marks.append(
            Line2D(
                [],
                [],
                ls="",
                marker="s",
                mfc="none",
                mec=OUTLIER,
                ms=6,
                label="an outlier split (with its number): check its labels and bags",
            )
        )
    figure.legend(handles=marks, loc="outside lower left", ncols=3, fontsize=TEXT, frameon=False)
    return figure


def _panel(
    ax: Axes, scores: Sequence[FoldScores], *, names: Sequence[str], outliers: Collection[int]
) -> None:
    ax.axvline(0.5, color=GREY, lw=0.8, ls=":")
    for s in scores:
        y, colour = names.index(s.method), style_of(s.model).colour
        usual = [v for k, v in s.auroc.items() if k not in outliers]
        ax.plot(usual, [y] * len(usual), ls="", marker="o", color=colour, ms=3.5, alpha=0.7)
        for k in outliers:
            if k in s.auroc:
                ax.plot(s.auroc[k], y, marker="s", mfc="white", mec=OUTLIER, ms=7, mew=0.9)
                ax.text(
                    s.auroc[k], y, str(k), fontsize=TEXT - 0.5, color=OUTLIER,
                    ha="center", va="center_baseline",
                )  # fmt: skip
        if s.auroc:
            mean = float(np.mean(list(s.auroc.values())))
            ax.plot(mean, y, marker="|", color=colour, ms=9, mew=2)
    ax.margins(x=0.06)
