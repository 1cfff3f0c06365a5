"""Stage 3 for many slides: compute the features of all patches or slices, one bag per slide.

The instances of consecutive slides pass through the same readers and the same encoder, so that
neither waits while the next slide is opened. A bag is written when its last instance is encoded.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from ..core import bag_size, is_disk_full, is_fault, read_stamp, write_bag
from ..errors import BagError, InputError, ProbSAError, SlideError
from ..features import Encoder, Precision, build
from ..jobs import Task, TaskOutcome
from ..patches import Patches
from ..slides import Windows
from .comparable import KnownOptions
from .coordinates import Coordinates, read_coordinates
from .reading import (
    BROKEN,
    Chunk,
    ReadChunk,
    chunks_of,
    in_lanes,
    is_dead_reader,
    read_chunks,
)
from .records import Record
from .stage import CohortStage
from .work import SLICES, PatchSet

BRAIN_SUBDURAL_BONE = Windows()


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtractOptions:
    """The encoder and how it is used."""

    encoder: str = "handcrafted"
    weights: str | None = None
    """A file with the weights, or `hub`; None for an encoder without weights."""
    device: str = "cpu"
    precision: Precision = "float32"
    dtype: Literal["float32", "float16"] = "float32"
    """Data type of the features on disk."""
    batch: int = 32
    """Number of instances that are read and encoded together."""
    readers: int = 0
    """Processes that read and decode; 0 reads in the encoder's process."""
    threads: int = 0
    """Threads of the encoder; 0 keeps torch's default."""
    windows: Windows = BRAIN_SUBDURAL_BONE
    """CT windows that become the three channels."""

    def __post_init__(self) -> None:
        if self.batch < 1 or self.readers < 0 or self.threads < 0:
            raise InputError(
                f"batch is {self.batch}, readers {self.readers}, threads {self.threads}: "
                "give a batch of at least 1, and no negative numbers"
            )

    def absolute(self) -> "ExtractOptions":
        """Make the path of the weights absolute, for workers with another working directory."""
        if self.weights is None or not Path(self.weights).exists():
            return self
        return replace(self, weights=str(Path(self.weights).absolute()))

    def build(self) -> Encoder:
        """Build the encoder with its weights on its device."""
        return build(self.encoder, weights=self.weights, device=self.device)


