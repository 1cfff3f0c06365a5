"""The geometry of each slide's patches, and slides of unknown resolution."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from ..core import counted, write_csv
from ..errors import ProbSAError, UnknownResolution
from ..patches import PatchSettings, patch_geometry
from ..slides import Slide

MAX_NAMES = 3
"""Number of names that a line of the terminal lists."""
MAX_LINES = 8
"""Number of lines that the terminal shows; the JSON has all slides."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlideGeometry:
    """How the patches of a slide are cut; lengths are in pixels where nothing else is said."""

    name: str
    mpp: float | None
    """Micrometres per pixel of level 0; None if nobody states them."""
    mpp_source: str
    """Where that number comes from: a property or tag of the file, or the user. Without a number,
    what the file states and why that is not used."""
    mpp_is_given: bool = False
    """Whether the user stated that number."""
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
    needs_mpp: bool = False
    """Whether the reason is that the resolution is unknown."""

    @classmethod
    def of_slide(cls, slide: Slide, settings: PatchSettings, *, name: str) -> "SlideGeometry":
        """Return the geometry of an open slide, whose pixels are not read."""
        geometry = cls(
            name=name,
            mpp=slide.mpp,
            mpp_source=slide.mpp_source or "; ".join(slide.mpp_rejected),
            mpp_is_given=slide.mpp_is_given,
        )
        try:
            patch = patch_geometry(slide, settings)
        except ProbSAError as e:
            needs_mpp = isinstance(e, UnknownResolution)
            return replace(geometry, reason=str(e), needs_mpp=needs_mpp)
        side = patch.size[0]
        return replace(
            geometry,
            level=patch.level,
            factor=patch.factor,
            side=settings.size,
            side_um=None if slide.mpp is None else side * slide.mpp,
            side_level=side / patch.factor,
            side_level0=side,
            stride_level0=patch.step[0],
        )

    @property
    def sentence(self) -> str:
        """The geometry without the name."""
        mpp = "unknown" if self.mpp is None else f"{self.mpp:.4g}"
        if self.mpp_source:
            mpp += f" ({'as ' if self.mpp_is_given else ''}{self.mpp_source})"
        if self.level is None:
            reason = "the resolution is needed" if self.needs_mpp else self.reason
            return f"µm per pixel {mpp}: no patches: {reason}"
        um = "" if self.side_um is None else f" = {self.side_um:.4g} µm"
        return (
            f"µm per pixel {mpp}; patch {self.side} px{um}, read as {self.side_level:.5g} px of "
            f"level {self.level} (factor {self.factor:.5g}), {self.side_level0:.5g} px of level 0, "
            f"stride {self.stride_level0:.5g}"
        )


def print_geometries(geometries: Sequence[SlideGeometry], console: Console) -> None:
    """Print a line for each slide; slides of the same geometry share one."""
    names_by_sentence: dict[str, list[str]] = {}
    for geometry in geometries:
        names_by_sentence.setdefault(geometry.sentence, []).append(geometry.name)
    lines = sorted(names_by_sentence.items())
    for sentence, names in lines[:MAX_LINES]:
        slides = names[0] if len(names) == 1 else f"{len(names)} slides ({names[0]}, …)"
        console.print(f"{slides}: {sentence}", markup=False, soft_wrap=True)
    if len(lines) > MAX_LINES:
        rest = sum(len(names) for _, names in lines[MAX_LINES:])
        console.print(f"and {counted(rest, 'slide')} more: --json lists all", markup=False)


def resolution_hint(names: Sequence[str]) -> str:
    """Return one hint for all slides of unknown resolution."""
    slides = ", ".join(repr(name) for name in names[:MAX_NAMES])
    if len(names) > MAX_NAMES:
        slides += ", …"
    return (
        f"{counted(len(names), 'slide')} of unknown resolution ({slides}): give --slide-mpp with "
        "one number for all of them, or with a table slide,mpp, which --dry-run --mpp-table FILE "
        "writes for you to fill in"
    )


def write_mpp_table(path: Path, names: Sequence[str]) -> None:
    """Write a table with the columns slide and mpp whose resolutions are to be filled in."""
    write_csv(path, ["slide", "mpp"], [{"slide": name} for name in names])
