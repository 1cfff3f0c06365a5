"""Stage 10: maps as PNG: attention mean, attention variance and, where given, instance labels.

Every panel has a colour bar that says what the number is and which scale the colours follow. No
value is smoothed or interpolated: a square of one colour is one patch. There is no global state, so
maps can be drawn from several threads or processes.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import BoundaryNorm, Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from ..errors import ProbSAError, UnknownName
from ..evaluation.prediction import Prediction
from ..evaluation.tables import read_predictions
from ..files import replacing
from .geometry import Sheet, arrange
from .layout import Layout, fill, place
from .scale import Limits, bag_limits, extend, map_limits

Scale = Literal["fixed", "per-bag"]
Quantity = Literal["mean", "variance", "labels"]

BACKGROUND = "#dcdcdc"
"""Where there is no tissue: lighter than the lowest colour and greyer than the highest."""
PALETTE: dict[Quantity, Colormap] = {
    "mean": colormaps["cividis"],
    "variance": colormaps["inferno"],
    # Okabe and Ito's sky blue and vermillion: told apart by colour-blind eyes too
    "labels": ListedColormap(["#56B4E9", "#D55E00"]),
}
SMALL, NORMAL, LARGE = 8, 9.5, 11
"""Font sizes in points."""
ROUND = {"integer": True, "steps": [1, 2, 5, 10]}


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One quantity of one class: a number for each instance, and its colours."""

    quantity: Quantity
    title: str
    values: Float[np.ndarray, " n"]
    limits: tuple[float, float]
    bar: str
    empty: str = ""
    """What to say instead of drawing."""


def render_map(
    p: Prediction,
    path: Path,
    *,
    scale: Scale = "per-bag",
    title: str | None = None,
    label: int | None = None,
    limits: Limits | None = None,
) -> None:
    """Writes the map of one bag as a PNG, atomically.

    Args:
        p: the bag's prediction.
        path: of the PNG.
        scale: `per-bag` takes the colours from this bag's smallest to its largest value, as the
            paper's maps do; `fixed` takes `limits`, so that colours mean the same in all bags.
        title: above the map; None: the bag's name, its probability with the spread, its label.
        label: the bag's true label, for the title.
        limits: of a fixed scale, from `map_limits`; None: this bag's own.

    Raises:
        BagError: the bag has no instances, no finite attention or unusable coordinates.
    """
    figure = draw_map(p, scale=scale, title=title, label=label, limits=limits)
    with replacing(path) as temporary, warnings.catch_warnings():
        # a bag's name may hold letters that the font lacks: they become boxes, the map is right
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(temporary, format="png")


