"""Read a DICOM series as a `Scan`: Hounsfield units, no padding, slices in order of position.

Files are read one by one. Slices that cannot be decoded are omitted and named in the notes.
"""

import importlib.util
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Shaped

from ..core import check_size, is_fault
from ..errors import MissingExtra, SlideError
from . import series
from ._base import Scan, decoder_errors, decoding
from .dicom_headers import MAY_BE_OPENED, Header, Plane, number, read, read_header

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

AIR_LIMIT = -1024.0
"""Hounsfield units: scanners do not reconstruct lower values, so lower values are padding."""
_LONELY = 100.0
"""Hounsfield units: undeclared padding is a value that is at least this far from all others."""


def open_series(name: str, path: Path, *, files: Sequence[Path]) -> Scan:
    """Read the slices of one series.

    Args:
        name: the name of the scan.
        path: the file or folder that contains the series.
        files: the files of the series, in any order.

    Raises:
        SlideError: no slice can be read, or the slices do not form a volume; names the file.
        MissingExtra: pydicom or a decoder for compressed pixels is missing.
    """
    headers, notes = _headers(path, files)
    try:
        stack = series.stack([plane for header in headers for plane in header.planes])
    except SlideError as error:
        raise SlideError(f"{path}: {error}") from error
    display = stack.display
    first = headers[0]
    lossy = any(header.lossy for header in headers)
    reader = _Reader(hounsfield=first.modality in ("CT", ""), lossy=lossy)
    with decoding(path):
        volume, read_notes = reader.volume(path, stack)
    planes = reader.planes
    positions = np.array(reader.positions)
    row_spacing, column_spacing = planes[0].spacing or (1.0, 1.0)
    spacing = (row_spacing, column_spacing)
    if display.transpose:
        spacing = (column_spacing, row_spacing)
    thicknesses = _count_thicknesses(planes)
    notes += stack.notes
    notes += series.geometry_notes(positions, planes, display)
    notes += read_notes
    notes += _value_notes(first.modality, volume, reader)
    return Scan(
        name=name,
        path=path,
        format="dicom",
        volume=volume,
        positions=positions,
        spacing=spacing,
        thickness=thicknesses[0][0] if thicknesses else None,
        plane=None if planes[0].orientation is None else display.plane,
        notes=tuple(notes),
        properties={**first.properties, "TransferSyntax": reader.syntax},
    )


def _headers(path: Path, files: Sequence[Path]) -> tuple[list[Header], list[str]]:
    """Return the headers of the images, and notes on the other files."""
    headers: list[Header] = []
    problems: list[str] = []
    for file in files:
        try:
            header = read_header(file)
        except SlideError as error:
            problems.append(str(error))
            continue
        if header.other and (len(files) > 1 or header.other not in MAY_BE_OPENED):
            problems.append(f"{file.name} is not a slice ({header.other})")
        elif not header.grey:
            problems.append(
                f"{file.name} is a colour image "
                f"({header.photometric or 'no photometric interpretation'}), "
                "where MONOCHROME1 or MONOCHROME2 was expected"
            )
        else:
            headers.append(header)
    if not headers:
        reason = series.list_some(problems) or "there are no files"
        raise SlideError(f"{path} holds no slice that can be read: {reason}")
    notes = [f"Left out: {series.list_some(problems)}."] if problems else []
    if headers[0].other:
        notes.append(f"The image is a {headers[0].other}, not a slice of a scan.")
    return headers, notes


