"""Compare how well σ² and its null rivals find wrong instance calls, by AUROC.

σ² is coloured, its null rivals are grey. 0.5 is chance; a rival with a longer bar shows that the
variance adds no information.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...evaluation import ErrorDetector
from ...statistics import Metric
from .style import GREY, TEXT, WIDTH, dress, note, sheet, shortened, style_of, write

LINE = 0.165
"""Height of a bar in inches."""
GREYS = ("#9a9a9a", "#b4b4b4", "#cbcbcb")
SHORT: dict[ErrorDetector, str] = {
    "variance": "σ²",
    "margin": "−|e|",
    "entropy": "−w log w",
}
"""Short names of σ² and its rivals; see error_detectors.py."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorDetection:
    """How well one method's variance and its rivals find wrong calls on one data set."""

    data: str
    method: str
    model: str
    metrics: Mapping[str, Metric]
    """AUROC by the score's name, `σ²` first."""


def write_uncertainty(path: Path, methods: Sequence[ErrorDetection]) -> list[Path]:
    """Write the figure and its numbers."""
    rows = [
        {
            "data": f.data, "method": f.method, "score": name, "auroc": m.value,
            "low": m.low, "high": m.high, "reason": m.reason,
        }
        for f in methods
        for name, m in f.metrics.items()
    ]  # fmt: skip
    return write(draw_uncertainty(methods), path, rows)


def draw_uncertainty(methods: Sequence[ErrorDetection]) -> Figure:
    """Draw a panel for each data set, labelled with its name; a group of bars per method."""
    sets = list(dict.fromkeys(f.data for f in methods))
    names = list(dict.fromkeys(f.method for f in methods))
    rivals = list(dict.fromkeys(r for f in methods for r in f.metrics))
    group_height = len(rivals) + 1.6
    figure = sheet(WIDTH, 0.95 + LINE * group_height * len(names))
    grid = figure.subplots(1, len(sets), squeeze=False, sharey=True)[0]
    for ax, data in zip(grid, sets, strict=True):
        ax.set_label(data)
        dress(ax, title=data)
        ax.axvline(0.5, color=GREY, lw=0.8, ls=":")
        for f in methods:
            if f.data == data:
                _group(
                    ax,
                    f,
                    top=names.index(f.method) * group_height,
                    rivals=rivals,
                    most=90 // len(sets),
                )
        ax.set_xlabel("AUROC for finding wrong instances", fontsize=TEXT)
        ax.set_xlim(0, 1.02)
    positions = [k * group_height + j for k in range(len(names)) for j in range(len(rivals))]
    grid[0].set_yticks(positions, rivals * len(names))
    grid[0].set_ylim(group_height * len(names) - 0.9, -1.6)
    for ax in grid:
        ax.tick_params(axis="y", length=0)
        for k, name in enumerate(names):
            if ax is grid[0]:
                ax.text(
                    0, k * group_height - 0.9, shortened(name), fontsize=TEXT, fontweight="bold",
                    va="center", ha="left",
                )  # fmt: skip
    note(figure, "Whiskers: 95 % intervals. Grey: null rivals of σ².")
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
