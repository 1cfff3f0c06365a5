"""Stage 10: a bag that is exported: its values and origin, its slide or scan, and its files."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ..core import named_file, replacing
from ..errors import InputError
from ..evaluation import Prediction
from ..maps import CohortSources, Layout, squares
from ..slides import Scan, Slide
from .provenance import Provenance
from .quantities import TABLE, Channel, Key, channels


@dataclass(frozen=True, kw_only=True)
class ExportBag:
    """A bag, with what the writers of all formats need."""

    p: Prediction
    about: Provenance
    out: Path
    """The folder of its files."""
    classes: Sequence[str] = ()
    sources: CohortSources | None = None
    written: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What a reader of its files should know."""

    @cached_property
    def quantities(self) -> list[Channel]:
        """All that there is of its instances, an item per class."""
        return list(channels(self.p, self.classes))

    @property
    def channels(self) -> list[Channel]:
        """What is written as a raster: mean, standard deviation and probability."""
        return [c for c in self.quantities if TABLE[c.key].raster]

    def of(self, key: Key) -> list[Channel]:
        """Return one quantity, an item per class."""
        return [c for c in self.quantities if c.key == key]

    @property
    def squares(self) -> Layout:
        """Its patches on the slide, or an InputError if it has none."""
        patches = None if self.sources is None else self.sources.patches(self.p)
        return squares(self.p, side=None if patches is None else patches.size_level0)

    @property
    def placed(self) -> CohortSources:
        """Where its slide or scan is, for formats that are refused without."""
        assert self.sources is not None
        return self.sources

    def slide(self, export_format: str) -> Slide:
        """Return its slide, open for reading, for a format that is written for slides alone."""
        source = self.placed.open(self.p)
        if isinstance(source, Scan):
            raise InputError(
                f"bag {self.p.name!r} is a scan: {export_format} is written for slides"
            )
        return source

    @contextmanager
    def file(self, suffix: str) -> Iterator[Path]:
        """Yield a temporary path, which becomes `<bag><suffix>` on success."""
        path = named_file(self.out, self.p.name, suffix)
        with replacing(path) as temporary:
            yield temporary
        self.written.append(path)
