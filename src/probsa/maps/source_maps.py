"""Stage 10: the map of a bag drawn over its source: a slide, or the slices of a scan."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from ..core import named_file
from ..errors import InputError
from ..evaluation import Prediction
from ..patches import Patches
from ..slides import Scan, Slide
from .blending import ALPHA, Squares, blend, check_fits, owners, squares, write_picture
from .page import render_page
from .panels import Scale, panels_of
from .scale import ColourLimits, bag_limits
from .strips import render_strip
from .tissue import LONGEST, chosen_scale, shown_box, view

LONGEST_PANEL = 4000
"""Largest side of a panel in pixels; overlays without axes may be larger."""


@runtime_checkable
class Sources(Protocol):
    """Finds the slides and scans of bags; `CohortSources` looks in folders."""

    def open(self, p: Prediction) -> Slide | Scan:
        """Return the bag's slide, open for reading, or its scan; raise InputError or SlideError."""
        ...

    def patches(self, p: Prediction) -> Patches | None:
        """Return how the bag's patches were cut, or None if that is unknown."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlaySettings:
    """Settings of maps drawn over slides."""

    longest: int = LONGEST
    """Longer side of the picture in pixels."""
    resolution: float | None = None
    """Micrometres per pixel; replaces `longest`."""
    alpha: float = ALPHA
    """Opacity of the colours over the tissue."""
    overlays: bool = False
    """Whether to write `<bag>_mean.png` (for another score, its name) and `<bag>_variance.png`,
    without axes, as well."""

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise InputError(f"alpha is {self.alpha:g}: give an opacity, 0 < alpha <= 1")
        if self.longest < 100:
            raise InputError(f"--longest is {self.longest}: a map needs 100 pixels or more")
        if self.resolution is not None and not self.resolution > 0:
            raise InputError(f"--resolution is {self.resolution:g}: give µm per pixel, above 0")


def draw_over(
    p: Prediction,
    out: Path,
    *,
    sources: Sources,
    how: OverlaySettings,
    scale: Scale = "per-bag",
    title: str | None = None,
    limits: ColourLimits | None = None,
) -> str:
    """Write `out/<bag>.png`: the page of a slide or the strip of a scan.

    Args:
        p: The bag's prediction.
        out: The folder of the maps.
        sources: Finds the bag's slide or scan.
        how: Resolution and opacity of the map of a slide.
        scale: Which scale `limits` belong to; the colour bars name it.
        title: Text above the map; None: the bag's name and its probability.
        limits: Colour limits; None: those of this bag.

    Returns: What could not be shown; empty if everything is shown.

    Raises:
        InputError: There is no slide of that name, or the coordinates do not belong to it.
        SlideError: The slide cannot be read, or lacks the resolution that `how` asks for.
        BagError: The coordinates are unusable, or no attention is finite.
    """
    limits = limits or bag_limits(p)
    source = sources.open(p)
    if isinstance(source, Scan):
        render_strip(
            p, named_file(out, p.name, ".png"), source, scale=scale, title=title, limits=limits
        )
        return ""
    with source as slide:
        patches = checked_squares(p, slide, sources=sources)
        box, whole = shown_box(patches.corners, patches.side, size=slide.size)
        overlay_scale = chosen_scale(
            box, longest=how.longest, resolution=how.resolution, mpp=slide.mpp
        )
        page_scale = max(overlay_scale, max(box[2] - box[0], box[3] - box[1]) / LONGEST_PANEL)
        picture = view(slide, box, scale=page_scale, mpp=slide.mpp, whole=whole)
        render_page(
            p, named_file(out, p.name, ".png"), picture, patches,
            alpha=how.alpha, scale=scale, title=title, limits=limits,
        )  # fmt: skip
        if how.overlays:
            if overlay_scale != page_scale:
                picture = view(slide, box, scale=overlay_scale, mpp=slide.mpp, whole=whole)
            patch_rows = owners(patches, picture)
            classes = p.attention_mean.shape[1] if p.attention_mean.ndim == 2 else 1
            panels = [v for v in panels_of(p, limits, scale=scale) if v.quantity != "labels"]
            for k, panel in enumerate(panels):
                suffix = f"_class{k * classes // len(panels)}" if classes > 1 else ""
                if not panel.empty:
                    mixed = blend(picture, patch_rows, panel, alpha=how.alpha)
                    path = named_file(out, p.name, f"_{panel.quantity}{suffix}.png")
                    write_picture(path, mixed)
    if picture.undecoded:
        return f"{picture.undecoded} of {picture.blocks} parts of {slide.path} cannot be decoded"
    return ""


def checked_squares(p: Prediction, slide: Slide, *, sources: Sources) -> Squares:
    """Return the squares of the bag's patches.

    Raises:
        InputError: The patches do not lie in the slide, or were cut from another file.
    """
    patches = sources.patches(p)
    located = squares(p, side=None if patches is None else patches.size_level0)
    check_fits(located, size=slide.size, name=p.name, slide=str(slide.path))
    if patches is not None and tuple(patches.slide_size) != slide.size:
        width, height = patches.slide_size
        raise InputError(
            f"the patches of {p.name!r} were cut from a slide of {width:,} × {height:,} pixels, "
            f"but {slide.path} has {slide.size[0]:,} × {slide.size[1]:,}: the file was replaced"
        )
    return located
