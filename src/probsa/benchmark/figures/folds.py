"""AUROC of every method on every split."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..grid.variants import chosen
from ..results.sampling import values_by_split
from ..results.scores import Scores
from .style import (
    GREY,
    ROW,
    TEXT,
    WIDTH,
    FigureData,
    distinct,
    dress,
    list_names,
    note,
    sheet,
    style_of,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class FoldScore:
    """One method's AUROC on the test bags of one split, averaged over seeds."""

    data: str
    method: str
    model: str
    split: int
    auroc: float


def folds(scores: Sequence[Scores]) -> FigureData:
    """Return the AUROC of every method by split, one λ each."""
    rows = [
        FoldScore(data=s.data, method=s.method.name, model=s.method.model, split=k, auroc=value)
        for s in chosen(scores)
        for k, value in values_by_split(s)["auroc"].items()
    ]
    return FigureData(rows)


def draw_folds(scores: Sequence[FoldScore], *, remark: str = "") -> Figure:
    """Draw a panel for each data set, labelled with its name."""
    sets = distinct(s.data for s in scores)
    names = distinct(s.method for s in scores)
    figure = sheet(WIDTH, 1.05 + ROW * len(names))
    grid = figure.subplots(1, len(sets), squeeze=False)[0]
    for ax, data in zip(grid, sets, strict=True):
        ax.set_label(data)
        dress(ax, title=data)
        list_names(ax, names, shown=data == sets[0])
        ax.axvline(0.5, color=GREY, lw=0.8, ls=":")
        for y, name in enumerate(names):
            own = [s for s in scores if (s.data, s.method) == (data, name)]
            if own:
                colour, values = style_of(own[0].model).colour, [s.auroc for s in own]
                ax.plot(values, [y] * len(own), ls="", marker="o", color=colour, ms=3.5, alpha=0.7)
                ax.plot(float(np.mean(values)), y, marker="|", color=colour, ms=9, mew=2)
        ax.margins(x=0.06)
        ax.set_xlabel("AUROC on a split's test bags", fontsize=TEXT)
    marks = [
        Line2D([], [], ls="", marker="o", color="0.35", ms=3.5, alpha=0.7, label="one split"),
        Line2D([], [], ls="", marker="|", color="0.35", ms=9, mew=2, label="mean over splits"),
    ]
    figure.legend(handles=marks, loc="outside lower left", ncols=3, fontsize=TEXT, frameon=False)
    note(figure, remark)
    return figure
