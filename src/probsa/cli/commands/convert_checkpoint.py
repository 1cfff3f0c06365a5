"""probsa convert-checkpoint."""

from pathlib import Path
from typing import Annotated

from ...errors import InputError, UnknownName
from ..command import Answer, Flag
from ..flags import Classes, Name


def run(
    file: Annotated[Path, Flag(holds="file")],
    *,
    reference: Name,
    out: Annotated[Path, Flag("FILE")],
    argument: Annotated[list[str], Flag("NAME=VALUE", repeated=True)] | None = None,
    classes: Classes | None = None,
    overwrite: bool = False,
) -> Answer:
    """Convert the original weights of a published method to a model for probsa predict.

    Args:
        file: State dict: a .pt, .pth, .ckpt or .safetensors file.
        reference: Original class that the weights belong to: clam_sb, dsmil, …
        out: The .safetensors file to write.
        argument: Argument of the original's constructor, by its original name (k_sample=8). May be
            repeated.
        classes: Names of the classes in the order of their indices.
        overwrite: Replace an existing file.
    """
    from ...models import known_originals

    pairs = [text.partition("=") for text in argument or ()]
    for name, equals, _ in pairs:
        if not equals:
            raise InputError(f"--argument is {name!r}: expected NAME=VALUE, as in k_sample=8")
    if reference not in (known := known_originals()):
        raise UnknownName("original class", reference, known)
    from ...training import convert_checkpoint

    model = convert_checkpoint(
        file, out, reference=reference, arguments={name: value for name, _, value in pairs},
        classes=classes, overwrite=overwrite,
    )  # fmt: skip
    document = {"file": str(out), "model": model.name, "arguments": model.arguments}
    return Answer(document, f"{model.name}, {model.arguments}: {out}")
