"""Stage 10: slides and scans that are kept open while the page is used."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(slots=True)
class _Entry(Generic[Value]):
    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0
    values: list[Value] = field(default_factory=list)
    """The value, once it is made."""


class Kept(Generic[Value]):
    """The last few values by number; each is made on its first use, and used by one at a time."""

    def __init__(
        self, make: Callable[[int], Value], *, most: int, close: Callable[[Value], object] = id
    ) -> None:
        self._make = make
        self._most = most
        self._close = close
        self._entries: dict[int, _Entry[Value]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def use(self, number: int) -> Iterator[Value]:
        """Yield the value of a number; errors of making it are raised at every use."""
        with self._lock:
            entry = self._entries.pop(number, None) or _Entry()
            self._entries[number] = entry  # the last one was used last
            entry.users += 1
        try:
            with entry.lock:
                if not entry.values:
                    entry.values.append(self._make(number))
                yield entry.values[0]
        finally:
            with self._lock:
                entry.users -= 1
                self._trim()

    def close(self) -> None:
        """Release all values."""
        with self._lock:
            self._most = 0
            self._trim()

    def _trim(self) -> None:
        """Release the values that were used longest ago, unless somebody uses them."""
        idle = [k for k, e in self._entries.items() if e.users == 0]
        for number in idle[: max(0, len(self._entries) - self._most)]:
            for value in self._entries.pop(number).values:
                self._close(value)