def draw_map(
    p: Prediction,
    *,
    scale: Scale = "per-bag",
    title: str | None = None,
    label: int | None = None,
    limits: Limits | None = None,
) -> Figure:
    """The same as a figure; its axes are labelled `mean`, `variance`, `labels` (`mean 1`, … where
    there is one attention per class), its colour bars `mean bar` and so on."""
    layout = place(p)
    own = bag_limits(p)
    used = limits if scale == "fixed" and limits is not None else own
    panels = list(_panels(p, used, scale=scale))
    classes = p.attention_mean.shape[1] if p.attention_mean.ndim == 2 else 1
    sheet = arrange(layout, rows=classes, columns=len(panels) // classes)
    figure = Figure(figsize=(sheet.width, sheet.height), dpi=sheet.dpi)
    FigureCanvasAgg(figure)
    figure.text(
        sheet.panels[0][0] / sheet.width,
        1 - 0.14 / sheet.height,
        _fitted(title if title is not None else heading(p, label=label), width=sheet.width),
        fontsize=LARGE,
        fontweight="bold",
        va="top",
        parse_math=False,  # a name may hold a dollar sign
    )
    for k, panel in enumerate(panels):
        suffix = f" {k // (len(panels) // classes)}" if classes > 1 else ""
        _draw(figure, panel, layout=layout, sheet=sheet, k=k, name=panel.quantity + suffix)
    return figure


def render_folder(
    predictions: Path,
    out: Path,
    *,
    bags: Sequence[str] | None = None,
    scale: Scale = "per-bag",
    progress: Callable[[int, int], None] | None = None,
) -> list[tuple[str, str]]:
    """Writes `out/<bag>.png` for these bags of a folder of predictions (None: all).

    Args:
        predictions: as `probsa predict` wrote it.
        out: made if need be; maps of these bags that are there are replaced.
        bags: names of bags.
        scale: `fixed` takes the colours from all bags of the folder, drawn or not.
        progress: told (done, total) after each bag.

    Returns: (bag, reason) of every bag that could not be drawn; the others are.

    Raises:
        UnknownName: a bag that is not in the predictions; nothing is drawn then.
        InputError, TableError: no folder of predictions.
    """
    found = read_predictions(predictions)
    wanted = list(found.bags if bags is None else bags)
    for bag in wanted:
        if bag not in found.bags:
            raise UnknownName("predicted bag", bag, found.bags)
    limits = map_limits(predictions) if scale == "fixed" else None
    labels = dict(zip(found.bags, found.labels, strict=True))
    parts = dict(zip(found.bags, found.parts, strict=True))
    failures = []
    for k, bag in enumerate(wanted):
        try:
            p = found.instances(bag)
            # a map of a bag that was trained on flatters: it says so
            seen = " · a training bag" if parts[bag] == "train" else ""
            title = heading(p, label=labels[bag]) + seen
            render_map(p, out / f"{bag}.png", scale=scale, title=title, limits=limits)
        except (ProbSAError, OSError) as error:
            failures.append((bag, str(error)))
        if progress is not None:
            progress(k + 1, len(wanted))
    return failures


def heading(p: Prediction, *, label: int | None = None) -> str:
    """`bag 049 · p = 0.87 ± 0.05 · label 1`; with several classes the likeliest is named."""
    k = int(np.argmax(p.probability))
    which = f"p(class {k})" if len(p.probability) > 1 else "p"
    spread = f" ± {p.spread[k]:.2f}" if p.spread[k] > 0 else ""
    known = "" if label is None else f" · label {label}"
    return f"{p.name} · {which} = {p.probability[k]:.2f}{spread}{known}"


def _panels(p: Prediction, limits: Limits, *, scale: Scale) -> Iterator[Panel]:
    """Row by row: the quantities of one class, then those of the next."""
    n = len(p.attention_mean)
    mean = np.asarray(p.attention_mean, np.float64).reshape(n, -1)
    variance = np.asarray(p.attention_variance, np.float64).reshape(n, -1)
    for c in range(mean.shape[1]):
        of = f", class {c}" if mean.shape[1] > 1 else ""
        score = "attention" if p.score_kind in ("logit", "weight") else "instance score"
        yield Panel(
            quantity="mean",
            title=f"{score} mean μ{of}",
            values=mean[:, c],
            limits=limits.mean,
            bar=f"{score} mean μ{of} ({p.score_kind}), {scale} scale",
        )
        yield Panel(
            quantity="variance",
            title=f"{score} variance σ²{of}",
            values=variance[:, c],
            limits=limits.variance,
            bar=f"{score} variance σ²{of} ({p.score_kind}²), {scale} scale",
            empty=""
            if variance.any()
            else "no variance: this model gives\none number a patch (Dirac)",
        )
        if p.instance_labels is not None:
            known = p.instance_labels >= 0
            positive = np.where(known, p.instance_labels > 0, np.nan)
            yield Panel(
                quantity="labels",
                title=f"instance labels: {int(np.nansum(positive)):,} of {n:,} positive",
                values=positive,
                limits=(-0.5, 1.5),
                bar="true instance label, never used in training",
            )


def _draw(figure: Figure, panel: Panel, *, layout: Layout, sheet: Sheet, k: int, name: str) -> None:
    ax = figure.add_axes(_share(sheet.panels[k], sheet), label=name)
    title = panel.title if not layout.strip or panel.empty else _one_line(panel)
    ax.set_title(title, fontsize=NORMAL, loc="left", pad=4)
    _axes(ax, layout=layout, sheet=sheet, k=k)
    if panel.empty:
        ax.set_facecolor("white")
        text = panel.empty.replace("\n", " ") if layout.strip else panel.empty
        if not layout.strip:
            ax.set(xticks=[], yticks=[], xlabel="")
        ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", fontsize=NORMAL)
        return
    palette = PALETTE[panel.quantity]
    norm = (
        BoundaryNorm([-0.5, 0.5, 1.5], palette.N)
        if panel.quantity == "labels"
        else Normalize(*panel.limits, clip=True)
    )
    if layout.cells is not None:
        r = fill(layout, panel.values)
        masked = np.ma.masked_invalid(r.image)
        ax.imshow(
            masked, extent=r.extent, cmap=palette, norm=norm, interpolation="none", aspect="auto"
        )
        ax.set_xlim(*sheet.x_limits)
        ax.set_ylim(*sheet.y_limits)
    else:
        ax.add_collection(_squares(layout, panel, palette=palette, norm=norm), autolim=False)
    _bar(figure, panel, norm=norm, sheet=sheet, k=k, name=f"{name} bar")


def _one_line(panel: Panel) -> str:
    """A strip has no room beside its bar: what the bar says stands above it."""
    return panel.title if panel.quantity == "labels" else panel.bar


def _axes(ax: Axes, *, layout: Layout, sheet: Sheet, k: int) -> None:
    ax.set_facecolor(BACKGROUND)
    ax.set_xlim(*sheet.x_limits)
    ax.set_ylim(*sheet.y_limits)
    ax.tick_params(labelsize=SMALL, length=3)
    for spine in ax.spines.values():
        spine.set_linewidth(0.6)
    if layout.strip:
        ax.set_yticks([])
        at, text = _slice_ticks(layout, width=sheet.panels[k][2])
        ax.set_xticks(at, text if sheet.last[k] else [""] * len(at))
    else:
        across, down = sheet.panels[k][2:]
        ax.xaxis.set_major_locator(MaxNLocator(max(1, int(across / 0.9)), **ROUND))
        ax.yaxis.set_major_locator(MaxNLocator(max(2, int(down / 0.6)), **ROUND))
        ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        ax.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        ax.tick_params(labelleft=sheet.first[k])
        if sheet.first[k]:
            ax.set_ylabel(layout.y_label, fontsize=SMALL)
    if sheet.last[k]:
        ax.set_xlabel(layout.x_label, fontsize=SMALL)


def _slice_ticks(layout: Layout, *, width: float) -> tuple[list[float], list[str]]:
    """The middles of the slices, each one or every second, fifth, … numbered: what has room."""
    n = len(layout.corners)
    longest = max(len(v) for v in layout.numbers) * 0.075 + 0.08
    room = width / layout.shape[1]
    step = next((s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500) if s * room >= longest), n)
    middle = layout.corners[:, 0] + layout.size / 2
    return list(middle[::step]), list(layout.numbers[::step])


