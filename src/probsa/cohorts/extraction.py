"""Stage 3 for many slides: the features of every patch or slice, one bag a slide.

Slides follow one another through the same readers and the same encoder, so neither waits while
another slide begins. A bag is written whole when its last instance is there.
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

from ..core import full_disk, peek_bag, read_bag, stamp, write_bag
from ..errors import BagError, InputError, ProbSAError, SlideError
from ..features import Encoder, Precision, build
from ..jobs import Outcome, Task
from ..patches import Patches
from ..slides import Windows
from .coordinates import Coordinates, read_coordinates
from .reading import BROKEN, READERS_DIED, Chunk, Read, chunks_of, reading
from .records import Record
from .stage import CohortStage
from .work import PatchSet, content_of

BRAIN_SUBDURAL_BONE = Windows()


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtractOptions:
    """How features are made; what the result depends on is in `described`."""

    encoder: str = "handcrafted"
    weights: str | None = None
    """A file, or `hub`; None where the encoder has none."""
    device: str = "cpu"
    precision: Precision = "float32"
    dtype: Literal["float32", "float16"] = "float32"
    """Of the features on disk."""
    batch: int = 32
    readers: int = 0
    """Processes that read and decode; 0 reads where the encoder runs."""
    threads: int = 0
    """Of the encoder; 0 leaves torch's own choice."""
    windows: Windows = BRAIN_SUBDURAL_BONE
    """Of CT: which become the three channels."""

    def __post_init__(self) -> None:
        if self.batch < 1 or self.readers < 0 or self.threads < 0:
            raise InputError(
                f"batch is {self.batch}, readers {self.readers}, threads {self.threads}: "
                "give at least 1, 0 and 0"
            )

    def absolute(self) -> "ExtractOptions":
        """The same for workers that have another working folder."""
        if self.weights is None or not Path(self.weights).exists():
            return self
        return replace(self, weights=str(Path(self.weights).absolute()))

    def build(self) -> Encoder:
        """The encoder, with its weights, on its device."""
        return build(self.encoder, weights=self.weights, device=self.device)


@dataclass(slots=True)
class _Begun:
    """A slide under way."""

    task: Task
    record: Record
    held: Coordinates
    patches: Patches | None
    """None for a series."""
    made_with: dict[str, Any]
    features: np.ndarray
    unreadable: np.ndarray
    began: float
    done: int = 0
    suspect: bool = False
    """A reading process died while it was at work: done alone from then on."""


