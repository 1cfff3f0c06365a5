"""Stage 3 for many slides: compute the features of all patches or slices, one bag per slide.

The instances of consecutive slides pass through the same readers and the same encoder, so that
neither waits while the next slide is opened. A bag is written when its last instance is encoded.
"""

import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from ..core import is_disk_full, peek_bag, read_bag, read_stamp, write_bag
from ..errors import BagError, InputError, ProbSAError, SlideError
from ..features import Encoder, Precision, build
from ..jobs import Task, TaskOutcome
from ..patches import Patches
from ..slides import Windows
from .coordinates import Coordinates, read_coordinates
from .reading import BROKEN, READERS_DIED, Chunk, ReadChunk, chunks_of, reading
from .records import Record
from .stage import CohortStage
from .work import PatchSet, content_of

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


@dataclass(slots=True)
class _SlideInProgress:
    task: Task
    record: Record
    coordinates: Coordinates
    patches: Patches | None
    """None for a series."""
    made_with: dict[str, Any]
    features: np.ndarray
    unreadable: np.ndarray
    intensity: np.ndarray
    began: float
    done: int = 0
    """Number of instances that are encoded."""
    suspect: bool = False
    """A reader process died while the slide was in progress: it is done by itself from then on."""


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
        self.set, self.options, self.identity = patch_set, options, identity
        self.folder = patch_set.features(options.encoder)
        self.name = self.folder.name
        self._encoder = encoder
        self._checked: dict[str, tuple[int, TaskOutcome]] = {}
        """Modification time and outcome of feature files that were checked."""
        self._contents: dict[str, str] = {}
        self._finished: dict[str, Record] = {}

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

    def known(self, task: Task) -> TaskOutcome | None:
        record = Record.read(self.record_file(task))
        if record is not None and record.status == "failed":
            return record.outcome()
        if not task.target.is_file():
            return None
        modified = task.target.stat().st_mtime_ns
        if task.name in self._checked and self._checked[task.name][0] == modified:
            return self._checked[task.name][1]
        outcome = self._examine(task, record)
        if outcome is not None:
            self._checked[task.name] = modified, outcome
            if record is None and outcome.kept:  # the process was killed before it wrote one
                self.record(task, outcome)
        return outcome

    def _examine(self, task: Task, record: Record | None) -> TaskOutcome | None:
        """Check an existing file of features; return None if it must be redone."""
        try:
            patch_record = task.payload
            made_with = json.loads(read_stamp(task.target, "made_with") or "{}")
            coordinates = read_coordinates(self.set.patches_file(task.name))
            content = self._content_now(patch_record, made_with)
            wanted = self._made_with(patch_record, coordinates, content=content)
            if made_with != wanted:
                differing = [k for k in wanted if made_with.get(k) != wanted[k]] or ["format"]
                reason = (
                    f"{task.target.name} was made with another {', '.join(differing)}. Give "
                    "--overwrite to redo it"
                )
                return self._failed(task, reason)
            bag = read_bag(task.target, keep_unreadable=True)
            unreadable = len(bag.features) - peek_bag(task.target)[0]
        except (ProbSAError, OSError, ValueError, AttributeError, RecursionError):
            return None  # the file is damaged
        if len(bag.features) != patch_record.count:
            return None
        if record is not None:
            return record.outcome(kept=True)
        # without a record, the file itself tells how many instances are unreadable
        reason = _unreadable_reason(unreadable, patch_record.count)
        return replace(patch_record, unreadable=unreadable, reason=reason).outcome(kept=True)

    def outputs(self, task: Task) -> tuple[Path, ...]:
        return task.target, self.record_file(task)

    def record(self, task: Task, outcome: TaskOutcome) -> None:
        record = self._finished.pop(task.name, None) or task.payload
        record.with_outcome(outcome).write(self.record_file(task))

    def run(self, tasks: Iterator[Task]) -> Iterator[TaskOutcome]:
        in_progress: dict[int, _SlideInProgress] = {}
        outcomes: deque[TaskOutcome] = deque()
        fresh = self._begin(tasks, in_progress, outcomes)
        suspects: deque[int] = deque()
        # draw the first slide before starting readers: there may be nothing to read
        while (job := suspects.popleft() if suspects else next(fresh, None)) is not None:
            alone = job in in_progress and in_progress[job].suspect
            chunks = self._chunks([job] if alone else chain([job], fresh), in_progress)
            o = self.options
            try:
                for chunk in reading(chunks, windows=o.windows, readers=o.readers):
                    self._take(chunk, in_progress, outcomes)
                    while outcomes:
                        yield outcomes.popleft()
            except RuntimeError as e:
                if not str(e).startswith(READERS_DIED):
                    raise
                if alone:
                    outcomes.append(self._killed(in_progress.pop(job).task))
                else:
                    suspects.extend(_make_suspects(in_progress))
        while outcomes:
            yield outcomes.popleft()

    def _begin(
        self,
        tasks: Iterator[Task],
        in_progress: dict[int, _SlideInProgress],
        outcomes: deque[TaskOutcome],
    ) -> Iterator[int]:
        """Prepare one slide after the other as the readers have room; yield their indices."""
        for job, task in enumerate(tasks):
            began, record = time.perf_counter(), task.payload
            assert isinstance(record, Record)
            try:
                coordinates = read_coordinates(self.set.patches_file(task.name))
                content = self._content(record)
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
                in_progress[job] = _SlideInProgress(
                    task=task,
                    record=record,
                    coordinates=coordinates,
                    patches=coordinates.patches() if record.kind == "slide" else None,
                    made_with=self._made_with(record, coordinates, content=content),
                    features=np.zeros((record.count, self.encoder.width), self.options.dtype),
                    unreadable=np.zeros(record.count, bool),
                    intensity=np.zeros(record.count, np.float32),
                    began=began,
                )
            except BROKEN as e:
                outcomes.append(self._failed(task, str(e) or type(e).__name__))
                continue
            yield job

    def _chunks(
        self, jobs: Iterable[int], in_progress: dict[int, _SlideInProgress]
    ) -> Iterator[Chunk]:
        for job in jobs:
            slide = in_progress[job]
            for chunk in chunks_of(slide.record, slide.patches, job=job, size=self.options.batch):
                if job not in in_progress:  # it has failed in the meantime
                    break
                yield chunk

    def _take(
        self,
        chunk: ReadChunk,
        in_progress: dict[int, _SlideInProgress],
        outcomes: deque[TaskOutcome],
    ) -> None:
        """Encode a chunk; write the bag if the chunk was the last of its slide."""
        slide = in_progress.get(chunk.job)
        if slide is None:  # it has failed already
            return
        try:
            if chunk.error:
                raise BagError(chunk.error)
            rows = slice(chunk.start, chunk.stop)
            readable = ~chunk.unreadable.numpy()
            if readable.any():
                features = self.encoder.encode(
                    chunk.pixels[torch.from_numpy(readable)], precision=self.options.precision
                )
                slide.features[rows][readable] = self._to_disk_dtype(features.numpy())
            slide.unreadable[rows] = ~readable
            slide.intensity[rows] = chunk.intensity.numpy()
            slide.done += chunk.stop - chunk.start
            if slide.done == slide.record.count:
                outcomes.append(self._finish(slide))
                del in_progress[chunk.job]
        except BROKEN as e:
            # torch may report a dead reader at any moment: it need not be this slide's fault
            if is_disk_full(e) or str(e).startswith(READERS_DIED):
                raise
            in_progress.pop(chunk.job, None)
            outcomes.append(self._failed(slide.task, str(e) or type(e).__name__))

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

    def _finish(self, slide: _SlideInProgress) -> TaskOutcome:
        """Write the bag of a slide."""
        task, record = slide.task, slide.record
        unreadable = int(slide.unreadable.sum())
        if unreadable == record.count:
            return self._failed(task, "none of its instances could be read: the file is damaged")
        write_bag(
            task.target,
            features=slide.features,
            kind=record.kind,
            coords=slide.coordinates.coords,
            unreadable=slide.unreadable,
            intensity=slide.intensity,
            attributes={k: v for k, v in slide.coordinates.attributes.items() if k != "kind"},
            stamps={
                "made_with": json.dumps(slide.made_with, sort_keys=True),
                "encoder": self.identity,
                "source": record.source,
            },
        )
        self._finished[task.name] = record
        return TaskOutcome(
            name=task.name,
            status="done",
            reason=_unreadable_reason(unreadable, record.count),
            count=record.count,
            unreadable=unreadable,
            seconds=time.perf_counter() - slide.began,
            source=record.source,
        )

    def _failed(self, task: Task, reason: str) -> TaskOutcome:
        source = task.payload.source
        return TaskOutcome(name=task.name, status="failed", reason=reason, source=source)

    def _killed(self, task: Task) -> TaskOutcome:
        reason = (
            f"a reader process was killed twice while reading this {task.noun}: probably out of "
            "memory, or of shared memory (/dev/shm). Give fewer --readers or a smaller --batch"
        )
        return self._failed(task, reason)

    def _content(self, record: Record) -> str:
        """Return the digest of a slide; each process reads a file only once."""
        if record.name not in self._contents:
            sources = record.files or (record.source,)
            self._contents[record.name] = content_of(tuple(map(Path, sources)))
        return self._contents[record.name]

    def _content_now(self, record: Record, made_with: Mapping[str, Any]) -> str:
        """Do the same; if the slide was moved away, return the digest stored with the features."""
        try:
            return self._content(record)
        except OSError:
            return record.content or str(made_with.get("slide"))

    def _made_with(
        self, record: Record, coordinates: Coordinates, *, content: str
    ) -> dict[str, Any]:
        """Return what the features depend on; messages name the keys that differ."""
        o = self.options
        parts = {
            "slide": content,
            "patches": coordinates.fingerprint,
            "encoder": self.identity,
            "precision": o.precision,
            "dtype": o.dtype,
        }
        if record.kind == "ct":
            parts["windows"] = str(o.windows)
        return parts


def _make_suspects(in_progress: dict[int, _SlideInProgress]) -> list[int]:
    """Reset the slides in progress after a reader died, to be done again one by one.

    Any of them may have killed the reader, and the others should not fail with it.
    """
    for slide in in_progress.values():
        slide.done, slide.suspect = 0, True
    return list(in_progress)


def _unreadable_reason(unreadable: int, count: int) -> str:
    return f"{unreadable} of {count} instances could not be read" if unreadable else ""
