"""What came of a set of figures."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Made:
    """The files that were written, and the figures that were not."""

    written: tuple[Path, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()
    """(figure, why there is none)."""

    def __add__(self, other: "Made") -> "Made":
        return Made(self.written + other.written, self.missing + other.missing)
