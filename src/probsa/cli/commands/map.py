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
Draw the score of each instance, and its variance where it has one, as one PNG file per bag."""


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
        "--score", choices=("auto", "attention", "contribution", "evidence", "probability"),
        default="auto",
        help="Score to show. auto: the one that the run chose on its validation bags. "
        "contribution: attention times class score. evidence: what the patch says on its own. "
        "probability: P(evidence > 0). Default: auto.",
    )  # fmt: skip
    add(
        "--scale", choices=("fixed", "per-bag"), default="per-bag",
        help="Colour scale: the same for all bags (fixed), or from the range of each bag. "
        "Default: per-bag.",
    )  # fmt: skip
    add(
        "--geojson", action="store_true",
        help="Also write <bag>.geojson for QuPath: one tile per patch, with its values as "
        "measurements.",
    )  # fmt: skip
    _add_flags_of_overlays(parser)
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


def run(arguments: Sequence[str]) -> int:
    """Run `probsa map`."""
    args = parse_arguments(parser(), arguments)
    if args.resolution is not None and args.longest is not None:
        raise InputError("--longest is not allowed with --resolution: give one of the two")
    from ...maps import render_folder
    from ..terminal import OUT, counting

    over = _over(args)
    with stated_limit(args), counting("drawing") as count:
        failures = render_folder(
            args.predictions,
            args.out,
            bags=args.bag,
            score=args.score,
            scale=args.scale,
            over=over,
            geojson=args.geojson,
            progress=count,
        )
    if args.json:
        failed = [{"bag": b, "reason": r} for b, r in failures]
        write_json({"maps": str(args.out), "failed": failed})
    else:
        OUT.print(f"maps: {args.out}", markup=False)
    return exit_status(failures, as_json=args.json)


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
