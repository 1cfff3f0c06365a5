"""What the figures of an experiment share: style, pairs of methods, and files.

Colours are those of Okabe and Ito and of Tol, which colour-blind readers can tell apart. Variants
of a model share a colour and differ in the marker, except those of ABMIL and TabMIL, which the
paper compares: they have several colours.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from ...core import write_csv
from ...maps import save_figure
from ..results.comparing import Pooled, compare_methods
from ..results.scores import Scores

Key = TypeVar("Key", bound=Hashable)
WIDTH = 7.2
"""Width in inches of the text on a page."""
DPI = 200
TEXT = 7.5
TITLE = 9.0
"""Font sizes in points."""
ROW = 0.19
"""Height in inches of a line in a list of methods."""
GREY = "#7a7a7a"
NAME = 34
"""Largest number of characters of a method's name."""


MARKERS = "osD^vP<ph"


@dataclass(frozen=True, slots=True)
class FigureFiles:
    """Files that were written, and figures that were not."""

    written: tuple[Path, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()
    """(figure, reason why it is missing or incomplete)."""

    def __add__(self, other: "FigureFiles") -> "FigureFiles":
        return FigureFiles(self.written + other.written, self.missing + other.missing)


class FigureData(NamedTuple):
    """What a figure shows."""

    rows: Sequence[Any]
    """Dataclasses; their fields except `model` are the columns of the CSV file."""
    missing: Sequence[str] = ()
    """What it leaves out, and why."""
    remark: str = ""
    """A further note below it."""


class Style(NamedTuple):
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
FOLDS_NOTE = (
    "With folds, AUROC is averaged over folds, and F1 uses the calls of all folds together."
)
"""Note on how differences are computed."""
CHARACTER = 0.058
"""Mean width in inches of a character of a note."""
LINE = 0.125
"""Height in inches of a line of a note."""
OTHERS = ("#0077BB", "#EE7733", "#009988", "#CC3311", "#EE3377", "#BBBB33", "#4477AA", "#997700")
"""Colours of methods that are not listed, chosen by name; none of them is in `STYLES`."""
CUT_NOTE = "Lines cut at the edge of a panel continue beyond it; the CSV has their ends."


def style_of(model: str) -> Style:
    """Return the style of a model, whatever label a grid gives it."""
    if model in STYLES:
        return STYLES[model]
    # a checksum, unlike hash(), is the same in every process
    pick = crc32(model.encode())
    return Style(OTHERS[pick % len(OTHERS)], MARKERS[pick % len(MARKERS)])


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
    labels = [shortened(n) if shown else "" for n in names]
    ax.set_yticks(list(range(len(names))), labels)
    ax.set_ylim(len(names) - 0.4, -0.6)  # the first method is at the top
    ax.set_axisbelow(True)
    ax.grid(axis="y", color="#e6e6e6", lw=0.5)
    ax.tick_params(axis="y", length=0)


def method_panels(
    names: Mapping[str, Sequence[str]], metrics: Sequence[str]
) -> tuple[Figure, list[tuple[Axes, str, str]]]:
    """Return a figure with a panel for each group (rows) and metric (columns).

    Args:
        names: The methods that the panels of each group list.
        metrics: Titles of the metrics.

    Returns: The figure, and each panel with its group and metric, which are also its label.
    """
    counts = [len(methods) for methods in names.values()]
    figure = sheet(WIDTH, 0.75 + sum(0.45 + ROW * n for n in counts))
    grid = figure.subplots(
        len(names), len(metrics), squeeze=False, height_ratios=[n + 1 for n in counts]
    )
    panels: list[tuple[Axes, str, str]] = []
    for row, (group, methods) in zip(grid, names.items(), strict=True):
        for ax, metric in zip(row, metrics, strict=True):
            ax.set_label(f"{group} {metric}")
            dress(ax)
            list_names(ax, methods, shown=metric == metrics[0])
            panels.append((ax, group, metric))
    return figure, panels


def axis_limit(rows: Sequence[Any]) -> float | None:
    """Return the range of an axis of points if intervals are too wide to show, else None.

    Intervals over two seeds can be: Student's t with one degree of freedom. The range covers all
    points and half-widths of up to four times their lower quartile.
    """
    points = [abs(r.points) for r in rows if r.points is not None]
    intervals = [(r.low, r.high) for r in rows if r.low is not None and r.high is not None]
    if not points or not intervals:
        return None
    ends = np.array(intervals)
    half_widths = (ends[:, 1] - ends[:, 0]) / 2
    # the lower quartile: one method with few seeds does not set the scale of the others
    limit = max(points) + 4 * float(np.quantile(half_widths, 0.25))
    return limit if np.abs(ends).max() > limit else None


def note(figure: Figure, *texts: str) -> None:
    """Write texts that are not empty below the panels."""
    text = " ".join(filter(None, texts))
    lines = wrap(text, int(figure.get_figwidth() / CHARACTER))
    if lines:
        # the height of a sheet allows for one line; each further one must not shrink the panels
        further_lines = len(lines) - 1
        figure.set_figheight(figure.get_figheight() + LINE * further_lines)
        figure.supxlabel("\n".join(lines), fontsize=TEXT, x=0.01, ha="left")


def paired_rows(
    group: Sequence[Scores],
    base: Scores,
    make: Callable[[Scores, Pooled, dict[str, Any]], Any],
) -> tuple[list[Any], list[str]]:
    """Compare the methods of a data set with one of them by each metric of figures.

    With folds, AUROC is computed within folds, as in the means over them.

    Args:
        group: The methods' scores on the data set.
        base: The one that differences refer to.
        make: Makes a row from a method, its comparison and the fields that all rows have.

    Returns: The rows, and why some are missing.
    """
    compared = compare_methods(group, baseline=base.method.name)
    has_one_class = len(set(base.positive.tolist())) < 2
    rows: list[Any] = []
    missing: list[str] = []
    for s in group:
        if s is base:
            continue
        for metric, title in shown_metrics(group).items():
            pooled = compared.deciding(metric)
            differences = {} if pooled is None else pooled.comparison.differences
            difference = differences.get(s.method.name)
            if pooled is None or difference is None:
                if has_one_class:
                    reason = "its test bags have only one class"
                else:
                    reason = f"{base.method.name} and {s.method.name} have no seed in common"
                missing.append(f"{s.method.name} on {s.data}: {reason}")
                continue
            common: dict[str, Any] = {
                "data": s.data,
                "metric": title,
                "pooling": pooled.pooling,
                "points": _points(difference.difference),
                "low": _points(difference.low),
                "high": _points(difference.high),
            }
            rows.append(make(s, pooled, common))
    return rows, distinct(missing)


def _points(difference: float | None) -> float | None:
    """Return a difference of fractions in hundredths."""
    return None if difference is None else 100.0 * difference


def shown_metrics(scores: Sequence[Scores]) -> dict[str, str]:
    """Return the metrics that figures of two classes show, with their titles."""
    return {m.name: m.short_title for m in scores[0].overview} if scores else {}


def distinct(values: Iterable[Key]) -> list[Key]:
    """Return each value once, in order."""
    return list(dict.fromkeys(values))


def shortened(name: str, most: int = NAME) -> str:
    """Return a name that fits; a long one loses its middle, since its ends identify it."""
    if len(name) <= most:
        return name
    keep = (most - 1) // 2
    return f"{name[: most - 1 - keep]}…{name[-keep:]}"


def write(figure: Figure, path: Path, rows: Sequence[Any]) -> list[Path]:
    """Write a figure as PNG and its numbers as CSV beside it, atomically; return both paths."""
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_parse_math(False)  # a name may contain a dollar sign
    numbers = path.with_suffix(".csv")
    save_figure(figure, path)
    columns = [f.name for f in fields(rows[0]) if f.name != "model"]
    write_csv(numbers, columns, [{c: getattr(row, c) for c in columns} for row in rows])
    return [path, numbers]
