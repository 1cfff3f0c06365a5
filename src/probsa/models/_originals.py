"""Conversion of an original implementation's state dict to our model.

The file of a model registers a function for each original with `@original("clam_sb")`. A reference
is one of these names, or one of them with a suffix that the function declares (`clam_sb_gated`).
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
from ._registry import names as _model_names

State = dict[str, Tensor]
Rules = Sequence[tuple[str, str | None]]
"""Pairs of a pattern of original names and our name, or None to drop it; the first match wins."""
Builder = Callable[[str, State, dict[str, Any]], Model]
N = TypeVar("N", int, float)
_builders: dict[str, Builder] = {}
_methods: dict[str, type[Model] | str] = {}
_variants: dict[str, tuple[str, ...]] = {}


def original(
    *originals: str, variants: Sequence[str] = (), method: type[Model] | None = None
) -> Callable[[Builder], Builder]:
    """Register a function that builds a model from the state dict of these originals.

    Args:
        originals: names of the original.
        variants: suffixes, as regular expressions, that references may add to a name after `_`.
            The state dict and the arguments decide what is built, unless the function reads them.
        method: the class that they are weights of, in a file of several methods.
    """

    def add(builder: Builder) -> Builder:
        for name in originals:
            if name in _builders:
                raise ValueError(f"two functions read {name!r}")
            _builders[name], _variants[name] = builder, tuple(variants)
            _methods[name] = method or builder.__module__
        return builder

    return add


def readers() -> dict[str, type[Model] | str]:
    """Return the class, or the module of a single class, of each original's weights, by name."""
    _model_names()  # imports the files of the models, which register the functions
    return dict(_methods)


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
    known = sorted(readers())
    matches = [name for name in known if _is_of(reference, name)]
    if not matches:
        plain = [f"{name}_{v}" for name in known for v in _variants[name] if v.isidentifier()]
        raise UnknownName("reference", reference, [*known, *plain])
    given = {k: _value(v) for k, v in arguments.items()}
    builder = _builders[max(matches, key=len)]
    return builder(reference, bare({k: v.detach() for k, v in state.items()}), given).eval()


def _is_of(reference: str, name: str) -> bool:
    """Return whether a reference is this name, or the name with one of its suffixes."""
    start, suffix = reference[: len(name)], reference[len(name) :]
    return start == name and (
        not suffix or any(re.fullmatch(f"_(?:{v})", suffix) for v in _variants[name])
    )


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


@dataclass(frozen=True, slots=True)
class ReadOff:
    """What a tensor's shape says about an argument of the original's constructor."""

    value: Any
    key: str
    """Name of the tensor."""
    meaning: str = ""
    """What a value means for the shape, in words, if that is not obvious."""


def agree(
    given: Mapping[str, Any], read: Mapping[str, ReadOff], state: State, *, reference: str
) -> None:
    """Reject arguments that contradict the shapes of the state dict.

    Raises:
        CheckpointError: names the argument, the tensor, its shape and the value that fits it.
    """
    for argument, off in read.items():
        value = given.get(argument, off.value)
        if value != off.value:
            shape = tuple(state[off.key].shape) if off.key in state else None
            seen = f"there is no {off.key}" if shape is None else f"{off.key} has shape {shape}"
            fits = "which fits no value of it" if off.value is None else f"so it is {off.value!r}"
            raise CheckpointError(
                f"{reference}: {argument} is {value!r}, but {seen}, {fits}"
                + (f" ({off.meaning})" if off.meaning else "")
            )


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
    converted: State = {}
    unknown = []
    for key, value in state.items():
        name = _ours(key, rules)
        if name is None:
            continue
        if name not in ours:
            unknown.append(key)
            continue
        converted[name] = value
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


def _ours(key: str, rules: Rules) -> str | None:
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
