"""The paper's figure 4: the average rank of each method within its family, ours and the paper's.

1 is best. A rank is taken on each data set by itself, then averaged over data sets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .style import PAPER, ROW, TEXT, TITLE, WIDTH, dress, list_names, note, sheet, style_of, write

FAMILIES = {"local": "no global interactions", "global": "with global interactions"}


@dataclass(frozen=True, kw_only=True, slots=True)
class AverageRank:
    """One method's, for one metric."""

    family: str
    metric: str
    method: str
    model: str
    """For the colour."""
    ours: float | None
    """None where we have not run it."""
    paper: float | None = None
    """None where the paper has not."""
    data_sets: int = 0
    """That ours is averaged over."""


def write_ranks(path: Path, ranks: Sequence[AverageRank], *, said: str = "") -> list[Path]:
    """Writes the figure, with what else is to be said of it, and its numbers."""
    columns = ("family", "metric", "method", "ours", "paper", "data_sets")
    rows = [{c: getattr(r, c) for c in columns} for r in ranks]
    return write(draw_ranks(ranks, said=said), path, rows)


def draw_ranks(ranks: Sequence[AverageRank], *, said: str = "") -> Figure:
    """A panel for each family (rows) and metric (columns), labelled `<family> <metric>`."""
    families = list(dict.fromkeys(r.family for r in ranks))
    metrics = list(dict.fromkeys(r.metric for r in ranks))
    names = {f: _ordered([r for r in ranks if r.family == f], metrics) for f in families}
    last = max([2, *(v for r in ranks for v in (r.ours, r.paper) if v is not None)])
    rows = [len(names[f]) for f in families]
    figure = sheet(WIDTH, 0.75 + sum(0.45 + ROW * n for n in rows))
    grid = figure.subplots(
        len(families), len(metrics), squeeze=False, height_ratios=[n + 1 for n in rows]
    )
    for line, family in zip(grid, families, strict=True):
        for ax, metric in zip(line, metrics, strict=True):
            ax.set_label(f"{family} {metric}")
            dress(ax)
            list_names(ax, names[family], shown=metric == metrics[0])
            for r in ranks:
                if (r.family, r.metric) != (family, metric):
                    continue
                y, style = names[family].index(r.method), style_of(r.model)
                if r.ours is not None:
                    ax.plot(r.ours, y, marker=style.marker, color=style.colour, ms=5.5)
                if r.paper is not None:
                    ax.plot(r.paper, y, marker="o", mfc="none", mec=PAPER, ms=8.5, mew=0.9)
            ax.set_xlim(0.5, last + 0.5)
            ax.set_xticks(range(1, int(last) + 1, 1 if last < 12 else 2))
            if metric == metrics[0]:
                ax.set_title(FAMILIES.get(family, family), fontsize=TITLE, loc="left")
            if family == families[-1]:
                ax.set_xlabel(f"average {metric} rank (1 is best)", fontsize=TEXT)
    theirs = any(r.paper is not None for r in ranks)
    _legend(figure, paper=theirs)
    paper = "The paper ranks on its own three data sets and among its own methods."
    if theirs or said:
        note(figure, " ".join([*([paper] if theirs else []), *([said] if said else [])]))
    return figure


def _ordered(ranks: Sequence[AverageRank], metrics: Sequence[str]) -> list[str]:
    """Best first, by the first metric; what we have not run comes last, in the paper's order."""
    first = [r for r in ranks if r.metric == metrics[0]]
    known = {r.method: r.ours if r.ours is not None else 1000 + (r.paper or 0) for r in first}
    every = dict.fromkeys(r.method for r in ranks)
    return sorted(every, key=lambda m: known.get(m, 2000))


def _legend(figure: Figure, *, paper: bool) -> None:
    handles = [Line2D([], [], ls="", marker="s", color="0.35", ms=5, label="ours (filled)")]
    if paper:
        hollow = {"mfc": "none", "mec": PAPER, "mew": 0.9, "ms": 8}
        handles.append(Line2D([], [], ls="", marker="o", label="the paper (ring)", **hollow))
    figure.legend(handles=handles, loc="outside upper right", ncols=2, fontsize=TEXT, frameon=False)
