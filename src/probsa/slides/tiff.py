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
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from ..errors import SlideError
from ._base import WHITE, Slide, decoding, on_white
from .levels import StoredLevel, decide_levels
from .resolution import MICROMETRES, Resolution, from_axes, from_density, positive, set_resolution

if TYPE_CHECKING:
    from tifffile import TiffFile, TiffPage

_UNITS = {2: "inch", 3: "centimeter"}
_ASPECT = 0.05
"""A striped page is a level if its aspect ratio differs by less than this."""
_CACHE_BYTES = 64 << 20
"""Decoded tiles of a level that are kept, but at least one."""
_LARGEST_PIECE = 1 << 30
"""Largest size in bytes of a tile or strip that must be decoded as a whole."""
_JPEG = 7
"""Compression by JPEG."""
_CONVERTED = (_JPEG, 33007, 34892)
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

        self.path = path
        self.name = name
        self._arrays: list[tuple[TiffPage, Any]] = []
        """The page of each level, and its zarr array; None if it is uncompressed in one piece."""
        with decoding(path):
            self._file = tifffile.TiffFile(path)
            try:
                self._open(vendor, mpp)
            except BaseException:
                self.close()
                raise

    def _open(self, vendor: str | None, mpp: float | None) -> None:
        """Read the levels and the resolution from the directories of the file."""
        _check_pages(self._file)
        if reason := _why_no_colours(self._file):
            raise SlideError(f"{self.path} {reason}")
        if self._file.is_ome:
            self.format = "ome-tiff"
            image = _ome_image(self._file)
        else:
            self.format = vendor or "tiff"
            image = _Image(_level_pages(self._file), Resolution())
        pages = image.pages
        first = pages[0]
        pyramid = decide_levels([_stored_level(page) for page in pages])
        self.levels = pyramid.levels
        self.notes = pyramid.notes
        self._arrays += [(pages[k], _array(pages[k])) for k in pyramid.places]
        set_resolution(self, image.resolution.or_else(_from_tags(first)), mpp)
        self.associated_images = image.others
        properties = {
            "objective power": image.objective_power,
            "associated images": ", ".join(image.others),
            "reader": f"tifffile {version('tifffile')}",
        }
        if first.is_tiled:
            properties["tile size"] = f"{first.tilewidth} x {first.tilelength}"
        else:
            properties["strips"] = f"{len(first.dataoffsets)}"
        properties["compression"] = _name_of_constant(first.compression)
        properties["tiff.ImageDescription"] = first.description
        properties["tiff.Software"] = first.software
        self.properties = {key: text for key, text in properties.items() if text}

    def _pixels(
        self, level: int, rows: slice, columns: slice
    ) -> UInt8[np.ndarray, "height width 3"]:
        page, array = self._arrays[level]
        height = rows.stop - rows.start
        width = columns.stop - columns.start
        if array is None:
            row_bytes = page.imagewidth * page.samplesperpixel
            start = page.dataoffsets[0] + rows.start * row_bytes
            data = np.fromfile(self.path, np.uint8, height * row_bytes, offset=start)
            samples = data.reshape(height, page.imagewidth, -1)[:, columns]
        else:
            samples = np.asarray(array[rows, columns]).reshape(height, width, -1)
        if samples.shape[2] == 1:
            return np.repeat(samples, 3, axis=-1)
        if _STRAIGHT in page.extrasamples:
            return on_white(Image.fromarray(samples))
        return samples[..., :3]

    def close(self) -> None:
        """Close the file; may be called more than once."""
        for page, _ in self._arrays:
            vars(page).pop("decode", None)  # and the tiles that it keeps
        self.closed = True
        self._arrays = []
        self._file.close()


class _Image(NamedTuple):
    """The image of a file that is the slide."""

    pages: "list[TiffPage]"
    """Its levels, largest first."""
    resolution: Resolution
    """What the metadata of its format state."""
    objective_power: str = ""
    """As text; empty if it is not stated."""
    others: tuple[str, ...] = ()
    """The names of the other images of the file."""


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

        with decoding(path), tifffile.TiffFile(path) as file:
            reason = _why_no_colours(file)
    except (ImportError, SlideError):
        return ""  # opening it as a slide explains what is wrong
    return f"{path} {reason}" if reason else ""


def _why_no_colours(file: "TiffFile") -> str:
    """Return why an OME-TIFF does not hold colours, as the end of a sentence; empty if it may."""
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

    with decoding(path), tifffile.TiffFile(path) as file:
        _check_pages(file)


