"""Conversion of an original implementation's state dict to our model.

Each original is registered with `@original("clam_sb", …)`: what its constructor takes, its names of
the parameters with ours, and a function that reads our arguments from the shapes. A reference is
one of these names, or one of them with a suffix that the original declares (`clam_sb_gated`).
"""

import ast
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..errors import CheckpointError, UnknownName
from ._base import Model
from ._registry import build, look_up
from ._registry import names as _model_names

State = dict[str, Tensor]
Rules = Sequence[tuple[str, str | None]]
"""Pairs of a pattern of original names and our name, or None to drop it; the first match wins."""
Reader = Callable[[str, State, dict[str, Any]], Any]
N = TypeVar("N", int, float)


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """An original implementation."""

    read: Reader
    """Returns the arguments of our model, or the model with the original's weights."""
    model: str | None
    """The registered name of our model; None if `read` returns a model."""
    variants: tuple[str, ...]
    takes: Collection[str] | None
    names: Rules

    def convert(self, reference: str, state: State, arguments: dict[str, Any]) -> Model:
        if self.takes is not None:
            only(arguments, self.takes, reference)
        if self.model is None:
            return self.read(reference, state, arguments)
        values = self.read(reference, state, arguments)
        return transplant(build(values.pop("name", self.model), **values), state, self.names)


_sources: dict[str, Source] = {}


def original(
    *originals: str,
    variants: Sequence[str] = (),
    model: str | None = None,
    takes: Collection[str] | None = None,
    names: Rules = (),
) -> Callable[[Reader], Reader]:
    """Register a function that reads the state dict and the arguments of these originals.

    Args:
        originals: names of the original.
        variants: suffixes, as regular expressions, that references may add to a name after `_`.
            The state dict and the arguments decide what is built, unless the function reads them.
        model: our model. The function may change the state dict in place, and returns the model's
            arguments (and its `name`, if it is another). Without it, it returns the model.
        takes: the arguments of the original's constructor; None if the function checks them.
        names: the original's names of the parameters, with ours.
    """

    def add(read: Reader) -> Reader:
        for name in originals:
            if name in _sources:
                raise ValueError(f"two functions read {name!r}")
            _sources[name] = Source(
                read=read, model=model, variants=tuple(variants), takes=takes, names=names
            )
        return read

    return add


def readers() -> dict[str, type[Model] | str]:
    """Return the model that each original becomes, by the original's name.

    Originals that another package reads have the module of the function that reads them.
    """
    _model_names()
    return {
        name: look_up(source.model).model
        if source.model and source.read.__module__.startswith(f"{__package__}.")
        else source.read.__module__
        for name, source in _sources.items()
    }


def from_original(reference: str, state: Mapping[str, Tensor], **arguments: Any) -> Model:
    """Convert an original state dict to our model, in `eval()` mode.

    Args:
        reference: name of the original (`dsmil`), possibly with a suffix (`dsmil_c2`).
        state: parameters under the original's names; their shapes determine the dimensions.
        arguments: arguments of the original's constructor that the shapes do not determine;
            strings that are Python literals are evaluated.

    Raises:
        UnknownName: no such reference; suggests the nearest.
        CheckpointError: another layout or size; names the key and both shapes.
    """
    given = {k: _value(v) for k, v in arguments.items()}
    tensors = bare({k: v.detach() for k, v in state.items()})
    return source_of(reference).convert(reference, tensors, given).eval()


def source_of(reference: str) -> Source:
    """Return the original that a reference means.

    Raises:
        UnknownName: there is none; suggests the nearest.
    """
    _model_names()  # imports the files of the models, which register the originals
    matches = [name for name in _sources if _is_of(reference, name)]
    if not matches:
        plain = [f"{k}_{v}" for k, s in _sources.items() for v in s.variants if v.isidentifier()]
        raise UnknownName("reference", reference, [*sorted(_sources), *plain])
    return _sources[max(matches, key=len)]


def _is_of(reference: str, name: str) -> bool:
    """Return whether a reference is this name, or the name with one of its suffixes."""
    start, suffix = reference[: len(name)], reference[len(name) :]
    if start != name or not suffix:
        return reference == name
    return any(re.fullmatch(f"_(?:{v})", suffix) for v in _sources[name].variants)


def bare(state: State) -> State:
    """Remove the prefixes that wrappers (DataParallel, Lightning) put before every name."""
    for prefix in ("state_dict.", "model.", "module."):
        if state and all(k.startswith(prefix) for k in state):
            state = {k.removeprefix(prefix): v for k, v in state.items()}
    return state


def part(state: State, key: str, *, layout: str, ndim: int | None = None) -> Tensor:
    """Return one tensor of a state dict, whose shape determines a dimension.

    Args:
        state: the state dict.
        key: name of the tensor.
        layout: what the state dict should be, for messages.
        ndim: its number of dimensions; None: at least two for the weight of a layer.

    Raises:
        CheckpointError: there is none, or it has another number of dimensions.
    """
    if key not in state:
        raise CheckpointError(
            f"no {key!r} in this state dict: is it {layout}? It holds {_some(sorted(state))}"
        )
    found = state[key]
    least = 2 if key.endswith("weight") and "norm" not in key else 0
    if found.ndim < least or ndim not in (None, found.ndim):
        expected = f"{ndim}" if ndim is not None else f"{least} or more"
        raise CheckpointError(
            f"{key} has shape {tuple(found.shape)}, where {layout} has {expected} dimensions"
        )
    return found


def number(given: Mapping[str, Any], argument: str, default: N) -> N:
    """Return an argument that is a number of the type of its default.

    Raises:
        CheckpointError: it is something else.
    """
    value = given.get(argument, default)
    whole = isinstance(default, int)
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        expected = "a whole number" if whole else "a number"
        raise CheckpointError(f"{argument} is {value!r}; expected {expected}")
    return type(default)(value)


def only(given: Mapping[str, Any], known: Collection[str], reference: str) -> None:
    """Reject arguments that the original's constructor does not take.

    Raises:
        UnknownName: suggests the nearest argument.
    """
    for argument in given:
        if argument not in known:
            raise UnknownName(f"argument of {reference}", argument, known)


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


def _value(v: Any) -> Any:
    if not isinstance(v, str):
        return v
    try:
        return ast.literal_eval(v)
    except (ValueError, SyntaxError):
        return v