FEATURES = KnownOptions(kind=ExtractOptions, of_0_2={"precision": "float32", "dtype": "float32"})
"""The options that change features, without encoder and windows."""
WITHOUT_EFFECT = {"weights", "device", "batch", "readers", "threads"}
"""Options that do not change features, or whose effect the identity of the encoder states."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Input:
    """A slide or series whose chunks are being read, or wait for that."""

    task: Task
    coordinates: Coordinates
    patches: Patches | None
    """None for a series."""
    made_with: dict[str, Any]
    began: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Encoding:
    """The arrays of a bag, which are filled chunk by chunk."""

    features: np.ndarray
    unreadable: np.ndarray
    intensity: np.ndarray


class Extraction(CohortStage):
    """Computes the features of the slides of one patch set.

    Args:
        patch_set: The patch set of a work folder.
        options: The encoder and how it is used.
        identity: Identity of the encoder and its weights: existing features are compared with
            it, without loading the weights.
        encoder: The encoder, if it is loaded already; it is not pickled.
    """

    def __init__(
        self,
        patch_set: PatchSet,
        options: ExtractOptions,
        *,
        identity: str,
        encoder: Encoder | None = None,
    ) -> None:
        super().__init__()
        self.set = patch_set
        self.options = options
        self.identity = identity
        self.folder = patch_set.features(options.encoder)
        self.name = self.folder.name
        self._encoder = encoder

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_encoder": None}

    @property
    def encoder(self) -> Encoder:
        """The encoder; it is loaded at the first access."""
        if self._encoder is None:
            self._encoder = self.options.build()
        return self._encoder

    def start(self) -> None:
        if self.options.threads:
            torch.set_num_threads(self.options.threads)
        if self.encoder.identity != self.identity:
            raise InputError(
                f"the weights of {self.options.encoder} differ from those in the process that "
                f"began the run ({self.encoder.identity}, expected {self.identity})"
            )

    def known(self, task: Task) -> Record | None:
        record = Record.read(self.record_file(task))
        if record is not None and record.status == "failed":
            return record
        if not task.target.is_file():
            return None
        try:
            outcome = self._examine(task, record)
        except (ProbSAError, OSError, ValueError, AttributeError, RecursionError) as e:
            if is_fault(e):
                raise
            return None  # the file is damaged
        if record is None and outcome is not None and outcome.kept:
            self.record(task, outcome)  # the process was killed before it wrote one
        return outcome

    def _examine(self, task: Task, record: Record | None) -> Record | None:
        """Check an existing file of features; return None if it must be redone."""
        patch_record: Record = task.payload
        stored = json.loads(read_stamp(task.target, "made_with") or "{}")
        coordinates = read_coordinates(self.set.patches_file(task.name))
        try:
            content = self.content(patch_record)
        except OSError:  # the slide was put away
            content = patch_record.content or str(stored.get("slide"))
        expected = self._made_with(patch_record, coordinates, content=content)
        if stored != expected:
            differing = [key for key in expected if stored.get(key) != expected[key]]
            return patch_record.failed(
                f"{task.target.name} was made with another {', '.join(differing or ['format'])}. "
                "Give --overwrite to redo it"
            )
        # the header alone: the features of a cohort may take an hour to read
        size = bag_size(task.target)
        if size.rows != patch_record.count:
            return None
        if record is not None:
            return replace(record, kept=True)
        # without a record, the file itself tells how many instances are unreadable
        return replace(_with_unreadable(patch_record, size.unreadable), kept=True)

    def outputs(self, task: Task) -> tuple[Path, ...]:
        return task.target, self.record_file(task)

    def run(self, tasks: Iterator[Task]) -> Iterator[TaskOutcome]:
        inputs: dict[int, _Input] = {}
        failures: list[Record] = []
        fresh_jobs = self._prepare_inputs(tasks, inputs, failures)
        # slides that were in progress when a reader died: they are done one by one, since any of
        # them may have killed it
        suspects: list[int] = []
        while True:
            # draw the first slide before starting readers: there may be nothing to read
            first = suspects[0] if suspects else next(fresh_jobs, None)
            if first is None:
                break
            jobs = iter([first]) if suspects else chain([first], fresh_jobs)
            encodings: dict[int, _Encoding] = {}
            chunks = read_chunks(
                self._chunks(jobs, inputs),
                windows=self.options.windows,
                readers=self.options.readers,
            )
            try:
                for chunk in chunks:
                    if chunk.job not in inputs:  # it has failed, or the chunk only fills a lane
                        continue
                    outcome = self._encode(inputs[chunk.job], encodings, chunk)
                    if outcome is not None:
                        del inputs[chunk.job]
                        yield outcome
                        while failures:
                            yield failures.pop(0)
                suspects = suspects[1:]
            except RuntimeError as e:
                if not is_dead_reader(e):
                    raise
                if suspects:
                    task = inputs.pop(suspects.pop(0)).task
                    failures.append(
                        task.payload.failed(
                            f"a reader process was killed twice while reading this {task.noun}: "
                            "probably out of memory, or of shared memory (/dev/shm), or the file "
                            "is damaged. Give fewer --readers or a smaller --batch"
                        )
                    )
                else:
                    suspects = list(inputs)
        yield from failures

    def _prepare_inputs(
        self, tasks: Iterator[Task], inputs: dict[int, _Input], failures: list[Record]
    ) -> Iterator[int]:
        """Prepare one slide after the other as the readers have room; yield their indices."""
        for job, task in enumerate(tasks):
            began = time.perf_counter()
            record = task.payload
            assert isinstance(record, Record)
            try:
                coordinates = read_coordinates(self.set.patches_file(task.name))
                content = self.content(record)
                if record.content not in ("", content):
                    raise SlideError(
                        f"{record.source} has changed since its patches were made: give "
                        "--overwrite to probsa patch, and then to probsa extract"
                    )
                if len(coordinates.coords) != record.count:
                    raise BagError(
                        f"{self.set.patches_file(task.name)} contains {len(coordinates.coords)} "
                        f"instances, {record.count} were recorded: run `probsa patch` again"
                    )
                patches = coordinates.patches() if record.kind == "slide" else None
            except BROKEN as e:
                if is_fault(e):
                    raise
                failures.append(record.failed(str(e) or type(e).__name__))
                continue
            made_with = self._made_with(record, coordinates, content=content)
            inputs[job] = _Input(
                task=task,
                coordinates=coordinates,
                patches=patches,
                made_with=made_with,
                began=began,
            )
            yield job

    def _chunks(self, jobs: Iterator[int], inputs: dict[int, _Input]) -> Iterator[Chunk | None]:
        """Yield what the readers read, in order; reader k gets every readers-th chunk from k.

        The patches of a slide are divided among the readers. A scan is decoded as a whole, so all
        its slices belong to one reader, and the others read other scans at the same time; None
        fills their places when there are none left.
        """
        lanes = max(1, self.options.readers) if self.set.path.name == SLICES else 1

        def job_chunks(job: int) -> Iterator[Chunk]:
            slide = inputs[job]
            record: Record = slide.task.payload
            for chunk in chunks_of(record, slide.patches, job=job, size=self.options.batch):
                if job not in inputs:  # it has failed in the meantime
                    break
                yield chunk

        yield from in_lanes(map(job_chunks, jobs), lanes)

    def _encode(
        self, slide: _Input, encodings: dict[int, _Encoding], chunk: ReadChunk
    ) -> Record | None:
        """Encode a chunk; after the last one of a slide, write its bag and return the outcome."""
        record: Record = slide.task.payload
        n = record.count
        if chunk.job not in encodings:
            encodings[chunk.job] = _Encoding(
                features=np.zeros((n, self.encoder.width), self.options.dtype),
                unreadable=np.zeros(n, bool),
                intensity=np.zeros(n, np.float32),
            )
        arrays = encodings[chunk.job]
        try:
            if chunk.error:
                raise BagError(chunk.error)
            rows = slice(chunk.start, chunk.stop)
            readable = ~chunk.unreadable.numpy()
            if readable.any():
                encoded = self.encoder.encode(
                    chunk.pixels[torch.from_numpy(readable)], precision=self.options.precision
                )
                arrays.features[rows][readable] = self._to_disk_dtype(encoded.numpy())
            arrays.unreadable[rows] = ~readable
            arrays.intensity[rows] = chunk.intensity.numpy()
            if chunk.stop < n:
                return None
            if arrays.unreadable.all():
                raise BagError("none of its instances could be read: the file is damaged")
            write_bag(
                slide.task.target,
                features=arrays.features,
                kind=record.kind,
                coords=slide.coordinates.coords,
                unreadable=arrays.unreadable,
                intensity=arrays.intensity,
                attributes={k: v for k, v in slide.coordinates.attributes.items() if k != "kind"},
                stamps={
                    "made_with": json.dumps(slide.made_with, sort_keys=True),
                    "encoder": self.identity,
                    "source": record.source,
                },
            )
        except BROKEN as e:
            # a dead reader may be reported at any moment: it need not be this slide's fault
            if is_disk_full(e) or is_fault(e) or is_dead_reader(e):
                raise
            del encodings[chunk.job]
            return record.failed(str(e) or type(e).__name__)
        del encodings[chunk.job]
        outcome = _with_unreadable(record, int(arrays.unreadable.sum()))
        return replace(outcome, seconds=time.perf_counter() - slide.began)

    def _to_disk_dtype(self, values: np.ndarray) -> np.ndarray:
        """Convert features to the data type of the file.

        Raises:
            BagError: The features exceed the range of that type.
        """
        with np.errstate(over="ignore"):
            stored = values.astype(self.options.dtype)
        if np.isinf(stored).any() and np.isfinite(values).all():
            raise BagError(
                f"{self.options.encoder} gives features of up to {np.abs(values).max():.3g}, more "
                f"than {self.options.dtype} can hold: give --dtype float32"
            )
        return stored

    def _made_with(
        self, record: Record, coordinates: Coordinates, *, content: str
    ) -> dict[str, Any]:
        """Return what the features depend on; messages name the keys that differ."""
        parts = {
            "slide": content,
            "patches": coordinates.fingerprint,
            "encoder": self.identity,
            **compared_features(self.options),
        }
        if record.kind == "ct":
            parts["windows"] = str(self.options.windows)
        return parts


def compared_features(options: ExtractOptions) -> dict[str, Any]:
    """Return the values by which features are compared, without encoder and windows."""
    omitted = {*WITHOUT_EFFECT, "encoder", "windows"}
    names = [field.name for field in fields(options) if field.name not in omitted]
    return FEATURES.compared({name: getattr(options, name) for name in names})


def _with_unreadable(record: Record, unreadable: int) -> Record:
    """Return the record of a slide that is done."""
    reason = f"{unreadable} of {record.count} instances could not be read" if unreadable else ""
    return replace(record, reason=reason, unreadable=unreadable)
