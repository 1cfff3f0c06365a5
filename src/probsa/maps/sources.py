"""Stage 10: the slides and scans of bags, and maps that are drawn over them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from PIL import Image

from ..cohorts import PatchSet, Record, WorkFolder, inputs_by_name, open_source, read_coordinates
from ..core import counted, named_file, replacing
from ..errors import BagError, InputError, SlideError, hint
from ..evaluation import Prediction
from ..patches import Patches
from ..slides import Box, Scan, Slide, resolution_of
from .draw import draw_map
from .layout import Layout, squares
from .picture import ALPHA, Title, blend, save_figure, slide_canvas
from .quantities import DOUBTS, columns_of, quantities
from .scale import ColourLimits
from .strips import draw_strip

LONGEST = 1200
"""Default length of the longer side of a picture, in pixels."""
LONGEST_PANEL = 4000
"""Largest side of a panel in pixels; overlays without axes may be larger."""
MOST_PIXELS = 64_000_000
"""Largest picture; a larger one suggests a mistaken resolution."""
WHOLE_FROM = 0.3
"""Fraction of the slide spanned by the patches from which the whole slide is shown."""
MARGIN = 0.04
"""Margin around the patches, as a fraction of their longer side."""


@runtime_checkable
class Sources(Protocol):
    """Finds the slides and scans of bags; `CohortSources` looks in folders."""

    def open(self, p: Prediction) -> Slide | Scan:
        """Return the bag's slide, open for reading, or its scan; raise InputError or SlideError."""
        ...

    def is_at_hand(self, p: Prediction) -> bool:
        """Return whether the file of the bag's slide or scan is there."""
        ...

    def patches(self, p: Prediction) -> Patches | None:
        """Return how the bag's patches were cut, or None if that is unknown."""
        ...


class CohortSources:
    """The slides and scans of a cohort, by the names of their bags.

    Args:
        folder: A work folder of `probsa patch`, which lists its slides and their patches; or a
            folder of slides or series, which get the names that `probsa patch` would give them.
        mpp: Micrometres per level-0 pixel of slides whose files do not state it; or a mapping from
            names of slides, which takes precedence over the files.

    Raises:
        InputError: The folder does not exist or holds no slides or scans.
    """

    def __init__(self, folder: Path, *, mpp: float | Mapping[str, float] | None = None) -> None:
        self.folder = Path(folder)
        self._mpp = mpp
        self._sets = tuple(WorkFolder(self.folder).sets().values())
        self._records: dict[str, Record] = {}
        for patch_set in self._sets:
            for record in patch_set.records():
                self._records[record.name] = record
        if not self._sets:
            self._records = inputs_by_name(self.folder)

    def record(self, p: Prediction) -> Record:
        """Return the record of the bag's slide or scan.

        Raises:
            InputError: There is no slide or scan of that name.
        """
        record = self._records.get(p.name)
        if record is None:
            raise InputError(self._describe_missing(p))
        cut = self._set_of(p)
        if cut is not None:
            # the bag's patches were cut from this one, whatever else has the name
            patch_set, _ = cut
            record = Record.read(patch_set.record("patch", p.name)) or record
        if isinstance(self._mpp, Mapping):
            mpp = resolution_of(self._mpp, p.name, Path(record.source).name)
            return record if mpp is None else replace(record, mpp=mpp)
        return record if record.mpp is not None else replace(record, mpp=self._mpp)

    def _describe_missing(self, p: Prediction) -> str:
        """Say that there is no slide or scan of the bag's name, and what there is."""
        if p.kind == "ct":
            kind = "scan"
            other_kind = "slide"
            readable = "DICOM series or NIfTI files, not pictures"
        else:
            kind = "slide"
            other_kind = "scan"
            readable = "images"
        names: set[str] = set()
        other_names: set[str] = set()
        for record in self._records.values():
            is_same_kind = (record.kind == "ct") == (p.kind == "ct")
            (names if is_same_kind else other_names).add(record.name)
        missing = f"{self.folder} has no {kind} named {p.name!r}"
        if not names:
            others = counted(len(other_names - names), other_kind)
            return f"{missing}: it has {others} and no {kind}; {kind}s are {readable}"
        # another number is another patient, however similar the name
        numbers = _numbers(p.name)
        alike = [name for name in names if _numbers(name) == numbers]
        return f"{missing}.{hint(p.name, alike)} It has {counted(len(names), f'other {kind}')}"

    def open(self, p: Prediction) -> Slide | Scan:
        """Return the bag's slide, open for reading, or its scan.

        Raises:
            InputError: There is no slide or scan of that name.
            SlideError: The file is missing or cannot be read.
        """
        return open_source(self.record(p))

    def is_at_hand(self, p: Prediction) -> bool:
        """Return whether the file of the bag's slide or scan is listed and where it was."""
        record = self._records.get(p.name)
        return record is not None and Path(record.source).exists()

    def patches(self, p: Prediction) -> Patches | None:
        """Return how the bag's patches were cut, or None without a work folder."""
        cut = self._set_of(p)
        if cut is None:
            return None
        _, patches = cut
        return patches

    def _set_of(self, p: Prediction) -> tuple[PatchSet, Patches] | None:
        """Return the patch set that contains all corners of the bag, with its patches."""
        if p.coords is None or p.coords.shape[-1] != 2:
            return None
        corners = np.unique(p.coords, axis=0)
        for patch_set in self._sets:
            try:
                patches = read_coordinates(patch_set.patches_file(p.name)).patches()
            except BagError:
                continue
            patch_corners = np.unique(patches.coords, axis=0)
            union = np.unique(np.concatenate([patch_corners, corners]), axis=0)
            if len(union) == len(patch_corners):
                return patch_set, patches
        return None


