"""probsa map: draw where the evidence is, and how certain the model is of it."""

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from ...errors import InputError
from ._shared import (
    add_json_flag,
    add_limit_flag,
    command_parser,
    exit_status,
    parse_arguments,
    stated_limit,
    write_json,
)

DESCRIPTION = """\
Draw the score of each instance, and its variance where it has one, as one PNG file per bag, and
write them in the formats of other programs."""


def parser() -> ArgumentParser:
    """Return the parser of `probsa map`."""
    parser = command_parser("map", DESCRIPTION)
    add = parser.add_argument
    add("predictions", type=Path, help="Folder that probsa predict wrote.")
    add("--out", type=Path, required=True, metavar="DIR", help="Folder for the pictures.")
    add(
        "--bag", action="append", metavar="NAME",
        help="Bag to draw. May be repeated. Default: all bags.",
    )  # fmt: skip
    add(
        "--score",
        choices=("auto", "attention", "contribution", "evidence", "probability", "grade"),
        default="auto",
        help="Score to show. auto: the one that the run chose on its validation bags. "
        "contribution: attention times class score. evidence: what the patch says on its own. "
        "probability: P(evidence > 0). grade: the probability of each grade or a higher one of the "
        "patch on its own, a map for each. Default: auto.",
    )  # fmt: skip
    add(
        "--scale", choices=("fixed", "per-bag"), default="per-bag",
        help="Colour scale: the same for all bags (fixed), or from the range of each bag. "
        "Default: per-bag.",
    )  # fmt: skip
    _add_flags_of_overlays(parser)
    _add_flags_of_exports(parser)
    add_limit_flag(parser)
    add_json_flag(parser)
    return parser


