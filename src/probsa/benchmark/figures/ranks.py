"""The paper's figure 4: each method's average rank within its family.

1 is best. Ranks are computed on each data set, then averaged over data sets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from .style import ROW, TEXT, TITLE, WIDTH, dress, list_names, note, sheet, style_of, write

FAMILIES = {"local": "no global interactions", "global": "with global interactions"}


@dataclass(frozen=True, kw_only=True, slots=True)
class AverageRank:
    """One method's average rank by one metric."""

    family: str
    metric: str
    method: str
    model: str
    """Determines the colour."""
    rank: float
    data_sets: int = 0
    """Number of data sets behind the rank."""


def write_ranks(path: Path, ranks: Sequence[AverageRank], *, remark: str = "") -> list[Path]:
    """Write the figure, with a further note below it, and its numbers."""
    columns = ("family", "metric", "method", "rank", "data_sets")
    rows = [{c: getattr(r, c) for c in columns} for r in ranks]
    return write(draw_ranks(ranks, remark=remark), path, rows)


def draw_ranks(ranks: Sequence[AverageRank], *, remark: str = "") -> Figure:
    """Draw a panel for each family (rows) and metric (columns), labelled `<family> <metric>`."""
    families = list(dict.fromkeys(r.family for r in ranks))
    metrics = list(dict.fromkeys(r.metric for r in ranks))
    names = {f: _ordered([r for r in ranks if r.family == f], metrics) for f in families}
    last = max([2, *(r.rank for r in ranks)])
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
                ax.plot(r.rank, y, marker=style.marker, color=style.colour, ms=5.5)
            ax.set_xlim(0.5, last + 0.5)
            ax.set_xticks(range(1, int(last) + 1, 1 if last < 12 else 2))
            if metric == metrics[0]:
                ax.set_title(FAMILIES.get(family, family), fontsize=TITLE, loc="left")
            if family == families[-1]:
                ax.set_xlabel(f"average {metric} rank (1 is best)", fontsize=TEXT)
    if remark:
        note(figure, remark)
    return figure


def _ordered(ranks: Sequence[AverageRank], metrics: Sequence[str]) -> list[str]:
    """Return methods by rank in the first metric."""
    first = {r.method: r.rank for r in ranks if r.metric == metrics[0]}
    methods = dict.fromkeys(r.method for r in ranks)
    return sorted(methods, key=lambda m: first.get(m, float("inf")))
