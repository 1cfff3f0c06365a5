"""probsa sets: write prediction sets for new bags."""

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser

from ...errors import InputError
from ._guarantee_flags import add_guarantee_flags, guarantee_options
from ._shared import add_json_flag, command_parser, parse_arguments, write_json

DESCRIPTION = """\
Write prediction sets and accepted calls for new bags, with guarantees from calibration bags.

The labels of the new bags are not needed. docs/guarantees.md says what is promised."""


def parser() -> ArgumentParser:
    """Return the parser of `probsa sets`."""
    parser = command_parser("sets", DESCRIPTION)
    add = parser.add_argument
    add("predictions", type=Path, help="Folder that probsa predict wrote for the new bags.")
    add("--out", type=Path, required=True, metavar="CSV", help="Table to write.")
    add_guarantee_flags(parser)
    add(
        "--labels", type=Path, metavar="CSV",
        help="Table of the calibration bags with the columns bag,label[,group]. Default: the "
        "labels stored with their predictions.",
    )  # fmt: skip
    add(
        "--classes", nargs="+", metavar="NAME",
        help="Names of the classes in the order of their indices, if the labels are names.",
    )  # fmt: skip
    add("--seed", type=int, default=0, metavar="N", help="Seed of the test for shift. Default: 0.")
    add("--overwrite", action="store_true", help="Replace an existing table.")
    add_json_flag(parser)
    return parser


def run(arguments: Sequence[str]) -> int:
    """Run `probsa sets`."""
    args = parse_arguments(parser(), arguments)
    from ...evaluation import write_sets
    from ..terminal import OUT

    options = guarantee_options(args)
    if options is None:
        raise InputError("probsa sets needs a level, for example --coverage 0.9")
    written = write_sets(
        args.predictions,
        options,
        out=args.out,
        labels=args.labels,
        classes=args.classes,
        overwrite=args.overwrite,
        seed=args.seed,
    )
    if args.json:
        write_json(written.to_dict())
    else:
        written.render(OUT)
    return 0
