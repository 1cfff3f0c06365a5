"""The paper's figure 4: each method's average rank within its family, ours and the paper's.

1 is best. Ranks are computed on each data set, then averaged over data sets.
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
    """One method's average rank by one metric."""

    family: str
    metric: str
    method: str
    model: str
    """Determines the colour."""
    ours: float | None
    """None if we have not run it."""
    paper: float | None = None
    """None if the paper has not run it."""
    data_sets: int = 0
    """Number of data sets behind our rank."""


def write_ranks(path: Path, ranks: Sequence[AverageRank], *, remark: str = "") -> list[Path]:
    """Write the figure, with a further note below it, and its numbers."""
    columns = ("family", "metric", "method", "ours", "paper", "data_sets")
    rows = [{c: getattr(r, c) for c in columns} for r in ranks]
    return write(draw_ranks(ranks, remark=remark), path, rows)


def draw_ranks(ranks: Sequence[AverageRank], *, remark: str = "") -> Figure:
    """Draw a panel for each family (rows) and metric (columns), labelled `<family> <metric>`."""
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
    has_paper = any(r.paper is not None for r in ranks)
    _legend(figure, paper=has_paper)
    paper = "The paper's ranks are among its own methods on its own three data sets."
    if has_paper or remark:
        note(figure, " ".join([*([paper] if has_paper else []), *([remark] if remark else [])]))
    return figure


def _ordered(ranks: Sequence[AverageRank], metrics: Sequence[str]) -> list[str]:
    """Return methods by rank in the first metric; those that we have not run come last."""
    first = [r for r in ranks if r.metric == metrics[0]]
    ranks_or_last = {
        r.method: r.ours if r.ours is not None else 1000 + (r.paper or 0) for r in first
    }
    methods = dict.fromkeys(r.method for r in ranks)
    return sorted(methods, key=lambda m: ranks_or_last.get(m, 2000))


def _legend(figure: Figure, *, paper: bool) -> None:
    handles = [Line2D([], [], ls="", marker="s", color="0.35", ms=5, label="ours (filled)")]
    if paper:
        hollow = {"mfc": "none", "mec": PAPER, "mew": 0.9, "ms": 8}
        handles.append(Line2D([], [], ls="", marker="o", label="the paper (ring)", **hollow))
    figure.legend(handles=handles, loc="outside upper right", ncols=2, fontsize=TEXT, frameon=False)
