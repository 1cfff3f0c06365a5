"""probsa evaluate: compute the metrics of a folder of predictions."""

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser

from ...errors import InputError
from ._guarantee_flags import add_guarantee_flags, guarantee_options
from ._shared import (
    add_json_flag,
    add_limit_flag,
    command_parser,
    parse_arguments,
    stated_limit,
    write_json,
)

DESCRIPTION = """\
Compute the metrics of a folder of predictions, with confidence intervals."""


def parser() -> ArgumentParser:
    """Return the parser of `probsa evaluate`."""
    parser = command_parser("evaluate", DESCRIPTION)
    add = parser.add_argument
    add("predictions", type=Path, help="Folder that probsa predict wrote.")
    add(
        "--labels", type=Path, metavar="CSV",
        help="Table of labels with the columns bag,label[,group].",
    )  # fmt: skip
    add(
        "--classes", nargs="+", metavar="NAME",
        help="Names of the classes in the order of their indices, if the labels are names.",
    )  # fmt: skip
    add(
        "--part", choices=("auto", "test", "val", "train", "all"), default="auto",
        help="Which bags to evaluate. Default: auto, the bags that were not used in training.",
    )  # fmt: skip
    add(
        "--lesions", type=Path, metavar="DIR",
        help="Folder with annotations of lesions, for the official CAMELYON16 FROC: <bag>.xml of "
        "ASAP, <bag>.json, or masks (.npy, .png, .tif) at 1/32 of level 0.",
    )  # fmt: skip
    add(
        "--mpp", type=float, metavar="MPP",
        help="Micrometres per level-0 pixel, for --lesions. Default: 0.243.",
    )  # fmt: skip
    add_guarantee_flags(parser)
    add(
        "--bootstrap", type=int, default=2000, metavar="N",
        help="Number of resamples for the confidence intervals; 0 for none. Default: 2000.",
    )  # fmt: skip
    add("--seed", type=int, default=0, metavar="N", help="Seed of the resampling. Default: 0.")
    add(
        "--figures", type=Path, metavar="DIR",
        help="Folder to write figures of reliability, retention and deletion to, as PNG.",
    )  # fmt: skip
    add_limit_flag(parser)
    add_json_flag(parser)
    return parser


def run(arguments: Sequence[str]) -> int:
    """Run `probsa evaluate`."""
    args = parse_arguments(parser(), arguments)
    from ...evaluation import evaluate
    from ..terminal import ERR, OUT

    if args.bootstrap < 0 or 0 < args.bootstrap < 20:
        raise InputError(
            f"--bootstrap is {args.bootstrap}: expected 0 (no intervals) or at least 20"
        )
    if args.mpp is not None and args.lesions is None:
        raise InputError(f"--mpp is {args.mpp:g}, which only lesions need: add --lesions DIR")
    with stated_limit(args):
        report = evaluate(
            args.predictions,
            labels=args.labels,
            classes=args.classes,
            part=args.part,
            lesions=args.lesions,
            mpp=args.mpp,
            guarantees=guarantee_options(args),
            bootstrap=args.bootstrap,
            seed=args.seed,
        )
    if args.figures is not None:
        from ...maps import write_report_figures

        write_report_figures(report, args.figures)
    if args.json:
        write_json(report.to_dict())
    else:
        report.render(OUT)
    for reason in report.unmet:
        ERR.print(f"probsa: error: {reason}", markup=False, soft_wrap=True, highlight=False)
    return 2 if report.unmet else 0
