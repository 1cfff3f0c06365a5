"""Stage 10: small maps of one bag on one page: by several methods, as in the paper's figures 5 to
16, or the evidence of one model with the doubt about it, beside the maps of others.

The slide or its slices come first if they are at hand, then the labels, then each method's mean
and, if it has one, its variance. Scores of different methods are different quantities, so each
panel has its own scale.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import ndtri

from ..core import write_csv
from ..errors import InputError
from ..evaluation import Prediction, instance_scores, instance_variances
from ..slides import Scan
from ..tasks import format_probability
from .layout import place
from .picture import (
    SMALL,
    TINY,
    Canvas,
    Panel,
    Title,
    draw_page,
    plain_canvas,
    save_figure,
)
from .quantities import (
    KINDS,
    Quantity,
    flattened,
    quantities,
    quantity,
    same_instances,
    value_of,
)
from .sources import Sources, checked_squares, chosen_scale, shown_box
from .strips import grey_slice, match_slices

TITLE_WIDTH = 32
"""Characters per line above a small panel."""
SLIDE_PIXELS = 1000
"""Longer side of the picture of a slide in pixels."""
SLICE_PIXELS = 160
"""Side of the picture of a slice in pixels."""
SLICES = 3.0
"""Height of the row of slices, as a multiple of a strip's."""
SCALE = "Each panel has its own scale, from the bag's smallest to its largest value. p is p(Y = 1)."
RAYS = {0.05: "solid", 0.25: "dashed"}
"""The probability that the call flips, along the lines of the plot of doubt, and their style."""


def side_by_side(
    predictions: Mapping[str, Prediction],
    *,
    bag: str,
    out: Path | str,
    label: int | None = None,
    caption: str = "",
    sources: Sources | None = None,
) -> Figure:
    """Write one bag's maps by several methods as PNG, and their values as CSV beside it.

    The axes of the figure are labelled `source`, `labels`, `<method> mean` and `<method> variance`,
    their colour bars `<method> mean bar` and so on.

    Args:
        predictions: Predictions of this bag by method name, in drawing order.
        bag: The bag's name, for the title.
        out: Path of the PNG.
        label: The bag's true label, if it is known.
        caption: Text below the maps, before the sentence on the scale.
        sources: Finds the bag's slide or scan, which is drawn first; None: it is not drawn.

    Raises:
        InputError: There are no predictions, they differ in their instances, or there is no slide
            or scan of the bag.
        BagError: The bag has no instances, no finite attention or unusable coordinates.
        SlideError: The slide or scan cannot be read.
    """
    out = Path(out)
    check_same_bag(predictions, bag=bag)
    single = {name: _single(p) for name, p in predictions.items()}
    first = next(iter(single.values()))
    canvas = plain_canvas(place(first), small=True)
    strip = canvas.layout.strip
    panels = list(_panels(single, strip=strip))
    if sources is not None:
        draw_source = partial(_draw_source, p=first, sources=sources, canvas=canvas)
        panels.insert(0, Panel("source", draw_source))
    figure = _page(
        canvas,
        panels,
        title=Title(bag, () if label is None else (f"label {label}",)),
        caption=f"{caption} {SCALE}".strip(),
        first=SLICES if strip and sources is not None else 1.0,
    )
    labelled = _labelled(single)
    if strip and labelled is not None:
        _mark_lesions(figure, panels, ends=_ends_of_lesions(labelled, canvas))
    save_figure(figure, out)
    columns = _table(single)
    write_csv(out.with_suffix(".csv"), list(columns), pd.DataFrame(columns).to_dict("records"))
    return figure


