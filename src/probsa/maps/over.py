"""Stage 10: the map of a bag over what it was made of: its slide, or the slices of its scan."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from ..errors import InputError
from ..evaluation import Prediction
from ..patches import Patches
from ..slides import Scan, Slide
from .overlay import ALPHA, Squares, blend, check_fits, owners, squares, write_picture
from .page import render_page
from .panels import Scale, panels_of
from .scale import Limits, bag_limits
from .strips import render_strip
from .tissue import LONGEST, chosen_scale, shown_box, view

LONGEST_PANEL = 4000
"""Pixels of a page's panels; pictures without decoration may have more."""


@runtime_checkable
class Sources(Protocol):
    """Where the slides and scans of bags are; `sources.CohortSources` finds them in folders."""

    def open(self, p: Prediction) -> Slide | Scan:
        """The slide of a bag, open for reading, or its scan; raises InputError or SlideError."""
        ...

    def patches(self, p: Prediction) -> Patches | None:
        """How the patches of a bag were cut, if that is known."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Over:
    """How maps are drawn over slides."""

    longest: int = LONGEST
    """Pixels of the picture's long side."""
    resolution: float | None = None
    """Micrometres per pixel instead."""
    alpha: float = ALPHA
    """Share of the colour; the rest is tissue."""
    overlays: bool = False
    """Whether `<bag>_mean.png` and `<bag>_variance.png`, without decoration, are written too."""

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise InputError(f"alpha is {self.alpha:g}: give a share of the colour, 0 < alpha <= 1")
        if self.longest < 100:
            raise InputError(f"--longest is {self.longest}: a map needs 100 pixels or more")
        if self.resolution is not None and not self.resolution > 0:
            raise InputError(f"--resolution is {self.resolution:g}: give µm per pixel, above 0")


def draw_over(
    p: Prediction,
    out: Path,
    *,
    sources: Sources,
    how: Over,
    scale: Scale = "per-bag",
    title: str | None = None,
    limits: Limits | None = None,
) -> str:
    """Writes `out/<bag>.png`: a slide's page or a scan's strip.

    Args:
        p: the bag's prediction.
        out: folder of the pictures.
        sources: where its slide or scan is.
        how: resolution and colours of a slide's map.
        scale: which scale `limits` are.
        title: above the map; None: the bag's name and its probability.
        limits: of the colours; None: this bag's own.

    Returns: what could not be shown of it; empty where all is.

    Raises:
        InputError: no slide of that name, or one that the coordinates do not belong to.
        SlideError: it cannot be read, or lacks the resolution that is asked for.
        BagError: unusable coordinates, or no finite attention.
    """
    limits = limits or bag_limits(p)
    source = sources.open(p)
    if isinstance(source, Scan):
        render_strip(p, out / f"{p.name}.png", source, scale=scale, title=title, limits=limits)
        return ""
    with source as slide:
        s = _squares(p, slide, sources=sources)
        box, whole = shown_box(s.corners, s.side, size=slide.size)
        fine = chosen_scale(box, longest=how.longest, resolution=how.resolution, mpp=slide.mpp)
        coarse = max(fine, max(box[2] - box[0], box[3] - box[1]) / LONGEST_PANEL)
        seen = view(slide, box, scale=coarse, mpp=slide.mpp, whole=whole)
        render_page(
            p, out / f"{p.name}.png", seen, s,
            alpha=how.alpha, scale=scale, title=title, limits=limits,
        )  # fmt: skip
        if how.overlays:
            if fine != coarse:
                seen = view(slide, box, scale=fine, mpp=slide.mpp, whole=whole)
            owner = owners(s, seen)
            classes = p.attention_mean.shape[1] if p.attention_mean.ndim == 2 else 1
            panels = [v for v in panels_of(p, limits, scale=scale) if v.quantity != "labels"]
            for k, panel in enumerate(panels):
                of = f"_class{k * classes // len(panels)}" if classes > 1 else ""
                if not panel.empty:
                    mixed = blend(seen, owner, panel, alpha=how.alpha)
                    write_picture(out / f"{p.name}_{panel.quantity}{of}.png", mixed)
    if seen.undecoded:
        return f"{seen.undecoded} of {seen.blocks} parts of {slide.path}, which cannot be decoded"
    return ""


def _squares(p: Prediction, slide: Slide, *, sources: Sources) -> Squares:
    patches = sources.patches(p)
    s = squares(p, side=None if patches is None else patches.size_level0)
    check_fits(s, size=slide.size, name=p.name, slide=str(slide.path))
    if patches is not None and tuple(patches.slide_size) != slide.size:
        width, height = patches.slide_size
        raise InputError(
            f"the patches of {p.name!r} were cut from a slide of {width:,} × {height:,} pixels, "
            f"but {slide.path} has {slide.size[0]:,} × {slide.size[1]:,}: it was replaced since"
        )
    return s
