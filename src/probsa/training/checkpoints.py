"""Checkpoints: safetensors files, with everything that is not a tensor as JSON in the header.

A checkpoint is written atomically, and is read without unpickling.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from ..core import NonNegativeInt, as_record, is_fault, parse_json, replacing
from ..errors import (
    CheckpointError,
    InputError,
    MissingExtra,
    ProbSAError,
    UnknownName,
)
from ..models import Model, build, names
from ..models import arguments as model_arguments
from .config import tuples, without_removed

R = TypeVar("R")

FORMAT = 1
FITTED = ("likelihood", "covariates")
"""What `build` takes beside the arguments of a model."""
ADVICE = "copy the file again, or train the run again"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Format:
    format: int
    version: str = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredModel:
    """What a checkpoint states about its model."""

    model: str
    """Its registered name."""
    arguments: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredPredictor(StoredModel):
    """What a checkpoint states about predictions too."""

    classes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """The content of a checkpoint."""

    tensors: dict[str, Tensor]
    """By name: `model.…`, `standardize.…`, `optimizer.…`, `memory.…`."""
    metadata: dict[str, Any]
    path: Path = Path("checkpoint")
    """The file, for error messages."""

    def stated(self, cls: type[R]) -> R:
        """Return the metadata as a dataclass; a CheckpointError names a wrong or missing key."""
        return as_record(
            cls, self.metadata, where=str(self.path), advice=ADVICE, error=CheckpointError
        )

    def part(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors whose names begin with `prefix.`, without that prefix."""
        start = f"{prefix}."
        tensors: dict[str, Tensor] = {}
        for name, tensor in self.tensors.items():
            if name.startswith(start):
                tensors[name.removeprefix(start)] = tensor
        return tensors


@dataclass
class Progress:
    """How far a run has come; every field is stored in its checkpoints."""

    epoch: NonNegativeInt = 0
    """Number of epochs that are complete."""
    step: NonNegativeInt = 0
    """Number of steps that are complete."""
    best: dict[str, int | float | None] = field(default_factory=dict)
    """Number (from 1) and validation scores of the best epoch."""
    history: list[dict[str, int | float | None]] = field(default_factory=list)
    """The rows of metrics.csv."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _StoredProgress:
    progress: Progress


@dataclass(frozen=True, kw_only=True, slots=True)
class _StoredGroups:
    groups: list[dict[str, Any]]


def progress_of(checkpoint: Checkpoint) -> Progress:
    """Return the progress that a checkpoint states."""
    return checkpoint.stated(_StoredProgress).progress


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors under their names in a checkpoint, the reverse of `Checkpoint.part`."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def save_checkpoint(
    path: Path | str, tensors: Mapping[str, Tensor], *, metadata: Mapping[str, Any]
) -> None:
    """Write a checkpoint atomically."""
    path = Path(path)
    from .. import __version__

    header = {"format": FORMAT, "version": __version__, **metadata}
    with replacing(path) as temporary:
        save_file(
            {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
            temporary,
            metadata={"probsa": json.dumps(header, default=str)},
        )


def load_checkpoint(path: Path | str) -> Checkpoint:
    """Read a checkpoint; a CheckpointError says what is wrong with the file."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"no checkpoint at {path}: did the run finish its first epoch?")
    try:
        with safe_open(path, framework="pt") as f:
            header = f.metadata() or {}
            tensors = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError, ValueError, RuntimeError, MemoryError) as e:
        raise CheckpointError(f"{path} is damaged or not a safetensors file ({e})") from e
    if "probsa" not in header:
        raise CheckpointError(f"{path} is a safetensors file, but not one that probsa wrote")
    metadata = parse_json(header["probsa"], where=str(path), advice=ADVICE, error=CheckpointError)
    checkpoint = Checkpoint(tensors=tensors, metadata=metadata, path=path)
    stated = checkpoint.stated(_Format)
    if stated.format != FORMAT:
        raise CheckpointError(
            f"{path} has checkpoint format {stated.format} (probsa {stated.version:.20}); this "
            f"probsa reads format {FORMAT}: use the version that wrote it"
        )
    return checkpoint


