"""Stage 1: whether a JPEG tile is whole.

libjpeg decodes a damaged stream to the end, in wrong colours, and only warns; the TIFF reader does
not see its warnings. What a hole, a cut or foreign bytes leave behind is looked for first, in the
bytes; only where it is found is the stream parsed strictly, which costs ten times its decoding.
"""

import re

_START, _END = b"\xff\xd8", b"\xff\xd9"
_SCAN = b"\xff\xda"
# in coded data only restarts (D0-D7) and stuffing (00) follow FF; between scans: tables, comments
_FOREIGN = re.compile(rb"\xff[^\x00\xc4\xd0-\xd7\xd9-\xdd\xfe\xff]")
_HOLE = re.compile(rb"\x00{12}|\xff{12}")


def is_whole(data: bytes, tables: bytes | None = None) -> bool:
    """Whether a JPEG stream is undamaged, as far as can be told from its structure.

    `tables` is an abbreviated stream of the tables that `data` itself lacks.
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
        # re-packing a JPEG without loss needs every one of its symbols
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
