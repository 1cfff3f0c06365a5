"""The paper's figure 4: each method's average rank within its family.

1 is best. Ranks are computed on each data set, then averaged over data sets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from matplotlib.figure import Figure

from ...statistics import average_ranks
from ..grid.methods_and_cells import Family
from ..grid.variants import chosen, chosen_note
from ..results.ranked import ranked
from ..results.scores import Scores
from .style import TEXT, TITLE, FigureData, distinct, method_panels, note, shown_metrics, style_of

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


def family_ranks(scores: Sequence[Scores]) -> FigureData:
    """Return ranks within families of two methods or more, and notes on what is left out.

    Methods without a value are left out as in the tables.
    """
    ranks: list[AverageRank] = []
    notes: list[str] = []
    shown_scores = chosen(scores)
    for family in get_args(Family):
        family_scores = [s for s in shown_scores if s.method.family == family]
        columns = ranked(family_scores)
        if columns.unranked:
            notes.append(columns.note())
        models = {s.method.name: s.method.model for s in family_scores}
        for metric, title in shown_metrics(family_scores).items():
            values = columns.of(metric)
            if len(values) < 2:
                continue  # the rank of a single method says nothing
            for name, rank in average_ranks(values).mean.items():
                ranks.append(
                    AverageRank(
                        family=family,
                        metric=title,
                        method=name,
                        model=models[name],
                        rank=rank,
                        data_sets=len(values[name]),
                    )
                )
    remark = " ".join([chosen_note(scores), *notes]).strip()
    return FigureData(ranks, notes, remark)


def draw_ranks(ranks: Sequence[AverageRank], *, remark: str = "") -> Figure:
    """Draw a panel for each family (rows) and metric (columns), labelled `<family> <metric>`."""
    metrics = distinct(r.metric for r in ranks)
    families = distinct(r.family for r in ranks)
    largest_rank = max([2, *(r.rank for r in ranks)])
    # in the order of the first metric; methods without it come last
    by_rank = sorted(ranks, key=lambda r: (r.metric != metrics[0], r.rank))
    names = {f: distinct(r.method for r in by_rank if r.family == f) for f in families}
    figure, panels = method_panels(names, metrics)
    for ax, family, metric in panels:
        for r in ranks:
            if r.family == family and r.metric == metric:
                y = names[family].index(r.method)
                style = style_of(r.model)
                ax.plot(r.rank, y, marker=style.marker, color=style.colour, ms=5.5)
        ax.set_xlim(0.5, largest_rank + 0.5)
        ax.set_xticks(range(1, int(largest_rank) + 1, 1 if largest_rank < 12 else 2))
        if metric == metrics[0]:
            ax.set_title(FAMILIES.get(family, family), fontsize=TITLE, loc="left")
        if family == families[-1]:
            ax.set_xlabel(f"average {metric} rank (1 is best)", fontsize=TEXT)
    note(figure, remark)
    return figure
