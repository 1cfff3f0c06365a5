"""What the figures of an experiment share: a colour and a marker by a method's name, sizes, files.

Colours are Okabe and Ito's and Tol's muted ones, told apart by colour-blind eyes; where methods are
kin they share one and differ by the marker.
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
from ...maps import save

WIDTH = 7.2
"""Inches: the width of a page's text."""
DPI = 200
TEXT, TITLE = 7.5, 9.0
"""Font sizes in points."""
ROW = 0.19
"""Inches of a line of a list of methods."""
PAPER = "#000000"
"""The paper's own figures: black and dashed, or hollow."""
GREY = "#7a7a7a"
ODD = "#D55E00"
NAME = 34
"""Letters of a method's name that a figure has room for."""


@dataclass(frozen=True, slots=True)
class Style:
    """How a method looks in every figure."""

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
}
WITHIN = "Where there are folds: AUROC within each, then the mean; F1 of the calls of all together."
"""What differences are of, in notes below figures."""
OTHERS = ("#0077BB", "#EE7733", "#009988", "#CC3311", "#EE3377", "#BBBB33", "#4477AA", "#AA3377")
"""Of methods that are not listed: one by the name."""
MARKERS = "osD^vP<ph"


def style_of(model: str, label: str | None = None) -> Style:
    """Of a model, and of what a grid calls it: another label has the colour, and its own marker."""
    known = STYLES.get(model)
    pick = crc32((label or model).encode())
    if known is None:
        return Style(OTHERS[pick % len(OTHERS)], MARKERS[pick % len(MARKERS)])
    if label is None or label == model:
        return known
    others = MARKERS.replace(known.marker, "")
    return Style(known.colour, others[pick % len(others)])


def sheet(width: float, height: float) -> Figure:
    """An empty figure of so many inches that finds room for its labels."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def dress(ax: Axes, *, title: str = "") -> None:
    """Thin axes, small letters."""
    ax.tick_params(labelsize=TEXT, length=2.5, width=0.6)
    for side, spine in ax.spines.items():
        spine.set_linewidth(0.6)
        spine.set_visible(side in ("left", "bottom"))
    if title:
        ax.set_title(title, fontsize=TITLE, loc="left")


def list_names(ax: Axes, names: Sequence[str], *, shown: bool = True) -> None:
    """The y axis as a list of methods, from the top; light lines lead to them."""
    at = range(len(names))
    ax.set_yticks(list(at), [shortened(n) for n in names] if shown else [""] * len(names))
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.set_axisbelow(True)
    ax.grid(axis="y", color="#e6e6e6", lw=0.5)
    ax.tick_params(axis="y", length=0)


BEYOND = "Lines that reach the edge of a panel go on beyond it: their ends are in the CSV."


def reach(
    points: Sequence[float], intervals: Sequence[tuple[float | None, float | None]]
) -> float | None:
    """How far from 0 an axis goes, if some intervals are so wide that nothing else could be seen.

    Those of two seeds can be: Student's t with one degree of freedom. Shown are all points, and
    half-widths up to four times the lower quartile of all. None: every interval fits.
    """
    known = [(low, high) for low, high in intervals if low is not None and high is not None]
    if not points or not known:
        return None
    most = max(map(abs, points)) + 4 * float(np.quantile([(b - a) / 2 for a, b in known], 0.25))
    return most if max(abs(e) for pair in known for e in pair) > most else None


def note(figure: Figure, text: str) -> None:
    """What a reader must know, below the panels."""
    lines = wrap(text, int(figure.get_figwidth() / 0.058))
    # panels keep their room: a line is an eighth of an inch
    figure.set_figheight(figure.get_figheight() + 0.125 * max(0, len(lines) - 1))
    figure.supxlabel("\n".join(lines), fontsize=TEXT, x=0.01, ha="left")


def shortened(name: str, most: int = NAME) -> str:
    """A long name loses its middle: its ends tell methods apart."""
    if len(name) <= most:
        return name
    keep = (most - 1) // 2
    return f"{name[: most - 1 - keep]}…{name[-keep:]}"


def write(figure: Figure, path: Path, rows: Sequence[Mapping[str, object]]) -> list[Path]:
    """Writes a figure as PNG and its numbers as CSV beside it, atomically; the paths of both."""
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_parse_math(False)  # a name may hold a dollar sign
    numbers = path.with_suffix(".csv")
    save(figure, path)
    write_csv(numbers, list(rows[0]), rows)
    return [path, numbers]
