"""The common style of an experiment's figures: colours and markers by method, sizes, files.

Colours are those of Okabe and Ito and Tol's muted ones, which colour-blind readers can tell apart;
related methods share a colour and differ in the marker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from zlib import crc32

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from ...core import write_csv
from ...maps import save_figure

WIDTH = 7.2
"""Width in inches of the text on a page."""
DPI = 200
TEXT, TITLE = 7.5, 9.0
"""Font sizes in points."""
ROW = 0.19
"""Height in inches of a line in a list of methods."""
GREY = "#7a7a7a"
NAME = 34
"""Largest number of characters of a method's name."""


@dataclass(frozen=True, slots=True)
class Style:
    """The colour and marker of a method in every figure."""

    colour: str
    marker: str


STYLES = {
    "abmil": Style("#000000", "o"),
    "abmil-probsa-dirac": Style("#56B4E9", "s"),
    "abmil-probsa-diag": Style("#0072B2", "D"),
    "tabmil": Style("#7a7a7a", "o"),
    "tabmil-probsa-dirac": Style("#E69F00", "s"),
    "tabmil-probsa-diag": Style("#D55E00", "D"),
    "clam-sb": Style("#009E73", "^"),
    "clam-mb": Style("#009E73", "v"),
    "clam-sb-probsa-diag": Style("#009E73", "D"),
    "smabmil": Style("#117733", "p"),
    "dsmil": Style("#CC79A7", "P"),
    "patchgcn": Style("#999933", "<"),
    "dtfdmil": Style("#882255", "h"),
    "transmil": Style("#44AA99", "^"),
    "transmil-probsa-diag": Style("#44AA99", "D"),
    "setmil": Style("#DDAA33", "v"),
    "gtp": Style("#AA4499", "P"),
    "iibmil": Style("#332288", ">"),
    "camil": Style("#88CCEE", "h"),
    "vmil": Style("#661100", "p"),
    "abmil-probsa-field": Style("#0072B2", "*"),
    "tabmil-probsa-field": Style("#D55E00", "*"),
    "clam-sb-probsa-field": Style("#009E73", "*"),
    "transmil-probsa-field": Style("#44AA99", "*"),
    "evidence-dirac": Style("#AA3377", "s"),
    "evidence-diag": Style("#AA3377", "D"),
    "evidence-field": Style("#AA3377", "*"),
}
WITHIN = "With folds, AUROC is averaged over folds, and F1 uses the calls of all folds together."
"""Note on how differences are computed."""
OTHERS = ("#0077BB", "#EE7733", "#009988", "#CC3311", "#EE3377", "#BBBB33", "#4477AA", "#AA3377")
"""Colours of methods that are not listed, chosen by name."""
MARKERS = "osD^vP<ph"


def style_of(model: str, label: str | None = None) -> Style:
    """Return the style of a model; another label in a grid changes only the marker."""
    known = STYLES.get(model)
    pick = crc32((label or model).encode())
    if known is None:
        return Style(OTHERS[pick % len(OTHERS)], MARKERS[pick % len(MARKERS)])
    if label is None or label == model:
        return known
    others = MARKERS.replace(known.marker, "")
    return Style(known.colour, others[pick % len(others)])


def sheet(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches, with constrained layout."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def dress(ax: Axes, *, title: str = "") -> None:
    """Set thin axes and small labels."""
    ax.tick_params(labelsize=TEXT, length=2.5, width=0.6)
    for side, spine in ax.spines.items():
        spine.set_linewidth(0.6)
        spine.set_visible(side in ("left", "bottom"))
    if title:
        ax.set_title(title, fontsize=TITLE, loc="left")


def list_names(ax: Axes, names: Sequence[str], *, shown: bool = True) -> None:
    """Label the y axis with methods from the top, with light grid lines."""
    rows = range(len(names))
    ax.set_yticks(list(rows), [shortened(n) for n in names] if shown else [""] * len(names))
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.set_axisbelow(True)
    ax.grid(axis="y", color="#e6e6e6", lw=0.5)
    ax.tick_params(axis="y", length=0)


BEYOND = "Lines cut at the edge of a panel continue beyond it; the CSV has their ends."


def reach(
    points: Sequence[float], intervals: Sequence[tuple[float | None, float | None]]
) -> float | None:
    """Return the range of an axis if some intervals are too wide to show, else None.

    Intervals over two seeds can be: Student's t with one degree of freedom. The range covers all
    points and half-widths of up to four times their lower quartile.
    """
    known = [(low, high) for low, high in intervals if low is not None and high is not None]
    if not points or not known:
        return None
    limit = max(map(abs, points)) + 4 * float(np.quantile([(b - a) / 2 for a, b in known], 0.25))
    return limit if max(abs(e) for pair in known for e in pair) > limit else None


def note(figure: Figure, text: str) -> None:
    """Write a note below the panels."""
    lines = wrap(text, int(figure.get_figwidth() / 0.058))
    # keep the panels' size: a line takes an eighth of an inch
    figure.set_figheight(figure.get_figheight() + 0.125 * max(0, len(lines) - 1))
    figure.supxlabel("\n".join(lines), fontsize=TEXT, x=0.01, ha="left")


def shortened(name: str, most: int = NAME) -> str:
    """Return a name that fits; a long one loses its middle, since its ends identify it."""
    if len(name) <= most:
        return name
    keep = (most - 1) // 2
    return f"{name[: most - 1 - keep]}…{name[-keep:]}"


def write(figure: Figure, path: Path, rows: Sequence[Mapping[str, object]]) -> list[Path]:
    """Write a figure as PNG and its numbers as CSV beside it, atomically; return both paths."""
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_parse_math(False)  # a name may contain a dollar sign
    numbers = path.with_suffix(".csv")
    save_figure(figure, path)
    write_csv(numbers, list(rows[0]), rows)
    return [path, numbers]
