"""The figures of an evaluation report (reliability, retention and deletion), as PNG.

The panels say what they show; the JSON report has the numbers.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..core import open_output
from ..evaluation import Line, Panel, Report
from .picture import save_figure

PANEL = 3.6
"""Width and height of a panel in inches."""
ENTRY = 0.19
"""Height of a line of a legend below a panel."""
DPI = 200
TEXT = 8
MAIN = "#0072B2"
COLOURS = {
    "doubt": MAIN,
    "flip": "#D55E00",
    "spread": "#009E73",
    "variance": "#009E73",
    "ood": "#E69F00",
    "margin": "#000000",
    "least_first": MAIN,
    "most_first": "#E69F00",
    "least_first_random": "#7a7a7a",
    "most_first_random": "#7a7a7a",
}
"""Colours of Okabe and Ito by what a line is of; null rivals are black and grey."""
OTHERS = ("#CC79A7", "#56B4E9", *dict.fromkeys(COLOURS.values()))
"""Colours of lines that have none of their own, in this order."""
MARKERS = "os^vDP*X<>"
"""Markers of the lines of a panel, which tell them apart without colour, too."""


def write_report_figures(report: Report, folder: Path | str) -> list[Path]:
    """Write the figures of the sections that have one, and return their paths."""
    folder = Path(folder)
    open_output(folder, own=False)
    written: list[Path] = []
    for section in report.sections:
        if section.figure is not None:
            name, panels = section.figure
            path = folder / f"{name}.png"
            save_figure(draw_panels(panels), path)
            written.append(path)
    return written


def draw_panels(panels: Sequence[Panel]) -> Figure:
    """Return a figure with the panels from left to right."""
    entries = max((_entries(panel) for panel in panels), default=0)
    size = (PANEL * len(panels), PANEL + ENTRY * entries)
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    for k, panel in enumerate(panels):
        _draw(figure.add_subplot(1, len(panels), k + 1), panel)
    return figure


def _entries(panel: Panel) -> int:
    """Return how many lines the legend of a panel has."""
    labelled = sum(1 for line in panel.lines if line.label)
    if labelled == 0:
        return 0
    return labelled + (panel.between is not None) + (panel.level is not None)


def line_looks(panel: Panel) -> list[tuple[str, str]]:
    """Return the colour and the marker of each line of a panel, no two with a label alike."""
    reserved = {COLOURS[line.name] for line in panel.lines if line.name in COLOURS}
    free = [colour for colour in OTHERS if colour not in reserved]
    looks: list[tuple[str, str]] = []
    labelled_colours: set[str] = set()
    for k, line in enumerate(panel.lines):
        colour = COLOURS.get(line.name)
        if colour is None and len(panel.lines) == 1:
            colour = MAIN
        if colour is None or (line.label and colour in labelled_colours):
            colour = free.pop(0) if free else MAIN
        if line.label:
            labelled_colours.add(colour)
        looks.append((colour, MARKERS[k % len(MARKERS)]))
    return looks


def _draw(ax: Axes, panel: Panel) -> None:
    lines = {line.name: line for line in panel.lines}
    if panel.diagonal:
        ax.plot(panel.xlim, panel.xlim, color="#b0b0b0", lw=0.8, zorder=1)
        ax.set_aspect("equal")
    if panel.between is not None:
        lower, upper, label = panel.between
        low = lines[lower].y
        high = lines[upper].y
        ax.fill_between(lines[lower].x, low, high, color=MAIN, alpha=0.12, lw=0, label=label)
    for line, (colour, marker) in zip(panel.lines, line_looks(panel), strict=True):
        _line(ax, line, colour=colour, marker=marker)
    if panel.level is not None:
        height, label = panel.level
        ax.axhline(height, color="#b0b0b0", lw=1, label=label)
    if panel.ylim is None:
        heights = [float(np.max(line.y)) for line in panel.lines]
        if panel.level is not None:
            heights.append(panel.level[0])
        ax.set_ylim(0, 1.15 * max(heights))
    else:
        margin = 0.03 * (panel.ylim[1] - panel.ylim[0])
        ax.set_ylim(panel.ylim[0] - margin, panel.ylim[1] + margin)
    margin = 0.03 if panel.diagonal else 0.0
    ax.set_xlim(panel.xlim[0] - margin, panel.xlim[1] + margin)
    ax.set_xlabel(panel.x, fontsize=TEXT)
    ax.set_ylabel(panel.y, fontsize=TEXT)
    ax.set_title(panel.title, fontsize=TEXT, loc="left")
    if any(line.label for line in panel.lines):
        ax.legend(
            fontsize=TEXT,
            frameon=False,
            loc="upper left",
            bbox_to_anchor=(-0.1, -0.16),
            handlelength=3.5,
        )
    ax.tick_params(labelsize=TEXT, length=2.5, width=0.6)
    for side, spine in ax.spines.items():
        spine.set_linewidth(0.6)
        spine.set_visible(side in ("left", "bottom"))


def _line(ax: Axes, line: Line, *, colour: str, marker: str) -> None:
    """Draw a line, or points, with their intervals."""
    limits = None
    if line.low is not None and line.high is not None:
        # a limit of None, where there is no interval, becomes nan, which is not drawn
        limits = (np.array(line.low, np.float64), np.array(line.high, np.float64))
    if line.style == "points":
        if limits is not None and line.name == "band":
            ax.vlines(line.x, *limits, color="#d0d0d0", lw=5, zorder=0)
        elif limits is not None:
            ax.vlines(line.x, *limits, color=MAIN, lw=1)
        ax.plot(line.x, line.y, color=MAIN, marker="o", ms=3.5, lw=0.8)
        return
    if limits is not None:
        ax.fill_between(line.x, *limits, color=colour, alpha=0.12, lw=0)
    ax.plot(
        line.x,
        line.y,
        color=colour,
        lw=2.2 if line.style == "main" else 1.1,
        ls="--" if line.style == "null" else "-",
        label=line.label,
        marker=marker,
        ms=4.5,
        markevery=max(1, len(line.x) // 5),
        mec="white",
        mew=0.5,
    )
