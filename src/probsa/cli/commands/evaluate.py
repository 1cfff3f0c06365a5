"""probsa evaluate: figures of a folder of predictions."""

from pathlib import Path

from ...errors import InputError
from ._shared import Parser, write_json


def run(arguments: list[str]) -> int:
    """probsa evaluate."""
    parser = Parser(prog="probsa evaluate", description="Figures of a folder of predictions.")
    parser.add_argument("predictions", type=Path, help="folder that probsa predict wrote")
    parser.add_argument("--labels", type=Path, help="table bag,label[,group]")
    parser.add_argument("--classes", nargs="+", help="class names in order, where labels are names")
    parser.add_argument(
        "--part", choices=("auto", "test", "val", "train", "all"), default="auto",
        help="which bags: auto takes those that training never saw",
    )  # fmt: skip
    parser.add_argument(
        "--lesions", type=Path,
        help="folder of annotations (<bag>.xml of ASAP, .json; or masks .npy, .png, .tif at 1/32 "
        "of level 0): the official CAMELYON16 FROC",
    )  # fmt: skip
    parser.add_argument("--mpp", type=float, help="µm of a level-0 pixel, for --lesions (0.243)")
    parser.add_argument("--bootstrap", type=int, default=2000, help="resamples of the intervals")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    a = parser.parse_args(arguments)
    from ...evaluation import evaluate as report
    from ..terminal import OUT

    if a.bootstrap < 0 or 0 < a.bootstrap < 20:
        raise InputError(f"--bootstrap is {a.bootstrap}: 0 (no intervals) or at least 20")
    if a.mpp is not None and a.lesions is None:
        raise InputError(f"--mpp is {a.mpp:g}, which only lesions need: give --lesions DIR too")
    found = report(
        a.predictions,
        labels=a.labels,
        classes=a.classes,
        part=a.part,
        lesions=a.lesions,
        mpp=a.mpp,
        bootstrap=a.bootstrap,
        seed=a.seed,
    )
    if a.json:
        write_json(found.to_dict())
    else:
        found.render(OUT)
    return 0
