"""Stage 10: shared parts of all maps: quantities, colours, colour bars and axes."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from ..core import replacing
from ..evaluation import Prediction
from ..tasks import Verdict
from .captions import CHARACTER, caption_lines, split_title
from .geometry import Sheet
from .layout import Layout
from .scale import ColourLimits, bag_limits, extend, flatness, number, numbers, seen
from .shown import SHOWN_KINDS, score_of

Scale = Literal["fixed", "per-bag"]
Quantity = Literal[
    "mean",
    "contribution",
    "evidence",
    "probability",
    "variance",
    "within",
    "between",
    "deviation",
    "doubt",
    "labels",
    "calls",
]

BACKGROUND = "#dcdcdc"
"""Colour where there is no tissue: lighter than the lowest colour, greyer than the highest."""
PALETTE: dict[Quantity, Colormap] = {
    "mean": colormaps["cividis"],
    # red speaks for the class, blue against it; readers with any colour vision can tell them apart
    "contribution": colormaps["RdBu_r"],
    "evidence": colormaps["RdBu_r"],
    "probability": colormaps["cividis"],
    "variance": colormaps["inferno"],
    "within": colormaps["inferno"],
    "between": colormaps["inferno"],
    "deviation": colormaps["inferno"],
    "doubt": colormaps["inferno"],
    # sky blue and vermillion of Okabe and Ito, which colour-blind readers can tell apart
    "labels": ListedColormap(["#56B4E9", "#D55E00"]),
    "calls": ListedColormap(["#ffffff", "#000000"]),
}
TWO_VALUES: dict[Quantity, tuple[str, str]] = {
    "labels": ("negative", "positive"),
    "calls": ("right", "wrong"),
}
"""Quantities that are 0 or 1, and what these mean."""
RELATIVE = ("mean", "variance", "within", "between", "deviation")
"""Quantities whose colours span the range of a bag, however small it is."""
SMALL, NORMAL, LARGE = 8, 9.5, 11
"""Font sizes in points."""
ROUND = {"integer": True, "steps": [1, 2, 5, 10]}


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One quantity of one class: a value for each instance, and its colour limits."""

    quantity: Quantity
    title: str
    values: Float[np.ndarray, " n"]
    limits: tuple[float, float]
    bar: str
    empty: str = ""
    """Text to show instead of the values."""
    flat: str = ""
    """Why all values have the same colour; empty if they do not."""


def heading(p: Prediction, *, label: int | str | None = None, said: Verdict | None = None) -> str:
    """Return `bag 049 · p = 0.87 ± 0.05 · label 1`, for the likeliest of several classes.

    Other tasks have their own words, as `bag 049 · grade 2, p = 0.61 ± 0.08 · label 2`.

    Args:
        p: The prediction.
        label: What the bag is labelled with.
        said: What is predicted; None to take it from the prediction alone.
    """
    known = "" if label is None else f" · label {label}"
    return f"{p.name} · {(said or p.of_task.verdict(p)).text}{known}"


def panels_of(p: Prediction, limits: ColourLimits, *, scale: Scale) -> Iterator[Panel]:
    """Yield the quantities of one class, then those of the next; colour bars state the range.

    There is a variance panel only for the model's own score. On a scale of the bag's own, a panel
    whose values are almost equal is flat.
    """
    for panel in _plain_panels(p, limits, scale=scale):
        if panel.empty or panel.quantity in TWO_VALUES:
            yield panel
            continue
        own = scale == "per-bag" or panel.quantity in ("within", "between")
        shown = flattened(panel, logits=p.score_kind == "logit") if own else panel
        bar = panel.bar
        if shown.flat:
            bar = f"{bar.removesuffix(', per-bag scale')}, {shown.flat}"
        yield replace(shown, bar=f"{bar} ({'' if own else 'this bag: '}{seen(panel.values)})")


def flattened(panel: Panel, *, logits: bool = False) -> Panel:
    """Return a panel on a scale of its own, flat if its values are almost equal; see `flatness`."""
    if panel.quantity not in RELATIVE:
        return panel
    return replace(panel, flat=flatness(panel.values, logits=logits and panel.quantity == "mean"))


