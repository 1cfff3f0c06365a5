"""Stage 10: write the maps of a predictions folder in other formats, and report what failed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..core import as_paths, open_output, remove_leftovers, replacing
from ..datasets import open_bags
from ..errors import BagError, InputError, MissingExtra
from ..evaluation import Prediction, Predictions, read_predictions
from ..maps import READ_ERRORS, CohortSources, predicted_bags
from ..slides import Slide
from .annotated_data import annotated, write_annotated
from .bag import ExportBag
from .dicom import write_dicom
from .geojson import write_contours, write_tiles
from .nifti import write_nifti
from .ome_tiff import write_ome_tiff
from .provenance import provenance
from .quantities import missing_reasons

if TYPE_CHECKING:
    from anndata import AnnData

GeoJsonKind = Literal["contours", "tiles"]
AnnDataKind = Literal["per-bag", "one-file"]
ONE_FILE = "maps.h5ad"
SUFFIXES = (".ome.tiff", ".geojson", ".dcm", ".nii.gz", ".h5ad")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportSettings:
    """The formats to write; each bag has its own files, named after it."""

    ome_tiff: bool = False
    geojson: GeoJsonKind | None = None
    """Regions at levels of the probability, or one tile per patch."""
    dicom: bool = False
    nifti: bool = False
    anndata: AnnDataKind | None = None
    """One file per bag, or one for all bags."""
    features: Path | None = None
    """The folder of the features for AnnData; None leaves them out."""

    def __post_init__(self) -> None:
        as_paths(self)

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
    notes: list[str] = field(default_factory=list)
    """What a reader of the files should know, such as a bag without any contour."""


def export_folder(
    predictions: Path | str,
    out: Path | str,
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
            contours are asked of a model without a probability, or the bags do not fit into one
            AnnData file.
        MissingExtra: The package that writes a format is not installed.
    """
    table = read_predictions(predictions)
    out = Path(out)
    exported = Exported()
    # bags are read one at a time by the loop below, which also adds failures and reports progress
    bag_predictions = predicted_bags(table, bags, failures=exported.failures, progress=progress)
    annotated_bags: list[tuple[Prediction, AnnData]] = []
    writers = _writers(table, settings, sources=sources, annotated_bags=annotated_bags)
    open_output(out, own=False)
    remove_leftovers(out, own=lambda path: _is_export(path, out, table.bags))
    for p in bag_predictions:
        origin = replace(provenance(table, p), resolution=_resolution(p, sources))
        bag = ExportBag(
            p=p,
            about=origin,
            out=out,
            classes=table.classes,
            sources=sources,
            written=exported.files,
            notes=exported.notes,
        )
        exported.absent.update(missing_reasons(p))
        for name, write in writers.items():
            try:
                write(bag)
            except MissingExtra:  # it is missing for the other bags as well
                raise
            except READ_ERRORS as error:
                exported.failures.append((p.name, f"the {name} file was not written: {error}"))
    if annotated_bags:
        with replacing(out / ONE_FILE) as path:
            write_annotated(path, annotated_bags)
        exported.files.append(out / ONE_FILE)
    return exported


def _resolution(p: Prediction, sources: CohortSources | None) -> str:
    """Return the µm per pixel of a bag's slide, with their source; empty for others."""
    if sources is None:
        return ""
    try:
        if sources.record(p).kind != "slide":
            return ""
        opened = sources.open(p)
    except READ_ERRORS:
        # a format that needs the slide fails on its own, with this reason
        return ""
    assert isinstance(opened, Slide), "a record of kind slide is one"
    with opened as slide:
        return "" if slide.mpp is None else slide.mpp_statement


def _writers(
    table: Predictions,
    settings: ExportSettings,
    *,
    sources: CohortSources | None,
    annotated_bags: list[tuple[Prediction, "AnnData"]],
) -> dict[str, Callable[[ExportBag], None]]:
    """Return a function per chosen format that writes a bag; see `export_folder`.

    The one file of AnnData is written after all bags, which its function adds to `annotated_bags`.
    """
    for flag in ("ome_tiff", "dicom", "nifti"):
        if getattr(settings, flag) and sources is None:
            raise InputError(
                f"--{flag.replace('_', '-')} places the map on its slide or scan: add --slides "
                "FOLDER"
            )
    if settings.geojson == "contours":
        _check_probability(table)
    features = None
    if settings.anndata and settings.features is not None:
        features = open_bags(settings.features, cache_gb=0.0)

    def write_anndata(bag: ExportBag) -> None:
        annotated_bag = (bag.p, annotated(bag, features))
        if settings.anndata == "one-file":
            annotated_bags.append(annotated_bag)
        else:
            with bag.file(".h5ad") as path:
                write_annotated(path, [annotated_bag])

    writers: dict[str, Callable[[ExportBag], None]] = {}
    if settings.ome_tiff:
        writers["OME-TIFF"] = write_ome_tiff
    if settings.geojson:
        writers["GeoJSON"] = write_tiles if settings.geojson == "tiles" else write_contours
    if settings.dicom:
        writers["DICOM"] = write_dicom
    if settings.nifti:
        writers["NIfTI"] = write_nifti
    if settings.anndata:
        writers["AnnData"] = write_anndata
    return writers


def _check_probability(table: Predictions) -> None:
    """Refuse contours of a model without a probability, which its first readable bag shows."""
    for bag in table.bags:
        try:
            reason = missing_reasons(table.instances(bag)).get("probability")
        except BagError:
            continue  # the export names it as a failure
        if reason:
            raise InputError(
                f"bag {bag!r} has no probability: {reason}. Give --geojson tiles for one tile per "
                "patch"
            )
        return


def _is_export(path: Path, out: Path, bags: Sequence[str]) -> bool:
    """Return whether an export may write a file of this name.

    A suffix follows the name of the bag, or a quantity such as `_mean_tumour` and then a suffix.
    """
    if path.parent != out:
        return False
    if path.name == ONE_FILE:
        return True
    return path.name.startswith(tuple(bags)) and path.name.endswith(SUFFIXES)