@dataclass(slots=True)
class _Reader:
    """Decode planes, and keep the last file open because it may contain several frames."""

    hounsfield: bool
    lossy: bool
    planes: list[Plane] = field(default_factory=list)
    """The slices that were read, in order of position."""
    positions: list[float] = field(default_factory=list)
    padding: Counter[float] = field(default_factory=Counter)
    """The values of padding pixels, with their counts."""
    share: float = 0.0
    """The share of padding in the volume."""
    inverted: bool = False
    syntax: str = ""
    _path: Path | None = None
    _dataset: "Dataset | None" = None

    def volume(
        self, path: Path, stack: series.Stack
    ) -> tuple[Float[np.ndarray, "slices height width"], list[str]]:
        """Read the slices in order, with one file in memory at a time; padding becomes smallest.

        Returns the volume, and notes on the slices that were left out.
        """
        first = stack.places[0].planes[0]
        files = {plane.path for place in stack.places for plane in place.planes}
        check_size(
            path,
            what="the volume",
            stated=4 * len(stack.places) * first.rows * first.columns,
            stored=sum(file.stat().st_size for file in files),
            again="copy it again",
        )
        images: list[np.ndarray] = []
        broken: list[str] = []
        duplicates: list[str] = []
        for place in stack.places:
            first_plane: Plane | None = None
            for plane in place.planes:
                try:
                    image = stack.display.apply(self.read(plane))
                except SlideError as error:
                    broken.append(str(error))
                    continue
                if first_plane is None:
                    first_plane = plane
                    images.append(image)
                    self.positions.append(place.position)
                    self.planes.append(plane)
                else:
                    is_same = np.array_equal(images[-1], image, equal_nan=True)
                    pixels = "the same pixels" if is_same else "DIFFERENT pixels"
                    duplicates.append(
                        f"{plane.label} lies at {place.position:.2f} mm, as does "
                        f"{first_plane.label}, with {pixels}"
                    )
        if not images:
            raise SlideError(
                f"{path} holds no slice that can be decoded: {series.list_some(broken)}"
            )
        volume = np.stack(images)
        images.clear()  # the volume is a copy; keeping both would take twice the memory
        padding = np.isnan(volume)
        if padding.all():
            raise SlideError(f"{path} holds nothing but padding")
        self.share = float(padding.mean())
        volume[padding] = np.nanmin(volume)
        notes = []
        if duplicates:
            notes.append(f"Duplicate slices left out: {series.list_some(duplicates)}.")
        if broken:
            notes.append(f"Slices that cannot be decoded left out: {series.list_some(broken)}.")
        return volume, notes

    def read(self, plane: Plane) -> Float[np.ndarray, "h w"]:
        """Return the stored image, rescaled, as float32; padding is NaN.

        Raises:
            SlideError: the image cannot be decoded; the message names the file.
        """
        if self._dataset is None or self._path != plane.path:
            self._dataset = read(plane.path, pixels=True)
            self._path = plane.path
        dataset = self._dataset
        self.syntax = dataset.file_meta.TransferSyntaxUID.name
        stored = _decode(dataset, plane)
        if stored.shape != (plane.rows, plane.columns):
            raise SlideError(
                f"{plane.label} decodes to {stored.shape}, but its header says "
                f"{plane.rows} x {plane.columns}"
            )
        with np.errstate(over="ignore"):  # refused below
            values = _rescale(stored, dataset, plane)
        real = ~_declared_padding(stored, dataset)
        if self.hounsfield:
            real &= ~_undeclared_padding(values, real, lossy=self.lossy)
        padding_values, counts = np.unique(values[~real], return_counts=True)
        self.padding.update(dict(zip(padding_values.tolist(), counts.tolist(), strict=True)))
        if dataset.PhotometricInterpretation == "MONOCHROME1" and not self.hounsfield:
            # the photometric interpretation affects brightness values, not Hounsfield units
            self.inverted = True
            bits = int(dataset.BitsStored)
            is_signed = int(dataset.PixelRepresentation) == 1
            lowest = -(2 ** (bits - 1)) if is_signed else 0
            highest = lowest + 2**bits - 1
            # exchanges the values of the lowest and the highest number that can be stored
            ends = _rescale(np.array([[lowest, highest]]), dataset, plane)
            values = ends.sum() - values
        # written so that NaN is refused as well
        if not np.abs(values).max() <= np.finfo(np.float32).max:
            raise SlideError(
                f"{plane.label}: RescaleSlope {plane.slope:g} and RescaleIntercept "
                f"{plane.intercept or 0:g} give values that no scanner measures"
            )
        return np.where(real, values, np.nan).astype(np.float32)


def _decode(dataset: "Dataset", plane: Plane) -> Shaped[np.ndarray, "..."]:
    """Return the stored pixels of a slice.

    Raises:
        SlideError: they cannot be decoded.
        MissingExtra: there is no decoder for their compression.
    """
    from pydicom.pixels.utils import pixel_array
    from pydicom.uid import JPEG2000TransferSyntaxes

    syntax = dataset.file_meta.TransferSyntaxUID
    # on some damaged streams of JPEG 2000, gdcm ends the process
    plugin = "pillow" if syntax in JPEG2000TransferSyntaxes else ""
    try:
        return pixel_array(dataset, index=plane.frame, decoding_plugin=plugin)
    except decoder_errors() as error:
        if is_fault(error):
            raise
        if syntax.is_compressed and not plugin and importlib.util.find_spec("gdcm") is None:
            raise MissingExtra("python-gdcm", "ct") from error
        raise SlideError(f"{plane.label}: {' '.join(str(error).split())}") from error