def draw_doubt(
    p: Prediction,
    *,
    name: str,
    others: Mapping[str, Prediction],
    title: Title | str,
    caption: str = "",
) -> Figure:
    """Return the maps of one bag as a figure: labels, other models, evidence and doubt.

    Doubt is shown twice, as the standard deviation s and as P(wrong), and beside it
    stand the calls that are wrong and a plot of s against the evidence m, so that a reader sees
    what doubt adds to the mean. The axes are labelled `labels`, `<other> mean`, `evidence`,
    `probability`, `calls`, `deviation`, `doubt` and `plot`.

    Args:
        p: The prediction whose evidence and doubt are shown; its bag has instance labels.
        name: What the panels call its model.
        others: Predictions of the same bag by other models, of which the mean is shown.
        title: Text above the maps.
        caption: Text below the maps.

    Raises:
        InputError: The model's score is not evidence, the bag has no instance labels, or the
            predictions differ in their instances.
        BagError: The bag has no instances, no finite attention or unusable coordinates.
    """
    if not p.score_has_level or p.instance_labels is None:
        raise InputError(
            f"bag {p.name!r}: doubt is shown for models whose score is evidence (this one is "
            f"{p.score_kind}), and for bags with instance labels"
        )
    check_same_bag({**others, name: p}, bag=p.name)
    panels: list[Panel] = [
        *_panels({"": p}, strip=False, only="labels"),
        *_panels({n: _single(v) for n, v in others.items()}, strip=False, only="mean"),
        *(Panel(q.key, q) for q in doubt_of(p, name=name)),
        Panel("plot", partial(_plot, p=p), has_own_axes=True),
    ]
    return _page(plain_canvas(place(p), small=True), panels, title=title, caption=caption)


def check_same_bag(predictions: Mapping[str, Prediction], *, bag: str) -> None:
    """Check that there are predictions, all of the same instances."""
    if not predictions:
        raise InputError(f"bag {bag!r}: no predictions were given to draw")
    (first, reference), *others = predictions.items()
    for name, p in others:
        if not same_instances(reference, p):
            raise InputError(
                f"bag {bag!r}: {first!r} and {name!r} were not given the same instances "
                f"({len(reference.attention_mean)} and {len(p.attention_mean)}): predict both from "
                "the same features"
            )


def doubt_of(p: Prediction, *, name: str) -> list[Quantity]:
    """Return the evidence of a model called `name`, and the doubt about it in several forms."""
    calls = value_of(p, "calls", name="")
    wrong = int(np.nansum(calls.values))
    labelled = int(np.isfinite(calls.values).sum())
    calls = replace(calls, name=f"calls (m > 0) that are wrong:\n{wrong:,} of {labelled:,}")
    members = "" if p.variance_between is None else ", all members"
    title = f"doubt: standard deviation s\nof the evidence{members}"
    deviation = flattened(quantity("deviation", np.sqrt(instance_variances(p)), name=title))
    if deviation.flat:
        deviation = replace(deviation, name=f"{title}, {deviation.flat}")
    evidence = f"{name}: evidence m\nred: for the class, blue: against"
    return [
        quantity("evidence", instance_scores(p), name=evidence),
        value_of(p, "probability", name=f"{name}:\nprobability", column=-1),
        calls,
        deviation,
        value_of(p, "doubt", name="doubt: P(wrong)"),
    ]


def _page(canvas: Canvas, panels: Sequence[Panel], **words: Any) -> Figure:
    """Return a page of small panels, as many side by side as fit the width of a text."""
    columns = 1
    if not canvas.layout.strip:
        columns = min(len(panels), round(6.8 / (canvas.size[0] + 0.82)))
    return draw_page(canvas, panels, columns=columns, **words)


def _single(p: Prediction) -> Prediction:
    """Return a prediction with one score per instance; see `instance_scores`."""
    return replace(
        p,
        attention_mean=instance_scores(p),
        attention_variance=instance_variances(p),
        variance_within=None,
        variance_between=None,
    )


def _labelled(single: Mapping[str, Prediction]) -> Prediction | None:
    """Return the first prediction with instance labels, which are those of all."""
    return next((p for p in single.values() if p.instance_labels is not None), None)


