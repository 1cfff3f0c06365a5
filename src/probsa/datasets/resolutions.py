"""µm per level-0 pixel given by users: one number for all slides, or a table `slide,mpp`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ..errors import InputError, TableError
from .labels import nearest, read_rows


@dataclass(frozen=True, kw_only=True)
class Resolutions:
    """Resolutions given by users; by default, none."""

    common: float | None = None
    by_slide: Mapping[str, float] = field(default_factory=dict)
    origin: str = "--slide-mpp"

    def mpp_of(self, name: str) -> float | None:
        """Return the resolution of a bag, or None."""
        if name in self.by_slide:
            return self.by_slide[name]
        matches = self._by_stem.get(name, set())
        return next(iter(matches)) if len(matches) == 1 else self.common

    @cached_property
    def _by_stem(self) -> dict[str, set[float]]:
        """Resolutions by the slide's name without suffix; ambiguous if there are several."""
        resolutions: dict[str, set[float]] = {}
        for slide, mpp in self.by_slide.items():
            resolutions.setdefault(Path(slide).stem, set()).add(mpp)
        return resolutions

    def why_none(self, name: str) -> str:
        """Explain why a bag has no resolution, with advice."""
        suggestion = nearest(name, list(self.by_slide))
        return f"{self.origin} has no line for the slide {name!r}.{suggestion} Add one"


def read_resolutions(value: str | float | Path | None) -> Resolutions:
    """Read resolutions from a number, or from the path of a table with columns `slide` and `mpp`.

    Slides may be named with or without the suffix of their file.

    Raises:
        InputError: the value is neither a positive number nor a table.
        TableError: the table lacks a column, has an invalid number, or lists a slide twice.
    """
    if value is None:
        return Resolutions()
    try:
        return Resolutions(common=_positive(float(str(value)), "--slide-mpp"))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
    path = Path(str(value))
    if not path.is_file():
        raise InputError(f"--slide-mpp is {value!s}: expected µm per pixel (0.25), or a table")
    header, rows = read_rows(path)
    if not {"slide", "mpp"} <= set(header):
        raise TableError(f"{path}: expected the columns slide and mpp, it has {', '.join(header)}")
    by_slide: dict[str, float] = {}
    for line, row in rows:
        cells = dict(zip(header, row, strict=False))
        slide, where = cells.get("slide", ""), f"{path}, line {line}"
        try:
            mpp = _positive(float(cells.get("mpp", "")), where)
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            raise TableError(
                f"{where}: mpp is {cells.get('mpp', '')!r}, expected a number"
            ) from error
        if by_slide.setdefault(slide, mpp) != mpp:
            raise TableError(
                f"{where}: slide {slide!r} has two resolutions, {by_slide[slide]:g} too"
            )
    return Resolutions(by_slide=by_slide, origin=str(path))


def _positive(value: float, where: str) -> float:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{where}: {value:g} µm per pixel is not a resolution: give one above 0")
    return value
