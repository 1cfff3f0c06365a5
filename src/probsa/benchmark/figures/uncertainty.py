"""Compare how well σ² and its null rivals find wrong instance calls, by AUROC.

σ² is coloured, its null rivals are grey. 0.5 is chance; a rival with a longer bar shows that the
variance adds no information. The numbers are those of the table of errors: means over replicates
and, with folds, over folds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...errors import ProbSAError
from ..grid.variants import chosen
from ..results.instances import metrics_of
from ..results.results import instances_of
from ..results.scores import Scores
from .style import (
    GREY,
    TEXT,
    WIDTH,
    FigureData,
    distinct,
    dress,
    note,
    sheet,
    shortened,
    style_of,
)

LINE = 0.165
"""Height of a bar in inches."""
GREYS = ("#9a9a9a", "#b4b4b4", "#cbcbcb")
SHORT = {"variance": "σ²", "margin": "−|e|", "entropy": "−w log w"}
"""Short names of σ² and its null rivals."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorDetection:
    """How well one method's variance, or a rival of it, finds wrong calls on one data set."""

    data: str
    method: str
    model: str
    score: str
    """`σ²`, or its rival."""
    auroc: float | None
    low: float | None = None
    high: float | None = None
    reason: str | None = None
    """Why it is undefined."""


def error_detections(scores: Sequence[Scores]) -> FigureData:
    """Return every method with a variance on labelled instances."""
    rows: list[ErrorDetection] = []
    reasons: list[str] = []
    for s in (s for s in chosen(scores) if s.method.baseline is not None):  # posteriors
        try:
            first = next(instances_of(s))
            if all(p.instance_labels is None for p in first):
                reasons.append(f"{s.data} has no instance labels")
                continue
            if not any(p.attention_variance.any() for p in first):
                continue  # Dirac
            metrics = metrics_of(s)
        except (ProbSAError, OSError) as error:
            reasons.append(f"{s.method.name} on {s.data}: {error}")
            continue
        assert metrics is not None, "its instances have labels"
        for detector, name in SHORT.items():
            m = metrics[f"error_auroc_{detector}"]
            rows.append(
                ErrorDetection(
                    data=s.data, method=s.method.name, model=s.method.model, score=name,
                    auroc=m.value, low=m.low, high=m.high, reason=m.reason,
                )
            )  # fmt: skip
    return FigureData(rows, distinct(reasons))


def draw_uncertainty(rows: Sequence[ErrorDetection], *, remark: str = "") -> Figure:
    """Draw a panel for each data set, labelled with its name; a group of bars per method."""
    sets = distinct(r.data for r in rows)
    names = distinct(r.method for r in rows)
    scores = distinct(r.score for r in rows)
    group_height = len(scores) + 1.6
    tops = {name: k * group_height for k, name in enumerate(names)}
    figure = sheet(WIDTH, 0.95 + LINE * group_height * len(names))
    grid = figure.subplots(1, len(sets), squeeze=False, sharey=True)[0]
    for ax, data in zip(grid, sets, strict=True):
        ax.set_label(data)
        dress(ax, title=data)
        ax.axvline(0.5, color=GREY, lw=0.8, ls=":")
        for row in (r for r in rows if r.data == data):
            j = scores.index(row.score)
            colour = GREYS[(j - 1) % len(GREYS)] if j else style_of(row.model).colour
            _bar(ax, row, y=tops[row.method] + j, colour=colour, most=90 // len(sets))
        ax.set_xlabel("AUROC for finding wrong instances", fontsize=TEXT)
        ax.set_xlim(0, 1.02)
        ax.tick_params(axis="y", length=0)
    positions = [top + j for top in tops.values() for j in range(len(scores))]
    grid[0].set_yticks(positions, scores * len(names))
    grid[0].set_ylim(group_height * len(names) - 0.9, -1.6)
    bold = {"fontsize": TEXT, "fontweight": "bold", "va": "center", "ha": "left"}
    for name, top in tops.items():
        grid[0].text(0, top - 0.9, shortened(name), **bold)
    note(figure, "Whiskers: 95 % intervals. Grey: null rivals of σ².", remark)
    return figure


def _bar(ax: Axes, row: ErrorDetection, *, y: float, colour: str, most: int) -> None:
    if row.auroc is None:
        why = shortened(row.reason or "undefined", most)
        ax.text(0.02, y, why, fontsize=TEXT - 0.5, color=GREY, va="center", style="italic")
        return
    ax.barh(y, row.auroc, height=0.8, color=colour)
    if row.low is not None and row.high is not None:
        ax.plot([row.low, row.high], [y, y], color="0.1", lw=0.9)
        ax.plot([row.low, row.high], [y, y], color="0.1", ls="", marker="|", ms=4, mew=0.9)
