"""Models by name. A module in this folder is a model; nothing else need know of it.

Other packages join through the entry point group `probsa.models`.
"""

import inspect
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Literal, TypeVar

from ..errors import UnknownName
from ._base import Model

M = TypeVar("M", bound=type[Model])
_registered: dict[str, tuple[type[Model], dict[str, object]]] = {}
_without: dict[str, frozenset[str]] = {}
_original: dict[str, dict[str, object]] = {}

PRESET = inspect.Parameter(
    "preset",
    inspect.Parameter.KEYWORD_ONLY,
    default="paper",
    annotation=Literal["paper", "original"],
)
"""Offered by the models that register an original setting: whose defaults hold."""


def register(
    name: str,
    *,
    without: Iterable[str] = (),
    original: Mapping[str, object] | None = None,
    **fixed: object,
) -> Callable[[M], M]:
    """Gives a model class, with these arguments fixed, a name.

    Args:
        name: what `build` and run files call it.
        without: arguments that change nothing under this name: they are not offered.
        original: the defaults of the method's own authors, where they differ from the signature's
            (the ProbSA paper's); `preset="original"` takes them.
    """

    def add(cls: M) -> M:
        if name in _registered:
            raise ValueError(f"two models are named {name!r}: {_registered[name][0]} and {cls}")
        known = inspect.signature(cls).parameters
        unknown = sorted({*fixed, *without, *(original or {})} - set(known))
        if unknown:
            raise ValueError(f"{name}: {cls.__name__} has no {', '.join(unknown)}")
        _registered[name] = (cls, fixed)
        _without[name] = frozenset(without)
        if original is not None:
            _original[name] = dict(original)
        return cls

    return add


@cache
def _discover() -> None:
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(import_module(package).__path__):
        if not module.name.startswith("_"):
            import_module(f"{package}.{module.name}")
    for entry in entry_points(group="probsa.models"):
        entry.load()


def names() -> list[str]:
    """Every registered name, sorted."""
    _discover()
    return sorted(_registered)


def _look_up(name: str) -> tuple[type[Model], dict[str, object]]:
    if name not in names():
        raise UnknownName("model", name, names())
    return _registered[name]


def arguments(name: str) -> dict[str, inspect.Parameter]:
    """What a model's signature leaves open under this name: the schema of run files and flags."""
    cls, preset = _look_up(name)
    known = inspect.signature(cls).parameters
    open_ = {k: p for k, p in known.items() if k not in preset and k not in _without[name]}
    return {**open_, PRESET.name: PRESET} if name in _original else open_


def original(name: str) -> dict[str, object]:
    """What `preset="original"` changes; empty where the method has no setting of its own."""
    _look_up(name)
    return dict(_original.get(name, {}))


def summary(name: str) -> str:
    """The first line of the class's docstring, and what the name fixes."""
    cls, preset = _look_up(name)
    given = ", ".join(f"{k}={v}" for k, v in preset.items())
    return (inspect.getdoc(cls) or "").partition("\n")[0] + (f" ({given})" if given else "")


def fixed(name: str) -> tuple[type[Model], dict[str, object]]:
    """The class behind a name, and the arguments that the name fixes."""
    return _look_up(name)


def build(name: str, **given: Any) -> Model:
    """Makes a model by name.

    `preset="original"` starts from the defaults of the method's authors instead of the ProbSA
    paper's; what else is given goes before either.

    Raises:
        UnknownName: no such model, or no such argument; suggests the nearest.
    """
    known = arguments(name)
    for argument in given:
        if argument not in known:
            raise UnknownName(f"argument of {name}", argument, known)
    cls, preset = _look_up(name)
    chosen = given.pop(PRESET.name, PRESET.default)
    if chosen not in ("paper", "original"):
        raise UnknownName("preset", str(chosen), ["paper", "original"])
    if chosen == "original":
        given = {**_original[name], **given}
    model = cls(**preset, **given)
    model.name, model.arguments = name, dict(given)
    return model
