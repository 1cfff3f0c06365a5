"""The critical-difference diagram of Demšar (JMLR 2006): average ranks on a line.

Methods joined by a bar do not differ significantly; the critical difference is drawn above.
"""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .style import DPI, TEXT, WIDTH, shortened, style_of, write

LINE = 0.17
"""Height in inches of a line of names or of a bar."""
MARGIN = 2.4
"""Width in inches for the names on either side."""


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
    """Write the diagram and its numbers; the arguments are those of `draw_critical`."""
    figure = draw_critical(names, ranks, cd=cd, cliques=cliques, models=models, title=title)
    rows = [
        {
            "method": name,
            "average_rank": rank,
            "cliques": " ".join(str(c + 1) for c, members in enumerate(cliques) if i in members),
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
    """Draw the diagram; its axes are labelled `critical` and measure inches from the top left.

    Args:
        names: Names of the methods.
        ranks: The average rank of each method; 1 is best.
        cd: The critical difference.
        cliques: Groups of methods that do not differ significantly, as indices into `names`.
        models: Models that determine the colours; None: the names.
        title: What is ranked, over which data.
    """
    k = len(names)
    bars = _levels([g for g in cliques if len(g) > 1], ranks)
    top, scale = 0.45 if title else 0.25, 0.36
    axis_y = top + scale + 0.3  # the line of ranks
    names_top = axis_y + 0.12 + LINE * (max(bars.values(), default=-1) + 1)
    height = names_top + LINE * ((k + 1) // 2) + 0.15
    figure = Figure(figsize=(WIDTH, height), dpi=DPI)
    FigureCanvasAgg(figure)
    ax = figure.add_axes((0, 0, 1, 1), label="critical")
    ax.axis("off")
    ax.set_xlim(0, WIDTH)
    ax.set_ylim(height, 0)
    ends = np.floor(min(ranks)), np.ceil(max(ranks))
    ends = (float(ends[0]), float(max(ends[1], ends[0] + 1)))

    def x_of(rank: float) -> float:
        return MARGIN + (rank - ends[0]) / (ends[1] - ends[0]) * (WIDTH - 2 * MARGIN)

    if title:
        ax.text(0.1, 0.2, title, fontsize=TEXT + 1, va="center")
    _ruler(ax, axis_y, ends=ends, x_of=x_of, many=ends[1] - ends[0] > 12)
    _difference(ax, axis_y - scale, cd=cd, start=ends[0], x_of=x_of)
    for members, level in bars.items():
        x = [x_of(ranks[i]) for i in members]
        y = axis_y + 0.13 + LINE * level
        ax.plot([min(x) - 0.05, max(x) + 0.05], [y, y], color="0.15", lw=3, solid_capstyle="butt")
    order = sorted(range(k), key=lambda i: ranks[i])
    for place, i in enumerate(order):
        left = place < (k + 1) // 2
        row = place if left else k - 1 - place
        y = names_top + LINE * (row + 0.5)
        edge = MARGIN - 0.1 if left else WIDTH - MARGIN + 0.1
        style = style_of(models[i] if models else names[i])
        x = x_of(ranks[i])
        ax.plot([x, x, edge], [axis_y, y, y], color=style.colour, lw=0.9)
        ax.text(
            edge - 0.05 if left else edge + 0.05, y, f"{shortened(names[i], 31)}  {ranks[i]:.2f}"
            if left else f"{ranks[i]:.2f}  {shortened(names[i], 31)}",
            ha="right" if left else "left", va="center", fontsize=TEXT,
        )  # fmt: skip
    return figure


def _levels(
    cliques: Sequence[Collection[int]], ranks: Sequence[float]
) -> dict[tuple[int, ...], int]:
    """Return the line of each bar, the first that is free at its position."""
    ends: list[float] = []
    levels: dict[tuple[int, ...], int] = {}
    for members in sorted(cliques, key=lambda g: min(ranks[i] for i in g)):
        first, last = min(ranks[i] for i in members), max(ranks[i] for i in members)
        free = [level for level, end in enumerate(ends) if end < first]
        level = free[0] if free else len(ends)
        ends[level : level + 1] = [last]
        levels[tuple(sorted(members))] = level
    return levels


def _ruler(
    ax: Axes, y: float, *, ends: tuple[float, float], x_of: Callable[[float], float], many: bool
) -> None:
    ax.plot([x_of(ends[0]), x_of(ends[1])], [y, y], color="black", lw=0.9)
    for rank in range(int(ends[0]), int(ends[1]) + 1):
        x = x_of(float(rank))
        ax.plot([x, x], [y - 0.06, y], color="black", lw=0.9)
        if not many or rank % 2 == int(ends[0]) % 2:
            ax.text(x, y - 0.08, str(rank), ha="center", va="bottom", fontsize=TEXT)


def _difference(
    ax: Axes, y: float, *, cd: float, start: float, x_of: Callable[[float], float]
) -> None:
    """Draw the critical difference; if it exceeds the page, it ends in an arrow."""
    x, end = x_of(start), x_of(start + cd)
    fits = end <= WIDTH - 0.6
    stop = end if fits else WIDTH - 0.6
    ax.plot([x, stop], [y, y], color="0.35", lw=1.4)
    ax.plot([x, x], [y - 0.05, y + 0.05], color="0.35", lw=1.4)
    if fits:
        ax.plot([stop, stop], [y - 0.05, y + 0.05], color="0.35", lw=1.4)
    else:
        ax.plot(stop, y, marker=">", color="0.35", ms=5)
    words = f"critical difference {cd:.2f}" + ("" if fits else " (longer than the page)")
    ax.text(x, y - 0.07, words, ha="left", va="bottom", fontsize=TEXT)
