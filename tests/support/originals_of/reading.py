"""Conversion of an original implementation's state dict to our model.

Each original is registered with `@original("clam_sb", …)`: its names of the parameters with ours,
and a function that reads our arguments from the shapes and from those of its constructor.
"""

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from probsa.models import Model, build

State = dict[str, Tensor]
Rules = Sequence[tuple[str, str | None]]
"""Pairs of a pattern of original names and our name, or None to drop it; the first match wins."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Original:
    """What is converted: a state dict, which may be changed, and its constructor's arguments."""

    reference: str
    state: State
    arguments: dict[str, Any]

    def count(self, pattern: str) -> int:
        """Return how many numbers the layers have whose names begin with a pattern."""
        return len({found[1] for k in self.state if (found := re.match(pattern, k))})


Reader = Callable[[Original], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """An original implementation; the fields are the arguments of `original`."""

    read: Reader
    model: str | None
    names: Rules


sources: dict[str, Source] = {}
"""The originals by name."""


def original(
    *originals: str, model: str | None = None, names: Rules = ()
) -> Callable[[Reader], Reader]:
    """Register a function that reads the state dict and the arguments of these originals.

    Args:
        originals: names of the original.
        model: our model. The function returns the model's arguments (and its `name`, if it is
            another). Without it, it returns the model with the original's weights.
        names: the original's names of the parameters, with ours.
    """

    def add(read: Reader) -> Reader:
        for name in originals:
            assert name not in sources, f"two functions read {name!r}"
            sources[name] = Source(read=read, model=model, names=names)
        return read

    return add


def reference_of(name: str) -> str:
    """Return the original of a reference set, such as `clam_sb` of `clam_sb_gated`."""
    stem = name.removeprefix("ckpt_")
    return max((known for known in sources if stem.startswith(known)), key=len)


def from_original(name: str, state: Mapping[str, Tensor], **arguments: Any) -> Model:
    """Convert an original state dict to our model, in `eval()` mode.

    Args:
        name: name of the original (`dsmil`), or of a reference set (`clam_sb_gated`).
        state: parameters under the original's names; their shapes determine the dimensions.
        arguments: arguments of the original's constructor that the shapes do not determine;
            strings that are Python literals are evaluated, and None means that none is given.
    """
    reference = reference_of(name)
    source = sources[reference]
    tensors = {k: v.detach() for k, v in state.items()}
    if reference.startswith("torchmil"):  # its lazy layers
        tensors = {k.replace(".module.", "."): v for k, v in tensors.items()}
    values = {k: _value(v) for k, v in arguments.items()}
    given = {k: v for k, v in values.items() if v is not None}
    read = source.read(Original(reference=reference, state=tensors, arguments=given))
    if source.model is None:
        return read.eval()
    model = build(read.pop("name", source.model), **read)
    return transplant(model, tensors, source.names).eval()


def transplant(model: Model, state: State, rules: Rules) -> Model:
    """Load an original's tensors into a model, using all of them and setting every parameter."""
    converted: State = {}
    for key, value in state.items():
        name = renaming(key, rules)
        if name is not None:
            assert name not in converted, f"two tensors are {name}"
            converted[name] = value
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


def _value(v: Any) -> Any:
    if not isinstance(v, str):
        return v
    try:
        return ast.literal_eval(v)
    except (ValueError, SyntaxError):
        return v