def _panels(single: Mapping[str, Prediction], *, strip: bool, only: str = "") -> Iterator[Panel]:
    """Yield the labels, then each method's mean and, if it has one, its variance."""
    separator = " · " if strip else "\n"
    labels = _labelled(single)
    if labels is not None and only in ("", "labels"):
        *_, q = quantities(labels)
        positive = f"{int(np.nansum(q.values)):,} of {len(q.values):,} positive"
        name = f"instance labels{separator}{positive}"
        yield Panel("labels", replace(q, name=name, note=""))
    for name, p in single.items():
        for q in quantities(p, also=("variance",)):
            if q.key == "labels" or q.absent or only not in ("", q.key):
                continue
            lines = [name if strip else _two_lines(name)]
            if q.key == "variance":
                lines.append(f"σ² ({p.score_kind}²) {_variation(p.attention_variance)}")
            else:
                lines.append(f"mean μ ({p.score_kind}) · p = {format_probability(_positive(p))}")
            title = separator.join(lines)
            if q.flat and strip:
                title += f" · {q.flat}"
            yield Panel(f"{name} {q.key}", replace(q, name=title, class_name="", note=""))


def _variation(variance: np.ndarray) -> str:
    """Describe the range of a variance, since each panel uses all colours however small it is."""
    low = float(np.nanmin(variance))
    high = float(np.nanmax(variance))
    if low <= 0 or high > 100 * low:
        return "varies >100-fold"
    ratio = high / low
    return f"varies by {100 * (ratio - 1):.2g} %" if ratio < 2 else f"varies {ratio:.0f}-fold"


def _positive(p: Prediction) -> float:
    """Return p(Y = 1) or, with three or more classes, the probability of any class above 0."""
    if len(p.probability) < 3:
        return float(p.probability[-1])
    return float(p.probability[1:].sum())


def _two_lines(name: str) -> str:
    """Break a name into at most two lines; of a longer one, the ends are shown."""
    lines = wrap(name, TITLE_WIDTH) or [name]
    if len(lines) > 2:
        keep = TITLE_WIDTH - 1
        lines = [name[:keep] + "…", name[-keep:]]
    return "\n".join(lines)


def _ends_of_lesions(p: Prediction, canvas: Canvas) -> list[float]:
    """Return where runs of positive slices begin and end on a strip, whose slices are 1 wide."""
    assert p.instance_labels is not None
    positive = np.sort(canvas.layout.corners[p.instance_labels > 0, 0])
    begins = positive[~np.isin(positive, positive + 1)]
    ends = positive[~np.isin(positive + 1, positive)] + 1
    return [*begins.tolist(), *ends.tolist()]


def _mark_lesions(figure: Figure, panels: Sequence[Panel], *, ends: Sequence[float]) -> None:
    """Draw lines where lesions begin and end through the strips of means and variances."""
    marked = set()
    for panel in panels:
        if isinstance(panel.content, Quantity) and panel.content.key in ("mean", "variance"):
            marked.add(panel.name)
    for ax in figure.axes:
        if ax.get_label() in marked:
            for x in ends:
                ax.axvline(x, color="white", lw=2.2)
                ax.axvline(x, color="#D55E00", lw=1.1)


def _draw_source(ax: Axes, *, p: Prediction, sources: Sources, canvas: Canvas) -> None:
    """Draw the bag's slide, or slices of its scan, in the first panel."""
    left, right, bottom, top = canvas.extent
    source = sources.open(p)
    if isinstance(source, Scan):
        title = _draw_slices(ax, source, p=p, canvas=canvas)
    else:
        with source as slide:
            box = shown_box(checked_squares(p, slide, sources=sources), size=slide.size)
            picture = slide.region(box, scale=chosen_scale(box, longest=SLIDE_PIXELS))
        ax.imshow(picture.image, extent=picture.extent, aspect="auto", interpolation="none")
        title = "slide"
    ax.set(xlim=(left, right), ylim=(bottom, top))
    ax.set_title(title, fontsize=SMALL, loc="left", pad=4)


