"""Stage 1: detect damaged JPEG tiles.

libjpeg decodes a damaged stream to the end with wrong colours and only warns, and the TIFF reader
does not see the warnings. The bytes are therefore searched for traces of holes, truncation and
foreign data. Only suspicious streams are parsed strictly, which takes ten times as long.
"""

import re

_START, _END = b"\xff\xd8", b"\xff\xd9"
_SCAN = b"\xff\xda"
# In coded data, FF is followed only by restarts (D0-D7) or stuffing (00); tables and comments
# stand between scans.
_FOREIGN = re.compile(rb"\xff[^\x00\xc4\xd0-\xd7\xd9-\xdd\xfe\xff]")
_HOLE = re.compile(rb"\x00{12}|\xff{12}")


def is_whole(data: bytes, tables: bytes | None = None) -> bool:
    """Return True if the structure of a JPEG stream shows no damage.

    `tables` is an abbreviated stream with the tables that `data` lacks.
    """
    if data[:2] != _START:
        return False
    if not _is_suspicious(data):
        return True
    from imagecodecs import DelayedImportError, JpegxlError, jpegxl_encode_jpeg

    complete = data
    if tables is not None:
        complete = _START + tables.removeprefix(_START).removesuffix(_END) + data[2:]
    try:
        # repacking a JPEG without loss requires decoding all its symbols
        jpegxl_encode_jpeg(complete)
    except DelayedImportError:
        return True
    except JpegxlError:
        return False
    return True


def _is_suspicious(data: bytes) -> bool:
    scan = data.find(_SCAN)
    if scan < 0:
        return True
    coded = data[scan + 2 :].rstrip(b"\0")
    return (
        not coded.endswith(_END)
        or _FOREIGN.search(coded) is not None
        or _HOLE.search(coded) is not None
    )
