"""AUROC of every method on every split: one that all find odd has odd bags, or odd labels."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .style import GREY, ODD, ROW, TEXT, TITLE, WIDTH, dress, list_names, sheet, style_of, write

Odd = Mapping[str, Collection[int]]
"""By data set: the splits that stand out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoldScores:
    """One method's AUROC on the test bags of each split, averaged over seeds."""

    data: str
    method: str
    model: str
    auroc: Mapping[int, float]


def write_folds(path: Path, scores: Sequence[FoldScores], *, odd: Odd) -> list[Path]:
    """Writes the figure and its numbers."""
    rows = [
        {
            "data": s.data,
            "method": s.method,
            "split": k,
            "auroc": v,
            "odd": k in odd.get(s.data, ()),
        }
        for s in scores
        for k, v in s.auroc.items()
    ]
    return write(draw_folds(scores, odd=odd), path, rows)


def draw_folds(scores: Sequence[FoldScores], *, odd: Odd) -> Figure:
    """A panel for each data set, labelled with its name."""
    sets = list(dict.fromkeys(s.data for s in scores))
    names = list(dict.fromkeys(s.method for s in scores))
    figure = sheet(WIDTH, 1.05 + ROW * len(names))
    grid = figure.subplots(1, len(sets), squeeze=False)[0]
    for ax, data in zip(grid, sets, strict=True):
        ax.set_label(data)
        dress(ax)
        list_names(ax, names, shown=data == sets[0])
        _panel(ax, [s for s in scores if s.data == data], names=names, odd=odd.get(data, ()))
        ax.set_title(data, fontsize=TITLE, loc="left")
        ax.set_xlabel("AUROC on a split's test bags", fontsize=TEXT)
    marks = [
        Line2D([], [], ls="", marker="o", color="0.35", ms=3.5, alpha=0.7, label="a split"),
        Line2D([], [], ls="", marker="|", color="0.35", ms=9, mew=2, label="mean over splits"),
    ]
    if any(odd.values()):
        marks.append(
            Line2D(
                [],
                [],
                ls="",
                marker="s",
                mfc="none",
                mec=ODD,
                ms=6,
                label="a split (its number) that most methods find odd: look at its bags",
            )
        )
    figure.legend(handles=marks, loc="outside lower left", ncols=3, fontsize=TEXT, frameon=False)
    return figure


def _panel(
    ax: Axes, scores: Sequence[FoldScores], *, names: Sequence[str], odd: Collection[int]
) -> None:
    ax.axvline(0.5, color=GREY, lw=0.8, ls=":")
    for s in scores:
        y, colour = names.index(s.method), style_of(s.model).colour
        usual = [v for k, v in s.auroc.items() if k not in odd]
        ax.plot(usual, [y] * len(usual), ls="", marker="o", color=colour, ms=3.5, alpha=0.7)
        for k in odd:
            if k in s.auroc:
                ax.plot(s.auroc[k], y, marker="s", mfc="white", mec=ODD, ms=7, mew=0.9)
                ax.text(
                    s.auroc[k], y, str(k), fontsize=TEXT - 0.5, color=ODD,
                    ha="center", va="center_baseline",
                )  # fmt: skip
        if s.auroc:
            mean = float(np.mean(list(s.auroc.values())))
            ax.plot(mean, y, marker="|", color=colour, ms=9, mew=2)
    ax.margins(x=0.06)
