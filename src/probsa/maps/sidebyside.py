"""Stage 10: the maps of one bag by several methods on one page, as in the paper's figures 5 to 16.

The slide or its slices come first if they are at hand, then the labels, then each method's mean
and, if it has one, its variance. Scores of different methods are different quantities, so by
default each panel has its own scale.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import Literal

import numpy as np
from jaxtyping import Float
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..core import write_csv
from ..errors import InputError
from ..evaluation import Prediction, instance_scores, instance_variances
from .geometry import Sheet, tiles
from .layout import Layout, place
from .panels import SMALL, Panel, draw_title, panels_of, save_figure
from .render import draw_panel
from .scale import bag_limits
from .source_maps import Sources
from .source_panel import draw_source

PanelScale = Literal["own", "common"]
"""Whether each panel has its own scale, or all panels of one quantity share one."""
TITLE_WIDTH = 32
"""Characters per line above a small panel."""
LINE = 0.15
"""Height in inches of a line of the caption."""
WORDS = {
    "own": "Each panel has its own scale, from the bag's smallest to its largest value.",
    "common": "Panels of one quantity (in brackets) share one scale, from the smallest to the "
    "largest value of all of them.",
}


def side_by_side(
    predictions: Mapping[str, Prediction],
    *,
    bag: str,
    out: Path,
    scale: PanelScale = "own",
    label: int | None = None,
    caption: str = "",
    sources: Sources | None = None,
) -> None:
    """Write one bag's maps by several methods as PNG, and their values as CSV beside it.

    Args:
        predictions: Predictions of this bag by method name, in drawing order.
        bag: The bag's name, for the title.
        out: Path of the PNG.
        scale: `own`: the brightest instances are those that this method scores highest; `common`: a
            colour means the same value in all panels of one quantity.
        label: The bag's true label, if it is known.
        caption: Text below the maps, before the sentence on the scale.
        sources: Finds the bag's slide or scan, which is drawn first; None: it is not drawn.

    Raises:
        InputError: There are no predictions, they differ in their instances, or there is no slide
            or scan of the bag.
        BagError: The bag has no instances, no finite attention or unusable coordinates.
        SlideError: The slide or scan cannot be read.
    """
    figure = draw_side_by_side(
        predictions, bag=bag, scale=scale, label=label, caption=caption, sources=sources
    )
    save_figure(figure, out)
    header, rows = _table(predictions)
    write_csv(out.with_suffix(".csv"), header, rows)


def draw_side_by_side(
    predictions: Mapping[str, Prediction],
    *,
    bag: str,
    scale: PanelScale = "own",
    label: int | None = None,
    caption: str = "",
    sources: Sources | None = None,
) -> Figure:
    """Return one bag's maps by several methods as a figure; see `side_by_side`.

    The axes are labelled `source`, `labels`, `<method> mean` and `<method> variance`, their colour
    bars `<method> mean bar` and so on.
    """
    check_same_bag(predictions, bag=bag)
    single = {name: _single(p) for name, p in predictions.items()}
    layout = place(next(iter(single.values())))
    panels = _shared(list(_panels(single, strip=layout.strip)), scale=scale)
    lines = wrap(f"{caption} {WORDS[scale]} p is p(Y = 1).".strip(), 118)
    first = int(sources is not None)
    under = LINE * len(lines) + 0.1
    sheet = tiles(layout, count=first + len(panels), under=under, picture=sources is not None)
    figure = Figure(figsize=(sheet.width, sheet.height), dpi=sheet.dpi)
    FigureCanvasAgg(figure)
    known = "" if label is None else f" · label {label}"
    draw_title(figure, f"{bag}{known}", sheet=sheet)
    if sources is not None:
        p = next(iter(single.values()))
        draw_source(figure, p, sources, layout=layout, sheet=sheet)
    for k, (name, panel) in enumerate(panels, start=first):
        draw_panel(figure, panel, layout=layout, sheet=sheet, k=k, name=name)
    if layout.strip:
        _lesions(figure, single, layout=layout, sheet=sheet)
    figure.text(
        0.12 / sheet.width, 0.08 / sheet.height, "\n".join(lines), fontsize=SMALL, va="bottom",
        parse_math=False,
    )  # fmt: skip
    return figure


def check_same_bag(predictions: Mapping[str, Prediction], *, bag: str) -> None:
    """Raise an InputError unless there are predictions, all of the same instances."""
    if not predictions:
        raise InputError(f"bag {bag!r}: no predictions were given to draw")
    first = next(iter(predictions))
    for name, p in predictions.items():
        reference = predictions[first]
        if p.attention_mean.shape[0] != reference.attention_mean.shape[0] or not _equal(
            p.coords, reference.coords
        ):
            raise InputError(
                f"bag {bag!r}: {first!r} and {name!r} were not given the same instances "
                f"({reference.attention_mean.shape[0]} and {p.attention_mean.shape[0]}): predict "
                "both from the same features"
            )


def _equal(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    if a is None or b is None:
        return a is None and b is None
    return np.array_equal(a, b)


def _single(p: Prediction) -> Prediction:
    """Return a prediction with one score per instance; see `instance_scores`."""
    return replace(
        p,
        attention_mean=instance_scores(p),
        attention_variance=instance_variances(p),
        variance_within=None,
        variance_between=None,
    )


def _panels(single: Mapping[str, Prediction], *, strip: bool) -> Iterator[tuple[str, Panel]]:
    """Yield (name of the axes, panel) in drawing order."""
    labelled = next((p for p in single.values() if p.instance_labels is not None), None)
    if labelled is not None:
        yield "labels", label_panel(labelled, separator=" · " if strip else "\n")
    yield from method_panels(single, strip=strip)


def label_panel(p: Prediction, *, separator: str) -> Panel:
    """Return the small panel of a bag's labels; `separator` stands between the title's parts."""
    panel = list(panels_of(p, bag_limits(p), scale="per-bag"))[-1]
    return replace(panel, title=panel.title.replace(": ", separator, 1), bar="")


def method_panels(
    predictions: Mapping[str, Prediction], *, strip: bool
) -> Iterator[tuple[str, Panel]]:
    """Yield (name of the axes, panel) of each method's mean and, if it has one, its variance."""
    for name, prediction in predictions.items():
        p = _single(prediction)
        for panel in panels_of(p, bag_limits(p), scale="per-bag"):
            if panel.quantity == "labels" or panel.empty:
                continue
            texts = _panel_texts(name, p, panel)
            if panel.flat and strip:
                texts = (*texts, panel.flat)
            title = " · ".join(texts) if strip else "\n".join([*_name_lines(texts[0]), *texts[1:]])
            # the title of a strip also serves its colour bar
            bar = title if strip else ""
            yield f"{name} {panel.quantity}", replace(panel, title=title, bar=bar)


