"""Stage 1: the interfaces of slides and scans.

A slide is read by regions of a pyramid; a scan is a stack of slices with positions. Both are opened
by path alone, so that each worker process can open its own.
"""

import logging
import math
import struct
import sys
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
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
ROUNDING = 1e-6
"""Distance from a whole pixel that counts as an error of rounding, in pixels."""
UNDECODED = 220
"""Grey value of parts that cannot be decoded."""
WHITE = 255
PYTHON_ERRORS = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    MemoryError,
    LookupError,
    ArithmeticError,
    SyntaxError,
    AttributeError,
    TypeError,
    AssertionError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
"""Errors that decoders raise on damaged data (Pillow raises SyntaxError); `is_fault` tells which of
them are mistakes in a program."""
DECODER_ERRORS = {
    "openslide": ("OpenSlideError",),
    "pydicom.errors": ("BytesLengthException", "InvalidDicomError"),
    "nibabel.filebasedimages": ("ImageFileError",),
    "nibabel.spatialimages": ("HeaderDataError", "HeaderTypeError", "ImageDataError"),
    "nibabel.wrapstruct": ("WrapStructError",),
}
"""Errors that decoders define themselves and that are none of `PYTHON_ERRORS`, by module."""


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
        right = self.left + width * self.scale
        bottom = self.top + height * self.scale
        return self.left, right, bottom, self.top


