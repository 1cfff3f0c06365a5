"""Stage 1: read TIFFs that OpenSlide does not know, or sees in part, with tifffile.

OpenSlide sees only one level of a pyramid whose levels are SubIFDs of the first page, as in
OME-TIFFs, and does not read striped TIFFs. Only the tiles or strips of a region are decoded.
"""

import functools
import math
import re
import struct
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from ..errors import SlideError
from ._base import WHITE, Slide, on_white, reading
from .levels import StoredLevel, settle_levels
from .resolution import MICROMETRES, Resolution, from_axes, from_density, positive, settle

if TYPE_CHECKING:
    from tifffile import TiffFile, TiffPage

_UNITS = {2: "inch", 3: "centimeter"}
_ASPECT = 0.05
"""A striped page is a level if its aspect ratio differs by less than this."""
_CACHE_BYTES = 64 << 20
"""Decoded tiles of a level that are kept, but at least one."""
_LARGEST_PIECE = 1 << 30
"""Largest size in bytes of a tile or strip that must be decoded as a whole."""
_JPEG, _CONVERTED = 7, (7, 33007, 34892)
"""Compressions whose decoders return RGB whatever they store."""
_STRAIGHT = 2
"""Kind of an extra sample that is opacity, by which the colours are not multiplied."""
_TILE_TAGS = {273, 279, 324, 325, 330, 347}
"""Offsets and byte counts of strips and tiles, SubIFDs, and tables of JPEG."""
_TO_RGB = "write it as RGB (vips tiffsave IN OUT.tiff --tile)"
_TO_TILES = "convert it to tiles (vips tiffsave IN OUT.tiff --tile --pyramid --compression jpeg)"


class TiffSlide(Slide):
    """A TIFF of which only the required tiles or strips are decoded."""

    def __init__(
        self, path: Path, *, name: str, mpp: float | None = None, vendor: str | None = None
    ) -> None:
        import tifffile

        self.path, self.name = path, name
        self._arrays: list[tuple[TiffPage, Any]] = []
        with reading(path):
            self._file = tifffile.TiffFile(path)
            try:
                self._open(vendor, mpp)
            except BaseException:
                self.close()
                raise

    def _open(self, vendor: str | None, mpp: float | None) -> None:
        _check_pages(self._file)
        if reason := _not_colours(self._file):
            raise SlideError(f"{self.path} {reason}")
        if self._file.is_ome:
            pages, stated, properties = _ome(self._file)
        else:
            pages, stated, properties = _pages(self._file), Resolution(), {}
        first = pages[0]
        self.format = "ome-tiff" if self._file.is_ome else vendor or "tiff"
        pyramid = settle_levels([_stored_level(page) for page in pages])
        self.levels, self.notes = pyramid.levels, pyramid.notes
        self._arrays += [(pages[k], _array(pages[k])) for k in pyramid.places]
        resolution = settle(stated.or_else(_from_tags(first)), mpp)
        self.mpp, self.mpp_source = resolution.mpp, resolution.source
        self.mpp_rejected = resolution.rejected
        properties |= {
            "reader": f"tifffile {version('tifffile')}",
            "tile size": f"{first.tilewidth} x {first.tilelength}" if first.is_tiled else "",
            "strips": "" if first.is_tiled else f"{len(first.dataoffsets)}",
            "compression": _word(first.compression),
            "tiff.ImageDescription": first.description,
            "tiff.Software": first.software,
        }
        self.properties = {k: v for k, v in properties.items() if v}

    def _pixels(
        self, level: int, rows: slice, columns: slice
    ) -> UInt8[np.ndarray, "height width 3"]:
        page, array = self._arrays[level]
        if array is None:  # uncompressed in one piece
            line, height = page.imagewidth * page.samplesperpixel, rows.stop - rows.start
            start = page.dataoffsets[0] + rows.start * line
            read = np.fromfile(self.path, np.uint8, height * line, offset=start)
            samples = read.reshape(height, page.imagewidth, -1)[:, columns]
        else:
            samples = np.asarray(array[rows, columns]).reshape(
                rows.stop - rows.start, columns.stop - columns.start, -1
            )
        if samples.shape[2] == 1:
            return np.repeat(samples, 3, axis=-1)
        if _STRAIGHT in page.extrasamples:
            return on_white(Image.fromarray(samples))
        return samples[..., :3]

    def close(self) -> None:
        """Close the file; may be called more than once."""
        for page, _ in self._arrays:
            vars(page).pop("decode", None)  # and the tiles that it keeps
        self.closed, self._arrays = True, []
        self._file.close()


