"""Stage 2: the patches of a slide."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int


@dataclass(frozen=True, kw_only=True, slots=True)
class Patches:
    """The squares of a slide that contain tissue, in a defined order."""

    coords: Int[np.ndarray, "n 2"]
    """Level-0 (x, y) of each top-left corner, int64."""
    size: int
    """Side in pixels, as an encoder receives the patch."""
    size_level0: float
    """Side in level-0 pixels: size · mpp / mpp_level0, not rounded."""
    overlap: int
    """Overlap of neighbours, in pixels of `size`; the stride is size − overlap of these pixels."""
    mpp: float | None
    """Micrometres per pixel of `size`; None if patches are defined in level-0 pixels."""
    mpp_level0: float | None
    slide_size: tuple[int, int]
    """(width, height) of the slide at level 0."""

    def __len__(self) -> int:
        return len(self.coords)

    @property
    def stride(self) -> float:
        """Distance between neighbouring patches in level-0 pixels."""
        return self.size_level0 * (self.size - self.overlap) / self.size

    @property
    def attributes(self) -> dict[str, object]:
        """TRIDENT's attributes of `coords`, plus the exact stride, which TRIDENT rounds."""
        return {
            "patch_size": self.size,
            "patch_size_level0": round(self.size_level0),
            "size_level0": self.size_level0,
            "level0_magnification": None if self.mpp_level0 is None else 10 / self.mpp_level0,
            "target_magnification": None if self.mpp is None else 10 / self.mpp,
            "overlap": self.overlap,
            "level0_width": self.slide_size[0],
            "level0_height": self.slide_size[1],
            "mpp": self.mpp,
            "mpp_level0": self.mpp_level0,
            "pitch": self.stride,
        }
