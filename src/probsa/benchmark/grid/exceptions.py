"""Exceptions of a grid: keys that apply to some models on some data sets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import InputError, UnknownName
from ...models import names
from .entries import MethodEntry, matches, run_keys
from .methods_and_cells import Method
from .values import numbers, texts


@dataclass(frozen=True, kw_only=True, slots=True)
class ExceptionRule:
    """Keys that apply to some methods on some data sets."""

    data: tuple[str, ...]
    models: tuple[str, ...]
    keys: Mapping[str, Any]
    seeds: tuple[int, ...] | None
    """Seeds of these methods; None: those of the grid."""

    def holds(self, data: str, method: Method) -> bool:
        """Return whether the rule applies to a method on a data set."""
        return (not self.data or data in self.data) and (
            not self.models or matches(method, self.models)
        )


def exception_of(given: Any, *, where: str) -> ExceptionRule:
    """Read one item of `exceptions`.

    Raises:
        UnknownName: A run has no such key.
        InputError: The item is not a mapping, or a value is invalid.
    """
    if not isinstance(given, dict):
        raise InputError(
            f"exceptions in {where} has {given!r}: expected {{data: …, models: …, KEY: VALUE}}"
        )
    keys = {k: v for k, v in given.items() if k not in ("data", "models", "seeds")}
    return ExceptionRule(
        data=texts(given.get("data")),
        models=texts(given.get("models")),
        keys=run_keys(keys, where=where),
        seeds=numbers(given["seeds"], "seeds", where=where) if "seeds" in given else None,
    )


def idle_note(
    exceptions: Sequence[ExceptionRule], data: Mapping[str, Any], entries: Sequence[MethodEntry]
) -> tuple[str, ...]:
    """Return a note on exceptions for data sets that the grid does not have.

    Raises:
        UnknownName: An exception names a model that does not exist.
    """
    labels = [e.method.label for e in entries]
    known = [*names(), *labels]
    for pattern in (p for one in exceptions for p in one.models):
        if not any(matches(Method(label=n, model=n), [pattern]) for n in known):
            raise UnknownName("model in an exception", pattern, known)
    # grids often omit models, but a data set under another name may be a mistake
    others = dict.fromkeys(d for one in exceptions for d in one.data if d not in data)
    if not others:
        return ()
    return (f"no data is called {', '.join(others)}: exceptions for these have no effect",)