def _check_pages(file: "TiffFile") -> None:
    """Compare what the directories of a TIFF list with the length of the file."""
    handle = file.filehandle
    truncated = SlideError(
        f"{handle.path} is truncated: it has {handle.size:,} bytes but lists data beyond its end; "
        "copy it again from the original"
    )
    offsets = set()
    for main in file.pages:
        if main.offset in offsets:
            raise SlideError(
                f"{handle.path} is a damaged TIFF: its directories form a loop, in which no reader "
                "finds the last one; copy it again from the original"
            )
        offsets.add(main.offset)
        for page in (main, *(main.pages or ())):
            if _is_cut_short(page.aspage(), file):
                raise truncated
    # after the last directory, the offset of the next one is 0
    handle.seek(file.pages.next_page_offset or 0)
    if handle.read(file.tiff.offsetsize) != bytes(file.tiff.offsetsize):
        raise truncated


def _is_cut_short(page: "TiffPage", file: "TiffFile") -> bool:
    """Return whether tags of a directory, or data that it lists, lie beyond the end of the file."""
    handle = file.filehandle
    form = file.tiff
    handle.seek(page.offset or 0)
    (count,) = struct.unpack(form.tagnoformat, handle.read(form.tagnosize))
    entries = handle.read(count * form.tagsize)
    codes = set()
    for start in range(0, len(entries), form.tagsize):
        (code,) = struct.unpack_from(form.byteorder + "H", entries, start)
        codes.add(code)
    # tifffile leaves out the tags whose values it cannot read
    if codes & _TILE_TAGS - {tag.code for tag in page.tags}:
        return True
    for offset, size in zip(page.dataoffsets, page.databytecounts, strict=False):
        if offset and offset + size > handle.size:  # an offset of 0 stands for an empty tile
            return True
    return False


def _level_pages(file: "TiffFile") -> "list[TiffPage]":
    """Return the pages of the levels, largest first.

    In a tiled file, these are the first page, the tiled pages marked as reduced (as in OpenSlide),
    and the SubIFDs of the first page. In a striped file, they are reduced pages of the same shape.
    """
    first, *others = (page.aspage() for page in file.pages)
    candidates = [page for page in others if page.is_reduced]
    candidates += [page.aspage() for page in first.pages or ()]

    def is_level(page: "TiffPage") -> bool:
        if first.is_tiled:
            return page.is_tiled
        aspect = page.imagewidth * first.imagelength / (page.imagelength * first.imagewidth)
        return abs(aspect - 1) < _ASPECT and page.samplesperpixel == first.samplesperpixel

    levels = [first, *filter(is_level, candidates)]
    return sorted(levels, key=lambda page: -page.imagewidth)


def _ome_image(file: "TiffFile") -> _Image:
    """Return the largest image of an OME-TIFF.

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
    root = ElementTree.fromstring(file.ome_metadata or "<OME/>")
    images = root.findall("{*}Image")
    image = images[largest] if len(images) == len(series) else ElementTree.Element("Image")
    names = [s.name or f"image {i}" for i, s in enumerate(series)]
    del names[largest]
    return _Image(
        pages=sorted(pages, key=lambda page: -page.imagewidth),
        resolution=from_axes(
            _physical_size(image, "X"), _physical_size(image, "Y"), source="OME PhysicalSizeX"
        ),
        objective_power=_objective_power(root, image),
        others=tuple(names),
    )


def _physical_size(image: ElementTree.Element, axis: str) -> float | None:
    """Return the micrometres per pixel that OME-XML states for an axis; None without a length."""
    pixels = image.find(f"{{*}}Pixels[@PhysicalSize{axis}]")
    if pixels is None:
        return None
    unit = MICROMETRES.get(pixels.get(f"PhysicalSize{axis}Unit", "µm"))
    size = positive(pixels.get(f"PhysicalSize{axis}"))
    return size * unit if size and unit else None


def _objective_power(root: ElementTree.Element, image: ElementTree.Element) -> str:
    """Return the magnification of the objective that an image was taken with, as OME-XML has it."""
    objectives = {o.get("ID"): o for o in root.iterfind("{*}Instrument/{*}Objective")}
    powers = []
    for settings in image.iterfind("{*}ObjectiveSettings"):
        objective = objectives.get(settings.get("ID"))
        if objective is not None:
            powers.append(objective.get("NominalMagnification", ""))
    return "".join(powers)


def _from_tags(page: "TiffPage") -> Resolution:
    """Return the resolution of the tags, in the unit of ImageJ's description if it has one."""
    densities: list[float | None] = []
    for axis in "XY":
        match page.tags.valueof(f"{axis}Resolution"):
            case (int(numerator), int(denominator)) if numerator > 0 and denominator > 0:
                densities.append(numerator / denominator)
            case _:  # missing, or of another type
                densities.append(None)
    unit_code = page.tags.valueof("ResolutionUnit", 2)
    unit = _UNITS.get(unit_code, "") if isinstance(unit_code, int) else ""
    tags = from_density(*densities, unit=unit)
    settings = _imagej_settings(page.description)
    if not settings:
        return tags
    imagej_unit = settings.get("unit", "")
    if imagej_unit and imagej_unit.lower() not in MICROMETRES:
        reason = f"ImageJ's unit {imagej_unit!r} is not a length that is known"
        return Resolution(rejected=(reason,)).or_else(tags)
    imagej = from_density(
        *densities,
        unit=imagej_unit,
        unit_y=settings.get("yunit"),
        source=f"ImageJ, unit {imagej_unit}",
    )
    return imagej.or_else(tags)


