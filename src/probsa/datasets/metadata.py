"""What the files of a bag state besides its instances: sizes, resolution, encoder."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..core import BagKind, numeric_attribute, size_level0
from ..errors import BagError

BINS = ((0.16, 80), (0.2, 60), (0.3, 40), (0.6, 20), (1.2, 10), (2.4, 5))
"""TRIDENT's nominal magnifications: (µm per pixel below which it applies, magnification)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metadata:
    """Metadata of a bag; None if not stated. Sizes and resolutions apply to slides only."""

    kind: BagKind | None = None
    """What the instances are: patches of a slide or slices of a scan."""
    patch_size: float | None = None
    """Side of a patch in pixels, as cut or as passed to the encoder."""
    size_level0: float | None = None
    """Side of a patch in level-0 pixels."""
    overlap: float | None = None
    """Overlap of neighbouring patches, in the pixels of `patch_size`."""
    mpp: float | None = None
    """Micrometres per pixel of `patch_size`."""
    mpp_level0: float | None = None
    magnification: float | None = None
    """Nominal magnification of `patch_size`: 20 is about 0.5 µm per pixel."""
    magnification_level0: float | None = None
    slide_size: tuple[int, int] | None = None
    """(width, height) at level 0."""
    level: int = 0
    """The level of the slide from which CLAM cut the patches."""
    downsample: float = 1.0
    """Downsample of `level`."""
    encoder: str | None = None
    encoder_guessed: bool = False
    """Whether the encoder was inferred from the folder's name, which users may choose freely."""
    unreadable: int = 0
    """Number of instances flagged as unreadable, which are not part of the bag."""
    remarks: tuple[str, ...] = ()
    """Changes made while reading the files."""


def from_attributes(attributes: Mapping[str, object]) -> Metadata:
    """Read the attributes of `coords` in probsa's, TRIDENT's or CLAM's files.

    Raises:
        BagError: `level_dim` is there, but is not a width and a height.
    """
    level = int(numeric_attribute(attributes, "patch_level") or 0)
    downsample = numeric_attribute(attributes, "downsample") or 1.0
    width, height = (
        numeric_attribute(attributes, "level0_width"),
        numeric_attribute(attributes, "level0_height"),
    )
    slide_size = None if width is None or height is None else (round(width), round(height))
    if slide_size is None and level == 0:
        slide_size = _level_dim(attributes)
    mpp, mpp_level0 = (
        numeric_attribute(attributes, "mpp"),
        numeric_attribute(attributes, "mpp_level0"),
    )
    return Metadata(
        patch_size=numeric_attribute(attributes, "patch_size"),
        size_level0=size_level0(attributes),
        overlap=numeric_attribute(attributes, "overlap"),
        mpp=mpp,
        mpp_level0=mpp_level0,
        magnification=numeric_attribute(attributes, "target_magnification"),
        magnification_level0=numeric_attribute(attributes, "level0_magnification"),
        slide_size=slide_size,
        level=level,
        downsample=downsample,
    )


def _level_dim(attributes: Mapping[str, object]) -> tuple[int, int] | None:
    stated = attributes.get("level_dim", "None")
    if isinstance(stated, str) and stated == "None":
        return None
    size = np.asarray(stated).reshape(-1)
    if size.dtype.kind not in "iuf" or len(size) != 2 or not np.isfinite(size).all():
        raise BagError(
            f"the attribute level_dim is {stated!r:.60}, expected the width and the height of the "
            "slide: cut its patches again, or remove the attribute"
        )
    return int(size[0]), int(size[1])


def nominal(mpp: float) -> float:
    """Return the nominal magnification of a resolution; beyond the bins, 10 / mpp."""
    return next((float(name) for limit, name in BINS if mpp < limit), 10 / mpp)


def positive(value: float | None) -> float | None:
    """Return the value if it is finite and positive, else None."""
    return value if value is not None and math.isfinite(value) and value > 0 else None
