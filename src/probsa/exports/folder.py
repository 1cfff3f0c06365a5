"""Stage 10: write the maps of a predictions folder in other formats, and report what failed."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from ..core import named_file
from ..datasets import BagSet, open_bags
from ..errors import BagError, InputError, MissingExtra, ProbSAError, UnknownName
from ..evaluation import Prediction, Predictions, read_predictions
from ..jobs import sweep, write_lock
from ..maps import READ_ERRORS, CohortSources, checked_squares, squares, write_qupath
from ..slides import Scan, Slide
from . import dicom, nifti
from .annotated_data import AnnotatedBag, write_annotated
from .contours import write_contours
from .ome_tiff import write_ome_tiff
from .provenance import Provenance, provenance
from .quantities import channels, probabilities

GeoJsonKind = Literal["contours", "tiles"]
AnnDataKind = Literal["per-bag", "one-file"]
ONE_FILE = "maps.h5ad"
SUFFIXES = (".ome.tiff", ".geojson", ".dcm", ".nii.gz", ".h5ad")
NEEDS_DICOM = "a DICOM map refers to the DICOM images that it describes"
Files = Iterator[tuple[str, Callable[[Path], None]]]
"""The suffix of each file of a bag, and what writes it."""


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

    files: list[Path] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)
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
    export = _Export(table, settings, sources=sources)
    sweep(out, guard=lambda path: _guard(path, out, table.bags))
    done = Exported()
    for k, bag in enumerate(names):
        try:
            p = table.instances(bag)
            about = provenance(table, p)
            done.absent.update(channels(p).absent)
        except READ_ERRORS as error:
            done.failures.append((bag, str(error)))
        else:
            for name, files in export.formats().items():
                try:
                    for suffix, write in files(p, about):
                        path = named_file(out, p.name, suffix)
                        with write_lock(path):
                            write(path)
                        done.files.append(path)
                except MissingExtra:  # it is missing for the other bags as well
                    raise
                except READ_ERRORS as error:
                    done.failures.append((bag, f"the {name} file was not written: {error}"))
        if progress is not None:
            progress(k + 1, len(names))
    if export.annotated:
        with write_lock(out / ONE_FILE):
            write_annotated(out / ONE_FILE, export.annotated)
        done.files.append(out / ONE_FILE)
    return done


def _guard(path: Path, out: Path, bags: Sequence[str]) -> Path | None:
    """Return the file itself, which has its own lock, if an export writes files of this name."""
    own = path.parent == out and path.name.endswith(SUFFIXES)
    named = path.name == ONE_FILE or any(path.name.startswith(bag) for bag in bags)
    return path if own and named else None


class _Export:
    """The chosen formats of a predictions folder, with what they need."""

    def __init__(
        self, table: Predictions, settings: ExportSettings, *, sources: CohortSources | None
    ) -> None:
        self.table, self.settings, self.sources = table, settings, sources
        for flag in ("ome_tiff", "dicom", "nifti"):
            if getattr(settings, flag) and sources is None:
                raise InputError(
                    f"--{flag.replace('_', '-')} places the map on its slide or scan: add --slides "
                    "FOLDER"
                )
        if settings.geojson == "contours":
            self._check_probability()
        self.features: BagSet | None = None
        if settings.anndata and settings.features is not None:
            self.features = open_bags(settings.features, cache_gb=0.0)
        self.annotated: list[AnnotatedBag] = []

    def formats(self) -> dict[str, Callable[[Prediction, Provenance], Files]]:
        """Return what lists the files of a bag, by the name of each chosen format."""
        chosen = self.settings
        known = {
            "OME-TIFF": (chosen.ome_tiff, self._ome_tiff),
            "GeoJSON": (chosen.geojson, self._geojson),
            "DICOM": (chosen.dicom, self._dicom),
            "NIfTI": (chosen.nifti, self._nifti),
            "AnnData": (chosen.anndata, self._anndata),
        }
        return {name: files for name, (wanted, files) in known.items() if wanted}

    def _check_probability(self) -> None:
        """Refuse contours of a model without P(evidence), which its first readable bag shows."""
        for bag in self.table.bags:
            try:
                probabilities(self.table.instances(bag))
            except BagError:
                continue
            except InputError as error:
                raise InputError(f"{error}. Give --geojson tiles for one tile per patch") from error
            return

    def _ome_tiff(self, p: Prediction, about: Provenance) -> Files:
        with self._slide(p, what="OME-TIFF") as slide:
            patches = checked_squares(p, slide, sources=self._placed())
            size, mpp = slide.size, slide.mpp
        yield (
            ".ome.tiff",
            lambda path: write_ome_tiff(
                path, p, patches, size=size, mpp=mpp, about=about, classes=self.table.classes
            ),
        )

    def _geojson(self, p: Prediction, about: Provenance) -> Files:
        side, classes = self._side(p), self.table.classes
        if self.settings.geojson == "tiles":
            yield (
                ".geojson",
                partial(write_qupath, p=p, classes=classes, side=side, about=about.entries),
            )
        else:
            patches, mpp = squares(p, side=side), self._mpp(p)
            yield (
                ".geojson",
                lambda path: write_contours(
                    path, p, patches, mpp=mpp, about=about, classes=classes
                ),
            )

    def _dicom(self, p: Prediction, about: Provenance) -> Files:
        record = self._placed().record(p)
        if record.kind == "slide":
            with self._slide(p, what="DICOM") as slide:
                if slide.format != "dicom":
                    raise InputError(
                        f"{record.source} is not DICOM: {NEEDS_DICOM}. Convert the slide (for "
                        "example with wsidicomizer) and predict it again, or export it with "
                        "--ome-tiff"
                    )
                patches = checked_squares(p, slide, sources=self._placed())
                grid = mask_grid = dicom.grid_of_slide(record, patches, size=slide.size)
        elif record.format == "nifti":
            raise InputError(f"{record.source} is NIfTI: {NEEDS_DICOM}. Export it with --nifti")
        else:
            grid, mask_grid = dicom.grids_of_series(record, p)
        held = channels(p, classes=self.table.classes)
        for channel in held.present:
            yield (
                f"_{channel.suffix}.dcm",
                partial(dicom.write_parametric_map, channel=channel, grid=grid, about=about),
            )
        if chances := held.of("probability"):
            yield (
                "_segmentation.dcm",
                partial(dicom.write_segmentation, chances=chances, grid=mask_grid, about=about),
            )

    def _nifti(self, p: Prediction, about: Provenance) -> Files:
        if p.coords is None or p.coords.shape[-1] != 1:
            raise InputError(
                f"bag {p.name!r} is not a scan: NIfTI is written for scans, OME-TIFF for slides"
            )
        record = self._placed().record(p)
        if record.format == "nifti":
            scan = self._placed().open(p)
            assert isinstance(scan, Scan)
            grid = nifti.grid_of_nifti(scan)
        else:
            grid = nifti.grid_of_series(record)
        for channel in channels(p, classes=self.table.classes).present:
            yield (
                f"_{channel.suffix}.nii.gz",
                partial(nifti.write_nifti, p=p, channel=channel, grid=grid, about=about),
            )

    def _anndata(self, p: Prediction, about: Provenance) -> Files:
        is_slide = p.coords is not None and p.coords.shape[-1] == 2
        bag = AnnotatedBag(
            p=p,
            about=about,
            features=self._features(p),
            side=squares(p, side=self._side(p)).side if is_slide else None,
            classes=self.table.classes,
        )
        if self.settings.anndata == "one-file":
            self.annotated.append(bag)
        else:
            yield ".h5ad", lambda path: write_annotated(path, [bag])

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
