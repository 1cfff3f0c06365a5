"""probsa convert-checkpoint: convert the original weights of a published method."""

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser

from ...errors import InputError
from ._shared import add_json_flag, command_parser, parse_arguments, write_json

DESCRIPTION = """\
Convert the original weights of a published method to a model for probsa predict."""


def parser() -> ArgumentParser:
    """Return the parser of `probsa convert-checkpoint`."""
    parser = command_parser("convert-checkpoint", DESCRIPTION)
    add = parser.add_argument
    add("file", type=Path, help="State dict: a .pt, .pth, .ckpt or .safetensors file.")
    add(
        "--reference", required=True, metavar="NAME",
        help="Original class that the weights belong to: clam_sb, dsmil, …",
    )  # fmt: skip
    add("--out", type=Path, required=True, metavar="FILE", help="The .safetensors file to write.")
    add(
        "--argument", action="append", default=[], metavar="NAME=VALUE",
        help="Argument of the original's constructor, by its original name (k_sample=8). May be "
        "repeated.",
    )  # fmt: skip
    add(
        "--classes", nargs="+", metavar="NAME",
        help="Names of the classes in the order of their indices.",
    )  # fmt: skip
    add("--overwrite", action="store_true", help="Replace an existing file.")
    add_json_flag(parser)
    return parser


def run(arguments: Sequence[str]) -> int:
    """Run `probsa convert-checkpoint`."""
    args = parse_arguments(parser(), arguments)
    from ...training import convert_checkpoint
    from ..terminal import OUT

    wrong = [text for text in args.argument if "=" not in text]
    if wrong:
        raise InputError(f"--argument is {wrong[0]!r}: expected NAME=VALUE, as in k_sample=8")
    model = convert_checkpoint(
        args.file,
        args.out,
        reference=args.reference,
        arguments=dict(text.split("=", 1) for text in args.argument),
        classes=args.classes,
        overwrite=args.overwrite,
    )
    if args.json:
        write_json({"file": str(args.out), "model": model.name, "arguments": model.arguments})
    else:
        OUT.print(f"{model.name}, {model.arguments}: {args.out}", markup=False)
    return 0
