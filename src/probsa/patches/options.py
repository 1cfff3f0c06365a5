"""Options of stage 2: which pixels are tissue, and which squares of it are patches.

CLAM's settings are presets (`_presets.py`). Values are checked before a slide is opened.
"""

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ..errors import InputError

Method = Literal["saturation", "otsu"]
AreaUnit = Literal["um2", "patches"]
Grid = Literal["global", "contour"]
Rule = Literal["share", "four_pt", "four_pt_hard", "center", "basic"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TissueOptions:
    """Options of tissue detection: threshold on the median-filtered saturation, then closing.

    The default resolution is 8 µm per pixel for every slide, so that a scan at 20x, a scan at 40x
    and a file without a pyramid get the same tissue. A piece must be larger than 16,384 µm² (a
    square of 128 µm, as in CLAM's biopsy preset at 0.25 µm per pixel). That is a quarter of a patch
    of 512 pixels at 0.5 µm, so no piece is dropped that could form a patch by itself.
    """

    method: Method = "saturation"
    """`otsu` determines the threshold of each slide from its histogram."""
    threshold: int = 8
    """Saturation threshold, 0 to 255; pixels above it are tissue. Not used by Otsu."""
    median: int = 7
    """Side of the median filter in pixels of the mask (default: 56 µm); 0 for no filter."""
    closing: int = 4
    """Side of the closing square in pixels of the mask (default: 32 µm); 0 for no closing."""
    min_area: float = 16_384.0
    """Smallest area of a piece of tissue, without its holes."""
    min_hole: float = 16_384.0
    """Smallest area of a hole; smaller holes count as tissue."""
    max_holes: int | None = None
    """Largest number of holes kept per piece; None for all."""
    unit: AreaUnit = "um2"
    """Unit of both areas; `patches` are squares of 512 level-0 pixels, CLAM's unit."""
    resolution: float | None = 8.0
    """Micrometres per pixel of the mask, by area averaging; None to use `level` as it is."""
    level: int | None = None
    """Level of the mask if `resolution` is None; None for CLAM's rule (downsample up to 64)."""

    def __post_init__(self) -> None:
        _whole("threshold", self.threshold, least=0, most=255)
        _whole("median", self.median, least=0)
        _whole("closing", self.closing, least=0)
        if self.median and self.median % 2 == 0:
            raise InputError(
                f"the side of the median filter must be odd, or 0 for none; got {self.median}"
            )
        for name in ("min_area", "min_hole"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"{name} must be an area of 0 or more; got {value:g}")
        if self.max_holes is not None:
            _whole("max_holes", self.max_holes, least=0)
        if self.resolution is not None:
            _positive("the mask's resolution", self.resolution)
        if self.level is not None:
            _whole("the mask's level", self.level, least=0)
            if self.resolution is not None:
                raise InputError(
                    "the mask needs either a resolution in µm per pixel or a level, not both: "
                    f"got {self.resolution:g} and level {self.level}"
                )

    @property
    def needs_mpp(self) -> bool:
        """True if segmentation with these options requires the slide's resolution."""
        return self.resolution is not None or self.unit == "um2"


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchSettings:
    """Options that decide which squares of the tissue become instances."""

    size: int = 512
    """Side in pixels."""
    mpp: float | None = 0.5
    """Micrometres per pixel of a patch; None to use pixels of `level`."""
    overlap: int = 0
    """Overlap of neighbouring patches in pixels."""
    level: int = 0
    """Level of the patches if `mpp` is None (CLAM's patch_level)."""
    grid: Grid = "global"
    """`global` is one lattice from the slide's corner; `contour` is CLAM's, one per piece."""
    rule: Rule = "share"
    """`share` uses `min_tissue`. CLAM's rules require tissue at any (`four_pt`) or all
    (`four_pt_hard`) of four points around the centre, at the centre, or at the corner (`basic`)."""
    min_tissue: float = 0.25
    """Smallest share of a patch's area that is tissue; 0 for any tissue. At a straight border
    parallel to the axes, a quarter corresponds to `four_pt`."""
    padding: bool = True
    """Allow patches to extend beyond the right and bottom edge, where they are white."""
    tissue: TissueOptions = field(default_factory=TissueOptions)
    preset: str | None = None
    """Name of the preset that these settings are based on."""

    def __post_init__(self) -> None:
        _whole("the patch size", self.size, least=1)
        _whole("the overlap", self.overlap, least=0)
        _whole("the level", self.level, least=0)
        if self.overlap >= self.size:
            raise InputError(
                f"patches of {self.size} pixels cannot overlap by {self.overlap}: "
                f"give an overlap from 0 to {self.size - 1}"
            )
        if self.mpp is not None:
            _positive("the target µm per pixel (--mpp)", self.mpp)
            if self.level:
                raise InputError(
                    f"patches are in pixels of {self.mpp:g} µm or in pixels of level {self.level}, "
                    "not in both: give one of --mpp and --level"
                )
        if not 0 <= self.min_tissue <= 1:
            raise InputError(f"min_tissue must be a share from 0 to 1; got {self.min_tissue:g}")

    @property
    def folder(self) -> str:
        """Name of the patch folder in TRIDENT's style: `20x_512px_0px_overlap`."""
        scale = f"level{self.level}" if self.mpp is None else f"{10 / self.mpp:g}x"
        return f"{scale}_{self.size}px_{self.overlap}px_overlap"

    @property
    def needs_mpp(self) -> bool:
        """True if cutting with these options requires the slide's resolution."""
        return self.mpp is not None or self.tissue.needs_mpp

    def to_dict(self) -> dict[str, Any]:
        """Return every value by name, for JSON and fingerprints, without the preset's name."""
        values = asdict(self)
        del values["preset"]
        return values


def _whole(name: str, value: int, *, least: int, most: int | None = None) -> None:
    if value < least or (most is not None and value > most):
        upper = "" if most is None else f" to {most}"
        raise InputError(f"{name} must be a whole number from {least}{upper}; got {value}")


def _positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name} must be a positive number; got {value:g}")
