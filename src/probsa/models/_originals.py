"""The weights of an original implementation in our models: names of parameters, never code.

A model's file says how its original's parameters are called, by `@original("clam_sb", …)` over a
function; a reference is one of those names, or one of them with a suffix (`clam_sb_gated`).
"""

import ast
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError, UnknownName
from ._base import Model
from ._registry import names as _every_model

State = dict[str, Tensor]
Rules = Sequence[tuple[str, str | None]]
"""(pattern of the original's name, our name or None to leave it out); the first match wins."""
Builder = Callable[[str, State, dict[str, Any]], Model]
_builders: dict[str, Builder] = {}


def original(*families: str) -> Callable[[Builder], Builder]:
    """Registers how a family of original state dicts becomes a model."""

    def add(builder: Builder) -> Builder:
        for family in families:
            if family in _builders:
                raise ValueError(f"two functions read {family!r}")
            _builders[family] = builder
        return builder

    return add


def families() -> list[str]:
    """Every family of originals that can be read, sorted."""
    return sorted(readers())


def readers() -> dict[str, str]:
    """Each family, and the module of the model that reads it."""
    _every_model()  # the models' files register them
    return {family: builder.__module__ for family, builder in _builders.items()}


def from_original(reference: str, state: Mapping[str, Tensor], **arguments: Any) -> Model:
    """An original state dict as our model, in `eval()`.

    Args:
        reference: which original: a family (`dsmil`), or a family with a suffix (`dsmil_c2`).
        state: the original's parameters by their own names; dimensions are read off their shapes.
        arguments: the original constructor's, under its names, for what shapes do not tell;
            strings are read as Python values where they are some.

    Raises:
        UnknownName: no such reference; suggests the nearest.
        CheckpointError: another layout or size: names the key, and both shapes.
    """
    known = families()
    fitting = [f for f in known if reference == f or reference.startswith(f"{f}_")]
    if not fitting:
        raise UnknownName("reference", reference, known)
    given = {k: _value(v) for k, v in arguments.items()}
    builder = _builders[max(fitting, key=len)]
    return builder(reference, bare({k: v.detach() for k, v in state.items()}), given).eval()


def bare(state: State) -> State:
    """Without the prefixes that wrappers (DataParallel, Lightning) put before every name."""
    for prefix in ("state_dict.", "model.", "module."):
        if state and all(k.startswith(prefix) for k in state):
            state = {k.removeprefix(prefix): v for k, v in state.items()}
    return state


def part(state: State, key: str, *, of: str) -> Tensor:
    """One tensor of a state dict, from whose shape a builder reads a dimension."""
    if key not in state:
        raise CheckpointError(
            f"no {key!r} in this state dict: is it {of}? It holds {_some(sorted(state))}"
        )
    return state[key]


def only(given: Mapping[str, Any], known: Collection[str], reference: str) -> None:
    """Refuses what the original's constructor does not take.

    Raises:
        UnknownName: suggests the nearest argument.
    """
    for argument in given:
        if argument not in known:
            raise UnknownName(f"argument of {reference}", argument, known)


def transplant(model: Model, state: State, rules: Rules) -> Model:
    """Puts an original's tensors into a model, every one of them used and every one of ours set.

    Raises:
        CheckpointError: a name that no rule knows, a parameter that nothing sets, another shape.
    """
    ours = model.state_dict()
    found: State = {}
    theirs: dict[str, str] = {}
    unknown = []
    for key, value in state.items():
        name = _ours(key, rules)
        if name is None:
            continue
        if name not in ours:
            unknown.append(key)
            continue
        found[name], theirs[name] = value, key
        if value.shape != ours[name].shape:
            raise CheckpointError(
                f"{key} has shape {tuple(value.shape)} where {model.name} with these arguments has "
                f"{tuple(ours[name].shape)} ({name})"
            )
    missing = sorted(set(ours) - set(found))
    if unknown or missing:
        raise CheckpointError(
            f"not a state dict of this kind of {model.name}: "
            f"unknown are {_some(unknown)}; nothing given for {_some(missing)}"
        )
    floats = {v.dtype for v in found.values() if v.is_floating_point()}
    dtype = floats.pop() if len(floats) == 1 else torch.float32
    model.to(dtype).load_state_dict(found)
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
