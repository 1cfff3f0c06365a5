"""What is asked of stage 2: which pixels are tissue, and which squares of it are patches.

Defaults are ours; CLAM's are presets (`_presets.py`). Values are checked before a slide is opened.
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
    """Tissue is where the HSV saturation, median filtered, is above a threshold; then closed.

    By default at 8 µm per pixel whatever levels a slide has, so that a scan at 20x, one at 40x and
    one without a pyramid have the same tissue. A piece of tissue must be larger than 16,384 µm²
    (a square of 128 µm; CLAM's biopsy preset at 0.25 µm per pixel): a quarter of a patch of 512
    pixels at 0.5 µm, so nothing is dropped that could be a patch by itself.
    """

    method: Method = "saturation"
    """`otsu` finds the threshold of each slide from its histogram."""
    threshold: int = 8
    """Of 255; a pixel is tissue above it. Otsu does not use it."""
    median: int = 7
    """Side of the median filter in pixels of the mask (56 µm by default); 0: none."""
    closing: int = 4
    """Side of the closing square in pixels of the mask (32 µm by default); 0: none."""
    min_area: float = 16_384.0
    """A piece of tissue, net of its holes, must be larger."""
    min_hole: float = 16_384.0
    """A hole must be larger, or it counts as tissue."""
    max_holes: int | None = None
    """Of each piece the largest so many holes are kept; None: all."""
    unit: AreaUnit = "um2"
    """Of both areas; `patches`: squares of 512 level-0 pixels, CLAM's unit."""
    resolution: float | None = 8.0
    """Micrometres per pixel of the mask, by area averaging; None: a level as it is, see `level`."""
    level: int | None = None
    """Where `resolution` is None. None: CLAM's rule, the largest downsample up to 64."""

    def __post_init__(self) -> None:
        _whole("threshold", self.threshold, least=0, most=255)
        _whole("median", self.median, least=0)
        _whole("closing", self.closing, least=0)
        if self.median and self.median % 2 == 0:
            raise InputError(f"the median filter's side is odd, or 0 for none; got {self.median}")
        for name in ("min_area", "min_hole"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"{name} is an area of 0 or more; got {value:g}")
        if self.max_holes is not None:
            _whole("max_holes", self.max_holes, least=0)
        if self.resolution is not None:
            _positive("the mask's resolution", self.resolution)
        if self.level is not None:
            _whole("the mask's level", self.level, least=0)
            if self.resolution is not None:
                raise InputError(
                    "the mask is made at a resolution in µm per pixel or at a level, not at both: "
                    f"got {self.resolution:g} and level {self.level}"
                )

    @property
    def needs_mpp(self) -> bool:
        """Whether a slide without a resolution can not be segmented so."""
        return self.resolution is not None or self.unit == "um2"


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchSettings:
    """Which squares of the tissue become instances."""

    size: int = 512
    """Side in pixels."""
    mpp: float | None = 0.5
    """Micrometres per pixel of a patch; None: pixels of `level`, whatever their size."""
    overlap: int = 0
    """Pixels that neighbours share."""
    level: int = 0
    """Where `mpp` is None: CLAM's patch_level."""
    grid: Grid = "global"
    """`global`: one lattice from the slide's corner; `contour`: CLAM's, one for every piece."""
    rule: Rule = "share"
    """`share`: by `min_tissue`. CLAM's: any (`four_pt`) or all (`four_pt_hard`) of the four points
    a quarter of the side from the centre, the centre, the corner (`basic`) lie in tissue."""
    min_tissue: float = 0.25
    """Share of a patch's area that is tissue at least; 0: any. At a straight border parallel to
    the axes a quarter is what `four_pt` asks."""
    padding: bool = True
    """Whether patches may run over the slide's right and bottom edge (there they are white)."""
    tissue: TissueOptions = field(default_factory=TissueOptions)
    preset: str | None = None
    """What these settings started from."""

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
            raise InputError(f"min_tissue is a share from 0 to 1; got {self.min_tissue:g}")

    @property
    def folder(self) -> str:
        """The name of the patches' folder, as TRIDENT's: `20x_512px_0px_overlap`."""
        scale = f"level{self.level}" if self.mpp is None else f"{10 / self.mpp:g}x"
        return f"{scale}_{self.size}px_{self.overlap}px_overlap"

    @property
    def needs_mpp(self) -> bool:
        """Whether a slide without a resolution can not be cut so."""
        return self.mpp is not None or self.tissue.needs_mpp

    def to_dict(self) -> dict[str, Any]:
        """Every value by name, for JSON and fingerprints; not the preset, which is only a name."""
        values = asdict(self)
        del values["preset"]
        return values


def _whole(name: str, value: int, *, least: int, most: int | None = None) -> None:
    if value < least or (most is not None and value > most):
        upper = "" if most is None else f" to {most}"
        raise InputError(f"{name} is a whole number from {least}{upper}; got {value}")


def _positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name} is a positive number; got {value:g}")