def _squares(layout: Layout, panel: Panel, *, palette: Colormap, norm: Normalize) -> PolyCollection:
    side = layout.size * np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
    shown = np.isfinite(panel.values)
    squares = PolyCollection(
        list(layout.corners[shown, None, :] + side),
        cmap=palette,
        norm=norm,
        linewidths=0,
        antialiased=False,  # blended edges would be colours that no patch has
    )
    squares.set_array(panel.values[shown])
    return squares


def _bar(figure: Figure, panel: Panel, *, norm: Normalize, sheet: Sheet, k: int, name: str) -> None:
    ax = figure.add_axes(_share(sheet.bars[k], sheet), label=name)
    labels = panel.quantity == "labels"
    bar = figure.colorbar(
        ScalarMappable(norm, PALETTE[panel.quantity]),
        cax=ax,
        orientation="horizontal" if sheet.horizontal else "vertical",
        extend="neither" if labels else extend(panel.values, panel.limits),
    )
    bar.outline.set_linewidth(0.6)  # type: ignore[operator]
    ax.tick_params(labelsize=SMALL, length=2)
    short = not sheet.horizontal and sheet.bars[k][3] < 1
    if labels:
        upright = {} if short or sheet.horizontal else {"rotation": 90, "va": "center"}
        bar.set_ticks([0, 1], labels=["negative", "positive"], **upright)
    elif (only := _only_value(panel)) is not None:
        bar.set_ticks([only], labels=[_number(only)])
    elif short:
        bar.set_ticks(list(panel.limits), labels=[_number(v) for v in panel.limits])
    if not short:
        tight = not sheet.horizontal and sheet.bars[k][3] < 3.2
        bar.set_label(",\n".join(panel.bar.rsplit(", ", 1)) if tight else panel.bar, fontsize=SMALL)


def _only_value(panel: Panel) -> float | None:
    """What all instances have in common: the ends of the bar would be numbers that none has."""
    finite = panel.values[np.isfinite(panel.values)]
    value = float(finite[0]) if len(finite) and finite.min() == finite.max() else None
    inside = value is not None and panel.limits[0] <= value <= panel.limits[1]
    return value if inside else None


def _number(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")


def _share(box: tuple[float, ...], sheet: Sheet) -> tuple[float, float, float, float]:
    x, y, w, h = box
    return x / sheet.width, y / sheet.height, w / sheet.width, h / sheet.height


def _fitted(text: str, *, width: float) -> str:
    """A long name loses its middle: its ends tell files apart."""
    room = int((width - 0.6) / 0.098)
    if len(text) <= room:
        return text
    name, _, rest = text.partition(" · ")
    keep = max(8, (room - len(rest) - 6) // 2)
    short = f"{name[:keep]}…{name[-keep:]}" if len(name) > 2 * keep else name
    return f"{short} · {rest}" if rest else short
