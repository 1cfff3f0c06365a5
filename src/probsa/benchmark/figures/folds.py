"""AUROC of every method on every split: one that all find odd has odd bags, or odd labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .style import GREY, ODD, ROW, TEXT, TITLE, WIDTH, dress, list_names, sheet, style_of, write

SPREADS = 4.0
"""How many robust standard deviations from the other splits make one odd."""
LEAST = 0.2
"""And how far it must be in AUROC: small test parts scatter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoldScores:
    """One method's AUROC on the test bags of each split, averaged over seeds."""

    data: str
    method: str
    model: str
    auroc: Mapping[int, float]


def odd_folds(scores: Sequence[FoldScores]) -> dict[str, list[int]]:
    """By data set, the splits on which the methods' median AUROC is far from the other splits'.

    Far: more than `LEAST`, and more than `SPREADS` robust standard deviations (1.4826 times the
    median distance to their median) of the other splits. Fewer than three splits say nothing.
    """
    found: dict[str, list[int]] = {}
    for data in dict.fromkeys(s.data for s in scores):
        own = [s.auroc for s in scores if s.data == data]
        splits = sorted({k for a in own for k in a})
        middle = {k: float(np.median([a[k] for a in own if k in a])) for k in splits}
        found[data] = [k for k in splits if len(splits) > 2 and _odd(k, middle)]
    return found


def _odd(split: int, middle: Mapping[int, float]) -> bool:
    others = np.array([v for k, v in middle.items() if k != split])
    centre = np.median(others)
    spread = 1.4826 * np.median(np.abs(others - centre))
    off = abs(middle[split] - centre)
    return bool(off > LEAST and off > SPREADS * spread)


def write_folds(path: Path, scores: Sequence[FoldScores]) -> list[Path]:
    """Writes the figure and its numbers."""
    odd = odd_folds(scores)
    rows = [
        {"data": s.data, "method": s.method, "split": k, "auroc": v, "odd": k in odd[s.data]}
        for s in scores
        for k, v in s.auroc.items()
    ]
    return write(draw_folds(scores), path, rows)


def draw_folds(scores: Sequence[FoldScores]) -> Figure:
    """A panel for each data set, labelled with its name."""
    sets = list(dict.fromkeys(s.data for s in scores))
    names = list(dict.fromkeys(s.method for s in scores))
    odd = odd_folds(scores)
    figure = sheet(WIDTH, 1.05 + ROW * len(names))
    grid = figure.subplots(1, len(sets), squeeze=False)[0]
    for ax, data in zip(grid, sets, strict=True):
        ax.set_label(data)
        dress(ax)
        list_names(ax, names, shown=data == sets[0])
        _panel(ax, [s for s in scores if s.data == data], names=names, odd=odd[data])
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
    ax: Axes, scores: Sequence[FoldScores], *, names: Sequence[str], odd: Sequence[int]
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
