"""Conversion of an original implementation's state dict to our model.

Each original is registered with `@original("clam_sb", …)`: its names of the parameters with ours,
and a function that reads our arguments from the shapes and from those of its constructor.
"""

import ast
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core import check_value
from ..errors import CheckpointError, InputError, UnknownName
from ._base import Model
from ._registry import build
from ._registry import names as _model_names

State = dict[str, Tensor]
Rules = Sequence[tuple[str, str | None]]
"""Pairs of a pattern of original names and our name, or None to drop it; the first match wins."""


class Given(dict[str, Any]):
    """The arguments of an original's constructor, which remembers the names it was asked for."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value that is given, else the default.

        Raises:
            InputError: the value is of another kind than the default.
        """
        self.read.add(key)
        value = super().get(key, default)
        if value is None:  # a shape that the original finds by itself
            return default if isinstance(default, tuple) else None
        check_value(key, value, _kind(default))
        return value


@dataclass(frozen=True, kw_only=True, slots=True)
class Original:
    """What is converted: a state dict, which may be changed, and its constructor's arguments."""

    reference: str
    remark: str
    """What follows the name of the original in the reference."""
    state: State
    arguments: Given

    def tensor(self, key: str, *, shape: Sequence[int] | None = None) -> Tensor:
        """Return one tensor, whose shape determines a dimension.

        Raises:
            CheckpointError: there is none, or it has another shape, or one dimension as a weight.
        """
        if key not in self.state:
            raise CheckpointError(
                f"no {key!r} in this state dict, which should be that of {self.reference}. "
                f"It holds {_some(sorted(self.state))}"
            )
        found = tuple(self.state[key].shape)
        flat = key.endswith("weight") and "norm" not in key and len(found) < 2
        if flat or shape not in (None, found):
            expected = shape or "2 or more dimensions"
            raise CheckpointError(f"{key} has shape {found}; {self.reference} has {expected}")
        return self.state[key]

    def count(self, pattern: str) -> int:
        """Return how many numbers the layers have whose names begin with a pattern."""
        return len({found[1] for k in self.state if (found := re.match(pattern, k))})


Reader = Callable[[Original], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """An original implementation; the fields are the arguments of `original`."""

    read: Reader
    model: str | None
    ignores: Collection[str] | None
    names: Rules


_sources: dict[str, Source] = {}


def original(
    *originals: str,
    model: str | None = None,
    ignores: Collection[str] | None = (),
    names: Rules = (),
) -> Callable[[Reader], Reader]:
    """Register a function that reads the state dict and the arguments of these originals.

    Args:
        originals: names of the original.
        model: our model. The function returns the model's arguments (and its `name`, if it is
            another). Without it, it returns the model with the original's weights.
        ignores: arguments of the original's constructor that the function does not ask for, as they
            have no effect on predictions; None: any.
        names: the original's names of the parameters, with ours.
    """

    def add(read: Reader) -> Reader:
        for name in originals:
            if name in _sources:
                raise ValueError(f"two functions read {name!r}")
            _sources[name] = Source(read=read, model=model, ignores=ignores, names=names)
        return read

    return add


def sources() -> dict[str, Source]:
    """Return the originals by name."""
    _model_names()  # imports the files of the models, which register the originals
    return _sources


def from_original(reference: str, state: Mapping[str, Tensor], **arguments: Any) -> Model:
    """Convert an original state dict to our model, in `eval()` mode.

    Args:
        reference: name of the original (`dsmil`), to which a remark may be added
            (`clam_sb_gated`).
        state: parameters under the original's names; their shapes determine the dimensions.
        arguments: arguments of the original's constructor that the shapes do not determine;
            strings that are Python literals are evaluated.

    Raises:
        UnknownName: no such reference, or no such argument; suggests the nearest.
        CheckpointError: another layout or size; names the key and both shapes.
    """
    name = _original_of(reference)
    source, remark = _sources[name], reference.removeprefix("ckpt_").removeprefix(name)
    given = Given({k: _value(v) for k, v in arguments.items()})
    tensors = {k: v.detach() for k, v in state.items()}
    for prefix in ("state_dict.", "model.", "module."):  # of wrappers (DataParallel, Lightning)
        if tensors and all(k.startswith(prefix) for k in tensors):
            tensors = {k.removeprefix(prefix): v for k, v in tensors.items()}
    if name.startswith("torchmil"):  # its lazy layers
        tensors = {k.replace(".module.", "."): v for k, v in tensors.items()}
    try:
        values = source.read(
            Original(reference=name, remark=remark, state=tensors, arguments=given)
        )
    except InputError:
        raise
    except (ValueError, IndexError) as e:
        raise CheckpointError(f"{name}: a tensor has another form than the original's ({e})") from e
    for argument in given if source.ignores is not None else ():
        if argument not in (known := {*given.read, *(source.ignores or ())}):
            raise UnknownName(f"argument of {name}", argument, sorted(known))
    if source.model is not None:
        model = build(values.pop("name", source.model), **values)
        values = transplant(model, tensors, source.names)
    return values.eval()


def _original_of(reference: str) -> str:
    """Return the name of the original in a reference; remarks follow an underscore."""
    name = reference.removeprefix("ckpt_")
    while name not in sources() and "_" in name:
        name = name.rpartition("_")[0]
    if name not in sources():
        raise UnknownName("reference", reference, sorted(_sources))
    return name


def transplant(model: Model, state: State, rules: Rules) -> Model:
    """Load an original's tensors into a model, using all of them and setting every parameter.

    Raises:
        CheckpointError: a tensor matches no parameter, a parameter is not set, or shapes differ.
    """
    ours = model.state_dict()
    renamed = {key: renaming(key, rules) for key in state}
    unknown = [key for key, name in renamed.items() if name is not None and name not in ours]
    converted: State = {}
    for key, name in renamed.items():
        if name is None or name not in ours:
            continue
        converted[name] = value = state[key]
        if value.shape != ours[name].shape:
            raise CheckpointError(
                f"{key} has shape {tuple(value.shape)} where {model.name} with these arguments has "
                f"{tuple(ours[name].shape)} ({name})"
            )
    missing = sorted(set(ours) - set(converted))
    if unknown or missing:
        raise CheckpointError(
            f"not a state dict of this kind of {model.name}: "
            f"unknown are {_some(unknown)}; nothing given for {_some(missing)}"
        )
    floats = {v.dtype for v in converted.values() if v.is_floating_point()}
    dtype = floats.pop() if len(floats) == 1 else torch.float32
    model.to(dtype).load_state_dict(converted)
    return model


def renaming(key: str, rules: Rules) -> str | None:
    """Return our name of a tensor; None if it is not used."""
    for pattern, name in rules:
        if re.match(pattern, key):
            return None if name is None else re.sub(pattern, name, key, count=1)
    return key


def _some(keys: Sequence[str], *, most: int = 4) -> str:
    more = f" and {len(keys) - most} more" if len(keys) > most else ""
    return (", ".join(keys[:most]) or "none") + more


def _kind(default: object) -> Any:
    """Return the annotation of the values that may be given in place of a default.

    In place of a name there may be a number (α of Sm), which is compared and passed on.
    """
    if isinstance(default, bool):
        return bool | int
    if isinstance(default, tuple):
        return tuple[int, ...]
    return type(default) if isinstance(default, int | float) else Any


def _value(v: Any) -> Any:
    if not isinstance(v, str):
        return v
    try:
        return ast.literal_eval(v)
    except (ValueError, SyntaxError):
        return v