def restore_model(checkpoint: Checkpoint, *, expect: str | None = None) -> Model:
    """Build the model of a checkpoint, which must be `expect` if given, and load its weights.

    Sizes that are stated but not stored take no memory. Names and values of arguments are checked
    before the constructor is called: a wrong key or type inside it is a fault of the program.

    Raises:
        CheckpointError: the model is not `expect` or is not registered, or the weights do not fit.
    """
    stored = checkpoint.stated(StoredModel)
    path = checkpoint.path
    name = stored.model
    arguments = tuples(without_removed("model", stored.arguments, model=name))
    if expect is not None and name != expect:
        raise CheckpointError(f"{path} holds a {name!r}, not a {expect!r}")
    if name not in names():
        raise CheckpointError(f"{path} holds a model {name!r}, which is not installed here")
    tensors = checkpoint.part("model")
    try:
        accepted = {*model_arguments(name), *FITTED}
        for argument in arguments:
            if argument not in accepted:
                raise UnknownName(f"argument of {name}", argument, accepted)
        # First without memory, to compare sizes. A plug-in's model that reads the values of a
        # tensor cannot be built on the device "meta".
        meta = torch.device("meta")
        with torch.random.fork_rng(devices=[]), _at_most(tensors), suppress(RuntimeError), meta:
            build(name, **arguments)
        model = build(name, **arguments)
        model.load_state_dict(tensors)
    except MissingExtra:
        raise
    except (ProbSAError, RuntimeError, ValueError, ArithmeticError, MemoryError) as e:
        raise CheckpointError(f"{path} does not fit the model {name!r}: {_first(e)}") from e
    return model


@contextmanager
def _at_most(tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Raise an InputError as soon as the modules that are built have more weights together."""
    stored = sum(tensor.numel() for tensor in tensors.values())
    # a module may register and remove a tensor again, as weight normalisation does
    most = 2 * stored + 1024
    count = 0

    def add(module: object, name: str, value: Tensor | None) -> None:
        nonlocal count
        count += 0 if value is None else value.numel()
        if count > most:
            raise InputError(
                f"its arguments describe a larger model than its {stored:,} stored weights. "
                f"{ADVICE[0].upper()}{ADVICE[1:]}"
            )

    parameters = register_module_parameter_registration_hook(add)
    with parameters, register_module_buffer_registration_hook(add):
        yield


def _first(error: Exception) -> str:
    # of PyTorch's errors on weights, the second line names the first weight
    return " ".join(map(str.strip, str(error).splitlines()[:2])) or type(error).__name__


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return an optimiser's state as tensors by their names in a checkpoint."""
    tensors: dict[str, Tensor] = {}
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            if value is not None:
                tensors[f"optimizer.{index}.{name}"] = torch.as_tensor(value)
    return tensors


def restore_optimizer(optimizer: torch.optim.Optimizer, checkpoint: Checkpoint) -> None:
    """Load an optimiser's state from a checkpoint; it may be damaged, or of other weights."""
    groups = checkpoint.stated(_StoredGroups).groups
    state: dict[int, dict[str, Tensor]] = {}
    with damaged_state(checkpoint.path):
        for key, value in checkpoint.part("optimizer").items():
            index, _, name = key.partition(".")
            state.setdefault(int(index), {})[name] = value
        optimizer.load_state_dict({"state": state, "param_groups": groups})
        # PyTorch compares the number of weights, but not their shapes
        for weight, values in optimizer.state.items():
            for name, value in values.items():
                if isinstance(value, Tensor) and value.ndim and value.shape != weight.shape:
                    raise ValueError(f"{name} has the shape {list(value.shape)}")


@contextmanager
def damaged_state(path: Path) -> Iterator[None]:
    """Raise a CheckpointError that names the file for whatever goes wrong while it is restored."""
    try:
        yield
    except ProbSAError:
        raise
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as e:
        if is_fault(e):
            raise
        raise CheckpointError(
            f"{path} cannot be continued from ({_first(e)}): its state of training is damaged, or "
            "belongs to another model. Train the run again"
        ) from e