def _panel_texts(name: str, p: Prediction, panel: Panel) -> tuple[str, ...]:
    if panel.quantity == "variance":
        return name, f"σ² ({p.score_kind}²) {_variation(p.attention_variance)}"
    return name, f"mean μ ({p.score_kind}) · p = {_positive(p):.2f}"


def _variation(variance: Float[np.ndarray, " n"]) -> str:
    """Describe the range of a variance, since each panel uses all colours however small it is."""
    low, high = float(np.nanmin(variance)), float(np.nanmax(variance))
    if low <= 0 or high > 100 * low:
        return "varies >100-fold"
    times = high / low
    return f"varies by {100 * (times - 1):.2g} %" if times < 2 else f"varies {times:.0f}-fold"


def _positive(p: Prediction) -> float:
    """Return p(Y = 1) or, with three or more classes, the probability of any class above 0."""
    return float(p.probability[-1] if len(p.probability) < 3 else p.probability[1:].sum())


def _name_lines(name: str) -> list[str]:
    """Split a name into one or two lines."""
    lines = wrap(name, TITLE_WIDTH) or [name]
    if len(lines) > 2:
        keep = TITLE_WIDTH - 1
        lines = [name[:keep] + "…", name[-keep:]]
    return lines


def _shared(panels: list[tuple[str, Panel]], *, scale: PanelScale) -> list[tuple[str, Panel]]:
    """With `common`, give the panels of one quantity the same limits."""
    if scale == "own":
        return panels
    ends: dict[tuple[str, str], tuple[float, float]] = {}

    def key(panel: Panel) -> tuple[str, str]:
        return panel.quantity, panel.title[panel.title.rindex("(") : panel.title.rindex(")")]

    scored = [p for _, p in panels if p.quantity != "labels"]
    for panel in scored:
        low, high = ends.get(key(panel), panel.limits)
        ends[key(panel)] = min(low, panel.limits[0]), max(high, panel.limits[1])
    return [
        (
            name,
            panel
            if panel.quantity == "labels"
            else replace(panel, limits=ends[key(panel)], flat=""),
        )
        for name, panel in panels
    ]


def _lesions(
    figure: Figure, single: Mapping[str, Prediction], *, layout: Layout, sheet: Sheet
) -> None:
    """Mark on every strip where runs of positive slices begin and end."""
    labels = next(
        (p.instance_labels for p in single.values() if p.instance_labels is not None), None
    )
    if labels is None:
        return
    positive = np.sort(layout.corners[labels > 0, 0])
    if len(positive) == 0:
        return
    breaks = np.flatnonzero(np.diff(positive) > layout.size * 1.5)
    ends = np.concatenate(
        [
            positive[:1],
            positive[breaks] + layout.size,
            positive[breaks + 1],
            positive[-1:] + layout.size,
        ]
    )
    for ax in figure.axes:
        if str(ax.get_label()).endswith((" mean", " evidence", " variance")):
            for x in ends:
                ax.axvline(x, color="white", lw=2.2)
                ax.axvline(x, color="#D55E00", lw=1.1)


def _table(
    predictions: Mapping[str, Prediction],
) -> tuple[list[str], Iterator[dict[str, object]]]:
    single = {name: _single(p) for name, p in predictions.items()}
    first = next(iter(single.values()))
    columns: dict[str, np.ndarray] = {"instance": np.arange(len(first.attention_mean))}
    if first.coords is not None:
        names = ("position",) if first.coords.shape[1] == 1 else ("x", "y")
        columns |= {name: first.coords[:, k] for k, name in enumerate(names)}
    labels = next(
        (p.instance_labels for p in single.values() if p.instance_labels is not None), None
    )
    if labels is not None:
        columns["label"] = labels
    for name, p in single.items():
        columns[f"{name} mean"] = p.attention_mean
        if p.attention_variance.any():
            columns[f"{name} variance"] = p.attention_variance
    rows = ({k: v[i].item() for k, v in columns.items()} for i in range(len(first.attention_mean)))
    return list(columns), rows
