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
from ._base import Scan, reading
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
    display, first = stack.display, headers[0]
    lossy = any(header.lossy for header in headers)
    reader = _Reader(hounsfield=first.modality in ("CT", ""), lossy=lossy)
    with reading(path):
        volume, read_notes = reader.volume(path, stack)
    planes, positions = reader.planes, np.array(reader.positions)
    rows, columns = planes[0].spacing or (1.0, 1.0)
    thick = Counter(p.thickness for p in planes if p.thickness).most_common()
    notes += [*stack.notes, *series.geometry_notes(positions, planes, display), *read_notes]
    notes += _value_notes(first.modality, volume, reader)
    return Scan(
        name=name,
        path=path,
        format="dicom",
        volume=volume,
        positions=positions,
        spacing=(columns, rows) if display.transpose else (rows, columns),
        thickness=thick[0][0] if thick else None,
        plane=None if planes[0].orientation is None else display.plane,
        notes=tuple(notes),
        properties={**first.properties, "TransferSyntax": reader.syntax},
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
        twice: list[str] = []
        for place in stack.places:
            kept: Plane | None = None
            for plane in place.planes:
                try:
                    image = stack.display.apply(self.read(plane))
                except SlideError as error:
                    broken.append(str(error))
                    continue
                if kept is None:
                    kept = plane
                    images.append(image)
                    self.positions.append(place.position)
                    self.planes.append(plane)
                else:
                    same = np.array_equal(images[-1], image, equal_nan=True)
                    twice.append(
                        f"{plane.label} lies at {place.position:.2f} mm, as does {kept.label}, "
                        f"with {'the same pixels' if same else 'DIFFERENT pixels'}"
                    )
        if not images:
            raise SlideError(f"{path} holds no slice that can be decoded: {series.listed(broken)}")
        volume = np.stack(images)
        images.clear()
        padding = np.isnan(volume)
        if padding.all():
            raise SlideError(f"{path} holds nothing but padding")
        self.share, volume[padding] = float(padding.mean()), np.nanmin(volume)
        notes = []
        if twice:
            notes.append(f"Duplicate slices left out: {series.listed(twice)}.")
        if broken:
            notes.append(f"Slices that cannot be decoded left out: {series.listed(broken)}.")
        return volume, notes

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
            bits, signed = int(dataset.BitsStored), int(dataset.PixelRepresentation) == 1
            lowest = -(2 ** (bits - 1)) if signed else 0
            ends = _rescale(np.array([[lowest, lowest + 2**bits - 1]]), dataset, plane)
            values = ends.sum() - values
        if not np.abs(values).max() <= np.finfo(np.float32).max:
            raise SlideError(
                f"{plane.label}: RescaleSlope {plane.slope:g} and RescaleIntercept "
                f"{plane.intercept or 0:g} give values that no scanner measures"
            )
        return np.where(real, values, np.nan).astype(np.float32)


def _decode(dataset: "Dataset", plane: Plane) -> Shaped[np.ndarray, "..."]:
    from pydicom.pixels.utils import pixel_array
    from pydicom.uid import JPEG2000TransferSyntaxes

    syntax = dataset.file_meta.TransferSyntaxUID
    # on some damaged streams of JPEG 2000, gdcm ends the process
    plugin = "pillow" if syntax in JPEG2000TransferSyntaxes else ""
    try:
        return pixel_array(dataset, index=plane.frame, decoding_plugin=plugin)
    except Exception as error:  # decoders of damaged frames raise errors of any kind
        if is_fault(error):
            raise
        if syntax.is_compressed and not plugin and importlib.util.find_spec("gdcm") is None:
            raise MissingExtra("python-gdcm", "ct") from error
        raise SlideError(f"{plane.label}: {' '.join(str(error).split())}") from error


def _rescale(
    stored: Shaped[np.ndarray, "h w"], dataset: "Dataset", plane: Plane
) -> Float[np.ndarray, "h w"]:
    if dataset.get("ModalityLUTSequence") and plane.slope is None:
        from pydicom.pixels.processing import apply_modality_lut

        return np.asarray(apply_modality_lut(stored, dataset), dtype=np.float64)
    slope = 1.0 if plane.slope is None else plane.slope
    return stored.astype(np.float64) * slope + (plane.intercept or 0.0)


def _declared_padding(
    stored: Shaped[np.ndarray, "h w"], dataset: "Dataset"
) -> Bool[np.ndarray, "h w"]:
    """Return where pixels equal PixelPaddingValue or lie in the declared padding range."""
    ends = []
    for key in ("PixelPaddingValue", "PixelPaddingRangeLimit"):
        value = dataset.get(key)
        whole = isinstance(value, bytes) and len(value) == 2
        value = int.from_bytes(value, "little") if whole else number(dataset, key)
        if value is not None and stored.dtype.kind in "iu":
            # in the type of the pixels, because writers confuse signs (-2000 for 63536)
            ends.append(np.int64(value).astype(stored.dtype))
        elif not ends:
            return np.zeros(stored.shape, dtype=bool)
    return (stored >= min(ends)) & (stored <= max(ends))


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
    planes, smallest = reader.planes, float(volume.min())
    spacings = {p.spacing for p in planes}
    sides = series.listed(sorted(f"{s[0]:g} x {s[1]:g}" for s in spacings if s))
    thick = Counter(p.thickness for p in planes if p.thickness).most_common()
    stated = all(p.slope is not None or p.intercept is not None for p in planes)
    units = ", ".join(sorted({p.units for p in planes} - {"", "HU"}))
    common = [f"{value:g}" for value, _ in reader.padding.most_common(3)]
    values = ", ".join(common) + (", …" if len(reader.padding) > 3 else "")
    table = (
        (not reader.hounsfield, f"The modality is {modality}: values are not Hounsfield units."),
        (
            reader.hounsfield and not stated,
            "The rescale is missing: the stored values may not be Hounsfield units.",
        ),
        *((reader.hounsfield and stated, note) for note in series.air_notes(smallest)),
        (reader.hounsfield and units, f"RescaleType is {units}, perhaps not Hounsfield units."),
        (
            len({(p.slope, p.intercept) for p in planes}) > 1,
            "The rescale differs from slice to slice; each has its own.",
        ),
        (reader.inverted, "MONOCHROME1: the values were inverted, so that large is bright."),
        (
            reader.share,
            f"Padding ({values}) is {100 * reader.share:.1f} % of the pixels; it is set to "
            f"{smallest:g}, the smallest real value.",
        ),
        (not modality, "The modality is missing: it is taken as CT."),
        (reader.lossy, "The pixels were compressed with loss."),
        (len(planes) == 1, "There is a single slice."),
        (None in spacings, "PixelSpacing is missing: 1 x 1 mm is assumed."),
        (
            None not in spacings and len(spacings) > 1,
            f"PixelSpacing differs: {sides} mm; the first slice's is kept.",
        ),
        (
            len(thick) > 1,
            f"Slice thickness changes: {', '.join(f'{n} x {t:g}' for t, n in thick)} mm.",
        ),
    )
    return [note for holds, note in table if holds]