class Decoded(Enum):
    """How much of a block could be decoded."""

    NOTHING = auto()
    PART = auto()
    ALL = auto()


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
    mpp_is_given: bool = False
    """Whether `mpp` is what the user stated, not what the file states."""
    mpp_rejected: tuple[str, ...] = ()
    """Resolutions that the file states and that are not used, each with the reason."""
    properties: dict[str, str]
    """Further properties that the file states."""
    associated_images: tuple[str, ...] = ()
    """Names of the other pictures in the file: `label`, `macro`, `thumbnail`, …"""
    notes: tuple[str, ...] = ()
    """Sentences on how the file was read, such as levels that are padded or left out."""
    closed = False

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
        except decoder_errors() as e:
            if is_fault(e):
                raise
            raise RegionError(
                f"{self.path.name}: level {level} cannot be decoded in the {width} x {height} "
                f"pixels from level-0 corner ({x}, {y}): {e}"
            ) from e

    def _read(
        self, corner: tuple[int, int], level: int, *, width: int, height: int
    ) -> UInt8[np.ndarray, "height width 3"]:
        """Return a region, whose part outside the slide is white; see `read`."""
        stored = self.levels[level]
        # the nearest pixel of the level
        left = math.floor(corner[0] / stored.downsample + 0.5)
        top = math.floor(corner[1] / stored.downsample + 0.5)
        # the part of the region that lies on the slide
        first_column = max(left, 0)
        end_column = min(left + width, stored.width)
        first_row = max(top, 0)
        end_row = min(top + height, stored.height)
        image = np.full((height, width, 3), WHITE, np.uint8)
        if first_column < end_column and first_row < end_row:
            rows = slice(first_row, end_row)
            columns = slice(first_column, end_column)
            part = self._pixels(level, rows, columns)
            image[first_row - top : end_row - top, first_column - left : end_column - left] = part
        return image

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
            RegionError: Nothing of the part can be decoded.
        """
        fine = max(1.0, scale)
        left, top, right, bottom = box
        width = max(1, int((right - left) / fine + ROUNDING))
        height = max(1, int((bottom - top) / fine + ROUNDING))
        level = self._level_for(fine)
        step = max(1, int(BLOCK * self.levels[level].downsample / fine))
        image = np.empty((height, width, 3), np.uint8)
        blocks = [(x, y) for y in range(0, height, step) for x in range(0, width, step)]
        damaged: list[tuple[int, int]] = []
        failure: RegionError | None = None
        for x, y in blocks:
            part = image[y : y + step, x : x + step]
            corner = (left + x * fine, top + y * fine)
            try:
                part[:] = self._average(corner, level, shape=part.shape[:2], scale=fine)
            except RegionError as error:
                damaged.append((x, y))
                failure = error
        # parts of a damaged block can be decoded
        results: list[Decoded] = []
        for x, y in damaged:
            part = image[y : y + step, x : x + step]
            corner = (left + x * fine, top + y * fine)
            results.append(self._fill_by_quarters(part, corner, level, scale=fine))
        if failure is not None and results == [Decoded.NOTHING] * len(blocks):
            raise failure
        if scale < 1:
            image = image.repeat(round(1 / scale), axis=0).repeat(round(1 / scale), axis=1)
        return Region(
            image=image,
            left=left,
            top=top,
            scale=scale,
            mpp=None if self.mpp is None else self.mpp * scale,
            mpp_is_given=self.mpp_is_given,
            whole=tuple(box) == (0, 0, *self.size),
            undecoded=len(results) - results.count(Decoded.ALL),
            blocks=len(blocks),
        )

    def _level_for(self, scale: float) -> int:
        """Return the coarsest level whose pixels are no larger than this, or the first level."""
        best = 0
        largest = 0.0
        for k, level in enumerate(self.levels):
            # the mean of both axes differs a little from the factor where sizes are odd
            if largest < level.downsample <= scale * (1 + 1e-3):
                best = k
                largest = level.downsample
        return best

    def _fill_by_quarters(
        self,
        part: UInt8[np.ndarray, "height width 3"],
        corner: tuple[float, float],
        level: int,
        *,
        scale: float,
    ) -> Decoded:
        """Fill a block that cannot be decoded as a whole by its quarters, and these by theirs.

        Parts of at most `SMALLEST` pixels of the level that cannot be decoded are grey.
        """
        height, width = part.shape[:2]
        if max(height, width) * scale <= SMALLEST * self.levels[level].downsample:
            part[:] = UNDECODED
            return Decoded.NOTHING
        half_height = (height + 1) // 2
        half_width = (width + 1) // 2
        results: set[Decoded] = set()
        for y in (0, half_height):
            for x in (0, half_width):
                quarter = part[y : y + half_height, x : x + half_width]
                if not quarter.size:
                    continue
                quarter_corner = (corner[0] + x * scale, corner[1] + y * scale)
                try:
                    quarter[:] = self._average(
                        quarter_corner, level, shape=quarter.shape[:2], scale=scale
                    )
                    results.add(Decoded.ALL)
                except RegionError:
                    results.add(self._fill_by_quarters(quarter, quarter_corner, level, scale=scale))
        return results.pop() if len(results) == 1 else Decoded.PART

    def _average(
        self, corner: tuple[float, float], level: int, *, shape: tuple[int, ...], scale: float
    ) -> UInt8[np.ndarray, "height width 3"]:
        """Return one block; each pixel is the mean of the pixels whose centres it covers."""
        down = self.levels[level].downsample
        height, width = shape
        # the block in pixels of the level
        left = corner[0] / down
        top = corner[1] / down
        right = left + width * scale / down
        bottom = top + height * scale / down
        # the whole pixels of the level that it touches
        x = int(left + ROUNDING)
        y = int(top + ROUNDING)
        read_width = max(1, math.ceil(right - x - ROUNDING))
        read_height = max(1, math.ceil(bottom - y - ROUNDING))
        pixels = self.read(
            x=round(x * down), y=round(y * down), level=level, width=read_width, height=read_height
        )
        if pixels.shape[:2] == (height, width):
            return pixels
        inside = (
            max(left - x, 0.0),
            max(top - y, 0.0),
            min(right - x, read_width),
            min(bottom - y, read_height),
        )
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


def decoder_errors() -> tuple[type[Exception], ...]:
    """Return the errors that decoders raise on damaged data; those of loaded modules are enough."""
    errors: list[type[Exception]] = [*PYTHON_ERRORS]
    for module, names in DECODER_ERRORS.items():
        loaded = sys.modules.get(module)
        if loaded is not None:
            errors += [getattr(loaded, name) for name in names]
    return tuple(errors)


@contextmanager
def decoding(path: Path) -> Iterator[None]:
    """Turn what a decoder raises, and a size beyond the limits, into a `SlideError`.

    A file that is gone or must not be read, and a shortage of memory, are named as such.
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
    except (FileNotFoundError, PermissionError) as error:
        raise SlideError(f"{path} cannot be read: {error}") from error
    except MemoryError as error:
        raise SlideError(
            f"{path} cannot be read: it needs more memory than is free. Free some; if the file is "
            "small, it is damaged: copy it again"
        ) from error
    except decoder_errors() as error:
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
