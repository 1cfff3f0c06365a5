"""The parts that the two stages of a cohort, patching and extraction, have in common."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from ..core import remove_written
from ..jobs import Stage, Task, TaskOutcome
from .records import Record
from .work import PatchSet, content_of


class CohortStage(Stage):
    """A stage whose tasks are slides or series; the payloads and outcomes are their records."""

    advice_on_death: ClassVar[str] = (
        "Try it with fewer workers or smaller batches; if it dies again, the file may be damaged "
        "in a way that crashes the reader"
    )

    crashes: ClassVar[bool] = False
    """Whether native decoders run in the process of a worker, and may crash it."""
    name: str
    """Name of the stage's records and report."""
    set: PatchSet

    def __init__(self) -> None:
        self._contents: dict[str, str] = {}

    @abstractmethod
    def outputs(self, task: Task) -> tuple[Path, ...]:
        """Return the paths of all files that are made from a slide or series."""

    def record_file(self, task: Task) -> Path:
        """Return the path of the record of a task."""
        return self.set.record(self.name, task.name)

    def record(self, task: Task, outcome: TaskOutcome) -> None:
        assert isinstance(outcome, Record)
        outcome.write(self.record_file(task))

    def failure(self, task: Task, reason: str) -> Record:
        return task.payload.failed(reason)

    def content(self, record: Record) -> str:
        """Return the digest of a slide or series; each process reads its files only once."""
        if record.name not in self._contents:
            self._contents[record.name] = content_of(tuple(map(Path, record.paths)))
        return self._contents[record.name]

    def prepare(self, tasks: Sequence[Task], *, overwrite: bool) -> None:
        """Remove the records of failures; with `overwrite`, remove all records and targets."""
        for task in tasks:
            path = self.record_file(task)
            record = Record.read(path)
            if overwrite or (record is not None and record.status == "failed"):
                remove_written(path)
            if overwrite:
                remove_written(task.target)
