"""Stage 10: write the maps of a predictions folder in other formats, and report what failed."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from ..cohorts import Record
from ..core import named_file
from ..datasets import BagSet, open_bags
from ..errors import BagError, InputError, MissingExtra, ProbSAError, UnknownName
from ..evaluation import Prediction, Predictions, read_predictions
from ..jobs import sweep, write_lock
from ..maps import CohortSources, checked_squares, squares, write_qupath
from ..slides import Scan, Slide
from .annotated_data import AnnotatedBag, write_annotated
from .contours import write_contours
from .dicom import write_parametric_map, write_segmentation
from .dicom_grids import DicomGrid
from .dicom_grids import grid_of_series as dicom_grid_of_series
from .dicom_grids import grid_of_slide as dicom_grid_of_slide
from .nifti import check_scan, grid_of_nifti, write_nifti
from .nifti import grid_of_series as nifti_grid_of_series
from .ome_tiff import write_ome_tiff
from .provenance import Provenance, provenance
from .quantities import probabilities, quantities

GeoJsonKind = Literal["contours", "tiles"]
AnnDataKind = Literal["per-bag", "one-file"]
ONE_FILE = "maps.h5ad"
SUFFIXES = (".ome.tiff", ".geojson", ".dcm", ".nii.gz", ".h5ad")
NEEDS_DICOM = "a DICOM map refers to the DICOM images that it describes"
ERRORS = (ProbSAError, OSError, RuntimeError, MemoryError)
"""Errors that one bag can raise, including those of the decoding libraries."""
Failures = list[tuple[str, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportSettings:
    """The formats to write; each bag has its own files, named after it."""

    ome_tiff: bool = False
    geojson: GeoJsonKind | None = None
    """Regions at levels of P(evidence), or one tile per patch."""
    dicom: bool = False
    nifti: bool = False
    anndata: AnnDataKind | None = None
    """One file per bag, or one for all bags."""
    features: Path | None = None
    """The folder of the features for AnnData; None leaves them out."""

    def __bool__(self) -> bool:
        """Whether any format is chosen."""
        return bool(self.ome_tiff or self.geojson or self.dicom or self.nifti or self.anndata)


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """What an export has written and what it could not write."""

    files: tuple[Path, ...] = ()
    failures: Failures = field(default_factory=list)
    """(bag, reason) pairs."""
    absent: dict[str, str] = field(default_factory=dict)
    """Quantities that the model lacks, with the reasons."""


def export_folder(
    predictions: Path,
    out: Path,
    settings: ExportSettings,
    *,
    bags: Sequence[str] | None = None,
    sources: CohortSources | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Exported:
    """Write the maps of the given bags (None: all bags) in the chosen formats.

    Args:
        predictions: A folder that `probsa predict` wrote.
        out: The folder of the files; existing files of these bags are replaced.
        settings: The formats.
        bags: Names of the bags.
        sources: Where the slides or scans are; OME-TIFF, DICOM and NIfTI need them.
        progress: A function called with (done, total) after each bag.

    Raises:
        UnknownName: A bag is not in the predictions; nothing is written in this case.
        InputError, TableError: The folder is not a predictions folder, a format needs `sources`,
            contours are asked of a model without P(evidence), or the bags do not fit into one
            AnnData file.
        MissingExtra: The package that writes a format is not installed.
    """
    table = read_predictions(predictions)
    names = list(table.bags if bags is None else bags)
    for bag in names:
        if bag not in table.bags:
            raise UnknownName("predicted bag", bag, table.bags)
    export = _Export(table, out, settings, sources=sources)
    sweep(out, guard=lambda path: _guard(path, out, table.bags))
    for k, bag in enumerate(names):
        export.write(bag)
        if progress is not None:
            progress(k + 1, len(names))
    export.finish()
    return Exported(files=tuple(export.files), failures=export.failures, absent=dict(export.absent))


def _check_probability(table: Predictions) -> None:
    """Refuse contours of a model without P(evidence), which its first readable bag shows."""
    for bag in table.bags:
        try:
            p = table.instances(bag)
        except BagError:
            continue
        try:
            probabilities(p)
        except InputError as error:
            raise InputError(f"{error}. Give --geojson tiles for one tile per patch") from error
        return


def _guard(path: Path, out: Path, bags: Sequence[str]) -> Path | None:
    """Return the file itself, which has its own lock, if an export writes files of this name."""
    own = path.parent == out and path.name.endswith(SUFFIXES)
    named = path.name == ONE_FILE or any(path.name.startswith(bag) for bag in bags)
    return path if own and named else None


class _Export:
    """Writes the files of one bag after the other."""

    def __init__(
        self,
        table: Predictions,
        out: Path,
        settings: ExportSettings,
        *,
        sources: CohortSources | None,
    ) -> None:
        for flag, chosen in (
            ("--ome-tiff", settings.ome_tiff),
            ("--dicom", settings.dicom),
            ("--nifti", settings.nifti),
        ):
            if chosen and sources is None:
                raise InputError(f"{flag} places the map on its slide or scan: add --slides FOLDER")
        self.table, self.out, self.settings, self.sources = table, out, settings, sources
        if settings.geojson == "contours":
            _check_probability(table)
        self.features: BagSet | None = None
        if settings.anndata and settings.features is not None:
            self.features = open_bags(settings.features, cache_gb=0.0)
        self.files: list[Path] = []
        self.failures: Failures = []
        self.absent: dict[str, str] = {}
        self._annotated: list[AnnotatedBag] = []

    def write(self, bag: str) -> None:
        """Write the files of one bag; what fails is reported, and the other formats are written."""
        try:
            p = self.table.instances(bag)
            about = provenance(self.table, p)
        except ERRORS as error:
            self.failures.append((bag, str(error)))
            return
        self.absent |= quantities(p).absent
        for name, chosen, write in (
            ("OME-TIFF", self.settings.ome_tiff, self._ome_tiff),
            ("GeoJSON", self.settings.geojson, self._geojson),
            ("DICOM", self.settings.dicom, self._dicom),
            ("NIfTI", self.settings.nifti, self._nifti),
            ("AnnData", self.settings.anndata, self._anndata),
        ):
            if not chosen:
                continue
            try:
                for path in write(p, about):
                    self.files.append(path)
            except MissingExtra:  # it is missing for the other bags as well
                raise
            except ERRORS as error:
                self.failures.append((bag, f"the {name} file was not written: {error}"))

    def finish(self) -> None:
        """Write the file that holds all bags."""
        if self._annotated:
            with write_lock(self.out / ONE_FILE):
                write_annotated(self.out / ONE_FILE, self._annotated)
            self.files.append(self.out / ONE_FILE)

    def _ome_tiff(self, p: Prediction, about: Provenance) -> Iterator[Path]:
        path = named_file(self.out, p.name, ".ome.tiff")
        with self._slide(p, what="OME-TIFF") as slide:
            patches = checked_squares(p, slide, sources=self._placed())
            with write_lock(path):
                write_ome_tiff(
                    path, p, patches, size=slide.size, mpp=slide.mpp, about=about,
                    classes=self.table.classes,
                )  # fmt: skip
        yield path

    def _geojson(self, p: Prediction, about: Provenance) -> Iterator[Path]:
        path = named_file(self.out, p.name, ".geojson")
        with write_lock(path):
            if self.settings.geojson == "tiles":
                write_qupath(
                    path, p, classes=self.table.classes, side=self._side(p), about=about.entries
                )
            else:
                write_contours(
                    path, p, squares(p, side=self._side(p)), mpp=self._mpp(p), about=about,
                    classes=self.table.classes,
                )  # fmt: skip
        yield path

    def _dicom(self, p: Prediction, about: Provenance) -> Iterator[Path]:
        record = self._placed().record(p)
        if record.kind == "slide":
            grid = mask_grid = self._grid_of_slide(p, record)
        elif record.format == "nifti":
            raise InputError(f"{record.source} is NIfTI: {NEEDS_DICOM}. Export it with --nifti")
        else:
            grid = dicom_grid_of_series(record, p, coarse=True)
            mask_grid = dicom_grid_of_series(record, p, coarse=False)
        held = quantities(p, classes=self.table.classes)
        for quantity in held.present:
            path = named_file(self.out, p.name, f"_{quantity.suffix}.dcm")
            with write_lock(path):
                write_parametric_map(path, quantity, grid=grid, about=about)
            yield path
        if chances := held.of("probability"):
            path = named_file(self.out, p.name, "_segmentation.dcm")
            with write_lock(path):
                write_segmentation(path, chances, grid=mask_grid, about=about)
            yield path

    def _nifti(self, p: Prediction, about: Provenance) -> Iterator[Path]:
        check_scan(p)
        record = self._placed().record(p)
        if record.format == "nifti":
            scan = self._placed().open(p)
            assert isinstance(scan, Scan)
            grid = grid_of_nifti(scan)
        else:
            grid = nifti_grid_of_series(record)
        for quantity in quantities(p, classes=self.table.classes).present:
            path = named_file(self.out, p.name, f"_{quantity.suffix}.nii.gz")
            with write_lock(path):
                write_nifti(path, p, quantity, grid=grid, about=about)
            yield path

    def _anndata(self, p: Prediction, about: Provenance) -> Iterator[Path]:
        is_slide = p.coords is not None and p.coords.shape[-1] == 2
        bag = AnnotatedBag(
            p=p,
            about=about,
            features=self._features(p),
            side=squares(p, side=self._side(p)).side if is_slide else None,
            classes=self.table.classes,
        )
        if self.settings.anndata == "one-file":
            self._annotated.append(bag)
            return
        path = named_file(self.out, p.name, ".h5ad")
        with write_lock(path):
            write_annotated(path, [bag])
        yield path

    def _features(self, p: Prediction) -> np.ndarray:
        n = len(p.attention_mean)
        if self.features is None:
            return np.empty((n, 0), np.float32)
        stored = self.features.stored(p.name)
        same = len(stored.features) == n
        if p.coords is not None and stored.coords is not None:
            same = same and np.array_equal(stored.coords, p.coords)
        if not same:
            raise InputError(
                f"the features of {p.name!r} in {self.features.folder} are not those that were "
                f"predicted: they have {len(stored.features)} instances, the prediction {n}, or "
                "other coordinates. Give --features with the folder that was predicted, or "
                "--no-features"
            )
        return stored.features

    def _grid_of_slide(self, p: Prediction, record: Record) -> DicomGrid:
        with self._slide(p, what="DICOM") as slide:
            if slide.format != "dicom":
                raise InputError(
                    f"{record.source} is not DICOM: {NEEDS_DICOM}. Convert the slide (for example "
                    "with wsidicomizer) and predict it again, or export it with --ome-tiff"
                )
            patches = checked_squares(p, slide, sources=self._placed())
            return dicom_grid_of_slide(record, patches, size=slide.size)

    def _slide(self, p: Prediction, *, what: str) -> Slide:
        source = self._placed().open(p)
        if isinstance(source, Scan):
            raise InputError(f"bag {p.name!r} is a scan: {what} is written for slides")
        return source

    def _placed(self) -> CohortSources:
        assert self.sources is not None, "formats that need the sources are refused without them"
        return self.sources

    def _side(self, p: Prediction) -> float | None:
        patches = None if self.sources is None else self.sources.patches(p)
        return None if patches is None else patches.size_level0

    def _mpp(self, p: Prediction) -> float | None:
        """Return the slide's resolution; None if the slide is not there or does not state it."""
        if self.sources is None:
            return None
        try:
            with self._slide(p, what="GeoJSON") as slide:
                return slide.mpp
        except ProbSAError:
            return None
