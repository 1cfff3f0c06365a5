"""µm per level-0 pixel of slides, given by hand: one number for all, or a table `slide,mpp`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ..errors import InputError, TableError
from .labels import nearest, read_rows


@dataclass(frozen=True, kw_only=True)
class Resolutions:
    """What was given; nothing by default."""

    common: float | None = None
    by_slide: Mapping[str, float] = field(default_factory=dict)
    origin: str = "--slide-mpp"

    def of(self, name: str) -> float | None:
        """That of a bag, or None."""
        if name in self.by_slide:
            return self.by_slide[name]
        same = self._by_stem.get(name, set())
        return next(iter(same)) if len(same) == 1 else self.common

    @cached_property
    def _by_stem(self) -> dict[str, set[float]]:
        """Without the ending of the file; two of one name tell nothing."""
        found: dict[str, set[float]] = {}
        for slide, mpp in self.by_slide.items():
            found.setdefault(Path(slide).stem, set()).add(mpp)
        return found

    def why_none(self, name: str) -> str:
        """Why a bag has none, and what to do."""
        guess = nearest(name, list(self.by_slide))
        return f"{self.origin} has no line for the slide {name!r}.{guess} Add one"


def read_resolutions(given: str | float | Path | None) -> Resolutions:
    """From a number, or the path of a table with the columns `slide` and `mpp`.

    A slide may be named with the ending of its file or without.

    Raises:
        InputError: no number above 0, and no table.
        TableError: the table has other columns, or a line that says nothing.
    """
    if given is None:
        return Resolutions()
    try:
        return Resolutions(common=_positive(float(str(given)), "--slide-mpp"))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
    path = Path(str(given))
    if not path.is_file():
        raise InputError(f"--slide-mpp is {given!s}: expected µm per pixel (0.25), or a table")
    header, rows = read_rows(path)
    if not {"slide", "mpp"} <= set(header):
        raise TableError(f"{path}: expected the columns slide and mpp, it has {', '.join(header)}")
    found: dict[str, float] = {}
    for line, row in rows:
        cells = dict(zip(header, row, strict=False))
        slide, where = cells.get("slide", ""), f"{path}, line {line}"
        try:
            mpp = _positive(float(cells.get("mpp", "")), where)
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            raise TableError(f"{where}: mpp is {cells.get('mpp', '')!r}, no number") from error
        if found.setdefault(slide, mpp) != mpp:
            raise TableError(f"{where}: slide {slide!r} has two resolutions, {found[slide]:g} too")
    return Resolutions(by_slide=found, origin=str(path))


def _positive(value: float, where: str) -> float:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{where}: {value:g} µm per pixel is no resolution: give one above 0")
    return value
