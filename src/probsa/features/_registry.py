"""Encoders by name. A module in this folder is an encoder; nothing else need know of it.

Other packages join through the entry point group `probsa.encoders`.
"""

import inspect
import os
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import torch

from ..errors import InputError, MissingExtra, UnknownName
from ._base import Card, Encoder, Preprocessing
from ._weights import cached, digest, load, locate

E = TypeVar("E", bound=type[Encoder])

DEFAULT = "handcrafted"
"""The encoder where none is named: the one that needs no weights."""
OPEN = ":MODEL"
"""The end of a name that stands for many: what follows the colon is handed to the class."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """What `register` was told."""

    cls: type[Encoder]
    card: Card
    preprocessing: Preprocessing | None
    fixed: Mapping[str, object]


_registered: dict[str, Entry] = {}


def register(
    name: str, *, card: Card, preprocessing: Preprocessing | None = None, **fixed: object
) -> Callable[[E], E]:
    """Gives an encoder class, with these arguments fixed, a name.

    Args:
        name: what `build` and the command line call it; one that ends in `:MODEL` stands for
            every name that begins so, and the class gets the rest as its argument `model`.
        card: what its makers say of it.
        preprocessing: its own; None where `features` takes pixels in [0, 1] of any size.
        fixed: arguments of the class under this name.
    """

    def add(cls: E) -> E:
        if name in _registered:
            raise ValueError(f"two encoders are named {name!r}: {_registered[name].cls} and {cls}")
        unknown = sorted(set(fixed) - set(inspect.signature(cls).parameters))
        if unknown:
            raise ValueError(f"{name}: {cls.__name__} has no {', '.join(unknown)}")
        _registered[name] = Entry(cls=cls, card=card, preprocessing=preprocessing, fixed=fixed)
        return cls

    return add


@cache
def _discover() -> None:
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(import_module(package).__path__):
        if not module.name.startswith("_"):
            import_module(f"{package}.{module.name}")
    for point in entry_points(group="probsa.encoders"):
        point.load()


def names() -> list[str]:
    """Every registered name, sorted; one that ends in `:MODEL` stands for many."""
    _discover()
    return sorted(_registered)


def look_up(name: str) -> Entry:
    """What is registered under a name; the part after a colon becomes the argument `model`.

    Raises:
        UnknownName: no such encoder; suggests the nearest.
    """
    known = names()
    family, _, model = name.partition(":")
    if model and name not in known and family + OPEN in known:
        of = _registered[family + OPEN]
        return Entry(
            cls=of.cls,
            card=of.card,
            preprocessing=of.preprocessing,
            fixed={**of.fixed, "model": model},
        )
    if name not in known:
        raise UnknownName("encoder", name, known)
    if name.endswith(OPEN):
        raise InputError(f"{name} stands for many encoders: put the name of one after the colon")
    return _registered[name]


def entry(name: str) -> Entry:
    """The same, of a name that stands for many as well."""
    return _registered[name] if name in names() else look_up(name)


def construct(name: str) -> Encoder:
    """An encoder without weights: its large tensors have shapes and no memory."""
    of = look_up(name)
    with torch.device("meta" if of.card.weights else "cpu"):
        encoder = of.cls(**of.fixed)
    # an encoder of many knows its own only when it is built
    encoder.card = getattr(encoder, "card", of.card)
    encoder.preprocessing = encoder.preprocessing or of.preprocessing
    encoder.name = name
    return encoder


def build(
    name: str = DEFAULT,
    *,
    weights: str | os.PathLike[str] | None = None,
    device: str | torch.device = "cpu",
) -> Encoder:
    """An encoder by name, with its weights, in `eval()`.

    Args:
        name: one of `names()`, or `timm:` and a model of timm.
        weights: a file (safetensors, or tensors saved by PyTorch), a folder that holds one, an
            address, or `hub` to download it from where its makers put it. None: what the local
            caches hold; nothing is downloaded unasked.
        device: where it computes.

    Raises:
        UnknownName: no such encoder; suggests the nearest.
        WeightsError: the weights are missing, belong to another or cannot be read; says where
            to get them.
        MissingExtra: an optional package is needed.
    """
    encoder = construct(name)
    if encoder.card.weights is not None:
        load(encoder, locate(name, encoder.card, weights))
    elif weights is not None:
        raise InputError(f"{name} has no weights: weights={str(weights)!r} is for another encoder")
    what = f"{encoder.revision} {encoder.preprocessing}"
    encoder.identity = f"{name}@{digest(encoder.core, also=what)}"
    encoder.requires_grad_(requires_grad=False)
    return encoder.eval().to(device)


def describe(name: str) -> dict[str, object]:
    """What an encoder's makers say of it, as one row of a table; builds nothing."""
    card, how = entry(name).card, entry(name).preprocessing
    origin = card.weights
    return {
        "name": name,
        "summary": card.summary,
        "width": card.width or None,
        "input": how.size if how else None,
        "resize": how.resize if how else None,
        "resampling": how.resampling if how else None,
        "mean": how.mean if how else None,
        "std": how.std if how else None,
        "licence": card.licence,
        "source": card.source,
        "gated": card.gated,
        "weights": (origin.repository or origin.url or None) if origin else None,
        "needs_weights": origin is not None,
        "extra": "encoders" if card.packages else None,
    }


def readiness(name: str) -> str:
    """Whether an encoder could be built here and now, in a few words; builds nothing.

    `ready`, or what is missing: a package, or weights in the local caches.
    """
    card = entry(name).card
    absent = [p for p in card.packages if find_spec(p) is None]
    if absent:
        return str(MissingExtra(absent[0], "encoders"))
    if card.weights is None:
        return "ready"
    found = cached(card.weights)
    return f"ready: {found}" if isinstance(found, Path) else "needs weights: --weights FILE"