def _stored_level(page: "TiffPage") -> StoredLevel:
    tile = (page.tilewidth, page.tilelength) if page.is_tiled else None
    return StoredLevel(width=page.imagewidth, height=page.imagelength, tile=tile)


def is_tiff(head: bytes) -> bool:
    """Return True if these first bytes are those of a TIFF or a BigTIFF."""
    return head[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def map_reason(path: Path) -> str:
    """Return why an OME-TIFF is a map and not a slide; empty if it may be a slide.

    A map that `probsa map` wrote has the name of its slide, and would be taken for that slide.
    """
    if not (path.name.lower().endswith((".ome.tif", ".ome.tiff")) and path.is_file()):
        return ""
    try:
        import tifffile

        with reading(path), tifffile.TiffFile(path) as file:
            reason = _not_colours(file)
    except (ImportError, SlideError):
        return ""  # opening it as a slide explains what is wrong
    return f"{path} {reason}" if reason else ""


def _not_colours(file: "TiffFile") -> str:
    kind = file.pages.first.dtype
    if not file.is_ome or kind is None or kind.kind != "f":
        return ""
    return (
        f"holds {kind.name} values, not colours: it is a map, such as `probsa map` writes, and not "
        "a slide. Keep maps outside the folder of slides"
    )


def check_complete(path: Path) -> None:
    """Refuse a TIFF that was cut short; a truncated copy may open, with fewer levels or tiles."""
    import tifffile

    with reading(path), tifffile.TiffFile(path) as file:
        _check_pages(file)


def _check_pages(file: "TiffFile") -> None:
    """Compare what the directories of a TIFF list with the length of the file."""
    handle, form, seen = file.filehandle, file.tiff, set()
    truncated = SlideError(
        f"{handle.path} is truncated: it has {handle.size:,} bytes but lists data beyond its end; "
        "copy it again from the original"
    )
    for main in file.pages:
        if main.offset in seen:
            raise SlideError(
                f"{handle.path} is a damaged TIFF: its directories form a loop, in which no reader "
                "finds the last one; copy it again from the original"
            )
        seen.add(main.offset)
        for page in (p.aspage() for p in (main, *(main.pages or ()))):
            handle.seek(page.offset or 0)
            count = struct.unpack(form.tagnoformat, handle.read(form.tagnosize))[0]
            entries = handle.read(count * form.tagsize)
            codes = {
                struct.unpack_from(form.byteorder + "H", entries, i)[0]
                for i in range(0, len(entries), form.tagsize)
            }
            ends = (a + n for a, n in zip(page.dataoffsets, page.databytecounts, strict=False) if a)
            lost = codes & _TILE_TAGS - {tag.code for tag in page.tags}
            if lost or max(ends, default=0) > handle.size:
                raise truncated
    handle.seek(file.pages.next_page_offset or 0)
    if handle.read(form.offsetsize) != bytes(form.offsetsize):
        raise truncated


def _pages(file: "TiffFile") -> "list[TiffPage]":
    """Return the pages of the levels, largest first.

    In a tiled file, these are the first page, the tiled pages marked as reduced (as in OpenSlide),
    and the SubIFDs of the first page. In a striped file, they are reduced pages of the same shape.
    """
    first, *rest = (page.aspage() for page in file.pages)
    below = [page.aspage() for page in first.pages or ()]

    def is_level(page: "TiffPage") -> bool:
        if first.is_tiled:
            return page.is_tiled
        aspect = page.imagewidth * first.imagelength / (page.imagelength * first.imagewidth)
        return abs(aspect - 1) < _ASPECT and page.samplesperpixel == first.samplesperpixel

    levels = [first, *(p for p in [*(p for p in rest if p.is_reduced), *below] if is_level(p))]
    return sorted(levels, key=lambda page: -page.imagewidth)


def _ome(file: "TiffFile") -> "tuple[list[TiffPage], Resolution, dict[str, str]]":
    """Return the pages of the largest image, largest first, its resolution, and its properties.

    Raises:
        SlideError: the image is a stack, or its colours are separate channels.
    """
    series = file.series
    areas = [s.keyframe.imagewidth * s.keyframe.imagelength for s in series]
    largest = areas.index(max(areas))
    for level in series[largest].levels:
        if len(level.pages) != 1:
            raise SlideError(
                f"{file.filehandle.path} holds {len(level.pages)} planes of axes {level.axes} "
                "(channels, depths or times), but a bright-field slide is one RGB plane: "
                "convert it (for example with raw2ometiff --rgb)"
            )
    pages = [level.keyframe for level in series[largest].levels]
    names = [s.name or f"image {i}" for i, s in enumerate(series) if i != largest]
    root = ElementTree.fromstring(file.ome_metadata or "<OME/>")
    images = root.findall("{*}Image")
    image = images[largest] if len(images) == len(series) else ElementTree.Element("Image")
    sides = []
    for axis in "XY":
        stated = image.find(f"{{*}}Pixels[@PhysicalSize{axis}]")
        pixels = {} if stated is None else stated.attrib
        unit = MICROMETRES.get(pixels.get(f"PhysicalSize{axis}Unit", "µm"))
        size = positive(pixels.get(f"PhysicalSize{axis}"))
        sides.append(size * unit if size and unit else None)
    objectives = {o.get("ID"): o for o in root.iterfind("{*}Instrument/{*}Objective")}
    used = [s.get("ID") for s in image.iterfind("{*}ObjectiveSettings")]
    power = [objectives[i].get("NominalMagnification", "") for i in used if i in objectives]
    properties = {"objective power": "".join(power), "associated images": ", ".join(names)}
    return (
        sorted(pages, key=lambda page: -page.imagewidth),
        from_axes(*sides, source="OME PhysicalSizeX"),
        properties,
    )


def _from_tags(page: "TiffPage") -> Resolution:
    """Return the resolution of the tags, in the unit of ImageJ's description if it has one."""
    densities = [
        v[0] / v[1] if min(v) > 0 else None
        for v in (page.tags.valueof(f"{axis}Resolution", (0, 0)) for axis in "XY")
    ]
    imagej = Resolution()
    if page.description.startswith("ImageJ="):
        lines = [line.partition("=") for line in page.description.splitlines()]
        stated = {key.strip(): _unescaped(value.strip()) for key, _, value in lines}
        unit, unit_y = stated.get("unit", ""), stated.get("yunit")
        imagej = from_density(*densities, unit=unit, unit_y=unit_y, source=f"ImageJ, unit {unit}")
        if unit and unit.lower() not in MICROMETRES:
            imagej = Resolution(rejected=(f"ImageJ's unit {unit!r} is not a length that is known",))
    unit = _UNITS.get(int(page.tags.valueof("ResolutionUnit", 2)), "")
    return imagej.or_else(from_density(*densities, unit=unit))


def _unescaped(text: str) -> str:
    """Return a unit with ImageJ's escapes resolved, such as \\u00B5m for µm."""
    return re.sub(r"\\u([0-9a-fA-F]{4})", lambda code: chr(int(code[1], 16)), text)


def _array(page: "TiffPage") -> Any:
    """Return a level as a zarr array, or None if its pixels lie in the file as they are.

    Raises:
        SlideError: the samples are not 8-bit colours on one plane, or they cannot be decoded.
    """
    import tifffile
    import zarr

    kind, coding = _word(page.photometric), _word(page.compression)
    samples, extra = page.samplesperpixel, [int(e) for e in page.extrasamples]
    count = {"RGB": 3, "MINISBLACK": 1, "YCBCR": 3}.get(kind, 0)
    size = math.prod(page.chunks)
    for refused, reason in (
        (
            page.dtype != np.uint8 or page.bitspersample != 8,
            f"has {page.bitspersample} bits per channel ({page.dtype}), but slides "
            "have 8: scale it to 8 bits with suitable black and white points",
        ),
        (
            not count or (kind == "YCBCR" and page.compression not in _CONVERTED),
            f"stores colours as {kind} with compression {coding}; {_TO_RGB}",
        ),
        (
            page.planarconfig != 1 and samples > 1,
            f"has {samples} channels in planes of their own; {_TO_RGB}",
        ),
        (
            samples != count and not (count == 3 and extra in ([0], [_STRAIGHT])),
            f"has {samples} channels where {count} were expected: it is not a bright-field image; "
            "give an image with three colours",
        ),
        (
            page.compression not in tifffile.TIFF.DECOMPRESSORS,
            f"is compressed by {coding}, for which there is no decoder; {_TO_TILES}",
        ),
        (
            size > _LARGEST_PIECE and not page.is_memmappable,
            f"has pieces of {page.chunks[1]} x {page.chunks[0]} pixels, each of which must be "
            f"decoded as a whole; {_TO_TILES}",
        ),
    ):
        if refused:
            raise SlideError(f"{page.parent.filehandle.path} {reason}")
    if page.is_memmappable:
        return None
    decode = page.decode

    @functools.lru_cache(max(1, _CACHE_BYTES // size))
    def checked(data: bytes, index: int, **tables: Any) -> Any:
        if page.compression == _JPEG and data and not is_whole(data, tables.get("jpegtables")):
            raise ValueError("its JPEG data are damaged")
        return decode(data, index, **tables)

    page.decode = checked
    return zarr.open_array(page.aszarr(fillvalue=WHITE), mode="r")


def _word(value: object) -> str:
    """Return the name of a TIFF constant, or its number if it has none."""
    return str(getattr(value, "name", value))


# libjpeg decodes a damaged stream to the end with wrong colours and only warns, and tifffile does
# not see the warnings. The bytes are therefore searched for traces of holes, truncation and foreign
# data: in coded data, FF is followed only by restarts (D0-D7) or stuffing (00); tables and comments
# stand between scans.
_TRACES = re.compile(rb"\xff[^\x00\xc4\xd0-\xd7\xd9-\xdd\xfe\xff]|\x00{12}|\xff{12}")


def is_whole(data: bytes, tables: bytes | None = None) -> bool:
    """Return True if the structure of a JPEG stream shows no damage.

    `tables` is an abbreviated stream with the tables that `data` lacks. Only suspicious streams are
    parsed strictly, which takes ten times as long.
    """
    if data[:2] != b"\xff\xd8":
        return False
    _, scan, coded = data.partition(b"\xff\xda")
    coded = coded.rstrip(b"\0")
    if scan and coded.endswith(b"\xff\xd9") and not _TRACES.search(coded):
        return True
    from imagecodecs import DelayedImportError, JpegxlError, jpegxl_encode_jpeg

    head = b"" if tables is None else tables.removeprefix(b"\xff\xd8").removesuffix(b"\xff\xd9")
    try:
        # repacking a JPEG without loss requires decoding all its symbols
        jpegxl_encode_jpeg(data[:2] + head + data[2:])
    except DelayedImportError:
        return True
    except JpegxlError:
        return False
    return True
