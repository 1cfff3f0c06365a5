"""µm per level-0 pixel given by users: one number for all slides, or a table `slide,mpp`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ..slides import read_resolutions
from .names import nearest


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
