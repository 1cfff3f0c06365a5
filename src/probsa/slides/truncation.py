"""Stage 1: detect truncated TIFFs.

A truncated copy may still open, with fewer levels or incomplete tiles. The directories of the file
and the tiles that they list show how long the file must be.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..errors import SlideError

_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8,
          13: 4, 16: 8, 17: 8, 18: 8}  # fmt: skip
"""Bytes per value, by TIFF type number."""
_INTEGERS = {3: "u2", 4: "u4", 13: "u4", 16: "u8", 18: "u8"}
_SUBIFDS = 330
_SEGMENTS = ((273, 279), (324, 325))
"""Tags of (offsets, byte counts) of strips and of tiles."""
_LOOKED_AT = {258, 270, 347, _SUBIFDS, *(t for pair in _SEGMENTS for t in pair)}
_MANY = 100_000


def is_tiff(head: bytes) -> bool:
    """Return True if these first bytes are those of a TIFF or a BigTIFF."""
    return head[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def check_complete(path: Path) -> None:
    """Refuse a TIFF whose directories or tiles lie beyond its end.

    Raises:
        SlideError: the file is truncated (the message states its length and the required one), or
            its directories form a loop.
    """
    size = path.stat().st_size
    with path.open("rb") as f:
        for end in _ends(f, size):
            if end > size:
                raise SlideError(
                    f"{path} is truncated: it has {size:,} bytes but lists data up to at least "
                    f"byte {end:,}; copy it again from the original"
                )


def _ends(f: BinaryIO, size: int) -> Iterator[int]:
    """Yield the end of each directory and of its data; stop at the first missing directory."""
    head = f.read(16)
    order = "<" if head[:2] == b"II" else ">"
    big = head[2:4] in (b"+\0", b"\0+")
    first = head[8:16] if big else head[4:8]
    if len(first) < (8 if big else 4):
        yield 16 if big else 8
        return
    pending, seen = [struct.unpack(order + ("Q" if big else "I"), first)[0]], set()
    while pending and len(seen) < _MANY:
        at = pending.pop(0)
        if at == 0 or at in seen:
            continue
        seen.add(at)
        directory = _Directory(f, at, order=order, big=big)
        yield directory.end
        if directory.end > size:
            return
        for tag in _LOOKED_AT & directory.entries.keys():
            yield directory.value_end(tag)
        for offsets, counts in _SEGMENTS:
            yield directory.data_end(offsets, counts)
        if directory.next in seen:
            raise SlideError(
                f"{f.name} is a damaged TIFF: its directories form a loop, in which no reader "
                "finds the last one; copy it again from the original"
            )
        pending += [directory.next, *directory.integers(_SUBIFDS).tolist()]


class _Directory:
    """One image file directory (IFD), with undecoded entries."""

    def __init__(self, f: BinaryIO, at: int, *, order: str, big: bool) -> None:
        self.f, self.order = f, order
        self.word, self.inline = ("Q", 8) if big else ("I", 4)
        count_format = order + ("Q" if big else "H")
        entry = struct.Struct(order + ("HHQ8s" if big else "HHI4s"))
        f.seek(at)
        counted = f.read(struct.calcsize(count_format))
        self.entries: dict[int, tuple[int, int, bytes]] = {}
        self.next = 0
        self.end = at + struct.calcsize(count_format)
        if at + len(counted) < self.end:
            return
        n = struct.unpack(count_format, counted)[0]
        self.end += n * entry.size + self.inline
        if n > _MANY:
            return
        raw = f.read(n * entry.size + self.inline)
        if len(raw) < n * entry.size + self.inline:
            return
        for i in range(n):
            tag, kind, count, value = entry.unpack_from(raw, i * entry.size)
            self.entries[tag] = (kind, count, value)
        self.next = struct.unpack(order + self.word, raw[-self.inline :])[0]

    def _bytes(self, tag: int) -> tuple[int, int] | None:
        """Return (offset, length) of a value that is stored outside its entry, otherwise None."""
        kind, count, value = self.entries[tag]
        length = _SIZES.get(kind, 1) * count
        if length <= self.inline:
            return None
        return struct.unpack(self.order + self.word, value)[0], length

    def value_end(self, tag: int) -> int:
        """Return the end of the value of a tag; 0 if it is stored in the entry itself."""
        outside = self._bytes(tag)
        return 0 if outside is None else sum(outside)

    def integers(self, tag: int) -> np.ndarray:
        """Return the value of a tag; empty if it is missing or lies outside the file."""
        kind, count, value = self.entries.get(tag, (0, 0, b""))
        if kind not in _INTEGERS:
            return np.zeros(0, np.uint64)
        outside = self._bytes(tag)
        if outside is not None:
            self.f.seek(outside[0])
            value = self.f.read(outside[1])
        dtype = np.dtype(self.order + _INTEGERS[kind])
        whole = len(value) // dtype.itemsize
        return np.frombuffer(value, dtype, min(count, whole)).astype(np.uint64)

    def data_end(self, offsets: int, counts: int) -> int:
        """Return the end of the last tile or strip that is not empty."""
        at, length = self.integers(offsets), self.integers(counts)
        n = min(len(at), len(length))
        at, length = at[:n], length[:n]
        there = (length > 0) & (at > 0)
        return int((at[there] + length[there]).max()) if there.any() else 0
