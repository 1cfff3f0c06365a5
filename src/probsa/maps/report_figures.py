"""The figures of an evaluation report: reliability, retention and deletion, as PNG.

Panels of the first two are those of bags and, where instances have labels, of instances of positive
bags. The JSON report has the numbers.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..evaluation import (
    Calibration,
    CalibrationSection,
    Detections,
    DoubtSection,
    FaithfulnessSection,
    Report,
)
from ..statistics import SHARES
from .panels import save_figure

PANEL = 3.6
"""Width and height of a panel in inches."""
LEGEND = 1.2
"""Height of a legend below a panel."""
DPI = 200
TEXT = 7.5
COLOURS = {
    "doubt": "#0072B2", "spread": "#56B4E9", "variance": "#56B4E9", "within": "#009E73",
    "between": "#CC79A7", "doubt_within": "#009E73", "doubt_between": "#CC79A7",
    "ood": "#E69F00", "margin": "#000000", "entropy": "#7a7a7a",
}  # fmt: skip
"""Colours of Okabe and Ito by detector; null rivals are black and grey."""
NULLS = {"margin": "--", "entropy": "--"}
"""Line styles of the null rivals."""


def write_report_figures(report: Report, folder: Path) -> list[Path]:
    """Write `reliability.png`, `retention.png` and `deletion.png`, and return their paths.

    A figure without any panel is not written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for section in report.sections:
        if isinstance(section, CalibrationSection):
            figure, path = draw_reliability(section), folder / "reliability.png"
        elif isinstance(section, DoubtSection):
            figure, path = draw_retention(section), folder / "retention.png"
        elif isinstance(section, FaithfulnessSection):
            figure, path = draw_deletion(section), folder / "deletion.png"
        else:
            continue
        if figure is not None:
            save_figure(figure, path)
            written.append(path)
    return written


def draw_reliability(section: CalibrationSection) -> Figure:
    """Return the reliability diagrams of bags and instances."""
    panels = [c for c in (section.bags, section.instances) if c is not None]
    figure = _sheet(len(panels))
    for k, calibration in enumerate(panels):
        _reliability(figure.add_subplot(1, len(panels), k + 1), calibration)
    return figure


def draw_retention(section: DoubtSection) -> Figure | None:
    """Return the retention curves of bags and instances; None if neither has any."""
    panels = [
        (d, titles)
        for d, titles in (
            (section.bags, section.bag_titles),
            (section.instances, section.instance_titles),
        )
        if d is not None and d.curves
    ]
    if not panels:
        return None
    figure = _sheet(len(panels), legend=LEGEND)
    for k, (detections, titles) in enumerate(panels):
        _retention(figure.add_subplot(1, len(panels), k + 1), detections, titles=titles)
    return figure


def draw_deletion(section: FaithfulnessSection) -> Figure | None:
    """Return the curves of deletion beside those of a random order; None if there are none.

    Read from right to left, the curve of least relevant first is that of inserting the most
    relevant instances into an empty bag.
    """
    if not section.curves:
        return None
    figure = _sheet(1, legend=LEGEND)
    ax = figure.add_subplot()
    shown = {k: section.curves[k] for k in ("least_first", "most_first")}
    share = 100 * np.array(shown["most_first"]["share"])
    ax.fill_between(
        share,
        shown["most_first"]["probability"],
        shown["least_first"]["probability"],
        color=COLOURS["doubt"],
        alpha=0.12,
        lw=0,
        label="area between the curves",
    )
    titles = {"least_first": "least relevant first", "most_first": "most relevant first"}
    for kind, colour in (("least_first", COLOURS["doubt"]), ("most_first", COLOURS["ood"])):
        ax.plot(share, shown[kind]["probability"], color=colour, lw=1.5, label=titles[kind])
        if f"{kind}_random" in section.curves:
            random = section.curves[f"{kind}_random"]["probability"]
            label = "random orders (null)" if kind == "most_first" else None
            ax.plot(share, random, color="#7a7a7a", lw=1, ls="--", label=label)
    area = section.metrics["area_shown"].value
    ax.set(xlim=(0, 90), ylim=(-0.02, 1.02))
    ax.set_xlabel("removed instances (%)", fontsize=TEXT)
    ax.set_ylabel("mean probability of the shown class", fontsize=TEXT)
    number = "" if area is None else f"\narea between the curves {area:.3f}"
    ax.set_title(f"{section.bags} bags that are called positive{number}", fontsize=TEXT, loc="left")
    ax.legend(fontsize=TEXT - 2, frameon=False, loc="upper left", bbox_to_anchor=(0, -0.16))
    _dress(ax)
    return figure


