"""µm per level-0 pixel of slides, given by hand: one number for all, or a table `slide,mpp`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ..slides import read_resolutions
from .labels import nearest


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


def resolutions_of(value: str | float | Path | None) -> Resolutions:
    """Return the resolutions that `--slide-mpp` states; see `slides.read_resolutions`.

    A table may name a slide with or without the suffix of its file.
    """
    if value is None:
        return Resolutions()
    stated = read_resolutions(value)
    if isinstance(stated, dict):
        return Resolutions(by_slide=stated, origin=str(value))
    return Resolutions(common=stated)
