"""What the files of a bag state besides its instances: sizes, resolution, encoder."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

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
    """Micrometres per pixel of level 0."""
    magnification: float | None = None
    """Nominal magnification of `patch_size`: 20 is about 0.5 µm per pixel."""
    magnification_level0: float | None = None
    """Nominal magnification of level 0."""
    slide_size: tuple[int, int] | None = None
    """(width, height) at level 0."""
    encoder: str | None = None
    encoder_guessed: bool = False
    """Whether the encoder was inferred from the folder's name, which users may choose freely."""
    unreadable: int = 0
    """Number of instances flagged as unreadable, which are not part of the bag."""
    remarks: tuple[str, ...] = ()
    """Changes made while reading the files."""

    def completed(self) -> "Metadata":
        """Return a copy with what follows from the rest: magnifications and the resolution."""
        side = self.size_level0
        patch_size = self.patch_size
        # without a stated size, the pixels of a patch are taken for level-0 pixels
        if patch_size is None and side is not None:
            patch_size = float(round(side))
        magnification_level0 = self.magnification_level0
        if magnification_level0 is None and self.mpp_level0 is not None:
            magnification_level0 = _nominal_magnification(self.mpp_level0)
        # pixels of the patch per level-0 pixel
        ratio = patch_size / side if patch_size and side else None
        magnification = self.magnification
        if magnification is None and magnification_level0 is not None and ratio is not None:
            magnification = magnification_level0 * ratio
        mpp = self.mpp
        if mpp is None and self.mpp_level0 is not None and ratio is not None:
            mpp = self.mpp_level0 / ratio
        return replace(
            self,
            patch_size=patch_size,
            magnification_level0=magnification_level0,
            magnification=magnification,
            mpp=mpp,
        )


def _nominal_magnification(mpp: float) -> float:
    """Return TRIDENT's nominal magnification of a resolution; beyond its bins, 10 / mpp."""
    for limit, magnification in BINS:
        if mpp < limit:
            return float(magnification)
    return 10 / mpp


def from_attributes(attributes: Mapping[str, object]) -> Metadata:
    """Read the attributes of `coords` in probsa's, TRIDENT's or CLAM's files."""
    read_number = partial(numeric_attribute, attributes)
    patch_level = int(read_number("patch_level") or 0)
    width = read_number("level0_width")
    height = read_number("level0_height")
    slide_size = None
    if width is not None and height is not None:
        slide_size = (round(width), round(height))
    elif patch_level == 0:
        # CLAM states the size of the level that the patches are cut from
        slide_size = _level_size(attributes)
    return Metadata(
        patch_size=read_number("patch_size"),
        size_level0=size_level0(attributes),
        overlap=read_number("overlap"),
        mpp=read_number("mpp"),
        mpp_level0=read_number("mpp_level0"),
        magnification=read_number("target_magnification"),
        magnification_level0=read_number("level0_magnification"),
        slide_size=slide_size,
    )


def _level_size(attributes: Mapping[str, object]) -> tuple[int, int] | None:
    """Return the width and height in CLAM's `level_dim`; None if it is missing or unknown."""
    value = attributes.get("level_dim")
    # some files hold the text "None" for an unknown size
    if value is None or (isinstance(value, str) and value == "None"):
        return None
    size = np.asarray(value).reshape(-1)
    if size.dtype.kind not in "iuf" or len(size) != 2 or not np.isfinite(size).all():
        raise BagError(
            f"the attribute level_dim is {value!r:.60}, expected the width and the height of the "
            "slide: cut its patches again, or remove the attribute"
        )
    return int(size[0]), int(size[1])