def _plain_panels(p: Prediction, limits: ColourLimits, *, scale: Scale) -> Iterator[Panel]:
    n = len(p.attention_mean)
    mean = np.asarray(p.attention_mean, np.float64).reshape(n, -1)
    variance = np.asarray(p.attention_variance, np.float64).reshape(n, -1)
    quantity = quantity_of(p)
    names = p.of_task.column_names(p, mean.shape[1]) or [f"class {c}" for c in range(mean.shape[1])]
    for c in range(mean.shape[1]):
        of_class = f", {names[c]}" if mean.shape[1] > 1 else ""
        name = score_name(p)
        yield Panel(
            quantity=quantity,
            title=f"{name}{of_class}",
            values=mean[:, c],
            limits=_score_limits(quantity, limits.mean),
            bar=f"{name}{of_class} ({unit_of(p)}), {_scale_name(quantity, scale)}",
        )
        if p.score_kind not in SHOWN_KINDS:
            score = name.removesuffix(" mean μ")
            yield Panel(
                quantity="variance",
                title=f"{score} variance σ²{of_class}",
                values=variance[:, c],
                limits=limits.variance,
                bar=f"{score} variance σ²{of_class} ({unit_of(p)}²), {scale} scale",
                empty=""
                if variance.any()
                else "no variance: this model gives\none value per patch (Dirac)",
            )
            yield from _parts_of_variance(p, c=c, title=f"{score} variance", of_class=of_class)
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


def quantity_of(p: Prediction) -> Quantity:
    """Return the quantity in the place of the attention mean."""
    score = score_of(p)
    if score == "grade":
        return "probability"
    return "mean" if score == "attention" else score


def score_name(p: Prediction) -> str:
    """Return the name of the score that the map shows."""
    if p.score_kind in SHOWN_KINDS:
        return score_of(p)
    if p.score_has_level:
        return "evidence mean μ"
    score = "attention" if p.score_kind in ("logit", "weight") else "instance score"
    return f"{score} mean μ"


def unit_of(p: Prediction) -> str:
    """Return the unit of the scores, for colour bars."""
    if p.score_has_level:
        return p.of_task.words.evidence_unit
    return p.score_kind


def is_signed(quantity: Quantity) -> bool:
    """Return whether the sign of a quantity has a meaning: its colours are centred at 0."""
    return quantity in ("contribution", "evidence")


def _score_limits(quantity: Quantity, limits: tuple[float, float]) -> tuple[float, float]:
    """Return limits symmetric about 0 for signed scores, and 0 to 1 for probabilities."""
    if quantity == "probability":
        return 0.0, 1.0
    largest = max(abs(v) for v in limits)
    return (-largest, largest) if is_signed(quantity) else limits


def _scale_name(quantity: Quantity, scale: Scale) -> str:
    return "0 to 1" if quantity == "probability" else f"{scale} scale"


def _parts_of_variance(p: Prediction, *, c: int, title: str, of_class: str) -> Iterator[Panel]:
    """Yield the variance of class `c` within members and between them, if there are several.

    Each has the colours of its own range in the bag: in that of the sum, both would be dark.
    """
    parts: dict[Quantity, np.ndarray | None] = {
        "within": p.variance_within,
        "between": p.variance_between,
    }
    for quantity, part in parts.items():
        if part is not None:
            values = np.asarray(part, np.float64).reshape(len(part), -1)[:, c]
            text = f"{title} {quantity} members{of_class}"
            yield Panel(
                quantity=quantity,
                title=text,
                values=values,
                limits=bag_limits(replace(p, attention_variance=part)).variance,
                bar=f"{text} ({unit_of(p)}²), per-bag scale",
                empty="" if values.any() else f"no variance {quantity} members",
            )


def dress_axes(ax: Axes, *, layout: Layout, sheet: Sheet, k: int) -> None:
    """Set limits, ticks and labels of the axes of panel `k`."""
    ax.set_facecolor(BACKGROUND)
    ax.set_xlim(*sheet.x_limits)
    ax.set_ylim(*sheet.y_limits)
    ax.tick_params(labelsize=SMALL, length=3)
    for spine in ax.spines.values():
        spine.set_linewidth(0.6)
    if layout.strip:
        ax.set_yticks([])
        positions, text = _slice_ticks(layout, width=sheet.panels[k][2])
        ax.set_xticks(positions, text if sheet.last[k] else [""] * len(positions))
    else:
        width, height = sheet.panels[k][2:]
        ax.xaxis.set_major_locator(MaxNLocator(max(1, int(width / 0.9)), **ROUND))
        ax.yaxis.set_major_locator(MaxNLocator(max(2, int(height / 0.6)), **ROUND))
        ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        ax.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        ax.tick_params(labelleft=sheet.first[k], labelbottom=sheet.last[k])
        if sheet.first[k] and (height > 1.2 or not sheet.small):
            ax.set_ylabel(layout.y_label, fontsize=SMALL)
    if sheet.last[k]:
        ax.set_xlabel(layout.x_label, fontsize=SMALL)


def _slice_ticks(layout: Layout, *, width: float) -> tuple[list[float], list[str]]:
    """Return positions and labels of ticks: every slice, or every second, fifth, … that fits."""
    n = len(layout.corners)
    longest = max(len(v) for v in layout.numbers) * 0.075 + 0.08
    room = width / layout.shape[1]
    step = next((s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500) if s * room >= longest), n)
    middle = layout.corners[:, 0] + layout.size / 2
    return list(middle[::step]), list(layout.numbers[::step])


