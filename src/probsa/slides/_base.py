"""Stage 1: the interfaces of slides and scans.

A slide is read by regions of a pyramid; a scan is a stack of slices with positions. Both are opened
by path alone, so that each worker process can open its own.
"""

import logging
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from ..core import is_fault
from ..errors import BagError, InputError, ProbSAError, RegionError, SlideError

Box = tuple[float, float, float, float]
"""(left, top, right, bottom) in level-0 pixels."""
BLOCK = 2048
"""Side length of the blocks that `Slide.region` reads, in pixels of a level."""
SMALLEST = 256
"""Side length down to which the quarters of a block are tried if it cannot be decoded: a tile's."""
UNDECODED = 220
"""Grey value of parts that cannot be decoded."""
WHITE = 255
GIVEN = "given"
"""The source of a resolution that the user stated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """One image of a pyramid."""

    width: int
    height: int
    downsample: float
    """Level-0 pixels per pixel of this level: the mean of both axes, as OpenSlide states it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """Part of a slide as a picture."""

    image: UInt8[np.ndarray, "height width 3"]
    left: float
    top: float
    """Level-0 position of the picture's top left corner."""
    scale: float
    """Level-0 pixels per pixel of the picture, on both axes."""
    mpp: float | None = None
    """Micrometres per pixel of the picture."""
    mpp_is_given: bool = False
    """Whether the user stated them, and not the file."""
    whole: bool = False
    """Whether the whole slide is shown."""
    undecoded: int = 0
    """Number of blocks with parts that could not be decoded; these are grey."""
    blocks: int = 1

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """Bounds (left, right, bottom, top) in level-0 pixels."""
        height, width = self.image.shape[:2]
        right, bottom = self.left + width * self.scale, self.top + height * self.scale
        return self.left, right, bottom, self.top


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
    mpp_rejected: tuple[str, ...] = ()
    """Resolutions that the file states and that are not used, each with the reason."""
    properties: dict[str, str]
    """Further properties that the file states."""
    notes: tuple[str, ...] = ()
    """Sentences on how the file was read, such as levels that are padded or left out."""
    closed = False

    @property
    def mpp_is_given(self) -> bool:
        """Whether the resolution is what the user stated, not what the file states."""
        return (self.mpp_source or "").split(",")[0] == GIVEN

    @property
    def mpp_statement(self) -> str:
        """The resolution and its source as text: `0.25 (openslide.mpp-x)`, `0.25 (as given)`."""
        if self.mpp is None:
            return "unknown"
        source = f"as {self.mpp_source}" if self.mpp_is_given else self.mpp_source
        return f"{self.mpp:.4g} ({source})"

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) at level 0."""
        return self.levels[0].width, self.levels[0].height

    def read(
        self, *, x: int, y: int, level: int, width: int, height: int
    ) -> UInt8[np.ndarray, "height width 3"]:
        """Return a region as RGB: corner in level-0 pixels, width and height in pixels of `level`.

        Pixels outside the slide and transparent pixels are white.

        Raises:
            RegionError: the file cannot be decoded there.
        """
        if not (0 <= level < len(self.levels) and width > 0 and height > 0):
            raise InputError(
                f"{self.path.name} has {len(self.levels)} levels, so there are no {width} x "
                f"{height} pixels of level {level}"
            )
        if self.closed:
            raise SlideError(f"{self.path.name} is closed")
        try:
            return self._read((x, y), level, width=width, height=height)
        except ProbSAError:
            raise
        except Exception as e:  # whatever a decoder raises on damaged data
            if is_fault(e):
                raise
            raise RegionError(
                f"{self.path.name}: level {level} cannot be decoded in the {width} x {height} "
                f"pixels from level-0 corner ({x}, {y}): {e}"
            ) from e

    def _read(
        self, corner: tuple[int, int], level: int, *, width: int, height: int
    ) -> UInt8[np.ndarray, "height width 3"]:
        at = self.levels[level]
        left, top = (math.floor(v / at.downsample + 0.5) for v in corner)
        x0, x1 = max(left, 0), min(left + width, at.width)
        y0, y1 = max(top, 0), min(top + height, at.height)
        out = np.full((height, width, 3), WHITE, np.uint8)
        if x0 < x1 and y0 < y1:
            part = self._pixels(level, slice(y0, y1), slice(x0, x1))
            out[y0 - top : y1 - top, x0 - left : x1 - left] = part
        return out

    def _pixels(
        self, level: int, rows: slice, columns: slice
    ) -> UInt8[np.ndarray, "height width 3"]:
        """Return a part of a level that lies within it, for readers without a `_read` of their own.

        They need no interpolation: a corner belongs to the nearest pixel of the level.
        """
        raise NotImplementedError

    def region(self, box: Box, *, scale: float) -> Region:
        """Return a part of the slide at any scale, in bounded memory.

        The coarsest level that is fine enough is read in blocks and averaged to the picture's
        pixels, so that a slide with a single level costs time but not memory.

        Args:
            box: The part to read.
            scale: Level-0 pixels per pixel of the picture; below 1 it is one over a whole number,
                and pixels are repeated rather than interpolated.

        Raises:
            RegionError: No block of the part can be decoded.
        """
        fine = max(1.0, scale)
        width, height = (max(1, int((box[k + 2] - box[k]) / fine + 1e-6)) for k in (0, 1))
        known = [v.downsample for v in self.levels if v.downsample <= fine * (1 + 1e-3)]
        level = [v.downsample for v in self.levels].index(max(known)) if known else 0
        step = max(1, int(BLOCK * self.levels[level].downsample / fine))
        image = np.empty((height, width, 3), np.uint8)
        blocks = [(x, y) for y in range(0, height, step) for x in range(0, width, step)]
        damaged: list[tuple[int, int]] = []
        failure: RegionError | None = None
        for x, y in blocks:
            part = image[y : y + step, x : x + step]
            corner = (box[0] + x * fine, box[1] + y * fine)
            try:
                part[:] = self._averaged(corner, level, shape=part.shape[:2], scale=fine)
            except RegionError as error:
                damaged.append((x, y))
                failure = error
        if failure is not None and len(damaged) == len(blocks) > 1:
            raise failure
        # parts of a damaged block can be decoded
        undecoded = 0
        for x, y in damaged:
            part = image[y : y + step, x : x + step]
            corner = (box[0] + x * fine, box[1] + y * fine)
            decoded, whole = self._quartered(part, corner, level, scale=fine)
            if failure is not None and len(blocks) == 1 and not decoded:
                raise failure
            undecoded += not whole
        if scale < 1:
            image = image.repeat(round(1 / scale), axis=0).repeat(round(1 / scale), axis=1)
        return Region(
            image=image,
            left=box[0],
            top=box[1],
            scale=scale,
            mpp=None if self.mpp is None else self.mpp * scale,
            mpp_is_given=self.mpp_is_given,
            whole=tuple(box) == (0, 0, *self.size),
            undecoded=undecoded,
            blocks=len(blocks),
        )

    def _quartered(
        self,
        part: UInt8[np.ndarray, "height width 3"],
        corner: tuple[float, float],
        level: int,
        *,
        scale: float,
    ) -> tuple[bool, bool]:
        """Fill a block that cannot be decoded as a whole by its quarters, and these by theirs.

        Parts of at most `SMALLEST` pixels of the level that cannot be decoded are grey.

        Returns: Whether anything was decoded, and whether all was.
        """
        height, width = part.shape[:2]
        if max(height, width) * scale <= SMALLEST * self.levels[level].downsample:
            part[:] = UNDECODED
            return False, False
        half_height = (height + 1) // 2
        half_width = (width + 1) // 2
        any_decoded = False
        all_decoded = True
        for y in (0, half_height):
            for x in (0, half_width):
                quarter = part[y : y + half_height, x : x + half_width]
                if not quarter.size:
                    continue
                at = (corner[0] + x * scale, corner[1] + y * scale)
                try:
                    quarter[:] = self._averaged(at, level, shape=quarter.shape[:2], scale=scale)
                    any_decoded = True
                except RegionError:
                    decoded, whole = self._quartered(quarter, at, level, scale=scale)
                    any_decoded |= decoded
                    all_decoded &= whole
        return any_decoded, all_decoded

    def _averaged(
        self, corner: tuple[float, float], level: int, *, shape: tuple[int, ...], scale: float
    ) -> UInt8[np.ndarray, "height width 3"]:
        """Return one block; each pixel is the mean of the pixels whose centres it covers."""
        down = self.levels[level].downsample
        height, width = shape
        left, top = corner[0] / down, corner[1] / down
        right, bottom = left + width * scale / down, top + height * scale / down
        x, y = int(left + 1e-6), int(top + 1e-6)
        w, h = (max(1, math.ceil(v - 1e-6)) for v in (right - x, bottom - y))
        pixels = self.read(x=round(x * down), y=round(y * down), level=level, width=w, height=h)
        if pixels.shape[:2] == (height, width):
            return pixels
        inside = (max(left - x, 0.0), max(top - y, 0.0), min(right - x, w), min(bottom - y, h))
        reduced = Image.fromarray(pixels).resize((width, height), Image.Resampling.BOX, box=inside)
        return np.asarray(reduced)

    @abstractmethod
    def close(self) -> None:
        """Release the resources of the reader; may be called more than once."""

    def __enter__(self) -> "Slide":
        return self

    def __exit__(self, *error: object) -> None:
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
    plane: Literal["axial", "sagittal", "coronal"] | None = "axial"
    """The plane of its slices, which are turned to the standard display; None: not stated, so that
    left and right are not known."""
    notes: tuple[str, ...] = ()
    """Remarks for the user: gantry tilt, uneven spacing, missing or duplicate slices, …"""
    properties: dict[str, str] = field(default_factory=dict)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever a decoder raises, and a size beyond the limits, into a `SlideError`.

    What decoders log or warn of is suppressed: values that violate a standard are common.
    """
    loggers = [logging.getLogger(name) for name in ("tifffile", "nibabel.global")]
    before = [logger.disabled for logger in loggers]
    try:
        for logger in loggers:
            logger.disabled = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            yield
    except BagError as error:
        raise SlideError(str(error)) from error
    except ProbSAError:
        raise
    except Exception as error:  # decoders of damaged files raise errors of any kind
        if is_fault(error):
            raise
        raise SlideError(
            f"{path} is damaged or truncated ({' '.join(str(error).split())}): it has "
            f"{path.stat().st_size:,} bytes; copy it again"
        ) from error
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def on_white(image: Image.Image) -> UInt8[np.ndarray, "height width 3"]:
    """Blend an RGBA image with white."""
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image.getchannel("A"))
    return np.asarray(white)