def _add_flags_of_overlays(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("maps over slides").add_argument
    add(
        "--slides", type=Path, metavar="DIR",
        help="Draw over the slides, or over the slices of scans: the work folder of probsa patch, "
        "or a folder of slides or series.",
    )  # fmt: skip
    add(
        "--resolution", type=float, metavar="MPP",
        help="Micrometres per pixel of the picture of a slide.",
    )  # fmt: skip
    add(
        "--longest", type=int, metavar="PIXELS",
        help="Length of the longer side of the picture, instead of --resolution. Default: 1200.",
    )  # fmt: skip
    add(
        "--alpha", type=float, metavar="FRACTION",
        help="Opacity of the colour over the tissue. Default: 0.6.",
    )  # fmt: skip
    add(
        "--overlays", action="store_true",
        help="Also write <bag>_mean.png (for another score, its name) and <bag>_variance.png: only "
        "the coloured slide, without axes and colour bar.",
    )  # fmt: skip
    add(
        "--slide-mpp", metavar="MPP|FILE",
        help="Micrometres per level-0 pixel of slides that do not state it, or a table with the "
        "columns slide and mpp, which takes precedence over the files.",
    )  # fmt: skip


def _add_flags_of_exports(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("other formats (docs/exports.md)").add_argument
    add(
        "--ome-tiff", action="store_true",
        help="Also write <bag>.ome.tiff: mean, standard deviation and P(evidence) as a pyramid in "
        "register with the slide.",
    )  # fmt: skip
    add(
        "--geojson", nargs="?", const="contours", choices=("contours", "tiles"),
        help="Also write <bag>.geojson for QuPath: the regions with P(evidence) of at least 0.5, "
        "0.8, 0.9 and 0.95 (contours, the default), or one tile per patch with its values as "
        "measurements (tiles).",
    )  # fmt: skip
    add(
        "--dicom", action="store_true",
        help="Also write <bag>_<quantity>.dcm (parametric maps) and <bag>_segmentation.dcm, for "
        "DICOM slides and CT series.",
    )  # fmt: skip
    add(
        "--nifti", action="store_true",
        help="Also write <bag>_<quantity>.nii.gz on the grid of an evenly spaced scan.",
    )  # fmt: skip
    add(
        "--anndata", nargs="?", const="per-bag", choices=("per-bag", "one-file"),
        help="Also write <bag>.h5ad (per-bag, the default) or maps.h5ad (one-file): features and "
        "the values of each instance.",
    )  # fmt: skip
    add(
        "--features", type=Path, metavar="DIR",
        help="Folder of the features for --anndata. Default: the work folder of --slides.",
    )  # fmt: skip
    add("--no-features", action="store_true", help="Write AnnData files without features.")
    add("--no-png", action="store_true", help="Write only the other formats, and no pictures.")


def run(arguments: Sequence[str]) -> int:
    """Run `probsa map`."""
    args = parse_arguments(parser(), arguments)
    if args.resolution is not None and args.longest is not None:
        raise InputError("--longest is not allowed with --resolution: give one of the two")
    from ...exports import Exported, export_folder
    from ...maps import render_folder
    from ..terminal import ERR, OUT, counting

    over, settings = _over(args), _exports(args)
    failures: list[tuple[str, str]] = []
    exported = Exported()
    with stated_limit(args):
        if settings:
            sources = None if over is None else over[0]
            with counting("exporting") as count:
                exported = export_folder(
                    args.predictions, args.out, settings, bags=args.bag, sources=sources,
                    progress=count,
                )  # fmt: skip
        if not args.no_png:
            with counting("drawing") as count:
                failures = render_folder(
                    args.predictions, args.out, bags=args.bag, score=args.score, scale=args.scale,
                    over=over, progress=count,
                )  # fmt: skip
    failures += exported.failures
    if args.json:
        failed = [{"bag": b, "reason": r} for b, r in failures]
        files = [str(file) for file in exported.files]
        found = {"maps": str(args.out), "failed": failed}
        more = {"files": files, "absent": exported.absent} if settings else {}
        write_json({**found, **more})
    else:
        OUT.print(f"maps: {args.out}", markup=False)
        for quantity, reason in exported.absent.items():
            ERR.print(f"not exported: {quantity}: {reason}", markup=False, soft_wrap=True)
    return exit_status(failures, as_json=args.json)


def _exports(args: Namespace):  # noqa: ANN202 - the types are imported only when the command runs
    """Return the settings of the other formats."""
    from ...exports import ExportSettings

    if args.anndata is None and (args.features is not None or args.no_features):
        flag = "--features" if args.features is not None else "--no-features"
        raise InputError(f"{flag} is for AnnData files: add --anndata")
    features = None if args.no_features else args.features or args.slides
    if args.anndata is not None and features is None and not args.no_features:
        raise InputError(
            "--anndata needs the features: add --features DIR, --slides WORK with the work folder "
            "that holds them, or --no-features"
        )
    settings = ExportSettings(
        ome_tiff=args.ome_tiff,
        geojson=args.geojson,
        dicom=args.dicom,
        nifti=args.nifti,
        anndata=args.anndata,
        features=features if args.anndata is not None else None,
    )
    if args.no_png and not settings:
        raise InputError("--no-png leaves nothing to write: add a format, such as --ome-tiff")
    return settings


def _over(args: Namespace):  # noqa: ANN202 - the types are imported only when the command runs
    """Return the slides to draw over and how, or None."""
    from ...maps import CohortSources, OverlaySettings
    from ...slides import read_resolutions

    names = ("resolution", "longest", "alpha", "overlays")
    options = {k: args[k] for k in names if args[k] is not None and args[k] is not False}
    if args.slides is None:
        for name in (*options, *(["slide_mpp"] if args.slide_mpp is not None else [])):
            flag = name.replace("_", "-")
            raise InputError(f"--{flag} is for maps over slides: add --slides FOLDER")
        return None
    mpp = None if args.slide_mpp is None else read_resolutions(args.slide_mpp)
    return CohortSources(args.slides, mpp=mpp), OverlaySettings(**options)
