"""probsa map."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from ...errors import InputError, UnknownName
from ..command import Answer, Flag, write
from ..flags import Dir, MppWithSlides

SLIDES = "--slides DIR"
MOST_NOTES = 5
"""Notes on bags that are printed; the JSON document has all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlayFlags:
    """How maps are drawn over slides.

    Maps over slides:
        resolution: Micrometres per pixel of the picture of a slide.
        longest: Length of the longer side of the picture, instead of --resolution. Default: 1200.
        alpha: Opacity of the colour over the tissue. Default: 0.6.
        overlays: Also write <bag>_mean.png (for another score, its name), <bag>_doubt.png and so
            on: only the coloured slide, without axes and colour bar.
    """

    resolution: Annotated[float, Flag("MPP", needs=SLIDES)] | None = None
    longest: Annotated[int, Flag("PIXELS", needs=SLIDES)] | None = None
    alpha: Annotated[float, Flag("FRACTION", needs=SLIDES)] | None = None
    overlays: Annotated[bool, Flag(needs=SLIDES)] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportFlags:
    """Files for other programs.

    Other formats (docs/exports.md):
        ome_tiff: Also write <bag>.ome.tiff: mean, standard deviation and probability as a pyramid
            in register with the slide.
        geojson: Also write <bag>.geojson for QuPath: the regions with a probability of at least
            0.5, 0.8, 0.9 and 0.95 (contours, the default), or one tile per patch with its values as
            measurements (tiles).
        dicom: Also write <bag>_<quantity>.dcm (parametric maps) and <bag>_segmentation.dcm, for
            DICOM slides and CT series.
        nifti: Also write <bag>_<quantity>.nii.gz on the grid of an evenly spaced scan.
        anndata: Also write <bag>.h5ad (per-bag, the default) or maps.h5ad (one-file): features and
            the values of each instance.
        features: Folder of the features for --anndata. Default: the work folder of --slides.
    """

    ome_tiff: bool = False
    geojson: Annotated[Literal["contours", "tiles"], Flag(alone="contours")] | None = None
    dicom: bool = False
    nifti: bool = False
    anndata: Annotated[Literal["per-bag", "one-file"], Flag(alone="per-bag")] | None = None
    features: Annotated[Path, Flag("DIR", needs="--anndata", holds="folder")] | None = None


def run(
    predictions: Annotated[Path, Flag(holds="folder")],
    *,
    out: Dir,
    bag: Annotated[list[str], Flag("NAME", repeated=True)] | None = None,
    score: Literal[
        "auto", "attention", "contribution", "evidence", "probability", "grade"
    ] = "auto",
    scale: Literal["fixed", "per-bag"] = "fixed",
    variances: bool = False,
    slides: Annotated[Path, Flag("DIR", holds="any")] | None = None,
    slide_mpp: MppWithSlides | None = None,
    overlay: OverlayFlags,
    export: ExportFlags,
    no_features: Annotated[bool, Flag(needs="--anndata")] = False,
    no_png: bool = False,
) -> Answer:
    """Draw the score of each instance and the doubt about it, as one PNG file per bag.

    With the flags of other formats, the maps are written in those of other programs, too.

    Args:
        predictions: Run folder, or folder that probsa predict wrote.
        out: Folder for the pictures.
        bag: Bag to draw. May be repeated. Default: all bags.
        score: Score to show. auto: the one that the run chose on its validation bags. contribution:
            attention times class score. evidence: what the patch says on its own. probability:
            that of the patch to be positive. grade: the probability of each grade or a higher one
            of the patch on its own, a map for each.
        scale: Colour scale: the same for all bags (fixed: that of the validation bags, if there are
            any), or from the range of each bag.
        variances: Also show the variance of the score, and its parts within and between members.

    Maps over slides:
        slides: Draw over the slides, or over the slices of scans: the work folder of probsa patch,
            or a folder of slides or series.

    Other formats (docs/exports.md):
        no_features: Write AnnData files without features.
        no_png: Write only the other formats, and no pictures.
    """
    if overlay.resolution is not None and overlay.longest is not None:
        raise InputError("--longest is not allowed with --resolution: give one of the two")
    overlay_options = {
        key: value
        for key, value in asdict(overlay).items()
        if value is not None and value is not False
    }
    features = None if no_features else export.features or slides
    if export.anndata is None:
        features = None
    elif features is None and not no_features:
        raise InputError(
            "--anndata needs the features: add --features DIR, --slides WORK with the work folder "
            "that holds them, or --no-features"
        )
    formats: dict[str, Any] = asdict(export) | {"features": features}
    if no_png and not any(asdict(export).values()):
        raise InputError("--no-png leaves nothing to write: add a format, such as --ome-tiff")
    from ...datasets import bag_names
    from ...evaluation import read_predictions
    from ...slides import read_resolutions

    table = read_predictions(predictions)
    for name in bag or ():
        if name not in table.bags:
            raise UnknownName("predicted bag", name, table.bags)
    mpp = None if slide_mpp is None else read_resolutions(slide_mpp)
    if export.features is not None:
        bag_names(export.features)
    from ...exports import Exported, ExportSettings, export_folder
    from ...maps import DOUBTS, VARIANCES, CohortSources, OverlaySettings, render_folder, resolve
    from ..terminal import Counter

    settings = ExportSettings(**formats)
    sources = over = None
    if slides is not None:
        sources = CohortSources(slides, mpp=mpp)
        over = (sources, OverlaySettings(**overlay_options))
    failures: list[tuple[str, str]] = []
    exported = Exported()
    if settings:
        with Counter("exporting") as count:
            exported = export_folder(
                predictions, out, settings, bags=bag, sources=sources, progress=count
            )
    shown = resolve(table, score)
    if variances and not no_png and shown.score not in (None, shown.own):
        write(
            f"note: the maps show the score {shown.score!r}, and only {shown.own!r}, the model's "
            f"own, has variances: add --score {shown.own}",
            error=True,
        )
    if not no_png:
        with Counter("drawing") as count:
            failures = render_folder(
                predictions,
                out,
                bags=bag,
                score=score,
                scale=scale,
                also=(*DOUBTS, *VARIANCES) if variances else tuple(DOUBTS),
                over=over,
                progress=count,
            )
    failures += exported.failures
    document = {"maps": str(out), "failed": [{"bag": b, "reason": r} for b, r in failures]}
    if settings:
        document |= {
            "files": [str(f) for f in exported.files],
            "absent": exported.absent,
            "notes": exported.notes,
        }
    for quantity, reason in exported.absent.items():
        write(f"not exported: {quantity}: {reason}", error=True)
    for note in exported.notes[:MOST_NOTES]:
        write(f"note: {note}", error=True)
    if len(exported.notes) > MOST_NOTES:
        others = len(exported.notes) - MOST_NOTES
        write(f"note: {others} more notes; see --json", error=True)
    return Answer(document, f"maps: {out}", failures)
