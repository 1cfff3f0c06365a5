"""Stage 1: the interfaces of slides and scans.

A slide is read by regions of a pyramid; a scan is a stack of slices with positions. Both are opened
by path alone, so that each worker process can open its own.
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
    """A slide that is open for reading; usable as a context manager.

    Coordinates are level-0 pixels, x to the right and y down, from the top-left corner.
    """

    path: Path
    name: str
    """The file name without its suffix, which is also the name of the bag."""
    format: str
    """The reader's name of the format: `aperio`, `generic-tiff`, `ome-tiff`, `png`, …"""
    levels: tuple[Level, ...]
    mpp: float | None
    """Micrometres per level-0 pixel; None if neither the file nor the user states it."""
    mpp_source: str | None
    """The source of `mpp`: `openslide.mpp-x`, `OME PhysicalSizeX`, `given`, …"""
    properties: dict[str, str]
    """Further properties that the file states."""

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) at level 0."""
        return self.levels[0].width, self.levels[0].height

    @abstractmethod
    def read(
        self, *, x: int, y: int, level: int, width: int, height: int
    ) -> UInt8[np.ndarray, "height width 3"]:
        """Return a region as RGB: corner in level-0 pixels, width and height in pixels of `level`.

        Pixels outside the slide and transparent pixels are white.

        Raises:
            RegionError: the file cannot be decoded there.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the resources of the reader."""

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
    """One CT series: its slices in order of position, in Hounsfield units if the file states them.

    A scan is small (about 50 MB), so it is kept in memory as a whole.
    """

    name: str
    path: Path
    format: str
    """`dicom`, `nifti`."""
    volume: Float[np.ndarray, "slices height width"]
    """float32, rescaled; padding is set to the smallest other value."""
    positions: Float[np.ndarray, " slices"]
    """Millimetres along the axis of the scan, ascending; the bag's coordinates derive from them."""
    spacing: tuple[float, float]
    """Millimetres between (rows, columns) of pixels."""
    thickness: float | None
    """Slice thickness in millimetres, as the file states it."""
    notes: tuple[str, ...] = ()
    """Remarks for the user: gantry tilt, uneven spacing, missing or duplicate slices, …"""
    properties: dict[str, str] = field(default_factory=dict)
