"""The geometry of each slide's patches, before any is cut, and slides of unknown resolution."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path

from rich.console import Console

from ..core import counted, write_csv
from ..patches import PatchSettings, patch_geometry
from ..slides import open_slide
from .inputs import Input, resolve_mpp
from .reading import BROKEN

ADVICE = "give --slide-mpp"
"""Words in the reason of every slide that failed because its resolution is unknown."""
SHOWN = 3
MAX_LINES = 8
"""Number of lines that the terminal shows; the JSON has all slides."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlideGeometry:
    """How the patches of a slide are cut; lengths are in pixels where nothing else is said."""

    name: str
    mpp: float | None
    """Micrometres per pixel of level 0; None if nobody states them."""
    mpp_source: str
    """Where that number comes from: a property or tag of the file, or the user."""
    level: int | None = None
    """The level that is read; None, and the following as well, if no patch can be cut."""
    factor: float | None = None
    """Its downsampling factor."""
    side: int | None = None
    """Side of a patch as an encoder receives it."""
    side_um: float | None = None
    side_level: float | None = None
    """Side in pixels of the level that is read."""
    side_level0: float | None = None
    stride_level0: float | None = None
    """Distance of neighbouring patches at level 0."""
    reason: str = ""
    """Why no patch can be cut."""

    @property
    def sentence(self) -> str:
        """The geometry without the name."""
        mpp = "unknown" if self.mpp is None else f"{self.mpp:.4g} ({self.mpp_source})"
        if self.level is None:
            return f"µm per pixel {mpp}: no patches"
        um = "" if self.side_um is None else f" = {self.side_um:.4g} µm"
        return (
            f"µm per pixel {mpp}; patch {self.side} px{um}, read as {self.side_level:.5g} px of "
            f"level {self.level} (factor {self.factor:.5g}), {self.side_level0:.5g} px of level 0, "
            f"stride {self.stride_level0:.5g}"
        )


def slide_geometries(items: Sequence[Input], settings: PatchSettings) -> Iterator[SlideGeometry]:
    """Yield the geometry of every slide that can be opened; its pixels are not read."""
    for item in items:
        if item.kind != "slide" or item.reason:
            continue
        try:
            item = resolve_mpp(item)
            with open_slide(item.source, mpp=item.mpp) as slide:
                mpp, source = slide.mpp, slide.mpp_source or ""
                try:
                    patch = patch_geometry(slide, settings)
                except BROKEN as e:
                    yield SlideGeometry(name=item.name, mpp=mpp, mpp_source=source, reason=str(e))
                    continue
        except BROKEN:
            continue
        side = patch.size[0]
        yield SlideGeometry(
            name=item.name,
            mpp=mpp,
            mpp_source=source,
            level=patch.level,
            factor=patch.factor,
            side=settings.size,
            side_um=None if mpp is None else side * mpp,
            side_level=side / patch.factor,
            side_level0=side,
            stride_level0=patch.step[0],
        )


def print_geometries(geometries: Sequence[SlideGeometry], console: Console) -> None:
    """Print a line for each slide; slides of the same geometry share one."""
    by_sentence = sorted(geometries, key=lambda g: g.sentence)
    groups = [(s, [g.name for g in of]) for s, of in groupby(by_sentence, lambda g: g.sentence)]
    for sentence, names in islice(groups, MAX_LINES):
        who = names[0] if len(names) == 1 else f"{len(names)} slides ({names[0]}, …)"
        console.print(f"{who}: {sentence}", markup=False, soft_wrap=True)
    if len(groups) > MAX_LINES:
        rest = sum(len(names) for _, names in groups[MAX_LINES:])
        console.print(f"and {counted(rest, 'slide')} more: --json lists all", markup=False)


def without_resolution(geometries: Sequence[SlideGeometry], settings: PatchSettings) -> list[str]:
    """Return the slides that neither the file nor the user states a resolution of, if needed."""
    needed = settings.mpp is not None or settings.tissue.needs_mpp
    return [g.name for g in geometries if needed and g.mpp is None]


def resolution_hint(names: Sequence[str]) -> str:
    """Return one hint for all slides of unknown resolution."""
    shown = ", ".join(repr(n) for n in names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    return (
        f"{counted(len(names), 'slide')} of unknown resolution ({shown}): give --slide-mpp with "
        "one number for all of them, or with a table slide,mpp, which --dry-run --mpp-table FILE "
        "writes for you to fill in"
    )


def write_mpp_table(path: Path, names: Sequence[str]) -> None:
    """Write a table with the columns slide and mpp whose resolutions are to be filled in."""
    write_csv(path, ["slide", "mpp"], [{"slide": name} for name in names])
