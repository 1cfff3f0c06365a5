"""Estimate time and disk space of a run over a cohort from a few slides, without writing files."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from PIL import Image
from rich.console import Console

from ..core import is_fault, named_file
from ..errors import InputError
from ..jobs import WHOLE, Share, share_of
from ..patches import PatchSettings, cut, draw_overview, find_tissue, outlined_tissue, thumbnail
from ..slides import Slide, open_slide
from .coordinates import read_coordinates
from .extraction import ExtractOptions
from .geometry import SlideGeometry, print_geometries, resolution_hint
from .inputs import Resolution, find_inputs, resolve_mpp
from .pictures import JPEG_QUALITY
from .reading import BROKEN, chunks_of, open_source, read_chunks
from .records import Record
from .work import WorkFolder

SAMPLE_SIZE = 5
"""Number of slides that are tried, evenly spaced over the cohort."""
BYTES_PER_ROW = 16
"""Bytes of a pair of coordinates on disk."""
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """What a run is expected to take."""

    what: str
    """What the instances are called."""
    items: int
    """Number of slides and series that are left to do."""
    instances: float
    bytes: float
    seconds: float
    """Time with the requested number of workers."""
    tried: int
    """Number of items from which this is extrapolated."""
    failed: tuple[tuple[str, str], ...]
    """(name, reason) of the tried items that could not be read."""
    without_resolution: tuple[str, ...] = ()
    """All slides of unknown resolution, tried or not."""
    geometry: tuple[SlideGeometry, ...] = ()
    """How the patches of each slide would be cut."""

    def to_dict(self) -> dict[str, Any]:
        """Return the estimate as JSON values."""
        values: dict[str, Any] = {
            "what": self.what,
            "items": self.items,
            "instances": round(self.instances),
            "bytes": round(self.bytes),
            "seconds": round(self.seconds, 1),
            "tried": self.tried,
            "failed": [{"name": name, "reason": reason} for name, reason in self.failed],
            "without_resolution": list(self.without_resolution),
        }
        if self.geometry:
            values["geometry"] = [asdict(geometry) for geometry in self.geometry]
        return values

    def render(self, console: Console) -> None:
        """Print the estimate in one sentence, after the items that could not be read."""
        if not self.items:
            console.print("nothing is left to do")
            return
        if self.without_resolution:
            hint = resolution_hint(self.without_resolution)
            console.print(hint, markup=False, soft_wrap=True)
        for name, reason in self.failed:
            if name not in self.without_resolution:
                console.print(f"{name}: {reason}", markup=False)
        print_geometries(self.geometry, console)
        console.print(
            f"{self.items} slides or series, about {self.instances:,.0f} {self.what}, "
            f"{_format_size(self.bytes)}, {_format_duration(self.seconds)} "
            f"(from {self.tried} of them; nothing was written)",
            markup=False,
        )


def estimate_patches(
    source: Path,
    *,
    settings: PatchSettings,
    contours: Path | None = None,
    mpp: Resolution | None = None,
    workers: int = 1,
    share: Share = WHOLE,
) -> Estimate:
    """Estimate `patch_cohort`, whose arguments these are, by cutting a few slides.

    Raises:
        InputError: There is nothing to read.
    """
    records = share_of(find_inputs(source, mpp=mpp), share, size=Record.bytes_on_disk)
    fallback = None if isinstance(mpp, Mapping) else mpp
    geometries: list[SlideGeometry] = []
    trials: list[_Trial] = []
    failures: list[tuple[str, str]] = []
    sample = evenly_spaced(records, SAMPLE_SIZE)
    for record in records:
        began = time.perf_counter()
        try:
            if record.reason:
                raise InputError(record.reason)
            if record.kind == "ct":
                if record in sample:
                    count = _count_slices(record)
                    trials.append(_Trial(count, 0, time.perf_counter() - began))
                continue
            opened = resolve_mpp(record, fallback)
            with open_slide(Path(record.source), mpp=opened.mpp) as slide:
                geometries.append(SlideGeometry.of_slide(slide, settings, name=record.name))
                if record in sample:
                    count, size = _try_patching(slide, settings, contours, name=record.name)
                    trials.append(_Trial(count, size, time.perf_counter() - began))
        except BROKEN as e:
            if is_fault(e):
                raise
            if record in sample:
                failures.append((record.name, str(e)))
    # as many of all inputs can be read as of those that were tried
    readable = len(records) * (len(trials) / max(1, len(sample)))
    instances = picture_bytes = seconds = 0.0
    if trials:
        instances = readable * float(np.mean([trial.instances for trial in trials]))
        picture_bytes = readable * float(np.mean([trial.picture_bytes for trial in trials]))
        seconds = readable * float(np.mean([trial.seconds for trial in trials]))
    without_resolution: list[str] = []
    if settings.mpp is not None or settings.tissue.needs_mpp:
        without_resolution = [geometry.name for geometry in geometries if geometry.mpp is None]
    return Estimate(
        what="patches or slices",
        items=len(records),
        instances=instances,
        bytes=instances * BYTES_PER_ROW + picture_bytes,
        seconds=seconds / workers,
        tried=len(sample),
        failed=tuple(failures),
        without_resolution=tuple(without_resolution),
        geometry=tuple(geometries),
    )


class _Trial(NamedTuple):
    """What one slide or series took."""

    instances: int
    picture_bytes: int
    seconds: float


def _count_slices(record: Record) -> int:
    """Return the number of slices; of a DICOM series, whose files are one each, without reading."""
    if record.format == "dicom":
        return len(record.files)
    return len(getattr(open_source(record), "positions", ()))


def _try_patching(
    slide: Slide, settings: PatchSettings, contours: Path | None, *, name: str
) -> tuple[int, int]:
    """Return the number of patches of a slide, and the bytes of its pictures."""
    if contours is None:
        tissue = find_tissue(slide, settings.tissue)
    else:
        tissue = outlined_tissue(contours, name, slide)
    patches = cut(slide, tissue, settings)
    picture = thumbnail(slide)
    overview = draw_overview(picture, tissue, patches)
    return len(patches), _jpeg_size(picture) + _jpeg_size(overview)


def _jpeg_size(image: Image.Image) -> int:
    buffer = BytesIO()
    image.save(buffer, format="JPEG", quality=JPEG_QUALITY)
    return buffer.tell()


def estimate_features(
    out: Path, options: ExtractOptions, *, patch_set: str | None = None, workers: int = 1
) -> Estimate:
    """Estimate `extract_cohort` by reading and encoding one batch of a few slides.

    Raises:
        InputError: `out` is not a work folder.
    """
    chosen = WorkFolder(out).choose(patch_set)
    folder = chosen.features(options.encoder)
    records = [r for r in chosen.records() if r.status == "done"]
    todo = [r for r in records if not named_file(folder, r.name, ".h5").is_file()]
    encoder = options.build()
    if options.threads:
        torch.set_num_threads(options.threads)
    encoded = 0
    reading_time = 0.0
    encoding_time = 0.0
    failures: list[tuple[str, str]] = []
    sample = evenly_spaced(todo, SAMPLE_SIZE)
    for job, record in enumerate(sample):
        try:
            coordinates = read_coordinates(chosen.patches_file(record.name))
            patches = coordinates.patches() if record.kind == "slide" else None
            chunks = chunks_of(record, patches, job=job, size=options.batch)
            began = time.perf_counter()
            chunk = next(read_chunks(chunks, windows=options.windows, readers=0))
            reading_time += time.perf_counter() - began
            if chunk.error:
                raise InputError(chunk.error)
            began = time.perf_counter()
            encoder.encode(chunk.pixels, precision=options.precision)
            encoding_time += time.perf_counter() - began
            encoded += len(chunk.pixels)
        except BROKEN as e:
            if is_fault(e):
                raise
            failures.append((record.name, str(e)))
    instances = float(sum(r.count for r in todo))
    # readers work in parallel with the encoder, so the slower of the two determines the time
    total = reading_time + encoding_time
    if options.readers:
        total = max(encoding_time, reading_time / options.readers)
    return Estimate(
        what="instances",
        items=len(todo),
        instances=instances,
        bytes=instances * (encoder.width * np.dtype(options.dtype).itemsize + BYTES_PER_ROW),
        seconds=instances * total / max(1, encoded) / workers,
        tried=len(sample),
        failed=tuple(failures),
    )


def evenly_spaced(items: Sequence[T], n: int) -> list[T]:
    """Return at most n of the items, evenly spaced."""
    if not items:
        return []
    indices = np.unique(np.linspace(0, len(items) - 1, min(n, len(items))).round().astype(int))
    return [items[i] for i in indices]


def _format_size(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _format_duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
