"""Pixels for an encoder: read and decoded by worker processes while the encoder works."""

import signal
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..errors import ProbSAError, RegionError, SlideError
from ..patches import Patches, read_patch
from ..slides import Scan, ScanSource, Slide, Windows, open_scan, open_slide, slice_image
from .records import Record

BROKEN = (
    ProbSAError,
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    MemoryError,
    LookupError,
    ArithmeticError,
    SyntaxError,
    struct.error,
    zlib.error,
)
"""What a damaged file may raise in the libraries that decode it (Pillow a SyntaxError, say)."""
PREFETCHED = 2
"""Chunks that each reader has ready or in work."""
READERS_DIED = "DataLoader worker"
"""How torch's error begins when a reading process is gone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """Some instances of one slide or scan, read together; pickled to a reader."""

    job: int
    """Counts the slides of a run."""
    record: Record
    start: int
    stop: int
    patches: Patches | None
    """Those of this chunk; None for the slices of a scan."""


class Read(NamedTuple):
    """What came of a chunk; a tuple, so that the tensors travel through shared memory."""

    job: int
    start: int
    stop: int
    pixels: Tensor
    """uint8 (n, height, width, 3)."""
    unreadable: Tensor
    """bool (n,): the pixels of these could not be decoded, and are zeros."""
    error: str
    """Why the slide cannot be read at all; empty where it can."""


class Pixels(Dataset[Read]):
    """Reads chunks. Each reader keeps the slide open that it read last."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self._job = -1
        self._open: Slide | Scan | None = None
        self._error = ""

    def __getitem__(self, chunk: Chunk) -> Read:
        try:
            source = self._source(chunk)
            if isinstance(source, Scan):
                pixels, lost = _slices(source, chunk, self.windows)
            else:
                pixels, lost = _patches(source, chunk)
            return Read(chunk.job, chunk.start, chunk.stop, pixels, lost, "")
        except BROKEN as e:
            self._error = str(e) or type(e).__name__
            nothing = torch.zeros(0, 0, 0, 3, dtype=torch.uint8)
            return Read(
                chunk.job, chunk.start, chunk.stop, nothing, torch.zeros(0).bool(), self._error
            )

    def _source(self, chunk: Chunk) -> Slide | Scan:
        if chunk.job == self._job:
            if self._open is None:  # it failed before: fail alike, and as fast
                raise ProbSAError(self._error)
            return self._open
        self.close()
        self._job = chunk.job
        self._open = open_source(chunk.record)
        return self._open

    def close(self) -> None:
        """Frees the slide that is open."""
        if isinstance(self._open, Slide):
            self._open.close()
        self._job, self._open = -1, None


def open_source(record: Record) -> Slide | Scan:
    """The slide or the series that a record speaks of.

    Raises:
        SlideError: it is gone, or cannot be read.
    """
    if record.kind == "slide":
        return open_slide(Path(record.source), mpp=record.mpp)
    return open_scan(
        ScanSource(
            name=record.name,
            path=Path(record.source),
            files=tuple(Path(f) for f in record.files),
            format="nifti" if record.format == "nifti" else "dicom",
        )
    )


def _patches(source: Slide, chunk: Chunk) -> tuple[Tensor, Tensor]:
    assert chunk.patches is not None, "the chunks of a slide name their patches"
    size, n = chunk.patches.size, len(chunk.patches)
    out, lost = np.zeros((n, size, size, 3), np.uint8), np.zeros(n, bool)
    for i in range(n):
        try:
            out[i] = read_patch(source, chunk.patches, i)
        except RegionError:
            lost[i] = True
    return torch.from_numpy(out), torch.from_numpy(lost)


def _slices(source: Scan, chunk: Chunk, windows: Windows) -> tuple[Tensor, Tensor]:
    if len(source.positions) != chunk.record.count:
        raise SlideError(
            f"{source.path}: {len(source.positions)} slices can be read here, "
            f"{chunk.record.count} were listed by probsa patch: is a file gone, or a decoder?"
        )
    images = [slice_image(source, i, windows) for i in range(chunk.start, chunk.stop)]
    return torch.from_numpy(np.stack(images)), torch.zeros(len(images), dtype=torch.bool)


def chunks_of(record: Record, patches: Patches | None, *, job: int, size: int) -> Iterator[Chunk]:
    """The instances of a slide or scan, `size` at a time, in order."""
    n = record.count
    for start in range(0, n, size):
        stop = min(start + size, n)
        some = None if patches is None else replace(patches, coords=patches.coords[start:stop])
        yield Chunk(job=job, record=record, start=start, stop=stop, patches=some)


def reading(chunks: Iterator[Chunk], *, windows: Windows, readers: int) -> Iterator[Read]:
    """Reads chunks in order, ahead of who asks for them where there are reading processes.

    `chunks` is drawn from lazily: at most `readers` · PREFETCHED are under way.

    Raises:
        RuntimeError: a reading process was killed; its text begins with READERS_DIED.
    """
    pixels = Pixels(windows)
    loader = DataLoader(
        pixels,
        sampler=_Once(chunks),
        batch_size=None,
        num_workers=readers,
        prefetch_factor=PREFETCHED if readers else None,
        # a fork would copy the encoder's threads in whatever state they are
        multiprocessing_context="spawn" if readers else None,
    )
    try:
        with _deaths_wait(), _deaf():
            reads = iter(loader)
        yield from reads
    finally:
        pixels.close()


@contextmanager
def _deaths_wait() -> Iterator[None]:
    """Without torch's handler, which raises a reader's death wherever this process is just then.

    In the middle of another slide, say, which would have failed of it. The loader itself looks
    every few seconds whether its readers live.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGCHLD"):
        yield
        return
    before = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        if before is not None:  # None: somebody's who is no Python
            signal.signal(signal.SIGCHLD, before)


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes started here do not hear ctrl-C: who started them does, and ends them in order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Once:
    """An iterator where torch wants something that can be iterated."""

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self.chunks = chunks

    def __iter__(self) -> Iterator[Chunk]:
        return self.chunks
