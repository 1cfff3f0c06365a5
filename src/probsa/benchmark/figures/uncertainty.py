"""Whether σ² finds wrong calls of instances better than what costs nothing: AUROC of each.

σ² in colour, its null rivals grey. 0.5 is chance; a rival whose bar is longer says that the
variance adds nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...evaluation import Detector
from ...statistics import Metric
from .style import GREY, TEXT, WIDTH, dress, note, sheet, shortened, style_of, write

LINE = 0.165
"""Inches of a bar."""
GREYS = ("#9a9a9a", "#b4b4b4", "#cbcbcb")
SHORT: dict[Detector, str] = {
    "variance": "σ²",
    "degree": "1/degree",
    "edge": "nearness to the edge",
    "margin": "−|s − threshold|",
    "entropy": "−w log w",
    "seeds": "s.d. over replicates",
    "field": "random map",
}
"""Of σ² and its rivals; see error_detectors.py."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorDetection:
    """How well the variance of one method, and its rivals, find wrong calls on one data set."""

    data: str
    method: str
    model: str
    metrics: Mapping[str, Metric]
    """By what each is called: `σ²` first."""


def write_uncertainty(path: Path, found: Sequence[ErrorDetection]) -> list[Path]:
    """Writes the figure and its numbers."""
    rows = [
        {
            "data": f.data, "method": f.method, "score": name, "auroc": m.value,
            "low": m.low, "high": m.high, "reason": m.reason,
        }
        for f in found
        for name, m in f.metrics.items()
    ]  # fmt: skip
    return write(draw_uncertainty(found), path, rows)


def draw_uncertainty(found: Sequence[ErrorDetection]) -> Figure:
    """A panel for each data set, labelled with its name; a group of bars for each method."""
    sets = list(dict.fromkeys(f.data for f in found))
    names = list(dict.fromkeys(f.method for f in found))
    rivals = list(dict.fromkeys(r for f in found for r in f.metrics))
    per = len(rivals) + 1.6
    figure = sheet(WIDTH, 0.95 + LINE * per * len(names))
    grid = figure.subplots(1, len(sets), squeeze=False, sharey=True)[0]
    for ax, data in zip(grid, sets, strict=True):
        ax.set_label(data)
        dress(ax, title=data)
        ax.axvline(0.5, color=GREY, lw=0.8, ls=":")
        for f in found:
            if f.data == data:
                _group(ax, f, top=names.index(f.method) * per, rivals=rivals, most=90 // len(sets))
        ax.set_xlabel("AUROC for finding wrong instances", fontsize=TEXT)
        ax.set_xlim(0, 1.02)
    at = [k * per + j for k in range(len(names)) for j in range(len(rivals))]
    grid[0].set_yticks(at, rivals * len(names))
    grid[0].set_ylim(per * len(names) - 0.9, -1.6)
    for ax in grid:
        ax.tick_params(axis="y", length=0)
        for k, name in enumerate(names):
            if ax is grid[0]:
                ax.text(
                    0, k * per - 0.9, shortened(name), fontsize=TEXT, fontweight="bold",
                    va="center", ha="left",
                )  # fmt: skip
    note(figure, "Whiskers: 95 % intervals. Grey: its null rivals.")
    return figure


def _group(ax: Axes, f: ErrorDetection, *, top: float, rivals: Sequence[str], most: int) -> None:
    for j, name in enumerate(rivals):
        m = f.metrics.get(name)
        if m is None:
            continue
        y = top + j
        if m.value is None:
            ax.text(
                0.02, y, shortened(m.reason or "undefined", most), fontsize=TEXT - 0.5, color=GREY,
                va="center", style="italic",
            )  # fmt: skip
            continue
        first = name == next(iter(f.metrics))
        colour = style_of(f.model).colour if first else GREYS[(j - 1) % len(GREYS)]
        ax.barh(y, m.value, height=0.8, color=colour)
        if m.low is not None and m.high is not None:
            ax.plot([m.low, m.high], [y, y], color="0.1", lw=0.9)
            ax.plot([m.low, m.high], [y, y], color="0.1", ls="", marker="|", ms=4, mew=0.9)
