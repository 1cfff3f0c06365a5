"""probsa demo: run the complete workflow on slides of handwritten digits."""

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser

from ._shared import add_json_flag, command_parser, parse_arguments, write_json

DESCRIPTION = """\
Run the complete workflow on slides of handwritten digits, in about a minute and a half.

No input files are needed. The demo trains ABMIL, the paper's ProbSA and the default
recipe, evaluates them, draws their maps side by side, and writes a page, OUT/page/index.html."""


def parser() -> ArgumentParser:
    """Return the parser of `probsa demo`."""
    parser = command_parser("demo", DESCRIPTION)
    parser.add_argument(
        "--out", type=Path, default=Path("probsa-demo"), metavar="DIR",
        help="Folder to write to. Default: probsa-demo.",
    )  # fmt: skip
    add_json_flag(parser)
    return parser


def run(arguments: Sequence[str]) -> int:
    """Run `probsa demo`."""
    args = parse_arguments(parser(), arguments)
    from ..demo import render, run_demo
    from ..terminal import OUT, training_bar

    with training_bar() as bar:
        result = run_demo(args.out, reporter=bar)
    if args.json:
        write_json(result)
    else:
        render(result, OUT)
    return 0
