"""Convert files of original weights into checkpoints that `probsa predict` accepts.

Of `.pt`, `.pth` and `.ckpt` files only tensors and plain values are loaded, never pickled objects.
"""

import pickle
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ..errors import CheckpointError, OutputExists
from ..models import Model, from_original
from .checkpoints import prefixed, save_checkpoint
from .config import leaves

WRAPPERS = ("state_dict", "model_state_dict", "model", "state")
"""Keys under which training scripts store the state dict, next to an optimiser or an epoch."""


def convert_checkpoint(
    source: Path,
    out: Path,
    *,
    reference: str,
    arguments: Mapping[str, Any] | None = None,
    classes: Sequence[str] | None = None,
    overwrite: bool = False,
) -> Model:
    """Convert original weights into a checkpoint for `probsa.load`, and return the model.

    `reference` names the original, as for `from_original`, and `arguments` are those of its
    constructor, under its own names.

    Raises:
        CheckpointError: the file cannot be read safely, or its weights have another layout or size.
        OutputExists: `out` exists and `overwrite` is not set.
    """
    if out.exists() and not overwrite:
        raise OutputExists(f"{out} exists: give another name, or --overwrite")
    model = from_original(reference, read_state(source), **dict(arguments or {}))
    count = max(model.n_classes, 2)
    class_names = tuple(classes) if classes else tuple(str(c) for c in range(count))
    if len(class_names) != count:
        raise CheckpointError(
            f"{len(class_names)} names of classes ({', '.join(class_names)}) for a model of "
            f"{count} classes"
        )
    metadata = {
        "model": model.name,
        "arguments": model.arguments,
        "classes": class_names,
        "reference": reference,
        "source": source.name,
    }
    save_checkpoint(out, prefixed("model", model.state_dict()), metadata=metadata)
    return model


def read_state(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file by name; the keys of nested dictionaries are joined by dots.

    Raises:
        CheckpointError: the file is missing, damaged, or not limited to tensors and plain values.
    """
    if not path.is_file():
        raise CheckpointError(f"there is no file {path}")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(content, Mapping):
            raise CheckpointError(f"{path} holds a {type(content).__name__}, not a state dict")
        for key in WRAPPERS:
            inside = content.get(key)
            if isinstance(inside, Mapping):
                content = inside
        return {k: v for k, v in leaves(content) if isinstance(v, Tensor)}
    except (  # what PyTorch and the standard library raise for damaged files
        SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError,
        TypeError, LookupError, AttributeError, AssertionError, ImportError, struct.error,
        MemoryError, OverflowError,
    ) as e:  # fmt: skip
        first = str(e).partition("\n")[0]
        raise CheckpointError(
            f"{path} cannot be read as plain tensors ({first}). A file that pickles whole objects "
            "is not opened: if you trust it, save the model's state_dict(), and convert that file"
        ) from e
