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

from ..errors import MissingExtra, SlideError
from . import _base, series
from .dicom_headers import DAMAGED, MAY_BE_OPENED, Header, Plane, number, quiet, read, read_header

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

AIR_LIMIT = -1024.0
"""Hounsfield units: scanners do not reconstruct lower values, so lower values are padding."""
_LONELY = 100.0
"""Hounsfield units: undeclared padding is a value that is at least this far from all others."""
_LARGE = 2 * 1024**3


def open_series(name: str, path: Path, *, files: Sequence[Path]) -> _base.Scan:
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
    modality = headers[0].modality
    lossy = any(header.lossy for header in headers)
    reader = _Reader(hounsfield=modality in ("CT", ""), lossy=lossy)
    with quiet():
        decoded = _volume(path, stack, reader)
    kept = decoded.planes
    positions = np.array(decoded.positions)
    notes += [
        *stack.notes,
        *series.tilt_notes(kept, stack.display),
        *series.spacing_notes(positions, kept),
        *decoded.notes,
        *_value_notes(modality, decoded, reader),
        *_header_notes(headers, kept),
    ]
    if decoded.volume.nbytes > _LARGE:
        notes.append(f"The volume takes {decoded.volume.nbytes / 1024**3:.1f} GiB of memory.")
    return _base.Scan(
        name=name,
        path=path,
        format="dicom",
        volume=decoded.volume,
        positions=positions,
        spacing=_spacing(kept, stack.display),
        thickness=_thickness(kept),
        notes=tuple(notes),
        properties={**headers[0].properties, "TransferSyntax": reader.syntax},
    )


def _headers(path: Path, files: Sequence[Path]) -> tuple[list[Header], list[str]]:
    """Return the headers of the images, and notes on the other files."""
    headers: list[Header] = []
    wrong: list[str] = []
    for file in files:
        try:
            header = read_header(file)
        except SlideError as error:
            wrong.append(str(error))
            continue
        if header.other and (len(files) > 1 or header.other not in MAY_BE_OPENED):
            wrong.append(f"{file.name} is not a slice ({header.other})")
        elif not header.grey:
            wrong.append(
                f"{file.name} is a colour image "
                f"({header.photometric or 'no photometric interpretation'}), "
                "where MONOCHROME1 or MONOCHROME2 was expected"
            )
        else:
            headers.append(header)
    if not headers:
        reason = series.listed(wrong) or "there are no files"
        raise SlideError(f"{path} holds no slice that can be read: {reason}")
    notes = [f"Left out: {series.listed(wrong)}."] if wrong else []
    if headers[0].other:
        notes.append(f"The image is a {headers[0].other}, not a slice of a scan.")
    return headers, notes


@dataclass(slots=True)
class _Volume:
    """The decoded slices and the notes about them."""

    volume: Float[np.ndarray, "slices height width"]
    positions: list[float]
    planes: list[Plane]
    notes: list[str]
    smallest: float = np.nan
    """The smallest value that is not padding."""
    padding: int = 0
    """The number of padding values."""


def _volume(path: Path, stack: series.Stack, reader: "_Reader") -> _Volume:
    """Read the slices in order, with one file in memory at a time; fill padding at the end."""
    first = stack.places[0].planes[0]
    shape = (first.columns, first.rows) if stack.display.transpose else (first.rows, first.columns)
    held = _Volume(np.empty((len(stack.places), *shape), np.float32), [], [], [])
    broken: list[str] = []
    twice: list[str] = []
    for place in stack.places:
        kept: Plane | None = None
        index = len(held.planes)
        for plane in place.planes:
            try:
                image = stack.display.apply(reader.read(plane))
            except SlideError as error:
                broken.append(str(error))
                continue
            if kept is None:
                kept = plane
                held.volume[index] = image
                held.positions.append(place.position)
                held.planes.append(plane)
            else:
                same = np.array_equal(held.volume[index], image, equal_nan=True)
                pixels = "the same pixels" if same else "DIFFERENT pixels"
                twice.append(
                    f"{plane.label} lies at {place.position:.2f} mm, as does {kept.label}, "
                    f"with {pixels}"
                )
    if not held.planes:
        raise SlideError(f"{path} holds no slice that can be decoded: {series.listed(broken)}")
    if twice:
        held.notes.append(f"Duplicate slices left out: {series.listed(twice)}.")
    if broken:
        held.notes.append(f"Slices that cannot be decoded left out: {series.listed(broken)}.")
    held.volume = held.volume[: len(held.planes)]
    held.smallest = float(np.fmin.reduce([np.fmin.reduce(image, None) for image in held.volume]))
    if np.isnan(held.smallest):
        raise SlideError(f"{path} holds nothing but padding")
    for image in held.volume:
        padding = np.isnan(image)
        held.padding += int(padding.sum())
        image[padding] = held.smallest
    return held


