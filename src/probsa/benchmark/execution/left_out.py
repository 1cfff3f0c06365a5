"""The faithfulness of models without a closed form: instances of test bags are left out one by one.

OUT/cells/DATA/METHOD/split0-seed0/left_out.json   the correlations of a finished cell's bags
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from ...core import as_record, read_json, seed_of, write_json
from ...errors import InputError, ProbSAError
from ...evaluation import (
    LEAVE_ONE_OUT_UP_TO,
    Predictions,
    left_out_correlation,
    load,
    read_predictions,
)
from ...jobs import Stage, Task, TaskOutcome, run_tasks
from ...training import RunFolder, open_units
from ..grid.methods_and_cells import Cell

FILE = "left_out.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """What was found for a cell."""

    asked: int
    """Largest number of bags."""
    correlations: Mapping[str, float | None]
    """By bag, as `left_out_correlation` returns them; none for a model with a closed form."""


@dataclass(kw_only=True)
class LeavingOut(Stage):
    """Leaves out the instances of some positive test bags of finished cells."""

    bags: int
    """Largest number of bags of a cell."""
    threads: int

    def known(self, task: Task) -> TaskOutcome | None:
        """Return that a cell is done; what is damaged, or was asked of other bags, is not."""
        try:
            found = read_left_out(task.target.parent)
        except InputError:
            return None
        if found is None or found.asked != self.bags:
            return None
        return TaskOutcome(name=task.name, status="done", kept=True)

    def start(self) -> None:
        torch.set_num_threads(self.threads)

    def run(self, tasks: Iterator[Task]) -> Iterator[TaskOutcome]:
        for task in tasks:
            try:
                found = _of_run(RunFolder(task.target.parent), bags=self.bags)
            except ProbSAError as error:
                yield TaskOutcome(name=task.name, status="failed", reason=str(error))
                continue
            write_json(task.target, {"asked": self.bags, "correlations": found})
            yield TaskOutcome(name=task.name, status="done", count=len(found))

    def record(self, task: Task, outcome: TaskOutcome) -> None:
        """Nothing is kept of a failure: the next run of the grid tries again."""


def leave_out(
    cells: Sequence[Cell],
    out: Path,
    *,
    bags: int,
    engine: Literal["local", "ray"],
    workers: int,
    threads: int,
) -> list[TaskOutcome]:
    """Leave out instances for all cells that have none yet; return the outcome of each cell.

    Args:
        cells: Finished cells.
        out: Folder of the experiment.
        bags: Largest number of positive test bags of a cell. They are drawn by their names, so all
            methods have the same ones, from those with at most `LEAVE_ONE_OUT_UP_TO` instances.
        engine: See `run_tasks`.
        workers: See `run_tasks`.
        threads: Number of threads of a process.
    """
    tasks = [Task(name=c.name, target=c.folder(out) / FILE, noun="run") for c in cells]
    stage = LeavingOut(bags=bags, threads=threads)
    return run_tasks(stage, tasks, engine=engine, workers=workers)


def read_left_out(folder: Path) -> LeftOut | None:
    """Return what was found for the run in a folder; None if there is nothing.

    Raises:
        InputError: The file is damaged. The next run of the grid writes it again.
    """
    path = folder / FILE
    return as_record(LeftOut, read_json(path), where=str(path)) if path.is_file() else None


def _of_run(run: RunFolder, *, bags: int) -> dict[str, float | None]:
    predictions = read_predictions(run.predictions)
    chosen = _chosen(predictions)
    if not chosen or predictions.instances(chosen[0]).leave_one_out is not None:
        return {}
    config = run.config()
    predictor = load(run.path, device=config.training.device)
    features, _ = open_units(config.data)
    found: dict[str, float | None] = {}
    for name in chosen:
        if len(found) == bags:
            break
        bag = features.bag(name)
        if len(bag) <= LEAVE_ONE_OUT_UP_TO:
            found[name] = left_out_correlation(predictor, bag)
    return found


def _chosen(predictions: Predictions) -> list[str]:
    """Return the positive test bags in an order that depends on their names alone."""
    rows = zip(predictions.bags, predictions.parts, predictions.labels, strict=True)
    return sorted((b for b, part, y in rows if part == "test" and y), key=seed_of)
