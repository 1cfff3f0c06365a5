"""Stage 1: what a slide or a scan is to the stages after it.

A slide is read by regions of a pyramid; a scan is a stack of slices with positions. Both are opened
by path alone, so that worker processes can open their own.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np
from jaxtyping import Float, UInt8


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """One image of a pyramid."""

    width: int
    height: int
    downsample: float
    """Level-0 pixels per pixel of this level: the mean of both axes, as OpenSlide states it."""


class Slide(ABC):
    """A slide that is open for reading; a context manager.

    Coordinates are level-0 pixels, x to the right and y down, from the top-left corner.
    """

    path: Path
    name: str
    """The file's name without its ending; what its bag is called."""
    format: str
    """The reader's word for the format: `aperio`, `generic-tiff`, `ome-tiff`, `png`, …"""
    levels: tuple[Level, ...]
    mpp: float | None
    """Micrometres per level-0 pixel; None where the file does not say and nobody else did."""
    mpp_source: str | None
    """Where `mpp` is from, in words: `openslide.mpp-x`, `OME PhysicalSizeX`, `given`, …"""
    properties: dict[str, str]
    """What else the file says of itself."""

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) at level 0."""
        return self.levels[0].width, self.levels[0].height

    @abstractmethod
    def read(
        self, *, x: int, y: int, level: int, width: int, height: int
    ) -> UInt8[np.ndarray, "height width 3"]:
        """A region as RGB: corner in level-0 pixels, width and height in pixels of `level`.

        What lies outside of the slide, or is transparent, is white.

        Raises:
            RegionError: the file cannot be decoded there.
        """

    @abstractmethod
    def close(self) -> None:
        """Frees what the reader holds."""

    def __enter__(self) -> "Slide":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class Scan:
    """One CT series: its slices in order of position, in Hounsfield units where the file says so.

    A scan is small (some 50 MB), so it is held whole.
    """

    name: str
    path: Path
    format: str
    """`dicom`, `nifti`."""
    volume: Float[np.ndarray, "slices height width"]
    """float32, rescaled; padding is the smallest value that is not padding."""
    positions: Float[np.ndarray, " slices"]
    """Millimetres along the scan's axis, ascending; what the bag's coordinates are made from."""
    spacing: tuple[float, float]
    """Millimetres between (rows, columns) of pixels."""
    thickness: float | None
    """Millimetres, as the file states it."""
    notes: tuple[str, ...] = ()
    """What a reader should know: gantry tilt, uneven spacing, missing or duplicate slices, …"""
    properties: dict[str, str] = field(default_factory=dict)
