"""Stage 8: a file of original weights becomes a file that `probsa predict` takes.

`.safetensors` is read as it is; `.pt`, `.pth` and `.ckpt` as tensors only: nothing is unpickled.
"""

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ..errors import CheckpointError, OutputExists
from ..models import Model, from_original
from .checkpoints import save_checkpoint

WRAPPERS = ("state_dict", "model_state_dict", "model", "state")
"""Keys under which training scripts keep the state dict, beside an optimiser's or an epoch."""


def convert_checkpoint(
    source: Path,
    out: Path,
    *,
    reference: str,
    arguments: Mapping[str, Any] | None = None,
    classes: Sequence[str] | None = None,
    overwrite: bool = False,
) -> Model:
    """Reads original weights, writes our checkpoint, and gives the model.

    Args:
        source: the original's file.
        out: the checkpoint to write; `probsa.load` and `probsa predict` take it.
        reference: which original, as for `from_original`.
        arguments: the original constructor's, under its names.
        classes: names of the classes in the order of their indices.
        overwrite: replace `out`.

    Raises:
        CheckpointError: a file that cannot be read safely, or weights of another layout or size.
        OutputExists: `out` is there and `overwrite` is not set.
    """
    if out.exists() and not overwrite:
        raise OutputExists(f"{out} exists: give another name, or --overwrite")
    model = from_original(reference, read_state(source), **dict(arguments or {}))
    count = max(model.n_classes, 2)
    named = tuple(classes) if classes else tuple(str(c) for c in range(count))
    if len(named) != count:
        raise CheckpointError(
            f"{len(named)} names of classes ({', '.join(named)}) for a model of {count} classes"
        )
    metadata = {
        "model": model.name,
        "arguments": model.arguments,
        "classes": named,
        "reference": reference,
        "source": source.name,
    }
    save_checkpoint(
        out, {f"model.{k}": v for k, v in model.state_dict().items()}, metadata=metadata
    )
    return model


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name; parts of parts are joined by dots.

    Raises:
        CheckpointError: missing, damaged, or holding more than tensors and plain values.
    """
    if not path.is_file():
        raise CheckpointError(f"there is no file {path}")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        held = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, OSError) as e:
        first = str(e).partition("\n")[0]
        raise CheckpointError(
            f"{path} cannot be read as plain tensors ({first}). A file that pickles whole objects "
            "is not opened: save the model's state_dict() where you trust it, and convert that"
        ) from e
    if not isinstance(held, Mapping):
        raise CheckpointError(f"{path} holds a {type(held).__name__}, not a state dict")
    for key in WRAPPERS:
        inside = held.get(key)
        if isinstance(inside, Mapping):
            held = inside
    return _flat(held)


def _flat(held: Mapping[str, Any], *, prefix: str = "") -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for key, value in held.items():
        name = f"{prefix}{key}"
        if isinstance(value, Tensor):
            found[name] = value
        elif isinstance(value, Mapping):
            found |= _flat(value, prefix=f"{name}.")
    return found
