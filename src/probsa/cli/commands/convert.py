"""probsa convert: convert the bags of one tool to files of another."""

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from jsonargparse import ArgumentParser

from ...datasets import SourceFormat, TargetFormat
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
Convert the bags of one tool to files of another.

OUT/conversion.csv lists what became of each bag and what could not be converted."""


def parser() -> ArgumentParser:
    """Return the parser of `probsa convert`."""
    parser = command_parser("convert", DESCRIPTION)
    add = parser.add_argument
    add("source", type=Path, help="Folder with the features that the tool wrote.")
    add("--from", required=True, choices=get_args(SourceFormat), help="Tool that wrote them.")
    add("--to", required=True, choices=get_args(TargetFormat), help="Tool to write files for.")
    add("--out", type=Path, required=True, metavar="DIR", help="Folder to write to.")
    add(
        "--slide-mpp", metavar="MPP|CSV",
        help="Micrometres per level-0 pixel, for slides whose files do not state it: one number, "
        "or a CSV table with the columns slide,mpp.",
    )  # fmt: skip
    add("--labels", type=Path, metavar="CSV", help="Table of labels to write in the target format.")
    add(
        "--classes", nargs="+", metavar="NAME",
        help="Names of the classes in the order of their indices, if the labels are names.",
    )  # fmt: skip
    add("--feature-set", metavar="NAME", help="Folder of features to use if there are several.")
    add(
        "--encoder", metavar="NAME",
        help="Encoder that the features were made with, if the files do not state it.",
    )  # fmt: skip
    add("--overwrite", action="store_true", help="Replace existing bags.")
    add_limit_flag(parser)
    add_json_flag(parser)
    return parser


def run(arguments: Sequence[str]) -> int:
    """Run `probsa convert`."""
    args = parse_arguments(parser(), arguments)
    from ...core import counted
    from ...datasets import ConversionOptions, convert
    from ..terminal import OUT, counting

    options = ConversionOptions(
        slide_mpp=args.slide_mpp,
        labels=args.labels,
        classes=None if args.classes is None else tuple(args.classes),
        feature_set=args.feature_set,
        encoder=args.encoder,
        overwrite=args.overwrite,
    )
    with stated_limit(args), counting("converting") as count:
        converted = convert(
            args.source,
            args.out,
            source_format=args["from"],
            target_format=args.to,
            options=options,
            on_bag=count,
        )
    if args.json:
        write_json(converted.to_dict())
        return exit_status(converted.failures, as_json=True)
    number = converted.count("converted")
    OUT.print(f"{counted(number, 'bag')} converted: {converted.out}", markup=False, soft_wrap=True)
    for row in converted.rows:
        if row.status == "empty":
            OUT.print(f"empty, left out: {row.bag}", markup=False, soft_wrap=True)
    for text, bags in [*converted.losses().items(), *((text, 0) for text in converted.lost)]:
        where = f" ({bags} bag{'s' if bags > 1 else ''})" if bags else ""
        OUT.print(f"not converted: {text}{where}", markup=False, soft_wrap=True)
    OUT.print(f"what became of each bag: {converted.report}", markup=False, soft_wrap=True)
    return exit_status(converted.failures, as_json=False)
