"""Stage 10: a bag's evidence and the doubt about it, beside the maps of other models.

Doubt is shown twice, as the standard deviation s and as P(wrong) = Φ(−|m|/s), and beside it stand
the calls that are wrong and a plot of s against the evidence m, so that a reader sees what doubt
adds to the mean.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import wrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy.special import ndtri

from ..errors import InputError
from ..evaluation import Prediction, doubt, instance_scores, instance_variances, map_values
from .geometry import tiles
from .layout import place
from .panels import PALETTE, SMALL, Panel, draw_title, flattened, save_figure, share
from .render import draw_panel
from .scale import value_range
from .sidebyside import LINE, check_same_bag, label_panel, method_panels

RAYS = {0.05: "solid", 0.25: "dashed"}
"""P(wrong) along the lines of the plot, and their style."""


def render_doubt(
    p: Prediction,
    path: Path,
    *,
    name: str,
    others: Mapping[str, Prediction],
    title: str,
    caption: str = "",
) -> None:
    """Write the maps of one bag as a PNG: labels, other models, evidence and doubt.

    Args:
        p: The prediction whose evidence and doubt are shown; its bag has instance labels.
        path: Path of the PNG.
        name: What the panels call its model.
        others: Predictions of the same bag by other models, of which the mean is shown.
        title: Text above the maps.
        caption: Text below the maps.

    Raises:
        InputError: The model's score is not evidence, the bag has no instance labels, or the
            predictions differ in their instances.
        BagError: The bag has no instances, no finite attention or unusable coordinates.
    """
    save_figure(draw_doubt(p, name=name, others=others, title=title, caption=caption), path)


def draw_doubt(
    p: Prediction,
    *,
    name: str,
    others: Mapping[str, Prediction],
    title: str,
    caption: str = "",
) -> Figure:
    """Return the maps of `render_doubt` as a figure.

    The axes are labelled `labels`, `<other> mean`, `evidence`, `probability`, `calls`, `deviation`,
    `doubt` and `plot`.
    """
    if not p.score_has_level or p.instance_labels is None:
        raise InputError(
            f"bag {p.name!r}: doubt is shown for models whose score is evidence (this one is "
            f"{p.score_kind}), and for bags with instance labels"
        )
    check_same_bag({**others, name: p}, bag=p.name)
    panels = [
        ("labels", label_panel(p, separator="\n")),
        *((n, v) for n, v in method_panels(others, strip=False) if v.quantity == "mean"),
        *((panel.quantity, panel) for panel in _panels(p, name=name)),
    ]
    layout = place(p)
    lines = wrap(caption, 118)
    sheet = tiles(layout, count=len(panels) + 1, under=LINE * len(lines) + 0.35)
    figure = Figure(figsize=(sheet.width, sheet.height), dpi=sheet.dpi)
    FigureCanvasAgg(figure)
    draw_title(figure, title, sheet=sheet)
    for k, (label, panel) in enumerate(panels):
        draw_panel(figure, panel, layout=layout, sheet=sheet, k=k, name=label)
    _plot(figure.add_axes(share(sheet.panels[-1], sheet), label="plot"), p)
    figure.text(
        0.12 / sheet.width, 0.08 / sheet.height, "\n".join(lines), fontsize=SMALL, va="bottom",
        parse_math=False,
    )  # fmt: skip
    return figure


def _panels(p: Prediction, *, name: str) -> Iterator[Panel]:
    mean, deviation = instance_scores(p), np.sqrt(instance_variances(p))
    assert p.instance_labels is not None
    known = p.instance_labels >= 0
    wrong = np.where(known, (mean > 0) != (p.instance_labels > 0), np.nan)
    largest = float(np.abs(mean).max()) or 1.0
    members = "" if p.variance_between is None else ", all members"
    yield Panel(
        quantity="evidence",
        title=f"{name}: evidence m\nred: for the class, blue: against",
        values=mean,
        limits=(-largest, largest),
        bar="",
    )
    yield Panel(
        quantity="probability",
        title=f"{name}:\nP(f > 0)",
        values=np.asarray(map_values(p, "probability"), np.float64).reshape(len(mean), -1)[:, -1],
        limits=(0.0, 1.0),
        bar="",
    )
    yield Panel(
        quantity="calls",
        title=f"calls (m > 0) that are wrong:\n{int(np.nansum(wrong)):,} of {int(known.sum()):,}",
        values=wrong,
        limits=(-0.5, 1.5),
        bar="",
    )
    panel = Panel(
        quantity="deviation",
        title=f"doubt: standard deviation s\nof the evidence{members}",
        values=deviation,
        limits=value_range(deviation),
        bar="",
    )
    panel = flattened(panel)
    yield replace(panel, title=f"{panel.title}, {panel.flat}" if panel.flat else panel.title)
    yield Panel(
        quantity="doubt",
        title="doubt: P(wrong) = Φ(−|m|/s)",
        values=doubt(p),
        limits=(0.0, 0.5),
        bar="",
    )


def _plot(ax: Axes, p: Prediction) -> None:
    """Plot the standard deviation of each instance against its evidence, and rays of P(wrong)."""
    mean, deviation = instance_scores(p), np.sqrt(instance_variances(p))
    assert p.instance_labels is not None
    x, y = 1.08 * float(np.abs(mean).max()) or 1.0, 1.15 * float(deviation.max()) or 1.0
    for probability, style in RAYS.items():
        slope = float(-1 / ndtri(probability))
        ax.plot([-x, 0, x], [slope * x, 0, slope * x], ls=style, color="0.45", lw=0.8, zorder=1)
    for value in (0, 1):
        rows = (p.instance_labels > 0) == value
        ax.scatter(
            mean[rows], deviation[rows], s=7, color=PALETTE["labels"](value), linewidths=0,
            alpha=0.85, zorder=2 + value,
        )  # fmt: skip
    ax.axvline(0, color="0.7", lw=0.6, zorder=0)
    ax.set(xlim=(-x, x), ylim=(0, y))
    rays = ", ".join(f"{style}: {probability:g}" for probability, style in RAYS.items())
    ax.set_title(f"s against m, one dot per patch\nP(wrong): {rays}", fontsize=SMALL, loc="left")
    ax.set_xlabel("evidence m", fontsize=SMALL, labelpad=1)
    ax.tick_params(labelsize=SMALL, length=2)
    ax.locator_params(nbins=4)