def _numbers(name: str) -> list[int]:
    """Return the numbers in a name, in their order."""
    return [int(digits) for digits in re.findall("[0-9]+", name)]


def sources_of_features(features: Path | str) -> CohortSources | None:
    """Return the slides and scans from which features were made, or None if nothing tells them.

    A work folder lists them, and its features are in it: in the folder itself, or one or two
    levels below.
    """
    folder = Path(features).absolute()
    for work in (folder, *folder.parents[:2]):
        for patch_set in WorkFolder(work).sets().values():
            if any(True for _ in patch_set.records()):
                return CohortSources(work)
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlaySettings:
    """Settings of maps drawn over slides."""

    longest: int = LONGEST
    """Longer side of the picture in pixels."""
    resolution: float | None = None
    """Micrometres per pixel; replaces `longest`."""
    alpha: float = ALPHA
    """Opacity of the colours over the tissue."""
    where_at_hand: bool = False
    """Whether bags whose slide or scan is not at hand are drawn without it, as they would be
    without any; else this is a failure."""
    overlays: bool = False
    """Whether to write `<bag>_mean.png` (for another score, its name), `<bag>_doubt.png` and so on,
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
    title: Title | str | None = None,
    caption: str = "",
    limits: ColourLimits | None = None,
    also: Sequence[str] = DOUBTS,
) -> str:
    """Write `out/<bag>.png`: the page of a slide or the strip of a scan.

    Return what could not be shown; empty if everything is shown.
    """
    page = {"title": title, "caption": caption, "limits": limits, "also": also}
    source = sources.open(p)
    path = named_file(out, p.name, ".png")
    if isinstance(source, Scan):
        save_figure(draw_strip(p, source, **page), path)
        return ""
    with source as slide:
        patches = checked_squares(p, slide, sources=sources)
        box = shown_box(patches, size=slide.size)
        fine = chosen_scale(box, longest=how.longest, resolution=how.resolution, mpp=slide.mpp)
        coarse = max(fine, max(box[2] - box[0], box[3] - box[1]) / LONGEST_PANEL)
        picture = slide.region(box, scale=coarse)
        save_figure(draw_map(p, over=(picture, patches), alpha=how.alpha, **page), path)
        if how.overlays:
            if fine != coarse:
                picture = slide.region(box, scale=fine)
            canvas = slide_canvas(picture, patches, alpha=how.alpha)
            for q in quantities(p, limits, also=also):
                if q.key != "labels" and not q.absent:
                    suffix = f"_class{q.column}" if columns_of(p) > 1 else ""
                    with replacing(named_file(out, p.name, f"_{q.key}{suffix}.png")) as file:
                        Image.fromarray(blend(canvas, q)).save(file, format="png")
    if picture.undecoded:
        return f"{picture.undecoded} of {picture.blocks} parts of {slide.path} cannot be decoded"
    return ""


def checked_squares(p: Prediction, slide: Slide, *, sources: Sources) -> Layout:
    """Return the squares of the bag's patches.

    Raises:
        InputError: The patches do not lie in the slide, or were cut from another file.
    """
    patches = sources.patches(p)
    layout = squares(p, side=None if patches is None else patches.size_level0)
    low = layout.corners.min(0)
    high = layout.corners.max(0)
    width, height = slide.size
    # each patch begins on the slide; padded patches may reach beyond its edge
    if (low <= -layout.side).any() or (high >= np.array(slide.size)).any():
        raise InputError(
            f"the patches of {p.name!r} begin at x {low[0]:,.0f} to {high[0]:,.0f}, y "
            f"{low[1]:,.0f} to {high[1]:,.0f}, but {slide.path} is {width:,} × {height:,} "
            "pixels at level 0: it is another slide, or the coordinates are of another scan or "
            "level"
        )
    if patches is not None and tuple(patches.slide_size) != slide.size:
        cut_width, cut_height = patches.slide_size
        raise InputError(
            f"the patches of {p.name!r} were cut from a slide of {cut_width:,} × {cut_height:,} "
            f"pixels, but {slide.path} has {width:,} × {height:,}: the file was replaced"
        )
    return layout


def shown_box(patches: Layout, *, size: tuple[int, int]) -> Box:
    """Return the part of a slide of this (width, height) that a map shows.

    It is the patches with a margin, or the whole slide if they span much of it.
    """
    low = patches.corners.min(0)
    high = patches.corners.max(0) + patches.side
    span = high - low
    if span[0] * span[1] >= WHOLE_FROM * size[0] * size[1]:
        return (0.0, 0.0, float(size[0]), float(size[1]))
    margin = max(patches.side / 2, MARGIN * float(span.max()))
    left, top = np.maximum(np.floor(low - margin), 0).tolist()
    right, bottom = np.minimum(np.ceil(high + margin), size).tolist()
    return (left, top, right, bottom)


def chosen_scale(
    box: Box, *, longest: int = LONGEST, resolution: float | None = None, mpp: float | None = None
) -> float:
    """Return the level-0 pixels per pixel of the picture, at most `MOST_PIXELS` of them.

    It follows from the longer side in pixels, smaller parts being enlarged by a whole number, or
    from a resolution in µm per pixel, never finer than the slide with its `mpp`.
    """
    left, top, right, bottom = box
    width = right - left
    height = bottom - top
    if resolution is None:
        scale = max(width, height) / longest
        if scale < 1:
            scale = 1 / int(1 / scale)
    elif mpp is None:
        raise SlideError(
            "the slide does not state its resolution, so --resolution cannot be applied: give "
            "--slide-mpp (µm per level-0 pixel), or --longest instead"
        )
    else:
        scale = max(1.0, resolution / mpp)
    pixels = width * height / scale**2
    if pixels > MOST_PIXELS:
        finest_scale = scale * (pixels / MOST_PIXELS) ** 0.5
        advice = f"--longest {int(max(width, height) / finest_scale)}"
        if mpp is not None:
            advice += f", --resolution {finest_scale * mpp:.3g}"
        raise InputError(
            f"a picture of {width / scale:,.0f} × {height / scale:,.0f} pixels is too large: give "
            f"at most {advice}"
        )
    return scale