def _imagej_settings(description: str) -> dict[str, str]:
    """Return the lines `key=value` of a description that ImageJ wrote; of others, nothing."""
    if not description.startswith("ImageJ="):
        return {}
    settings = {}
    for line in description.splitlines():
        key, _, value = line.partition("=")
        settings[key.strip()] = _unescape(value.strip())
    return settings


def _unescape(text: str) -> str:
    """Return a unit with ImageJ's escapes resolved, such as \\u00B5m for µm."""
    return re.sub(r"\\u([0-9a-fA-F]{4})", lambda code: chr(int(code[1], 16)), text)


def _array(page: "TiffPage") -> Any:
    """Return a level as a zarr array, or None if its pixels lie in the file as they are.

    Raises:
        SlideError: the samples are not 8-bit colours on one plane, or they cannot be decoded.
    """
    import zarr

    if reason := _why_unreadable(page):
        raise SlideError(f"{page.parent.filehandle.path} {reason}")
    if page.is_memmappable:
        return None
    decode = page.decode

    @functools.lru_cache(max(1, _CACHE_BYTES // math.prod(page.chunks)))
    def checked(data: bytes, index: int, **tables: Any) -> Any:
        if page.compression == _JPEG and data and not is_whole(data, tables.get("jpegtables")):
            raise ValueError("its JPEG data are damaged")
        return decode(data, index, **tables)

    page.decode = checked
    return zarr.open_array(page.aszarr(fillvalue=WHITE), mode="r")


def _why_unreadable(page: "TiffPage") -> str:
    """Return why a page is not read, as the end of a sentence; empty if it can be."""
    import tifffile

    photometric = _name_of_constant(page.photometric)
    compression = _name_of_constant(page.compression)
    if page.dtype != np.uint8 or page.bitspersample != 8:
        return (
            f"has {page.bitspersample} bits per channel ({page.dtype}), but slides "
            "have 8: scale it to 8 bits with suitable black and white points"
        )
    colours = {"RGB": 3, "MINISBLACK": 1, "YCBCR": 3}.get(photometric, 0)
    is_unconverted = photometric == "YCBCR" and page.compression not in _CONVERTED
    if colours == 0 or is_unconverted:
        return f"stores colours as {photometric} with compression {compression}; {_TO_RGB}"
    samples = page.samplesperpixel
    if page.planarconfig != 1 and samples > 1:
        return f"has {samples} channels in planes of their own; {_TO_RGB}"
    extra_samples = [int(sample) for sample in page.extrasamples]
    has_opacity = colours == 3 and extra_samples in ([0], [_STRAIGHT])
    if samples != colours and not has_opacity:
        return (
            f"has {samples} channels where {colours} were expected: it is not a bright-field "
            "image; give an image with three colours"
        )
    if page.compression not in tifffile.TIFF.DECOMPRESSORS:
        return f"is compressed by {compression}, for which there is no decoder; {_TO_TILES}"
    if math.prod(page.chunks) > _LARGEST_PIECE and not page.is_memmappable:
        return (
            f"has pieces of {page.chunks[1]} x {page.chunks[0]} pixels, each of which must be "
            f"decoded as a whole; {_TO_TILES}"
        )
    return ""


def _name_of_constant(value: object) -> str:
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

    head = b""
    if tables is not None:
        # the tables without the markers that begin and end their stream
        head = tables.removeprefix(b"\xff\xd8").removesuffix(b"\xff\xd9")
    try:
        # repacking a JPEG without loss requires decoding all its symbols
        jpegxl_encode_jpeg(data[:2] + head + data[2:])
    except DelayedImportError:
        return True
    except JpegxlError:
        return False
    return True