def _rescale(
    stored: Shaped[np.ndarray, "h w"], dataset: "Dataset", plane: Plane
) -> Float[np.ndarray, "h w"]:
    """Return values in the unit of the scanner, by the table or the line that the header states."""
    if dataset.get("ModalityLUTSequence") and plane.slope is None:
        from pydicom.pixels.processing import apply_modality_lut

        return np.asarray(apply_modality_lut(stored, dataset), dtype=np.float64)
    slope = 1.0 if plane.slope is None else plane.slope
    return stored.astype(np.float64) * slope + (plane.intercept or 0.0)


def _declared_padding(
    stored: Shaped[np.ndarray, "h w"], dataset: "Dataset"
) -> Bool[np.ndarray, "h w"]:
    """Return where pixels equal PixelPaddingValue or lie in the declared padding range."""
    value = _padding_number(dataset, "PixelPaddingValue")
    if value is None or stored.dtype.kind not in "iu":
        return np.zeros(stored.shape, dtype=bool)
    limit = _padding_number(dataset, "PixelPaddingRangeLimit")
    if limit is None:
        limit = value
    # in the type of the pixels, because writers confuse signs (-2000 for 63536)
    one_end = np.int64(value).astype(stored.dtype)
    other_end = np.int64(limit).astype(stored.dtype)
    return (stored >= min(one_end, other_end)) & (stored <= max(one_end, other_end))


def _padding_number(dataset: "Dataset", key: str) -> float | None:
    """Return a number that describes padding; None if it is not stated."""
    value = dataset.get(key)
    if isinstance(value, bytes) and len(value) == 2:  # of an unknown type
        return int.from_bytes(value, "little")
    return number(dataset, key)


def _undeclared_padding(
    values: Float[np.ndarray, "h w"], real: Bool[np.ndarray, "h w"], *, lossy: bool
) -> Bool[np.ndarray, "h w"]:
    """Return where pixels have an isolated value below the range of a scanner: -2000, -3024, …

    Lossy compression smears padding into many values; then all values that low are padding.
    """
    lowest = values.min(where=real, initial=np.inf)
    if lowest >= AIR_LIMIT:
        return np.zeros(values.shape, dtype=bool)
    if lossy:
        return real & (values < AIR_LIMIT - _LONELY)
    next_lowest = values.min(where=real & (values > lowest), initial=np.inf)
    if next_lowest <= lowest + _LONELY:
        return np.zeros(values.shape, dtype=bool)
    return real & (values == lowest)


def _value_notes(
    modality: str, volume: Float[np.ndarray, "slices height width"], reader: _Reader
) -> list[str]:
    """Return notes on what the values are, and on what was assumed of them."""
    planes = reader.planes
    smallest = float(volume.min())
    notes = []
    if reader.hounsfield:
        if all(p.slope is not None or p.intercept is not None for p in planes):
            notes += series.air_notes(smallest)
        else:
            notes.append("The rescale is missing: the stored values may not be Hounsfield units.")
        if units := ", ".join(sorted({p.units for p in planes} - {"", "HU"})):
            notes.append(f"RescaleType is {units}, perhaps not Hounsfield units.")
    else:
        notes.append(f"The modality is {modality}: values are not Hounsfield units.")
    if len({(p.slope, p.intercept) for p in planes}) > 1:
        notes.append("The rescale differs from slice to slice; each has its own.")
    if reader.inverted:
        notes.append("MONOCHROME1: the values were inverted, so that large is bright.")
    if reader.share:
        values = ", ".join(f"{value:g}" for value, _ in reader.padding.most_common(3))
        if len(reader.padding) > 3:
            values += ", …"
        notes.append(
            f"Padding ({values}) is {100 * reader.share:.1f} % of the pixels; it is set to "
            f"{smallest:g}, the smallest real value."
        )
    if not modality:
        notes.append("The modality is missing: it is taken as CT.")
    if reader.lossy:
        notes.append("The pixels were compressed with loss.")
    if len(planes) == 1:
        notes.append("There is a single slice.")
    spacings = {p.spacing for p in planes}
    if None in spacings:
        notes.append("PixelSpacing is missing: 1 x 1 mm is assumed.")
    elif len(spacings) > 1:
        sides = series.list_some(sorted(f"{s[0]:g} x {s[1]:g}" for s in spacings if s))
        notes.append(f"PixelSpacing differs: {sides} mm; the first slice's is kept.")
    thicknesses = _count_thicknesses(planes)
    if len(thicknesses) > 1:
        counts = ", ".join(f"{count} x {thickness:g}" for thickness, count in thicknesses)
        notes.append(f"Slice thickness changes: {counts} mm.")
    return notes


def _count_thicknesses(planes: Sequence[Plane]) -> list[tuple[float, int]]:
    """Return the stated thicknesses of slices in mm with their counts, the most common first."""
    return Counter(p.thickness for p in planes if p.thickness).most_common()
