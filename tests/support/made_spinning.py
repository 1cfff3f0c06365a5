"""A damaged HDF5 file on which the library never returns: it loops while it reads an attribute."""

import struct
from pathlib import Path

HEAP = b"GCOL"
"""How the collection begins in which HDF5 keeps texts of any length."""
HEADER = 16
"""Bytes of the head of a collection, and of each of its objects."""


def make_spin(path: Path) -> None:
    """Swap two words of eight bytes in the heap of a file: the remaining space has the size 0.

    HDF5 steps over objects by their sizes, so it stays at this one for ever.
    """
    data = bytearray(path.read_bytes())
    place = data.index(HEAP) + HEADER
    index, size = struct.unpack_from("<H6xQ", data, place)
    while index:
        place += HEADER + -(-size // 8) * 8
        index, size = struct.unpack_from("<H6xQ", data, place)
    head = data[place : place + 8]
    length = data[place + 8 : place + 16]
    assert struct.unpack("<Q", head) == (0,) and size > 0
    data[place : place + 8] = length
    data[place + 8 : place + 16] = head
    path.write_bytes(data)
