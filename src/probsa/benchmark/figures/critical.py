"""The critical-difference diagram of Demšar (JMLR 2006): average ranks on a line.

Methods joined by a bar do not differ significantly; the critical difference is drawn above.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ...statistics import critical_difference
from ..grid.variants import chosen
from ..results.ranked import ranked
from ..results.scores import Scores
from .style import DPI, TEXT, WIDTH, shortened, style_of

LINE = 0.17
"""Height in inches of a line of names or of a bar."""
MARGIN = 2.4
"""Width in inches for the names on either side."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankedMethod:
    """One method's average rank, and the groups of equal methods that it is in."""

    method: str
    model: str
    """Determines the colour."""
    average_rank: float
    cliques: str
    """Numbers of groups that do not differ significantly, from 1."""
    cd: float
    """The critical difference."""


def critical(scores: Sequence[Scores], family: str, metric: str | None) -> list[RankedMethod] | str:
    """Return the ranks of a family's methods with a value on every data set, or why there are none.

    Args:
        scores: Scores on all data sets.
        family: The family whose methods are ranked.
        metric: The metric; None: the primary metric of each data set, whatever its task.
    """
    own = [s for s in chosen(scores) if s.method.family == family]
    columns = ranked(own)
    values = columns.values if metric is None else columns.of(metric)
    sets = len({data for data, _ in columns.columns})
    if len(values) < 2 or sets < 2:
        counts = f"methods: {len(values)}, data sets in common: {sets}; two of each are needed"
        return f"{counts}. {columns.note()}".removesuffix(". ")
    result = critical_difference(values)
    models = {s.method.name: s.method.model for s in own}
    return result.reason or [
        RankedMethod(
            method=name,
            model=models[name],
            average_rank=rank,
            cliques=" ".join(str(k + 1) for k, c in enumerate(result.cliques) if name in c),
            cd=result.difference,
        )
        for name, rank in result.ranks.mean.items()
    ]


def draw_critical(rows: Sequence[RankedMethod], *, title: str = "") -> Figure:
    """Draw the diagram; its axes are labelled `critical` and measure inches from the top left."""
    k = len(rows)
    ranks = [r.average_rank for r in rows]
    cliques: dict[str, list[float]] = {}
    for row in rows:
        for clique in row.cliques.split():
            cliques.setdefault(clique, []).append(row.average_rank)
    bars = _levels([(min(c), max(c)) for c in cliques.values() if len(c) > 1])
    top, scale = 0.45 if title else 0.25, 0.36
    axis_y = top + scale + 0.3  # the line of ranks
    names_top = axis_y + 0.12 + LINE * (max((level for _, level in bars), default=-1) + 1)
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
    _difference(ax, axis_y - scale, cd=rows[0].cd, start=ends[0], x_of=x_of)
    for (first, last), level in bars:
        y = axis_y + 0.13 + LINE * level
        x = [x_of(first) - 0.05, x_of(last) + 0.05]
        ax.plot(x, [y, y], color="0.15", lw=3, solid_capstyle="butt")
    for place, row in enumerate(sorted(rows, key=lambda r: r.average_rank)):
        left = place < (k + 1) // 2
        y = names_top + LINE * ((place if left else k - 1 - place) + 0.5)
        edge = MARGIN - 0.1 if left else WIDTH - MARGIN + 0.1
        x, name, rank = x_of(row.average_rank), shortened(row.method, 31), row.average_rank
        ax.plot([x, x, edge], [axis_y, y, y], color=style_of(row.model).colour, lw=0.9)
        text = f"{name}  {rank:.2f}" if left else f"{rank:.2f}  {name}"
        side = "right" if left else "left"
        ax.text(edge + (-0.05 if left else 0.05), y, text, ha=side, va="center", fontsize=TEXT)
    return figure


def _levels(bars: Sequence[tuple[float, float]]) -> list[tuple[tuple[float, float], int]]:
    """Return each bar with its line, the first that is free at its position."""
    ends: list[float] = []
    levels: list[tuple[tuple[float, float], int]] = []
    for first, last in sorted(bars, key=lambda bar: bar[0]):
        free = [level for level, end in enumerate(ends) if end < first]
        level = free[0] if free else len(ends)
        ends[level : level + 1] = [last]
        levels.append(((first, last), level))
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
