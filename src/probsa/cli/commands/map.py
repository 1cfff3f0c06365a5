"""probsa map: pictures of where the evidence is, and how sure the model is of it."""

from argparse import Namespace
from pathlib import Path

from ...errors import InputError
from ._shared import Parser, status, write_json


def run(arguments: list[str]) -> int:
    """probsa map."""
    parser = Parser(prog="probsa map", description="Mean and variance of the attention, as PNG.")
    parser.add_argument("predictions", type=Path, help="folder that probsa predict wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder for the pictures")
    parser.add_argument("--bag", action="append", help="a bag (may be given again); default: all")
    parser.add_argument(
        "--scale", choices=("fixed", "per-bag"), default="per-bag",
        help="fixed: one colour scale for all bags; per-bag: from each bag's own range",
    )  # fmt: skip
    _over_arguments(parser)
    parser.add_argument(
        "--geojson", action="store_true",
        help="also <bag>.geojson for QuPath: a tile a patch, with its values as measurements",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON document")
    a = parser.parse_args(arguments)
    from ...maps import render_folder
    from ..terminal import OUT, counting

    over = _over(a)
    with counting("drawing") as count:
        failures = render_folder(
            a.predictions, a.out,
            bags=a.bag, scale=a.scale, over=over, geojson=a.geojson, progress=count,
        )  # fmt: skip
    if a.json:
        write_json({"maps": str(a.out), "failed": [{"bag": b, "reason": r} for b, r in failures]})
    else:
        OUT.print(f"maps: {a.out}", markup=False)
    return status(failures, as_json=a.json)


def _over_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--slides", type=Path,
        help="draw over the slides or the slices of the scans: the work folder of probsa patch, "
        "or a folder of slides or series",
    )  # fmt: skip
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--resolution", type=float, help="of the picture of a slide: µm per pixel")
    size.add_argument("--longest", type=int, help="pixels of its long side (default: 1200)")
    parser.add_argument("--alpha", type=float, help="share of the colour over tissue (0.6)")
    parser.add_argument(
        "--overlays", action="store_true", default=None,
        help="also <bag>_mean.png and <bag>_variance.png: the slide in colour, nothing around it",
    )  # fmt: skip
    parser.add_argument(
        "--slide-mpp", type=float, help="µm per level-0 pixel of slides that do not say"
    )


def _over(a: Namespace):  # noqa: ANN202 - maps load when the command runs, not when it is listed
    from ...maps import CohortSources, Over

    names = ("resolution", "longest", "alpha", "overlays")
    given = {k: getattr(a, k) for k in names if getattr(a, k) is not None}
    if a.slides is None:
        for name in (*given, *(["slide_mpp"] if a.slide_mpp is not None else [])):
            flag = name.replace("_", "-")
            raise InputError(f"--{flag} is for maps over slides: give --slides FOLDER as well")
        return None
    if a.slide_mpp is not None and not a.slide_mpp > 0:
        raise InputError(f"--slide-mpp is {a.slide_mpp:g}: give µm per pixel, above 0")
    return CohortSources(a.slides, mpp=a.slide_mpp), Over(**given)