@dataclass(slots=True)
class _Reader:
    """Decode planes, and keep the last file open because it may contain several frames."""

    hounsfield: bool
    lossy: bool
    padding: Counter[float] = field(default_factory=Counter)
    """The values of padding pixels, with their counts."""
    inverted: bool = False
    syntax: str = ""
    _path: Path | None = None
    _dataset: "Dataset | None" = None

    def read(self, plane: Plane) -> Float[np.ndarray, "h w"]:
        """Return the stored image, rescaled, as float32; padding is NaN.

        Raises:
            SlideError: the image cannot be decoded; the message names the file.
        """
        if self._dataset is None or self._path != plane.path:
            self._dataset, self._path = read(plane.path, pixels=True), plane.path
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
        found, counts = np.unique(values[~real], return_counts=True)
        self.padding.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))
        if dataset.PhotometricInterpretation == "MONOCHROME1" and not self.hounsfield:
            # the photometric interpretation affects brightness values, not Hounsfield units
            self.inverted = True
            lowest, highest = _range(dataset)
            ends = _rescale(np.array([[lowest, highest]]), dataset, plane)
            values = ends.sum() - values
        if not np.abs(values).max() <= np.finfo(np.float32).max:
            raise SlideError(
                f"{plane.label}: RescaleSlope {plane.slope:g} and RescaleIntercept "
                f"{plane.intercept or 0:g} give values that no scanner measures"
            )
        return np.where(real, values, np.nan).astype(np.float32)


def _decode(dataset: "Dataset", plane: Plane) -> Shaped[np.ndarray, "..."]:
    from pydicom.pixels.utils import pixel_array

    try:
        return pixel_array(dataset, index=plane.frame)
    except DAMAGED as error:
        compressed = dataset.file_meta.TransferSyntaxUID.is_compressed
        if compressed and importlib.util.find_spec("gdcm") is None:
            raise MissingExtra("python-gdcm", "ct") from error
        reason = " ".join(str(error).split())
        raise SlideError(f"{plane.label}: {reason}") from error


def _rescale(
    stored: Shaped[np.ndarray, "h w"], dataset: "Dataset", plane: Plane
) -> Float[np.ndarray, "h w"]:
    if dataset.get("ModalityLUTSequence") and plane.slope is None:
        from pydicom.pixels.processing import apply_modality_lut

        return np.asarray(apply_modality_lut(stored, dataset), dtype=np.float64)
    slope = 1.0 if plane.slope is None else plane.slope
    return stored.astype(np.float64) * slope + (plane.intercept or 0.0)


def _range(dataset: "Dataset") -> tuple[int, int]:
    """Return the smallest and the largest value that can be stored."""
    bits = int(dataset.BitsStored)
    signed = int(dataset.PixelRepresentation) == 1
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)


def _declared_padding(
    stored: Shaped[np.ndarray, "h w"], dataset: "Dataset"
) -> Bool[np.ndarray, "h w"]:
    """Return where pixels equal PixelPaddingValue or lie in the declared padding range."""
    value = _padding_value(dataset, "PixelPaddingValue", stored.dtype)
    if value is None:
        return np.zeros(stored.shape, dtype=bool)
    limit = _padding_value(dataset, "PixelPaddingRangeLimit", stored.dtype)
    ends = sorted((value, value if limit is None else limit))
    return (stored >= ends[0]) & (stored <= ends[1])


