"""Checks of shapes and types that are prepared when a function is first called with them on."""

import functools
from collections.abc import Callable
from typing import Any

import jaxtyping
from jaxtyping import config, jaxtyped

LOCAL = "<locals>"


def late(fn: Any = None, *, typechecker: Any) -> Any:
    """Do what `jaxtyped` does, but later, since preparing the checks takes longer than most calls.

    A function within a function is defined at every call of the outer one: while the checks are
    off, it is left as it is.
    """
    if fn is None:
        return functools.partial(late, typechecker=typechecker)
    if LOCAL in getattr(fn, "__qualname__", LOCAL):
        return fn if config.jaxtyping_disable else jaxtyped(fn, typechecker=typechecker)
    if not isinstance(fn, type):
        return _waiting(fn, typechecker)
    if "__dataclass_fields__" in vars(fn) and "__init__" in vars(fn):
        fn.__init__ = _waiting(vars(fn)["__init__"], typechecker)
    return fn


def _waiting(fn: Callable[..., Any], typechecker: Any) -> Callable[..., Any]:
    checked: list[Callable[..., Any]] = []

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if config.jaxtyping_disable:
            return fn(*args, **kwargs)
        if not checked:
            checked.append(jaxtyped(fn, typechecker=typechecker))
        return checked[0](*args, **kwargs)

    return call


def check_late() -> None:
    """Let the modules that are imported from now on prepare their checks late."""
    jaxtyping.jaxtyped = late