def norm_of(panel: Panel) -> Normalize:
    """Return the mapping from values to colours."""
    if panel.quantity in TWO_VALUES:
        return BoundaryNorm([-0.5, 0.5, 1.5], PALETTE[panel.quantity].N)
    if panel.flat:
        middle = sum(panel.limits) / 2
        half = (
            abs(middle) or 1.0
        )  # much wider than the values, which get one colour, near the middle
        return Normalize(middle - 1000 * half, middle + 1010 * half, clip=True)
    return Normalize(*panel.limits, clip=True)


def draw_title(figure: Figure, text: str, *, sheet: Sheet) -> None:
    """Draw the title above the panels and its caption, the lines after the first, below them."""
    lines = caption_lines(text, width=sheet.width)
    if lines:
        figure.text(
            0.15 / sheet.width, 0.08 / sheet.height, "\n".join(lines), fontsize=SMALL,
            va="bottom", linespacing=1.2, parse_math=False,
        )  # fmt: skip
    figure.text(
        sheet.panels[0][0] / sheet.width,
        1 - 0.14 / sheet.height,
        fitted(split_title(text)[0], width=sheet.width),
        fontsize=LARGE,
        fontweight="bold",
        va="top",
        parse_math=False,  # a name may contain a dollar sign
    )


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG, atomically."""
    with replacing(path) as temporary, warnings.catch_warnings():
        # letters of a bag's name that the font lacks become boxes, which does not affect the map
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(temporary, format="png")


def draw_bar(
    figure: Figure, panel: Panel, *, norm: Normalize, sheet: Sheet, k: int, name: str
) -> None:
    """Draw the colour bar of panel `k`, which names the quantity."""
    ax = figure.add_axes(share(sheet.bars[k], sheet), label=name)
    labels = TWO_VALUES.get(panel.quantity)
    bar = figure.colorbar(
        ScalarMappable(norm, PALETTE[panel.quantity]),
        cax=ax,
        orientation="horizontal" if sheet.horizontal else "vertical",
        extend="neither" if labels else extend(panel.values, panel.limits),
    )
    bar.outline.set_linewidth(0.6)  # type: ignore[operator]
    ax.tick_params(labelsize=SMALL, length=2)
    is_low = sheet.horizontal or sheet.bars[k][3] < 1
    ends_only = sheet.small or (is_low and not sheet.horizontal)
    if labels:
        upright = {} if is_low else {"rotation": 90, "va": "center"}
        bar.set_ticks([0, 1], labels=list(labels), **upright)
    elif panel.flat:
        middle = sum(panel.limits) / 2
        bar.set_ticks([middle], labels=[number(middle)])
    elif (only := _only_value(panel)) is not None:
        bar.set_ticks([only], labels=[number(only)])
    else:
        ticks = list(panel.limits)
        if not ends_only:  # the positions that matplotlib chooses, without its offset
            low, high = panel.limits
            slack = 1e-9 * (high - low)
            room = max(sheet.bars[k][2:]) / 0.6
            found = MaxNLocator(max(2, min(6, int(room)))).tick_values(low, high)
            ticks = [float(v) for v in found if low - slack <= v <= high + slack] or ticks
        bar.set_ticks(ticks, labels=numbers(*ticks))
    if not ends_only:
        two_lines = CHARACTER * len(panel.bar) > max(sheet.bars[k][2:])
        bar.set_label(
            ",\n".join(panel.bar.rsplit(", ", 1)) if two_lines else panel.bar,
            fontsize=SMALL,
            labelpad=2,
        )


def _only_value(panel: Panel) -> float | None:
    """Return the value that all instances share, if they do: the ends of the bar would be
    misleading."""
    finite = panel.values[np.isfinite(panel.values)]
    value = float(finite[0]) if len(finite) and finite.min() == finite.max() else None
    inside = value is not None and panel.limits[0] <= value <= panel.limits[1]
    return value if inside else None


def share(box: tuple[float, ...], sheet: Sheet) -> tuple[float, float, float, float]:
    """Return a box in inches as fractions of the sheet."""
    x, y, w, h = box
    return x / sheet.width, y / sheet.height, w / sheet.width, h / sheet.height


def fitted(text: str, *, width: float) -> str:
    """Return a text that fits the width; a long name loses its middle, since its ends identify
    it."""
    room = int((width - 0.6) / 0.098)
    if len(text) <= room:
        return text
    name, _, rest = text.partition(" · ")
    keep = max(8, (room - len(rest) - 6) // 2)
    short = f"{name[:keep]}…{name[-keep:]}" if len(name) > 2 * keep else name
    return f"{short} · {rest}" if rest else short