def _padding_value(dataset: "Dataset", key: str, kind: np.dtype) -> int | None:
    """Return the value in the type of the pixels; writers confuse signs (-2000 for 63536)."""
    value = dataset.get(key)
    if isinstance(value, bytes) and len(value) == 2:
        value = int.from_bytes(value, "little")
    elif value is not None:
        value = number(dataset, key)
    if value is None or kind.kind not in "iu":
        return None
    value, limits = int(value), np.iinfo(kind)
    if limits.min <= value <= limits.max:
        return value
    wrapped = value % 2**limits.bits
    return wrapped - 2**limits.bits if wrapped > limits.max else wrapped


def _undeclared_padding(
    values: Float[np.ndarray, "h w"], real: Bool[np.ndarray, "h w"], *, lossy: bool
) -> Bool[np.ndarray, "h w"]:
    """Return where pixels have an isolated value below the range of a scanner: -2000, -3024, …

    Lossy compression smears padding into many values; then all values that low are padding.
    """
    known = values[real]
    if not known.size or known.min() >= AIR_LIMIT:
        return np.zeros(values.shape, dtype=bool)
    if lossy:
        return real & (values < AIR_LIMIT - _LONELY)
    smallest = known.min()
    others = known[known > smallest]
    alone = not others.size or others.min() > smallest + _LONELY
    return real & (values == smallest) if alone else np.zeros(values.shape, dtype=bool)


def _value_notes(modality: str, held: _Volume, reader: _Reader) -> list[str]:
    notes = []
    planes = held.planes
    if not reader.hounsfield:
        notes.append(f"The modality is {modality}: values are not Hounsfield units.")
    elif any(p.slope is None and p.intercept is None for p in planes):
        notes.append("The rescale is missing: the stored values may not be Hounsfield units.")
    else:
        notes += series.air_notes(held.smallest)
    units = {p.units for p in planes} - {"", "HU"}
    if units and reader.hounsfield:
        notes.append(f"RescaleType is {', '.join(sorted(units))}, perhaps not Hounsfield units.")
    if len({(p.slope, p.intercept) for p in planes}) > 1:
        notes.append("The rescale differs from slice to slice; each has its own.")
    if reader.inverted:
        notes.append("MONOCHROME1: the values were inverted, so that large is bright.")
    if held.padding:
        common = [f"{value:g}" for value, _ in reader.padding.most_common(3)]
        more = ", …" if len(reader.padding) > 3 else ""
        share = 100 * held.padding / held.volume.size
        notes.append(
            f"Padding ({', '.join(common)}{more}) is {share:.1f} % of the pixels; it is set to "
            f"{held.smallest:g}, the smallest real value."
        )
    return notes


def _header_notes(headers: Sequence[Header], planes: Sequence[Plane]) -> list[str]:
    notes = []
    if not headers[0].modality:
        notes.append("The modality is missing: it is taken as CT.")
    if any(header.lossy for header in headers):
        notes.append("The pixels were compressed with loss.")
    if len(planes) == 1:
        notes.append("There is a single slice.")
    spacings = {p.spacing for p in planes}
    if None in spacings:
        notes.append("PixelSpacing is missing: 1 x 1 mm is assumed.")
    elif len(spacings) > 1:
        told = sorted(f"{s[0]:g} x {s[1]:g}" for s in spacings if s)
        notes.append(f"PixelSpacing differs: {series.listed(told)} mm; the first slice's is kept.")
    thick = Counter(p.thickness for p in planes if p.thickness)
    if len(thick) > 1:
        told = ", ".join(f"{count} x {t:g}" for t, count in thick.most_common())
        notes.append(f"Slice thickness changes: {told} mm.")
    return notes


def _spacing(planes: Sequence[Plane], display: series.Display) -> tuple[float, float]:
    rows, columns = planes[0].spacing or (1.0, 1.0)
    return (columns, rows) if display.transpose else (rows, columns)


def _thickness(planes: Sequence[Plane]) -> float | None:
    """Return the most common thickness; the first one in case of a tie."""
    known = Counter(p.thickness for p in planes if p.thickness)
    return known.most_common(1)[0][0] if known else None
