"""Options of stage 2: which pixels are tissue, and which squares of it are patches.

Values are checked before a slide is opened. CLAM's settings are presets (`presets.py`).
"""

import sys
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from ..errors import InputError

Rule = Literal["share", "four_pt", "four_pt_hard", "center", "basic"]


class Limits(NamedTuple):
    """The values that an option may have."""

    least: float
    most: float
    words: str
    """The limits as messages state them."""


AT_LEAST_ZERO = Limits(0.0, sys.float_info.max, "0 or more")
POSITIVE = Limits(sys.float_info.min, sys.float_info.max, "more than 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class TissueOptions:
    """Options of tissue detection: threshold on the median-filtered saturation, then closing.

    The default resolution is 8 µm per pixel for every slide, so that a scan at 20x, a scan at 40x
    and a file without a pyramid get the same tissue. A piece must be larger than 16,384 µm² (a
    square of 128 µm, as in CLAM's biopsy preset at 0.25 µm per pixel). That is a quarter of a patch
    of 512 pixels at 0.5 µm, so no piece is dropped that could form a patch by itself.
    """

    method: Literal["saturation", "otsu"] = "saturation"
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
    unit: Literal["um2", "patches"] = "um2"
    """Unit of both areas; `patches` are squares of 512 level-0 pixels, CLAM's unit."""
    resolution: float | None = 8.0
    """Micrometres per pixel of the mask, by area averaging; None to use `level` as it is."""
    level: int | None = None
    """Level of the mask if `resolution` is None; None for CLAM's rule (downsample up to 64)."""

    def __post_init__(self) -> None:
        _check(
            threshold=(self.threshold, Limits(0.0, 255.0, "from 0 to 255")),
            median=(self.median, AT_LEAST_ZERO),
            closing=(self.closing, AT_LEAST_ZERO),
            min_area=(self.min_area, AT_LEAST_ZERO),
            min_hole=(self.min_hole, AT_LEAST_ZERO),
            max_holes=(self.max_holes, AT_LEAST_ZERO),
            resolution=(self.resolution, POSITIVE),
            level=(self.level, AT_LEAST_ZERO),
        )
        if self.median and self.median % 2 == 0:
            raise InputError(f"median must be an odd number of pixels, or 0; got {self.median}")
        if None not in (self.level, self.resolution):
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
    grid: Literal["global", "contour"] = "global"
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

    def __post_init__(self) -> None:
        _check(
            size=(self.size, Limits(1.0, sys.float_info.max, "1 or more")),
            mpp=(self.mpp, POSITIVE),
            overlap=(self.overlap, Limits(0.0, self.size - 1.0, f"from 0 to {self.size - 1}")),
            level=(self.level, AT_LEAST_ZERO),
            min_tissue=(self.min_tissue, Limits(0.0, 1.0, "from 0 to 1")),
        )
        if self.level and self.mpp is not None:
            raise pixel_size_conflict(self.mpp, self.level)

    @property
    def folder(self) -> str:
        """Name of the patch folder in TRIDENT's style: `20x_512px_0px_overlap`."""
        scale = f"level{self.level}" if self.mpp is None else f"{10 / self.mpp:g}x"
        return f"{scale}_{self.size}px_{self.overlap}px_overlap"

    def to_dict(self) -> dict[str, Any]:
        """Return every value by name, for JSON and fingerprints."""
        return asdict(self)


def pixel_size_conflict(mpp: float, level: int) -> InputError:
    """Return the error of patches that have two sizes of a pixel."""
    return InputError(
        f"patches are in pixels of {mpp:g} µm or in pixels of level {level}, not in both: "
        "give one of --mpp and --level"
    )


def _check(**options: tuple[Any, Limits]) -> None:
    """Check that each option is None or within its limits."""
    for name, (value, limits) in options.items():
        if value is not None and not limits.least <= value <= limits.most:
            raise InputError(f"{name} must be {limits.words}; got {value:g}")
