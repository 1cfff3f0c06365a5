"""Stage 10: the first panel of a comparison of methods: the slide itself, or slices of the scan."""

import numpy as np
from jaxtyping import UInt8
from matplotlib.figure import Figure
from PIL import Image

from ..errors import InputError
from ..evaluation import Prediction
from ..slides import Scan, Slide, slice_image
from .geometry import Sheet
from .layout import Layout
from .panels import NORMAL, SMALL, dress_axes, share
from .source_maps import Sources, checked_squares
from .strips import BRAIN, match_slices
from .tissue import View, chosen_scale, shown_box, view

LONGEST = 1000
"""Longer side of the picture of a slide in pixels."""
SLICE_PIXELS = 160
"""Side of a slice in pixels."""


def draw_source(
    figure: Figure, p: Prediction, sources: Sources, *, layout: Layout, sheet: Sheet
) -> None:
    """Draw the bag's slide or slices of its scan in the first panel; its axes are labelled
    `source`.

    Raises:
        InputError: There is no slide or scan of that name, or the coordinates are not in it.
        SlideError: The file cannot be read.
    """
    source = sources.open(p)
    ax = figure.add_axes(share(sheet.panels[0], sheet), label="source")
    dress_axes(ax, layout=layout, sheet=sheet, k=0)
    if isinstance(source, Scan):
        if not layout.strip:
            raise InputError(f"bag {p.name!r} has no positions of slices, but its source is a scan")
        width, height = sheet.panels[0][2:]
        shown = max(1, min(layout.shape[1], int(width / height)))
        edges = np.linspace(*sheet.x_limits, shown + 1)
        rows = _nearest(layout, (edges[:-1] + edges[1:]) / 2)
        matched = match_slices(p, source)
        for k, row in enumerate(rows):
            extent = (edges[k], edges[k + 1], *sheet.y_limits)
            ax.imshow(_slice(source, int(matched[row])), extent=extent, aspect="auto")
            ax.text(
                edges[k], sheet.y_limits[1], f" {layout.numbers[row]}",
                color="white", fontsize=SMALL - 1, va="top", clip_on=True,
            )  # fmt: skip
        title = f"{len(rows)} of {len(p.attention_mean)} slices (brain window)"
    else:
        with source as slide:
            picture = _slide_view(p, slide, sources)
        ax.imshow(picture.image, extent=picture.extent, aspect="auto", interpolation="none")
        title = "slide"
    ax.set_xlim(*sheet.x_limits)
    ax.set_ylim(*sheet.y_limits)
    ax.set_title(title, fontsize=SMALL if sheet.small else NORMAL, loc="left", pad=4)


def _slide_view(p: Prediction, slide: Slide, sources: Sources) -> View:
    patches = checked_squares(p, slide, sources=sources)
    box, whole = shown_box(patches.corners, patches.side, size=slide.size)
    scale = chosen_scale(box, longest=LONGEST)
    return view(slide, box, scale=scale, mpp=slide.mpp, whole=whole)


def _nearest(layout: Layout, x: np.ndarray) -> list[int]:
    """Return the slice of a strip whose middle is nearest to each position."""
    middle = layout.corners[:, 0] + layout.size / 2
    return [int(np.argmin(np.abs(middle - v))) for v in x]


def _slice(scan: Scan, index: int) -> UInt8[np.ndarray, "side side 3"]:
    pixels = Image.fromarray(slice_image(scan, index, BRAIN)[..., 0])
    scaled = pixels.resize((SLICE_PIXELS, SLICE_PIXELS), Image.Resampling.BOX)
    return np.repeat(np.asarray(scaled)[..., None], 3, axis=2)
