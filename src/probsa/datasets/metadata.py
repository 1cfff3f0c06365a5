"""What a bag's files state beside its rows: sizes, resolution, encoder."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..core import BagKind, number, size_level0

BINS = ((0.16, 80), (0.2, 60), (0.3, 40), (0.6, 20), (1.2, 10), (2.4, 5))
"""Nominal magnifications, as TRIDENT names them: below so many µm per pixel it is so much."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metadata:
    """None where the files do not state it; sizes and resolutions are of slides alone."""

    kind: BagKind | None = None
    """What the instances are."""
    patch_size: float | None = None
    """Side of a patch in the pixels that it was cut or given to the encoder at."""
    size_level0: float | None = None
    """The same side in level-0 pixels."""
    overlap: float | None = None
    """Pixels of `patch_size` that neighbours share."""
    mpp: float | None = None
    """Micrometres per pixel of `patch_size`."""
    mpp_level0: float | None = None
    magnification: float | None = None
    """Of `patch_size`, nominal: 20 is about 0.5 µm per pixel."""
    magnification_level0: float | None = None
    slide_size: tuple[int, int] | None = None
    """(width, height) at level 0."""
    level: int = 0
    """CLAM's: the level of the slide that patches were cut at."""
    downsample: float = 1.0
    """Of that level."""
    encoder: str | None = None
    encoder_guessed: bool = False
    """It is the name of the folder, which anybody may give."""
    unreadable: int = 0
    """Instances that the file flags as unreadable, which are no part of the bag."""
    remarks: tuple[str, ...] = ()
    """What reading could not take as it was."""


def from_attributes(attributes: Mapping[str, object]) -> Metadata:
    """From the attributes of `coords` in our, TRIDENT's or CLAM's files."""
    level = int(number(attributes, "patch_level") or 0)
    downsample = number(attributes, "downsample") or 1.0
    width, height = number(attributes, "level0_width"), number(attributes, "level0_height")
    slide_size = None if width is None or height is None else (round(width), round(height))
    if slide_size is None and level == 0 and "level_dim" in attributes:
        at_level = attributes["level_dim"]
        slide_size = (int(at_level[0]), int(at_level[1]))  # pyright: ignore[reportIndexIssue]
    mpp, mpp_level0 = number(attributes, "mpp"), number(attributes, "mpp_level0")
    return Metadata(
        patch_size=number(attributes, "patch_size"),
        size_level0=size_level0(attributes),
        overlap=number(attributes, "overlap"),
        mpp=mpp,
        mpp_level0=mpp_level0,
        magnification=number(attributes, "target_magnification"),
        magnification_level0=number(attributes, "level0_magnification"),
        slide_size=slide_size,
        level=level,
        downsample=downsample,
    )


def nominal(mpp: float) -> float:
    """The magnification that a resolution goes by; beyond the bins, 10 / mpp."""
    return next((float(name) for limit, name in BINS if mpp < limit), 10 / mpp)


def positive(value: float | None) -> float | None:
    """The value if it is a size: finite and above 0."""
    return value if value is not None and math.isfinite(value) and value > 0 else None
