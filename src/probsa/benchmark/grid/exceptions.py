"""Exceptions of a grid: keys that some models have on some data sets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import InputError, UnknownName
from ...models import names
from .entries import Entry, matches, run_keys
from .methods_and_cells import Method
from .values import numbers, texts


@dataclass(frozen=True, kw_only=True, slots=True)
class Exempt:
    """Keys that some methods have on some data sets."""

    data: tuple[str, ...]
    models: tuple[str, ...]
    keys: Mapping[str, Any]
    seeds: tuple[int, ...] | None
    """Theirs; None: the grid's."""

    def holds(self, data: str, method: Method) -> bool:
        """Whether a method on a data set is meant."""
        return (not self.data or data in self.data) and (
            not self.models or matches(method, self.models)
        )


def exception_of(given: Any, *, where: str) -> Exempt:
    """One item of `exceptions`.

    Raises:
        UnknownName: a key that no run has.
        InputError: no mapping, or a value that is none.
    """
    if not isinstance(given, dict):
        raise InputError(
            f"exceptions in {where} has {given!r}: expected {{data: …, models: …, KEY: VALUE}}"
        )
    keys = {k: v for k, v in given.items() if k not in ("data", "models", "seeds")}
    return Exempt(
        data=texts(given.get("data")),
        models=texts(given.get("models")),
        keys=run_keys(keys, where=where),
        seeds=numbers(given["seeds"], "seeds", where=where) if "seeds" in given else None,
    )


def idle_note(
    exceptions: Sequence[Exempt], data: Mapping[str, Any], entries: Sequence[Entry]
) -> tuple[str, ...]:
    """What to say of exceptions for data that is not here.

    Raises:
        UnknownName: one that names a model which does not exist.
    """
    labels = [e.method.label for e in entries]
    known = [*names(), *labels]
    for pattern in (p for one in exceptions for p in one.models):
        if not any(matches(Method(label=n, model=n), [pattern]) for n in known):
            raise UnknownName("model in an exception", pattern, known)
    # a model may be left out of a grid at will, but data under another name may be a mistake
    others = dict.fromkeys(d for one in exceptions for d in one.data if d not in data)
    if not others:
        return ()
    return (f"no data is called {', '.join(others)}: exceptions for these concern nothing here",)
