"""probsa view: look at predictions in a browser."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from ...view import ViewData

DESCRIPTION = """\
Look at predictions in a browser: slides and scans with maps of the evidence and the uncertainty.

The page is served to this machine alone, until ctrl-C. With --export, it is written to a folder
that opens in a browser without a server. docs/view.md describes the page."""


def parser() -> ArgumentParser:
    """Return the parser of `probsa view`."""
    parser = command_parser("view", DESCRIPTION)
    add = parser.add_argument
    add("predictions", type=Path, help="Run folder, or folder that probsa predict wrote.")
    add(
        "--slides", type=Path, metavar="WORK",
        help="Show maps over the slides, or beside the slices of scans: the work folder of probsa "
        "patch, or a folder of slides or series.",
    )  # fmt: skip
    add(
        "--slide-mpp", metavar="MPP|FILE",
        help="Micrometres per level-0 pixel of slides that do not state it, or a table with the "
        "columns slide and mpp, which takes precedence over the files.",
    )  # fmt: skip
    add(
        "--against", type=Path, metavar="OTHER",
        help="Run or predictions of another model for the same bags, to show the difference.",
    )  # fmt: skip
    server = parser.add_argument_group("server").add_argument
    server("--port", type=int, metavar="N", help="Port. Default: a free one.")
    server("--open", action="store_true", help="Open the page in the default browser.")
    export = parser.add_argument_group("export").add_argument
    export(
        "--export", type=Path, metavar="DIR",
        help="Write the page to this folder instead of serving it.",
    )  # fmt: skip
    export(
        "--max-mpp", type=float, metavar="MPP",
        help="Finest resolution of exported slides, in micrometres per pixel. Default: 2.",
    )  # fmt: skip
    export(
        "--full", action="store_true",
        help="Export slides and slices of scans at their full resolution.",
    )  # fmt: skip
    export("--overwrite", action="store_true", help="Replace an earlier export.")
    add_limit_flag(parser)
    add_json_flag(parser)
    return parser


def run(arguments: Sequence[str]) -> int:
    """Run `probsa view`."""
    args = parse_arguments(parser(), arguments)
    _check(args)
    from ...slides import read_resolutions
    from ...view import MAX_MPP, SLICE_PIXELS, ViewData

    reduced = args.export is not None and not args.full
    with stated_limit(args):
        data = ViewData(
            args.predictions,
            slides=args.slides,
            against=args.against,
            mpp=None if args.slide_mpp is None else read_resolutions(args.slide_mpp),
            max_mpp=(args.max_mpp or MAX_MPP) if reduced else None,
            most_pixels=SLICE_PIXELS if reduced else None,
        )
        try:
            return _serve(data, args) if args.export is None else _export(data, args)
        finally:
            data.close()


def _check(args: Namespace) -> None:
    """Check that the flags belong together.

    Raises:
        InputError: a flag has no effect without another, or contradicts it.
    """
    if args.export is None:
        for flag in ("max_mpp", "full", "overwrite"):
            if args[flag]:
                raise InputError(f"--{flag.replace('_', '-')} is for exports: add --export DIR")
    elif args.open or args.port is not None:
        raise InputError("--open and --port are for the server, which --export does not start")
    if args.max_mpp is not None and args.full:
        raise InputError("--max-mpp is not allowed with --full: give one of the two")
    if args.max_mpp is not None and not args.max_mpp > 0:
        raise InputError(f"--max-mpp is {args.max_mpp:g}: give µm per pixel, above 0")
    if args.slide_mpp is not None and args.slides is None:
        raise InputError("--slide-mpp is for maps over slides: add --slides FOLDER")


def _serve(data: "ViewData", args: Namespace) -> int:
    from ...view import serve
    from ..terminal import ERR, OUT

    def ready(address: str) -> None:
        if args.json:
            write_json({"address": address, "bags": len(data.rows)})
        else:
            OUT.print(address, markup=False, soft_wrap=True)
            ERR.print("The page is for this machine alone. Stop with ctrl-C.", markup=False)
        OUT.file.flush()
        if args.open:
            import webbrowser

            webbrowser.open(address)

    serve(data, port=args.port or 0, ready=ready)
    return 0


def _export(data: "ViewData", args: Namespace) -> int:
    from ...view import export_page
    from ..terminal import OUT, counting

    with counting("exporting") as count:
        done = export_page(data, args.export, overwrite=args.overwrite, progress=count)
    failures = list(done.failures)
    page = done.folder / "index.html"
    if args.json:
        failed = [{"bag": b, "reason": r} for b, r in failures]
        write_json({"page": str(page), "bytes": done.bytes, "bags": done.bags, "failed": failed})
    else:
        OUT.print(f"page: {page} ({done.bytes / 1e6:,.1f} MB)", markup=False)
    return exit_status(failures, as_json=args.json)
