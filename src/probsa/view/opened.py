"""Stage 10: slides and scans that are kept open while the page is used."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


@dataclass(slots=True)
class _Entry:
    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0
    opened: bool = False
    value: Any = None


class Kept(Generic[Value]):
    """The last few values by number; each is made on its first use, and used by one at a time."""

    def __init__(
        self,
        make: Callable[[int], Value],
        *,
        most: int,
        close: Callable[[Value], None] | None = None,
    ) -> None:
        self._make, self._most, self._close = make, most, close
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def use(self, number: int) -> Iterator[Value]:
        """Yield the value of a number; errors of making it are raised at every use."""
        with self._lock:
            entry = self._entries.setdefault(number, _Entry())
            entry.users += 1
            self._entries.move_to_end(number)
        try:
            with entry.lock:
                if not entry.opened:
                    entry.value = self._make(number)
                    entry.opened = True
                yield entry.value
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
        idle = [k for k, e in self._entries.items() if e.users == 0]
        for number in idle[: max(0, len(self._entries) - self._most)]:
            entry = self._entries.pop(number)
            if entry.opened and self._close is not None:
                self._close(entry.value)
