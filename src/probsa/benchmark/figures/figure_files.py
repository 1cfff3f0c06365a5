"""The files of a set of figures, and the figures that are missing."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class FigureFiles:
    """Files that were written, and figures that were not."""

    written: tuple[Path, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()
    """(figure, reason why it is missing or incomplete)."""

    def __add__(self, other: "FigureFiles") -> "FigureFiles":
        return FigureFiles(self.written + other.written, self.missing + other.missing)