def _draw_slices(ax: Axes, scan: Scan, *, p: Prediction, canvas: Canvas) -> str:
    """Draw as many slices as fit side by side above the strip, and return the panel's title."""
    layout = canvas.layout
    if not layout.strip:
        raise InputError(f"bag {p.name!r} has no positions of slices, but its source is a scan")
    left, right, bottom, top = canvas.extent
    n = len(layout.corners)
    count = max(1, min(n, int(canvas.size[0] / (canvas.size[1] * SLICES))))
    edges = np.linspace(left, right, count + 1)
    matched = match_slices(p, scan.positions, path=scan.path)
    for low, high in pairwise(edges.tolist()):
        # the slice whose place on the strip is nearest to the middle of the picture
        row = int(np.argmin(np.abs(layout.corners[:, 0] + 0.5 - (low + high) / 2)))
        grey = grey_slice(scan, int(matched[row]), (SLICE_PIXELS, SLICE_PIXELS))
        extent = (low, high, bottom, top)
        ax.imshow(grey, extent=extent, aspect="auto", cmap="gray", vmin=0, vmax=255)
        number = f" {layout.numbers[row]}"
        ax.text(low, top, number, color="white", fontsize=TINY, va="top", clip_on=True)
    return f"{count} of {n} slices (brain window)"


def _plot(ax: Axes, *, p: Prediction) -> None:
    """Plot the standard deviation of the evidence against its mean, with rays of equal flips."""
    mean = instance_scores(p)
    deviation = np.sqrt(instance_variances(p))
    assert p.instance_labels is not None
    x = 1.08 * float(np.abs(mean).max()) or 1.0
    y = 1.15 * float(deviation.max()) or 1.0
    # the call flips with the probability Φ(−|m|/s), which is constant along a ray from 0
    for probability, style in RAYS.items():
        slope = float(-1 / ndtri(probability))
        ax.plot([-x, 0, x], [slope * x, 0, slope * x], ls=style, color="0.45", lw=0.8, zorder=1)
    for value in (0, 1):
        rows = (p.instance_labels > 0) == value
        ax.scatter(
            mean[rows],
            deviation[rows],
            s=7,
            color=KINDS["labels"].colours(value),
            linewidths=0,
            alpha=0.85,
            zorder=2 + value,
        )
    ax.axvline(0, color="0.7", lw=0.6, zorder=0)
    ax.set(xlim=(-x, x), ylim=(0, y))
    rays = ", ".join(f"{style}: {probability:g}" for probability, style in RAYS.items())
    ax.set_title(
        f"s against m, one dot per patch\nthe call flips: {rays}", fontsize=SMALL, loc="left"
    )
    ax.set_xlabel("evidence m", fontsize=SMALL, labelpad=1)
    ax.tick_params(labelsize=SMALL, length=2)
    ax.locator_params(nbins=4)


def _table(single: Mapping[str, Prediction]) -> dict[str, np.ndarray]:
    """Return the columns of the CSV: instances with coordinates and labels, then the methods."""
    first = next(iter(single.values()))
    labelled = _labelled(single)
    columns: dict[str, np.ndarray] = {"instance": np.arange(len(first.attention_mean))}
    if first.coords is not None and first.coords.shape[1] == 1:
        columns["position"] = first.coords[:, 0]
    elif first.coords is not None:
        columns["x"] = first.coords[:, 0]
        columns["y"] = first.coords[:, 1]
    if labelled is not None and labelled.instance_labels is not None:
        columns["label"] = labelled.instance_labels
    for name, p in single.items():
        columns[f"{name} mean"] = p.attention_mean
        if p.attention_variance.any():
            columns[f"{name} variance"] = p.attention_variance
    return columns
