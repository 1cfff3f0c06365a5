"""The parts that the two stages of a cohort, patching and extraction, have in common."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from ..jobs import Stage, Task
from .records import Record
from .work import PatchSet


class CohortStage(Stage):
    """A stage whose tasks are slides or series and whose outcomes are records."""

    advice_on_death: ClassVar[str] = (
        "Try it with fewer workers or smaller batches; if it dies again, the file may be damaged "
        "in a way that crashes the reader"
    )

    name: str
    """Name of the stage's records and report."""
    set: PatchSet

    @abstractmethod
    def outputs(self, task: Task) -> tuple[Path, ...]:
        """Return the paths of all files that are made from a slide or series."""

    def record_file(self, task: Task) -> Path:
        """Return the path of the record of a task."""
        return self.set.record(self.name, task.name)

    def prepare(self, tasks: Sequence[Task], *, overwrite: bool) -> None:
        """Remove the records of failures; with `overwrite`, remove all records and targets."""
        for task in tasks:
            path = self.record_file(task)
            record = Record.read(path)
            if overwrite or (record is not None and record.status == "failed"):
                path.unlink(missing_ok=True)
            if overwrite:
                task.target.unlink(missing_ok=True)
