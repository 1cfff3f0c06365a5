"""probsa map: pictures of where the evidence is, and how sure the model is of it."""

from pathlib import Path

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
    parser.add_argument("--json", action="store_true", help="one JSON document")
    a = parser.parse_args(arguments)
    from ..maps.folder import render_folder
    from ..terminal import OUT, counting

    with counting("drawing") as count:
        failures = render_folder(a.predictions, a.out, bags=a.bag, scale=a.scale, progress=count)
    if a.json:
        write_json({"maps": str(a.out), "failed": [{"bag": b, "reason": r} for b, r in failures]})
    else:
        OUT.print(f"maps: {a.out}", markup=False)
    return status(failures, as_json=a.json)
