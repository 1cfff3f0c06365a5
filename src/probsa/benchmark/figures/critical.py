"""The critical-difference diagram of Demšar (JMLR 2006): average ranks on a line.

Methods that a bar joins cannot be told apart; the length of the critical difference stands above.
"""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .style import DPI, TEXT, WIDTH, shortened, style_of, write

LINE = 0.17
"""Inches of a line of names, and of a bar's place."""
MARGIN = 2.4
"""Inches for the names at either side."""


def write_critical(
    path: Path,
    names: Sequence[str],
    ranks: Sequence[float],
    *,
    cd: float,
    cliques: Sequence[Collection[int]],
    models: Sequence[str] | None = None,
    title: str = "",
) -> list[Path]:
    """Writes the diagram and its numbers; the arguments are those of `draw_critical`."""
    figure = draw_critical(names, ranks, cd=cd, cliques=cliques, models=models, title=title)
    rows = [
        {
            "method": name,
            "average_rank": rank,
            "cliques": " ".join(str(c + 1) for c, own in enumerate(cliques) if i in own),
            "cd": cd,
        }
        for i, (name, rank) in enumerate(zip(names, ranks, strict=True))
    ]
    return write(figure, path, rows)


def draw_critical(
    names: Sequence[str],
    ranks: Sequence[float],
    *,
    cd: float,
    cliques: Sequence[Collection[int]],
    models: Sequence[str] | None = None,
    title: str = "",
) -> Figure:
    """The diagram; its one axes are labelled `critical` and measure inches from the top left.

    Args:
        names: of methods.
        ranks: the average rank of each; 1 is best.
        cd: the critical difference.
        cliques: groups of methods that cannot be told apart, as their places in `names`.
        models: for the colours; None: the names.
        title: what is ranked over what.
    """
    k = len(names)
    bars = _levels([g for g in cliques if len(g) > 1], ranks)
    top, scale = 0.45 if title else 0.25, 0.36
    low = top + scale + 0.3  # the line of ranks
    under = low + 0.12 + LINE * (max(bars.values(), default=-1) + 1)
    height = under + LINE * ((k + 1) // 2) + 0.15
    figure = Figure(figsize=(WIDTH, height), dpi=DPI)
    FigureCanvasAgg(figure)
    ax = figure.add_axes((0, 0, 1, 1), label="critical")
    ax.axis("off")
    ax.set_xlim(0, WIDTH)
    ax.set_ylim(height, 0)
    ends = np.floor(min(ranks)), np.ceil(max(ranks))
    ends = (float(ends[0]), float(max(ends[1], ends[0] + 1)))

    def at(rank: float) -> float:
        return MARGIN + (rank - ends[0]) / (ends[1] - ends[0]) * (WIDTH - 2 * MARGIN)

    if title:
        ax.text(0.1, 0.2, title, fontsize=TEXT + 1, va="center")
    _ruler(ax, low, ends=ends, at=at, many=ends[1] - ends[0] > 12)
    _difference(ax, low - scale, cd=cd, start=ends[0], at=at)
    for own, level in bars.items():
        x = [at(ranks[i]) for i in own]
        y = low + 0.13 + LINE * level
        ax.plot([min(x) - 0.05, max(x) + 0.05], [y, y], color="0.15", lw=3, solid_capstyle="butt")
    order = sorted(range(k), key=lambda i: ranks[i])
    for place, i in enumerate(order):
        left = place < (k + 1) // 2
        row = place if left else k - 1 - place
        y = under + LINE * (row + 0.5)
        edge = MARGIN - 0.1 if left else WIDTH - MARGIN + 0.1
        style = style_of(models[i] if models else names[i])
        x = at(ranks[i])
        ax.plot([x, x, edge], [low, y, y], color=style.colour, lw=0.9)
        ax.text(
            edge - 0.05 if left else edge + 0.05, y, f"{shortened(names[i], 31)}  {ranks[i]:.2f}"
            if left else f"{ranks[i]:.2f}  {shortened(names[i], 31)}",
            ha="right" if left else "left", va="center", fontsize=TEXT,
        )  # fmt: skip
    return figure


def _levels(
    cliques: Sequence[Collection[int]], ranks: Sequence[float]
) -> dict[tuple[int, ...], int]:
    """The line that each bar lies on: the first one that is free there."""
    ends: list[float] = []
    found: dict[tuple[int, ...], int] = {}
    for own in sorted(cliques, key=lambda g: min(ranks[i] for i in g)):
        first, last = min(ranks[i] for i in own), max(ranks[i] for i in own)
        free = [level for level, end in enumerate(ends) if end < first]
        level = free[0] if free else len(ends)
        ends[level : level + 1] = [last]
        found[tuple(sorted(own))] = level
    return found


def _ruler(
    ax: Axes, y: float, *, ends: tuple[float, float], at: Callable[[float], float], many: bool
) -> None:
    ax.plot([at(ends[0]), at(ends[1])], [y, y], color="black", lw=0.9)
    for rank in range(int(ends[0]), int(ends[1]) + 1):
        x = at(float(rank))
        ax.plot([x, x], [y - 0.06, y], color="black", lw=0.9)
        if not many or rank % 2 == int(ends[0]) % 2:
            ax.text(x, y - 0.08, str(rank), ha="center", va="bottom", fontsize=TEXT)


def _difference(
    ax: Axes, y: float, *, cd: float, start: float, at: Callable[[float], float]
) -> None:
    """The length of the critical difference; longer than the page, it ends in an arrow."""
    x, end = at(start), at(start + cd)
    fits = end <= WIDTH - 0.6
    stop = end if fits else WIDTH - 0.6
    ax.plot([x, stop], [y, y], color="0.35", lw=1.4)
    ax.plot([x, x], [y - 0.05, y + 0.05], color="0.35", lw=1.4)
    if fits:
        ax.plot([stop, stop], [y - 0.05, y + 0.05], color="0.35", lw=1.4)
    else:
        ax.plot(stop, y, marker=">", color="0.35", ms=5)
    words = f"critical difference {cd:.2f}" + ("" if fits else ": more than fits the page")
    ax.text(x, y - 0.07, words, ha="left", va="bottom", fontsize=TEXT)
