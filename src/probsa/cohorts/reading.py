"""Read and decode the pixels for an encoder, in reader processes while the encoder works."""

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

from ..core import is_fault
from ..errors import ProbSAError, RegionError, SlideError
from ..jobs import end_with_parent
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
"""Exceptions that decoding libraries raise for damaged files (Pillow raises SyntaxError)."""
METHOD = "spawn"
"""How readers are started: a fork would copy the encoder's threads in an undefined state."""
PREFETCHED = 2
"""Number of chunks that each reader prepares ahead."""


TORCH_REPORT = "DataLoader worker"
"""Start of torch's error message if a reader process has died."""


class ReadersDied(RuntimeError):
    """A reader process was killed."""


def is_dead_reader(error: Exception) -> bool:
    """Return whether an error reports a dead reader; torch has no class of errors for that."""
    if isinstance(error, ReadersDied):
        return True
    return isinstance(error, RuntimeError) and str(error).startswith(TORCH_REPORT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """Some instances of one slide or scan that are read together; pickled for a reader."""

    job: int
    """Index of the slide among those of the run."""
    record: Record
    start: int
    stop: int
    patches: Patches | None
    """The patches of this chunk; None for the slices of a scan."""


class ReadChunk(NamedTuple):
    """The pixels of a chunk; a tuple, so that its tensors are sent through shared memory."""

    job: int
    start: int
    stop: int
    pixels: Tensor
    """uint8, shape (n, height, width, 3)."""
    unreadable: Tensor
    """bool, shape (n,): True where the pixels could not be decoded and are zeros."""
    intensity: Tensor
    """float32, shape (n,): mean grey level of each patch, or Hounsfield units of each slice."""
    error: str
    """Why the slide cannot be read at all; empty if it can."""

    @classmethod
    def empty(cls, job: int, start: int, stop: int, error: str = "") -> "ReadChunk":
        """Return a chunk without pixels: of a slide that cannot be read, or to fill a lane."""
        none = torch.zeros(0)
        return cls(job, start, stop, none.byte(), none.bool(), none, error)


NO_JOB = -1
"""The job of a chunk that only fills a place in a lane."""


class PixelReader(Dataset[ReadChunk]):
    """Reads chunks; each reader process keeps the last slide open."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        # the slide that is open, and why it could not be opened
        self._job = NO_JOB
        self._open: Slide | Scan | None = None
        self._error = ""

    def __getitem__(self, chunk: Chunk | None) -> ReadChunk:
        if chunk is None:
            return ReadChunk.empty(NO_JOB, 0, 0)
        try:
            source = self._source(chunk)
            if isinstance(source, Scan):
                pixels, unreadable = _read_slices(source, chunk, self.windows)
                volume = source.volume[chunk.start : chunk.stop]
                intensity = torch.from_numpy(volume.mean((1, 2), dtype=np.float64)).float()
            else:
                pixels, unreadable = _read_patches(source, chunk)
                intensity = pixels.float().mean((1, 2, 3))
            return ReadChunk(chunk.job, chunk.start, chunk.stop, pixels, unreadable, intensity, "")
        except BROKEN as e:
            if is_fault(e):
                raise
            self._error = str(e) or type(e).__name__
            return ReadChunk.empty(chunk.job, chunk.start, chunk.stop, self._error)

    def _source(self, chunk: Chunk) -> Slide | Scan:
        """Return the slide or scan of a chunk, which stays open until another one is read."""
        if chunk.job == self._job:
            if self._open is None:  # opening it failed before: repeat the error at once
                raise ProbSAError(self._error)
            return self._open
        self.close()
        self._job = chunk.job
        self._open = open_source(chunk.record)
        return self._open

    def close(self) -> None:
        """Close the slide that is open."""
        if isinstance(self._open, Slide):
            self._open.close()
        self._job = NO_JOB
        self._open = None


def open_source(record: Record) -> Slide | Scan:
    """Open the slide or series of a record.

    Raises:
        SlideError: It is missing or cannot be read.
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


def _read_patches(slide: Slide, chunk: Chunk) -> tuple[Tensor, Tensor]:
    """Return the pixels of patches, and which of them could not be decoded."""
    assert chunk.patches is not None, "the chunks of a slide contain its patches"
    size = chunk.patches.size
    n = len(chunk.patches)
    pixels = np.zeros((n, size, size, 3), np.uint8)
    unreadable = np.zeros(n, bool)
    for i in range(n):
        try:
            pixels[i] = read_patch(slide, chunk.patches, i)
        except RegionError:
            unreadable[i] = True
    return torch.from_numpy(pixels), torch.from_numpy(unreadable)


def _read_slices(scan: Scan, chunk: Chunk, windows: Windows) -> tuple[Tensor, Tensor]:
    """Return the slices in these windows, and that none of them is unreadable."""
    if len(scan.positions) != chunk.record.count:
        raise SlideError(
            f"{scan.path}: {len(scan.positions)} slices can be read here, "
            f"{chunk.record.count} were listed by probsa patch: is a file gone, or a decoder?"
        )
    images = [slice_image(scan, i, windows) for i in range(chunk.start, chunk.stop)]
    return torch.from_numpy(np.stack(images)), torch.zeros(len(images), dtype=torch.bool)


def chunks_of(record: Record, patches: Patches | None, *, job: int, size: int) -> Iterator[Chunk]:
    """Yield the instances of a slide or scan in order, in chunks of `size`."""
    n = record.count
    for start in range(0, n, size):
        stop = min(start + size, n)
        part = None if patches is None else replace(patches, coords=patches.coords[start:stop])
        yield Chunk(job=job, record=record, start=start, stop=stop, patches=part)


def in_lanes(jobs: Iterator[Iterator[Chunk]], lanes: int) -> Iterator[Chunk | None]:
    """Yield the chunks of several jobs in turn, so that all chunks of a job are in one lane.

    Item k belongs to lane k modulo `lanes`, as torch's loader deals out its items to its processes.
    A lane takes the next job when it has read one. When no job is left, None fills its places until
    the last lane has finished.
    """
    current: list[Iterator[Chunk]] = [iter(()) for _ in range(lanes)]
    finished = [False] * lanes
    while not all(finished):
        for lane in range(lanes):
            chunk = None
            while chunk is None and not finished[lane]:
                chunk = next(current[lane], None)
                if chunk is None:
                    job = next(jobs, None)
                    finished[lane] = job is None
                    current[lane] = iter(()) if job is None else job
            if not all(finished):
                yield chunk


def read_chunks(
    chunks: Iterator[Chunk | None], *, windows: Windows, readers: int
) -> Iterator[ReadChunk]:
    """Read chunks in order; reader processes, if there are any, read ahead.

    At most `readers` · PREFETCHED chunks are drawn from `chunks` ahead of time.

    Args:
        chunks: The chunks to read.
        windows: CT windows that become the three channels of a slice.
        readers: Number of reader processes; 0 reads in this process.

    Raises:
        ReadersDied: A reader process was killed.
    """
    pixels = PixelReader(windows)
    loader = DataLoader(
        pixels,
        sampler=_Once(chunks),
        batch_size=None,
        num_workers=readers,
        prefetch_factor=PREFETCHED if readers else None,
        multiprocessing_context=METHOD if readers else None,
        worker_init_fn=end_with_parent if readers else None,
    )
    try:
        with _signals_of_readers():
            reads = iter(loader)
        yield from reads
    except RuntimeError as e:
        if is_dead_reader(e):
            raise ReadersDied(str(e)) from e
        raise
    except (OSError, EOFError) as e:
        if readers:  # what a dying reader had sent cannot be received
            raise ReadersDied(f"a reader process is not heard any more: {e}") from e
        raise
    finally:
        pixels.close()


@contextmanager
def _signals_of_readers() -> Iterator[None]:
    """Let readers that are started here ignore SIGINT, and keep torch's handler from this process.

    The parent shuts them down. torch's handler of SIGCHLD may raise while another slide is being
    processed, which would then fail; without it, the loader itself checks every few seconds
    whether its readers are alive.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGCHLD"):
        yield
        return
    before = signal.getsignal(signal.SIGCHLD)
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, interrupt)
        if before is not None:  # None: a handler that was not installed from Python
            signal.signal(signal.SIGCHLD, before)


class _Once:
    """Wraps an iterator as an iterable, as DataLoader requires for its sampler."""

    def __init__(self, chunks: Iterator[Chunk | None]) -> None:
        self.chunks = chunks

    def __iter__(self) -> Iterator[Chunk | None]:
        return self.chunks
