"""What a run over a cohort would take, from a few slides of it: nothing is written."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from rich.console import Console

from ..errors import InputError
from ..patches import PatchSettings, cut, draw_overview, find_tissue, read_geojson, thumbnail
from ..slides import open_slide
from .coordinates import read_coordinates
from .extraction import ExtractOptions
from .flow import part
from .inputs import Input, Resolution, find_inputs, settled
from .pictures import JPEG_QUALITY
from .reading import BROKEN, chunks_of, open_source, reading
from .work import WorkFolder

TRIED = 5
"""Slides that are looked at, spread over the cohort."""
ROW = 16
"""Bytes of a pair of coordinates on disk."""
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """What a run would take."""

    what: str
    items: int
    instances: float
    bytes: float
    seconds: float
    """With the workers asked for."""
    tried: int
    """Items that this is extrapolated from."""
    failed: tuple[tuple[str, str], ...]
    """Those of them that could not be read, with the reason."""

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "what": self.what,
            "items": self.items,
            "instances": round(self.instances),
            "bytes": round(self.bytes),
            "seconds": round(self.seconds, 1),
            "tried": self.tried,
            "failed": [{"name": n, "reason": r} for n, r in self.failed],
        }

    def render(self, console: Console) -> None:
        """For people."""
        if not self.items:
            console.print("nothing is left to do")
            return
        for name, reason in self.failed:
            console.print(f"{name}: {reason}", markup=False)
        console.print(
            f"{self.items} slides or series, about {self.instances:,.0f} {self.what}, "
            f"{_size(self.bytes)}, {_duration(self.seconds)} (from {self.tried} of them; nothing "
            "was written)",
            markup=False,
        )


def estimate_patches(
    source: Path,
    *,
    settings: PatchSettings,
    contours: Path | None = None,
    mpp: Resolution | None = None,
    workers: int = 1,
    shard: tuple[int, int] = (0, 1),
) -> Estimate:
    """Patches of a cohort: a few slides are cut as `patch_cohort` would, none is written.

    Raises:
        InputError: nothing to read.
    """
    items = part(find_inputs(source, mpp=mpp), shard)
    tried, failed = spread(items, TRIED), []
    counts, pictures, seconds = [], [], []
    for item in tried:
        began = time.perf_counter()
        try:
            count, size = _count(item, settings, contours=contours)
            counts.append(count)
            pictures.append(size)
            seconds.append(time.perf_counter() - began)
        except BROKEN as e:
            failed.append((item.name, str(e)))
    share = len(items) * (len(counts) / max(1, len(tried)))
    instances = share * float(np.mean(counts)) if counts else 0.0
    return Estimate(
        what="patches or slices",
        items=len(items),
        instances=instances,
        bytes=instances * ROW + share * float(np.mean(pictures) if pictures else 0),
        seconds=share * float(np.mean(seconds)) / workers if seconds else 0.0,
        tried=len(tried),
        failed=tuple(failed),
    )


def _count(item: Input, settings: PatchSettings, *, contours: Path | None) -> tuple[int, int]:
    """Patches or slices, and bytes of the pictures."""
    if item.reason:
        raise InputError(item.reason)
    if item.kind == "ct":
        return len(item.files) if item.format == "dicom" else len(_positions(item)), 0
    item = settled(item)
    with open_slide(item.source, mpp=item.mpp) as slide:
        if contours is None:
            tissue = find_tissue(slide, settings.tissue)
        else:
            tissue = read_geojson(contours / f"{item.name}.geojson", slide.size)
        patches = cut(slide, tissue, settings)
        pictures = thumbnail(slide), draw_overview(slide, tissue, patches)
    return len(patches), sum(map(_jpeg, pictures))


def _jpeg(image: Image.Image) -> int:
    """Bytes of a picture on disk."""
    held = BytesIO()
    image.save(held, format="JPEG", quality=JPEG_QUALITY)
    return held.tell()


def _positions(item: Input) -> np.ndarray:
    scan = open_source(item.record())
    return getattr(scan, "positions", np.zeros(0))


def estimate_features(
    out: Path, options: ExtractOptions, *, patch_set: str | None = None, workers: int = 1
) -> Estimate:
    """Features of a work folder: a batch of a few slides is read and encoded.

    Raises:
        InputError: no work folder.
    """
    chosen = WorkFolder(out).choose(patch_set)
    folder = chosen.features(options.encoder)
    records = [r for r in chosen.records() if r.status == "done"]
    left = [r for r in records if not (folder / f"{r.name}.h5").is_file()]
    encoder = options.build()
    if options.threads:
        torch.set_num_threads(options.threads)
    seen, reads, encodes, failed = 0, 0.0, 0.0, []
    tried = spread(left, TRIED)
    for job, record in enumerate(tried):
        try:
            held = read_coordinates(chosen.patches_file(record.name))
            patches = held.patches() if record.kind == "slide" else None
            chunks = chunks_of(record, patches, job=job, size=options.batch)
            began = time.perf_counter()
            read = next(reading(chunks, windows=options.windows, readers=0))
            reads += time.perf_counter() - began
            if read.error:
                raise InputError(read.error)
            began = time.perf_counter()
            encoder.encode(read.pixels, precision=options.precision)
            encodes += time.perf_counter() - began
            seen += len(read.pixels)
        except BROKEN as e:
            failed.append((record.name, str(e)))
    instances = float(sum(r.count for r in left))
    # readers work beside the encoder: the slower of the two decides
    slower = max(encodes, reads / options.readers) if options.readers else encodes + reads
    return Estimate(
        what="instances",
        items=len(left),
        instances=instances,
        bytes=instances * (encoder.width * np.dtype(options.dtype).itemsize + ROW),
        seconds=instances * slower / max(1, seen) / workers,
        tried=len(tried),
        failed=tuple(failed),
    )


def spread(items: Sequence[T], n: int) -> list[T]:
    """At most n of the items, evenly spread."""
    at = np.unique(np.linspace(0, len(items) - 1, min(n, len(items))).round().astype(int))
    return [items[i] for i in at] if len(items) else []


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
