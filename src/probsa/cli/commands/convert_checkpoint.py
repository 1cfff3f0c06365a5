"""probsa convert-checkpoint: the weights of a published method's own code."""

from pathlib import Path

from ...errors import InputError
from ._shared import Parser, write_json


def run(arguments: list[str]) -> int:
    """probsa convert-checkpoint."""
    parser = Parser(
        prog="probsa convert-checkpoint",
        description="Original weights of a published method, as a model that probsa predict takes.",
    )
    parser.add_argument("file", type=Path, help="state dict: .pt, .pth, .ckpt or .safetensors")
    parser.add_argument("--reference", required=True, help="which original: clam_sb, dsmil, …")
    parser.add_argument("--out", type=Path, required=True, help="the .safetensors file to write")
    parser.add_argument(
        "--argument", action="append", default=[], metavar="NAME=VALUE",
        help="of the original's constructor, under its name (k_sample=8); may be given again",
    )  # fmt: skip
    parser.add_argument("--classes", nargs="+", help="class names in the order of their indices")
    parser.add_argument("--overwrite", action="store_true", help="replace the file there")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    a = parser.parse_args(arguments)
    from ...training import conversion
    from ..terminal import OUT

    wrong = [text for text in a.argument if "=" not in text]
    if wrong:
        raise InputError(f"--argument is {wrong[0]!r}: expected NAME=VALUE, as in k_sample=8")
    model = conversion.convert_checkpoint(
        a.file,
        a.out,
        reference=a.reference,
        arguments=dict(text.split("=", 1) for text in a.argument),
        classes=a.classes,
        overwrite=a.overwrite,
    )
    if a.json:
        write_json({"file": str(a.out), "model": model.name, "arguments": model.arguments})
    else:
        OUT.print(f"{model.name}, {model.arguments}: {a.out}", markup=False)
    return 0
