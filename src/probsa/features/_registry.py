"""Registry of encoders. Every public module in this folder is an encoder.

Other packages add encoders through the entry point group `probsa.encoders`.
"""

import inspect
import os
import pkgutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Literal, TypeVar

import torch

from ..core import EncoderName, load_plugins
from ..errors import InputError, MissingExtra, UnknownName, install_advice
from ._base import Card, Encoder, Preprocessing
from ._names import OPEN
from ._weights import cached, digest, load, locate

E = TypeVar("E", bound=type[Encoder])

PREFERRED = "effnet-lite0-middle"
"""The encoder that `probsa extract` uses if its weights are installed."""
FALLBACK = "handcrafted"
"""The encoder that it uses otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderEntry:
    """An encoder as it was registered."""

    cls: type[Encoder]
    card: Card
    preprocessing: Preprocessing | None
    fixed: Mapping[str, object]
    """Arguments of the class under this name."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether an encoder can be built on this machine, and what is missing otherwise."""

    state: Literal["ready", "needs package", "needs weights"]
    detail: str = ""
    """The file of the weights, or advice on how to get what is missing."""

    @property
    def is_ready(self) -> bool:
        """Whether nothing is missing."""
        return self.state == "ready"

    def __str__(self) -> str:
        if not self.detail:
            return self.state
        if self.state == "needs package":
            return self.detail
        return f"{self.state}: {self.detail}"


_registered: dict[str, EncoderEntry] = {}


def register(
    name: str, *, card: Card, preprocessing: Preprocessing | None = None, **fixed: object
) -> Callable[[E], E]:
    """Return a decorator that registers an encoder class under a name, with fixed arguments.

    Args:
        name: The name for `build` and the command line. A name that ends in `:MODEL` represents all
            names with that prefix; the class receives the rest as its argument `model`.
        card: Properties of the encoder as published by its authors.
        preprocessing: Its preprocessing; None if `features` takes pixels in [0, 1] of any size.
        fixed: Arguments of the class under this name.
    """

    def add(cls: E) -> E:
        if name in _registered:
            raise ValueError(f"two encoders are named {name!r}: {_registered[name].cls} and {cls}")
        unknown = sorted(set(fixed) - set(inspect.signature(cls).parameters))
        if unknown:
            raise ValueError(f"{name}: {cls.__name__} has no {', '.join(unknown)}")
        _registered[name] = EncoderEntry(
            cls=cls, card=card, preprocessing=preprocessing, fixed=fixed
        )
        return cls

    return add


@cache
def _discover() -> None:
    """Import all modules that register encoders."""
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(import_module(package).__path__):
        if not module.name.startswith("_"):
            import_module(f"{package}.{module.name}")
    load_plugins("probsa.encoders")


def names() -> list[str]:
    """Return all registered names, sorted; a name that ends in `:MODEL` represents many."""
    _discover()
    return sorted(_registered)


def entry(name: str) -> EncoderEntry:
    """Return the entry of a name; the part after a colon becomes the argument `model`.

    Raises:
        UnknownName: There is no such encoder; the message suggests the nearest name.
    """
    registered_names = names()
    if name in registered_names:
        return _registered[name]
    family, _, model = name.partition(":")
    if not model or family + OPEN not in registered_names:
        raise UnknownName("encoder", name, registered_names)
    family_entry = _registered[family + OPEN]
    return replace(family_entry, fixed={**family_entry.fixed, "model": model})


def construct(name: str) -> Encoder:
    """Construct an encoder without weights, with its large tensors on the meta device."""
    registered = entry(name)
    if name.endswith(OPEN):
        raise InputError(f"{name} represents many encoders: put the name of one after the colon")
    with torch.device("meta" if registered.card.weights else "cpu"):
        encoder = registered.cls(**registered.fixed)
    # an encoder of a `:MODEL` name sets its own card when it is built
    encoder.card = getattr(encoder, "card", registered.card)
    encoder.preprocessing = encoder.preprocessing or registered.preprocessing
    encoder.name = name
    return encoder


def build(
    name: str = FALLBACK,
    *,
    weights: str | os.PathLike[str] | None = None,
    device: str | torch.device = "cpu",
) -> Encoder:
    """Build an encoder with its weights, in `eval()` mode.

    Args:
        name: One of `names()`, or `timm:` followed by a model of timm.
        weights: A file (safetensors, or tensors saved by PyTorch), a folder that contains one, a
            URL, or `hub` to download the weights from their authors' site. None uses the local
            caches and downloads nothing.
        device: The device on which the encoder computes.

    Raises:
        UnknownName: There is no such encoder; the message suggests the nearest name.
        WeightsError: The weights are missing, unreadable or those of another encoder; the message
            says where to get them.
        MissingExtra: An optional package is missing.
    """
    encoder = construct(name)
    if encoder.card.weights is not None:
        load(encoder, locate(name, encoder.card, weights))
    elif weights is not None:
        raise InputError(f"{name} has no weights, but weights={str(weights)!r} was given")
    preprocessing = None if encoder.preprocessing is None else encoder.preprocessing.statement
    properties = f"{encoder.revision} {preprocessing}"
    encoder.identity = str(EncoderName(name, digest(encoder.core, also=properties)))
    encoder.requires_grad_(requires_grad=False)
    return encoder.eval().to(device)


def describe(name: str) -> dict[str, object]:
    """Return the published properties of an encoder as a table row, without building it."""
    registered = entry(name)
    card = registered.card
    preprocessing = registered.preprocessing
    origin = card.weights
    return {
        "name": name,
        "summary": card.summary,
        "width": card.width or None,
        "input": preprocessing and preprocessing.size,
        "resize": preprocessing and preprocessing.resize,
        "resampling": preprocessing and preprocessing.resampling,
        "mean": preprocessing and preprocessing.mean,
        "std": preprocessing and preprocessing.std,
        "licence": card.licence,
        "source": card.source,
        "gated": card.gated,
        "weights": origin and (origin.repository or origin.url or None),
        "needs_weights": origin is not None,
        "extra": "encoders" if card.packages else None,
    }


def readiness(name: str) -> Readiness:
    """Return whether an encoder can be built here, or whether a package or its weights are missing.

    Raises:
        UnknownName: There is no such encoder; the message suggests the nearest name.
    """
    card = entry(name).card
    for package in card.packages:
        if find_spec(package) is None:
            return Readiness("needs package", str(MissingExtra(package, "encoders")))
    if card.weights is None:
        return Readiness("ready")
    path = cached(card.weights)
    if path is not None:
        return Readiness("ready", str(path))
    advice = "--weights FILE"
    if card.weights.extra:
        advice = f"{install_advice(card.weights.extra)}, or {advice}"
    return Readiness("needs weights", advice)


def default_encoder(known: Collection[str] = ()) -> tuple[str, str]:
    """Return the encoder that `probsa extract` uses if none is given, and why.

    Args:
        known: The encoders of the features that a work folder has.

    Raises:
        InputError: There are several, and not the one that a new work folder gets.
    """
    if readiness(PREFERRED).is_ready:
        name = PREFERRED
        reason = (
            "its weights are installed; it tells bags apart better than handcrafted, and finds "
            "evidence better on CT: docs/encoders.md"
        )
    else:
        name = FALLBACK
        reason = f"it needs no weights; {install_advice('effnet')} brings {PREFERRED}"
    if not known or name in known:
        return name, reason
    if len(known) > 1:
        raise InputError(
            f"the work folder has features of {', '.join(sorted(known))}: name one with --encoder"
        )
    return next(iter(known)), "the work folder has features of it"
