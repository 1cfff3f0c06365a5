"""Checkpoints: safetensors files, with everything that is not a tensor as JSON in the header.

A checkpoint is written atomically, and is read without unpickling.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..core import replacing
from ..errors import CheckpointError
from ..models import Model, build, names

FORMAT = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """The content of a checkpoint."""

    tensors: dict[str, Tensor]
    """By name: `model.…`, `standardize.…`, `optimizer.…`, `memory.…`."""
    metadata: dict[str, Any]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors whose names begin with `prefix.`, without that prefix."""
        return {
            k.removeprefix(f"{prefix}."): v
            for k, v in self.tensors.items()
            if k.startswith(f"{prefix}.")
        }


def save_checkpoint(
    path: Path, tensors: Mapping[str, Tensor], *, metadata: Mapping[str, Any]
) -> None:
    """Write a checkpoint atomically."""
    from .. import __version__

    header = {"format": FORMAT, "version": __version__, **metadata}
    with replacing(path) as temporary:
        save_file(
            {k: v.detach().cpu().contiguous() for k, v in tensors.items()},
            temporary,
            metadata={"probsa": json.dumps(header, default=str)},
        )


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        CheckpointError: the file is missing, damaged, of another program, or of another format.
    """
    if not path.is_file():
        raise CheckpointError(f"no checkpoint at {path}: did the run finish its first epoch?")
    try:
        with safe_open(path, framework="pt") as f:
            header = f.metadata() or {}
            tensors = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError) as e:
        raise CheckpointError(f"{path} is damaged or not a safetensors file ({e})") from e
    if "probsa" not in header:
        raise CheckpointError(f"{path} is a safetensors file, but not one that probsa wrote")
    metadata = json.loads(header["probsa"])
    if metadata.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} has checkpoint format {metadata.get('format')} "
            f"(probsa {metadata.get('version')}); this probsa reads format {FORMAT}: "
            "use the version that wrote it"
        )
    return Checkpoint(tensors=tensors, metadata=metadata)


def restore_model(checkpoint: Checkpoint, *, path: Path, expect: str | None = None) -> Model:
    """Build the model of a checkpoint from its name and arguments, and load its weights.

    Args:
        checkpoint: the content of the file.
        path: its path, for error messages.
        expect: name that the model must have, or None for any.

    Raises:
        CheckpointError: the model is not `expect` or is not registered, or the weights do not fit.
    """
    name = checkpoint.metadata.get("model", "")
    if expect is not None and name != expect:
        raise CheckpointError(f"{path} holds a {name!r}, not a {expect!r}")
    if name not in names():
        raise CheckpointError(
            f"{path} holds a model {name!r}, which this installation does not have"
        )
    model = build(name, **_tuples(checkpoint.metadata["arguments"]))
    try:
        model.load_state_dict(checkpoint.part("model"))
    except RuntimeError as e:
        raise CheckpointError(f"{path} does not fit the model {name!r}: {e}") from e
    return model


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], list[Any]]:
    """Return an optimiser's state as tensors by name, and its parameter groups."""
    state = optimizer.state_dict()
    tensors = {
        f"optimizer.{i}.{k}": torch.as_tensor(v)
        for i, values in state["state"].items()
        for k, v in values.items()
        if v is not None
    }
    return tensors, state["param_groups"]


def restore_optimizer(optimizer: torch.optim.Optimizer, checkpoint: Checkpoint) -> None:
    """Load an optimiser's state from a checkpoint."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in checkpoint.part("optimizer").items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": checkpoint.metadata["groups"]})


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _tuples(v) for k, v in value.items()}
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
