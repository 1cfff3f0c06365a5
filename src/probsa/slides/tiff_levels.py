"""Stage 1: one level of a TIFF; only the tiles or strips of a region are decoded."""

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt8

from ..errors import RegionError, SlideError
from . import jpeg
from .regions import WHITE
from .tiff_colours import Colours, Samples, colours

if TYPE_CHECKING:
    import tifffile

_CACHE_BYTES = 64 << 20
_LARGEST_PIECE = 1 << 30
"""Largest size in bytes of a tile or strip that must be decoded as a whole."""
_JPEG = 7
_BAND = 8 << 20
"""Bytes of an uncompressed strip that are read in one call."""

Piece = UInt8[np.ndarray, "height width 3"]


class Cache:
    """Cache of decoded pieces of all levels of a slide, up to 64 MB but at least one piece."""

    def __init__(self, limit: int = _CACHE_BYTES) -> None:
        self.limit, self.n_bytes = limit, 0
        self._pieces: OrderedDict[tuple[int, int], Piece] = OrderedDict()

    def get(self, key: tuple[int, int]) -> Piece | None:
        """Return a cached piece, or None."""
        piece = self._pieces.get(key)
        if piece is not None:
            self._pieces.move_to_end(key)
        return piece

    def put(self, key: tuple[int, int], piece: Piece) -> None:
        """Store a piece and evict the least recently used ones."""
        self._pieces[key] = piece
        self.n_bytes += piece.nbytes
        while self.n_bytes > self.limit and len(self._pieces) > 1:
            self.n_bytes -= self._pieces.popitem(last=False)[1].nbytes

    def clear(self) -> None:
        """Remove all pieces."""
        self._pieces.clear()
        self.n_bytes = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Grid:
    """The pieces of a level: `width` x `height` each, except at the borders."""

    width: int
    height: int
    columns: int
    rows: int


class TiffLevel:
    """One level of a pyramid, which returns rectangles of pixels."""

    def __init__(self, page: "tifffile.TiffPage", *, number: int, cache: Cache) -> None:
        self.page, self.number, self.cache = page, number, cache
        self.width, self.height = page.imagewidth, page.imagelength
        self._name = page.parent.filename
        self.colours: Colours = colours(page)
        # creating the decoder moves the file position, so it comes before any reading
        self._decode = page.decode
        self._tables = page.jpegtables
        self._bands = _is_one_raw_strip(page)
        self.grid = self._grid()
        largest = self.grid.width * self.grid.height * page.samplesperpixel
        if largest > _LARGEST_PIECE:
            raise SlideError(
                f"{self._name}: its {page.imagewidth} x {page.imagelength} pixels are compressed "
                f"in pieces of {self.grid.width} x {self.grid.height}, each of which must be "
                "decoded as a whole; convert it to tiles "
                "(vips tiffsave IN OUT.tiff --tile --pyramid --compression jpeg)"
            )

    def pixels(self, left: int, top: int, width: int, height: int) -> Piece:
        """Return the RGB of a rectangle in pixels of this level, white outside.

        Raises:
            RegionError: a tile or strip that the rectangle touches is damaged.
        """
        out = np.full((height, width, 3), WHITE, np.uint8)
        x0, x1 = max(left, 0), min(left + width, self.width)
        y0, y1 = max(top, 0), min(top + height, self.height)
        if x0 >= x1 or y0 >= y1:
            return out
        g = self.grid
        for row in range(y0 // g.height, (y1 - 1) // g.height + 1):
            for column in range(x0 // g.width, (x1 - 1) // g.width + 1):
                piece = self._piece(row, column)
                px, py = column * g.width, row * g.height
                ax, ay = max(x0, px), max(y0, py)
                bx, by = min(x1, px + g.width), min(y1, py + g.height)
                out[ay - top : by - top, ax - left : bx - left] = piece[
                    ay - py : by - py, ax - px : bx - px
                ]
        return out

    def _grid(self) -> _Grid:
        page = self.page
        if page.is_tiled:
            width, height = page.tilewidth, page.tilelength
        elif self._bands:
            line = self.width * page.samplesperpixel
            width, height = self.width, max(1, min(self.height, _BAND // line))
        else:
            width, height = self.width, min(page.rowsperstrip, self.height)
        return _Grid(
            width=width,
            height=height,
            columns=math.ceil(self.width / width),
            rows=math.ceil(self.height / height),
        )

    def _piece(self, row: int, column: int) -> Piece:
        index = row * self.grid.columns + column
        key = (self.number, index)
        piece = self.cache.get(key)
        if piece is None:
            samples = self._samples(row, column, index)
            if samples is None:
                samples_shape = (self.grid.height, self.grid.width, 3)
                return np.full(samples_shape, WHITE, np.uint8)
            piece = self.colours(samples)
            self.cache.put(key, piece)
        return piece

    def _samples(self, row: int, column: int, index: int) -> Samples | None:
        """Return the samples as stored; None if the file omits the piece."""
        try:
            if self._bands:
                return self._band(row)
            if self.page.planarconfig == 1:
                return self._segment(index)
            step = self.grid.columns * self.grid.rows
            planes = [
                self._segment(index + plane * step) for plane in range(self.page.samplesperpixel)
            ]
            present = [p for p in planes if p is not None]
            return np.concatenate(present, axis=-1) if len(present) == len(planes) else None
        # the exceptions that decoders of various libraries raise on damaged data
        except (RuntimeError, ValueError, TypeError, IndexError, OSError, EOFError) as e:
            what = "tile" if self.page.is_tiled else "strip"
            raise RegionError(
                f"{self._name}: level {self.number}, {what} in row {row}, column {column} of "
                f"{self.grid.width} x {self.grid.height} pixels cannot be decoded: {e}"
            ) from e

    def _segment(self, index: int) -> Samples | None:
        offset, length = self.page.dataoffsets[index], self.page.databytecounts[index]
        if not offset or not length:
            return None
        data = self._bytes(offset, length)
        if self.page.compression != _JPEG:
            decoded = self._decode(data, index)[0]
        else:
            if not jpeg.is_whole(data, self._tables):
                raise ValueError("its JPEG data are damaged")
            decoded = self._decode(data, index, jpegtables=self._tables)[0]
        if decoded is None or decoded.shape[0] != 1:
            raise ValueError("it is not one plane of pixels")
        return decoded[0]

    def _band(self, row: int) -> Samples:
        """Return a band of an uncompressed image that consists of one strip."""
        line = self.width * self.page.samplesperpixel
        first = row * self.grid.height
        height = min(self.grid.height, self.height - first)
        data = self._bytes(self.page.dataoffsets[0] + first * line, height * line)
        return np.frombuffer(data, np.uint8).reshape(height, self.width, -1)

    def _bytes(self, offset: int, length: int) -> bytes:
        handle = self.page.parent.filehandle
        handle.seek(offset)
        data = handle.read(length)
        if len(data) < length:
            raise ValueError(f"only {len(data)} of {length} bytes exist")
        return data


def _is_one_raw_strip(page: "tifffile.TiffPage") -> bool:
    return (
        not page.is_tiled
        and page.compression == 1
        and page.predictor == 1
        and page.fillorder == 1
        and (page.planarconfig == 1 or page.samplesperpixel == 1)
        and len(page.dataoffsets) == 1
        and page.databytecounts[0] >= page.imagewidth * page.imagelength * page.samplesperpixel
    )
