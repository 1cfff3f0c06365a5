"""A cell on disk: whether it is done, what it leaves beside its run, and why it failed.

OUT/cells/DATA/METHOD/split0-seed0/   the run folder, with cell.json once all else is there
OUT/failures/DATA/METHOD/split0-seed0.json   why it failed the last time
OUT/cells.csv   all of them
"""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...core import read_csv, unfinished, write_csv, write_json
from ...errors import BagError, InputError
from ...training import RunFolder, differences
from ...workflow import finish_run
from ..grid.methods_and_cells import Cell
from .leftovers import writing

Keep = Literal["best", "all", "none"]
Status = Literal["done", "failed", "waiting"]
COLUMNS = ("data", "method", "split", "seed", "status", "seconds", "reason", "folder")


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Where a cell is."""

    cell: Cell
    status: Status
    reason: str = ""
    seconds: float = 0.0
    """Of training: a run that trained beside others counts its share of the pass."""

    def to_dict(self) -> dict[str, Any]:
        """A row of cells.csv, but for the folder."""
        return {
            "data": self.cell.data,
            "method": self.cell.method.name,
            "split": self.cell.split,
            "seed": self.cell.seed,
            "status": self.status,
            "seconds": round(self.seconds, 1),
            "reason": self.reason,
        }


def is_done(cell: Cell, out: Path) -> bool:
    """Whether a cell is trained, predicted and evaluated.

    Raises:
        InputError: its folder holds another run.
    """
    run = RunFolder(cell.folder(out))
    if not run.config_file.is_file():
        return False
    changed = differences(run.config(), cell.config)
    if changed:
        key, (there, wanted) = next(iter(changed.items()))
        raise InputError(
            f"{run.path} was run with {key} = {there!r}, the grid says {wanted!r}: give another "
            "--out, or remove that folder"
        )
    return evaluation_file(run).is_file()


def evaluation_file(run: RunFolder) -> Path:
    """What a finished run ends with."""
    return run.path / "evaluation.json"


def is_trained(cell: Cell, out: Path) -> bool:
    """Whether every epoch of a run is done; it may still have to be predicted."""
    run = RunFolder(cell.folder(out))
    epochs = cell.config.training.epochs
    return run.best.is_file() and run.last.is_file() and len(_history(run)) == epochs


def state_of(cell: Cell, out: Path, *, done: bool | None = None) -> State:
    """Where a cell is; `done` saves looking where it is known."""
    if is_done(cell, out) if done is None else done:
        seconds = sum(
            float(row.get("seconds") or 0) for row in _history(RunFolder(cell.folder(out)))
        )
        return State(cell=cell, status="done", seconds=seconds)
    reason = failure(cell, out)
    if reason is None:
        return State(cell=cell, status="waiting")
    return State(cell=cell, status="failed", reason=reason)


def _history(run: RunFolder) -> list[dict[str, str]]:
    return read_csv(run.metrics_file) if run.metrics_file.is_file() else []


def finish(cell: Cell, out: Path) -> None:
    """Predicts and evaluates the held-out bags of a trained run.

    Raises:
        BagError: one cannot be read, so that the method would be judged on fewer than the others.
    """
    run = RunFolder(cell.folder(out))
    run.sweep()
    # intervals are the tables' affair: they pool runs
    finished = finish_run(run, bootstrap=0, maps="none")
    if finished.failures:
        evaluation_file(run).unlink()
        bag, reason = finished.failures[0]
        raise BagError(
            f"{len(finished.failures)} held-out bags cannot be predicted. {bag!r}: {reason}"
        )


def complete(cell: Cell, out: Path, *, groups: Mapping[str, str] | None, keep: Keep) -> None:
    """What a finished run needs to be a cell: cell.json, and no more checkpoints than are kept."""
    folder, method = cell.folder(out), cell.method
    metadata = {
        "data": cell.data,
        "label": method.label,
        "model": method.model,
        "arguments": dict(method.arguments),
        "kl_weight": method.kl_weight,
        "split": cell.split,
        "seed": cell.seed,
        "folds": cell.config.data.test_fold is not None,
        "groups": None if groups is None else dict(groups),
    }
    file = folder / "cell.json"
    if not file.is_file() or json.loads(file.read_text(encoding="utf-8")) != metadata:
        with writing(file):
            write_json(file, metadata)
    run = RunFolder(folder)
    if keep != "all":
        run.last.unlink(missing_ok=True)
    if keep == "none" and run.best.parent.is_dir():
        shutil.rmtree(run.best.parent)
    failed = failure_file(cell, out)
    for left in (failed, *unfinished(failed)):
        left.unlink(missing_ok=True)


def failure_file(cell: Cell, out: Path) -> Path:
    """Where the reason lies if a cell failed."""
    return out / "failures" / f"{cell.name}.json"


def failure(cell: Cell, out: Path) -> str | None:
    """Why a cell failed the last time."""
    try:
        return json.loads(failure_file(cell, out).read_text(encoding="utf-8"))["reason"]
    except FileNotFoundError:
        return None


def note_failure(cell: Cell, out: Path, reason: str) -> None:
    """Keeps the reason."""
    file = failure_file(cell, out)
    with writing(file):
        write_json(file, {"cell": cell.name, "reason": reason})


def forget_failures(cells: Iterable[Cell], out: Path) -> None:
    """What failed is waiting again."""
    for cell in cells:
        failure_file(cell, out).unlink(missing_ok=True)


def write_states(out: Path, states: Sequence[State]) -> None:
    """cells.csv."""
    rows = [{**s.to_dict(), "folder": f"cells/{s.cell.name}"} for s in states]
    with writing(out / "cells.csv"):
        write_csv(out / "cells.csv", COLUMNS, rows)