class Extraction(CohortStage):
    """Makes the features of the slides of one set of patches.

    Args:
        patch_set: of the work folder.
        options: how.
        identity: of the encoder with its weights, so that what is there can be told from what
            other weights made without loading them again.
        encoder: the encoder itself, where it is loaded already; it is not pickled.
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
        self._checked: dict[str, tuple[int, Outcome]] = {}
        self._contents: dict[str, str] = {}
        self._made: dict[str, Record] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_encoder": None}

    @property
    def encoder(self) -> Encoder:
        """Loaded when first needed."""
        if self._encoder is None:
            self._encoder = self.options.build()
        return self._encoder

    def start(self) -> None:
        if self.options.threads:
            torch.set_num_threads(self.options.threads)
        if self.encoder.identity != self.identity:
            raise InputError(
                f"the weights of {self.options.encoder} are others here than where the run began "
                f"({self.encoder.identity}, expected {self.identity})"
            )

    def known(self, task: Task) -> Outcome | None:
        record = Record.read(self.record_file(task))
        if record is not None and record.status == "failed":
            return record.outcome()
        if not task.target.is_file():
            return None
        changed = task.target.stat().st_mtime_ns
        if task.name in self._checked and self._checked[task.name][0] == changed:
            return self._checked[task.name][1]
        found = self._examine(task, record)
        if found is not None:
            self._checked[task.name] = changed, found
            if record is None and found.kept:  # killed before it was written
                self.record(task, found)
        return found

    def _examine(self, task: Task, record: Record | None) -> Outcome | None:
        """What is to be said of a file of features that is there; None: it has to be made."""
        try:
            source = task.payload
            held = json.loads(stamp(task.target, "made_with") or "{}")
            coords = read_coordinates(self.set.patches_file(task.name))
            wanted = self._made_with(source, coords, content=self._content_now(source, held))
            if held != wanted:
                differs = [k for k in wanted if held.get(k) != wanted[k]] or ["format"]
                reason = (
                    f"{task.target.name} was made with another {', '.join(differs)}. Give "
                    "--overwrite to make it anew"
                )
                return Outcome(name=task.name, status="failed", reason=reason, source=source.source)
            bag = read_bag(task.target, keep_unreadable=True)
            lost = len(bag.features) - peek_bag(task.target)[0]
        except (ProbSAError, OSError, ValueError, AttributeError):
            return None  # damaged: made anew
        if len(bag.features) != source.count:
            return None
        # without a record the file itself knows what could not be read
        made = record or replace(source, unreadable=lost, reason=_loss(lost, source.count))
        return made.outcome(kept=True)

    def outputs(self, task: Task) -> tuple[Path, ...]:
        """Every file that is made of a slide or series."""
        return task.target, self.record_file(task)

    def record(self, task: Task, outcome: Outcome) -> None:
        made = self._made.pop(task.name, None) or task.payload
        made.with_outcome(outcome).write(self.record_file(task))

    def run(self, tasks: Iterator[Task]) -> Iterator[Outcome]:
        under_way: dict[int, _Begun] = {}
        ended: deque[Outcome] = deque()
        fresh = self._begin(tasks, under_way, ended)
        suspects: deque[int] = deque()
        # readers are only started when there is something to read
        while (job := suspects.popleft() if suspects else next(fresh, None)) is not None:
            alone = job in under_way and under_way[job].suspect
            chunks = self._chunks([job] if alone else chain([job], fresh), under_way)
            o = self.options
            try:
                for read in reading(chunks, windows=o.windows, readers=o.readers):
                    self._take(read, under_way, ended)
                    while ended:
                        yield ended.popleft()
            except RuntimeError as e:
                if not str(e).startswith(READERS_DIED):
                    raise
                if alone:
                    ended.append(self._killed(under_way.pop(job).task))
                else:
                    suspects.extend(_suspected(under_way))
        while ended:
            yield ended.popleft()

    def _begin(
        self, tasks: Iterator[Task], under_way: dict[int, _Begun], ended: deque[Outcome]
    ) -> Iterator[int]:
        """Opens a slide's coordinates when the readers have room for it; gives its number."""
        for job, task in enumerate(tasks):
            began, record = time.perf_counter(), task.payload
            assert isinstance(record, Record)
            try:
                held = read_coordinates(self.set.patches_file(task.name))
                content = self._content(record)
                if record.content not in ("", content):
                    raise SlideError(
                        f"{record.source} is not as it was when its patches were made: give "
                        "--overwrite to probsa patch, and then to probsa extract"
                    )
                if len(held.coords) != record.count:
                    raise BagError(
                        f"{self.set.patches_file(task.name)} holds {len(held.coords)} "
                        f"instances, {record.count} were recorded: run `probsa patch` again"
                    )
                under_way[job] = _Begun(
                    task=task,
                    record=record,
                    held=held,
                    patches=held.patches() if record.kind == "slide" else None,
                    made_with=self._made_with(record, held, content=content),
                    features=np.zeros((record.count, self.encoder.width), self.options.dtype),
                    unreadable=np.zeros(record.count, bool),
                    began=began,
                )
            except BROKEN as e:
                ended.append(self._failed(task, str(e) or type(e).__name__))
                continue
            yield job

    def _chunks(self, jobs: Iterable[int], under_way: dict[int, _Begun]) -> Iterator[Chunk]:
        for job in jobs:
            b = under_way[job]
            for chunk in chunks_of(b.record, b.patches, job=job, size=self.options.batch):
                if job not in under_way:  # given up meanwhile
                    break
                yield chunk

    def _take(self, read: Read, under_way: dict[int, _Begun], ended: deque[Outcome]) -> None:
        """Encodes what was read; when it was a slide's last, writes the bag."""
        b = under_way.get(read.job)
        if b is None:  # given up already
            return
        try:
            if read.error:
                raise BagError(read.error)
            rows = slice(read.start, read.stop)
            there = ~read.unreadable.numpy()
            if there.any():
                f = self.encoder.encode(
                    read.pixels[torch.from_numpy(there)], precision=self.options.precision
                )
                b.features[rows][there] = self._as_stored(f.numpy())
            b.unreadable[rows] = ~there
            b.done += read.stop - read.start
            if b.done == b.record.count:
                ended.append(self._finish(b))
                del under_way[read.job]
        except BROKEN as e:
            # a reader's death may be told wherever this process is just then: it is not the slide's
            if full_disk(e) or str(e).startswith(READERS_DIED):
                raise
            under_way.pop(read.job, None)
            ended.append(self._failed(b.task, str(e) or type(e).__name__))

    def _as_stored(self, values: np.ndarray) -> np.ndarray:
        """Features in the type that they are kept in.

        Raises:
            BagError: it cannot hold them.
        """
        with np.errstate(over="ignore"):
            stored = values.astype(self.options.dtype)
        if np.isinf(stored).any() and np.isfinite(values).all():
            raise BagError(
                f"{self.options.encoder} gives features of up to {np.abs(values).max():.3g}, more "
                f"than {self.options.dtype} can hold: give --dtype float32"
            )
        return stored

    def _finish(self, b: _Begun) -> Outcome:
        lost = int(b.unreadable.sum())
        if lost == b.record.count:
            return self._failed(b.task, "none of its instances could be read: the file is damaged")
        write_bag(
            b.task.target,
            features=b.features,
            kind=b.record.kind,
            coords=b.held.coords,
            unreadable=b.unreadable,
            attributes={k: v for k, v in b.held.attributes.items() if k != "kind"},
            stamps={
                "made_with": json.dumps(b.made_with, sort_keys=True),
                "encoder": self.identity,
                "source": b.record.source,
            },
        )
        self._made[b.task.name] = b.record
        return Outcome(
            name=b.task.name,
            status="done",
            reason=_loss(lost, b.record.count),
            count=b.record.count,
            unreadable=lost,
            seconds=time.perf_counter() - b.began,
            source=b.record.source,
        )

    def _failed(self, task: Task, reason: str) -> Outcome:
        source = task.payload.source
        return Outcome(name=task.name, status="failed", reason=reason, source=source)

    def _killed(self, task: Task) -> Outcome:
        reason = (
            f"a reader process was killed twice while reading this {task.noun}: probably out of "
            "memory, or of shared memory (/dev/shm). Give fewer --readers or a smaller --batch"
        )
        return self._failed(task, reason)

    def _content(self, record: Record) -> str:
        """Digest of the slide; a file is looked at once a process."""
        if record.name not in self._contents:
            sources = record.files or (record.source,)
            self._contents[record.name] = content_of(tuple(map(Path, sources)))
        return self._contents[record.name]

    def _content_now(self, record: Record, made_with: Mapping[str, Any]) -> str:
        """The same; of a slide that was put away since, what the features were made of."""
        try:
            return self._content(record)
        except OSError:
            return record.content or str(made_with.get("slide"))

    def _made_with(self, record: Record, held: Coordinates, *, content: str) -> dict[str, Any]:
        """What the features depend on, part by part, so that a difference can be named."""
        o = self.options
        parts = {
            "slide": content,
            "patches": held.fingerprint,
            "encoder": self.identity,
            "precision": o.precision,
            "dtype": o.dtype,
        }
        if record.kind == "ct":
            parts["windows"] = str(o.windows)
        return parts


def _suspected(under_way: dict[int, _Begun]) -> list[int]:
    """The slides that were at work when a reading process died, to be begun again one by one.

    Any of them may be the one that it died of, and the others should not fail with it.
    """
    for b in under_way.values():
        b.done, b.suspect = 0, True
    return list(under_way)


def _loss(lost: int, count: int) -> str:
    return f"{lost} of {count} instances could not be read" if lost else ""