def _sheet(panels: int, *, legend: float = 0.0) -> Figure:
    figure = Figure(figsize=(PANEL * panels, PANEL + legend), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _reliability(ax: Axes, calibration: Calibration) -> None:
    diagram = calibration.diagram
    p, frequency = diagram.probability, diagram.frequency
    low, high = _limits(diagram.low), _limits(diagram.high)
    ax.plot([0, 1], [0, 1], color="#b0b0b0", lw=0.8, zorder=1)
    if calibration.chance is not None:
        ax.vlines(p, low, high, color="#d0d0d0", lw=5, zorder=0)
        note = "grey: 95 % of calibrated frequencies"
    else:
        ax.vlines(p, low, high, color=COLOURS["doubt"], lw=1)
        note = "lines: 95 % intervals over groups"
    ax.plot(p, frequency, color=COLOURS["doubt"], marker="o", ms=3.5, lw=0.8)
    ax.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal")
    is_bags = calibration.chance is not None
    ax.set_xlabel("mean probability of the bin", fontsize=TEXT)
    ax.set_ylabel("frequency in the bin", fontsize=TEXT)
    what = "bags" if is_bags else "P(f > 0), instances of positive bags"
    ax.set_title(
        f"{what}, n = {calibration.items}\nadaptive ECE {calibration.ece.value:.3f}\n{note}",
        fontsize=TEXT,
        loc="left",
    )
    _dress(ax)


def _retention(ax: Axes, detections: Detections, *, titles: Mapping[str, str]) -> None:
    shares = np.array(SHARES) * 100
    highest = 0.0
    for name in (n for n in titles if n in detections.curves):
        curve, is_null = detections.curves[name], name in NULLS
        rate = np.array(curve.error_rate) * 100
        highest = max(highest, float(rate[1:].max()))
        if name == "doubt":
            low, high = 100 * _limits(curve.low), 100 * _limits(curve.high)
            ax.fill_between(shares, low, high, color=COLOURS[name], alpha=0.12, lw=0)
        ax.plot(
            shares,
            rate,
            color=COLOURS[name],
            lw=1.5 if name == "doubt" else 1,
            ls=NULLS[name] if is_null else "-",
            label=titles[name] + (" and its 95 % interval" if name == "doubt" else ""),
        )
    rate = 100 * (detections.error_rate.value or 0.0)
    ax.axhline(rate, color="#b0b0b0", lw=1, label="random order (null)")
    ax.set(xlim=(0, 100), ylim=(0, 1.15 * max(highest, rate)))
    ax.set_xlabel("calls kept, least doubtful first (%)", fontsize=TEXT)
    ax.set_ylabel("wrong among the kept calls (%)", fontsize=TEXT)
    ax.set_title(f"{detections.items} {detections.what}", fontsize=TEXT, loc="left")
    ax.legend(fontsize=TEXT - 2, frameon=False, loc="upper left", bbox_to_anchor=(0, -0.16))
    _dress(ax)


def _limits(values: Sequence[float | None]) -> Float[np.ndarray, " n"]:
    """Return the limits of intervals; nan where there is none."""
    return np.array(values, dtype=np.float64)


def _dress(ax: Axes) -> None:
    ax.tick_params(labelsize=TEXT, length=2.5, width=0.6)
    for side, spine in ax.spines.items():
        spine.set_linewidth(0.6)
        spine.set_visible(side in ("left", "bottom"))
