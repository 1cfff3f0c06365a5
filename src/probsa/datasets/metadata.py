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
    magnification: float | None = None
    """Nominal magnification of `patch_size`: 20 is about 0.5 µm per pixel."""
    magnification_level0: float | None = None
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
        """Fill in what follows from the rest: nominal magnifications and the patch resolution."""
        side, patch_size, base = self.size_level0, self.patch_size, self.magnification_level0
        if patch_size is None and side is not None:
            patch_size = float(round(side))
        if base is None and self.mpp_level0 is not None:
            # beyond the bins, 10 / mpp
            named = (float(name) for limit, name in BINS if self.mpp_level0 < limit)
            base = next(named, 10 / self.mpp_level0)
        ratio = patch_size / side if patch_size and side else None
        magnification, mpp = self.magnification, self.mpp
        if magnification is None and base is not None and ratio is not None:
            magnification = base * ratio
        if mpp is None and self.mpp_level0 is not None and ratio is not None:
            mpp = self.mpp_level0 / ratio
        return replace(
            self,
            patch_size=patch_size,
            magnification_level0=base,
            magnification=magnification,
            mpp=mpp,
        )


def from_attributes(attributes: Mapping[str, object]) -> Metadata:
    """Read the attributes of `coords` in probsa's, TRIDENT's or CLAM's files."""
    number = partial(numeric_attribute, attributes)
    level = int(number("patch_level") or 0)
    width, height = number("level0_width"), number("level0_height")
    slide_size = None if width is None or height is None else (round(width), round(height))
    stated = attributes.get("level_dim", "None")
    if slide_size is None and level == 0 and not (isinstance(stated, str) and stated == "None"):
        size = np.asarray(stated).reshape(-1)
        if size.dtype.kind not in "iuf" or len(size) != 2 or not np.isfinite(size).all():
            raise BagError(
                f"the attribute level_dim is {stated!r:.60}, expected the width and the height of "
                "the slide: cut its patches again, or remove the attribute"
            )
        slide_size = (int(size[0]), int(size[1]))
    return Metadata(
        patch_size=number("patch_size"),
        size_level0=size_level0(attributes),
        overlap=number("overlap"),
        mpp=number("mpp"),
        mpp_level0=number("mpp_level0"),
        magnification=number("target_magnification"),
        magnification_level0=number("level0_magnification"),
        slide_size=slide_size,
    )
