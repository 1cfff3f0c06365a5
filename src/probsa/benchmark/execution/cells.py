"""Cells on disk: their states, the files that complete them, and the reasons of failures.

OUT/cells/DATA/METHOD/split0-seed0/   the run folder; cell.json is written last
OUT/failures/DATA/METHOD/split0-seed0.json   the reason why the last attempt failed
OUT/cells.csv   the states of all cells
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ...core import (
    TextTable,
    files_matching,
    open_output,
    read_json,
    read_record,
    remove_leftovers,
    remove_written,
    remove_written_folder,
    write_csv,
    write_json,
)
from ...errors import BagError, InputError, TableError
from ...training import RunFolder, config_differences
from ...workflow import finish_run
from ..grid.entries import Keep
from ..grid.methods_and_cells import Cell

CellStatus = Literal["done", "failed", "waiting"]
EVALUATION = "evaluation.json"
"""The last file that a run writes."""
COLUMNS = ("data", "method", "split", "seed", "status", "seconds", "reason", "folder")


@dataclass(frozen=True, kw_only=True, slots=True)
class CellState:
    """Whether a cell is done, has failed, or is waiting to be run."""

    cell: Cell
    status: CellStatus
    reason: str = ""
    seconds: float = 0.0
    """Training time."""

    def to_dict(self) -> dict[str, Any]:
        """Return the row of cells.csv, without the folder."""
        return {
            "data": self.cell.data,
            "method": self.cell.method.name,
            "split": self.cell.split,
            "seed": self.cell.seed,
            "status": self.status,
            "seconds": round(self.seconds, 1),
            "reason": self.reason,
        }


def open_experiment(out: Path) -> None:
    """Begin to note what is written below the folder of an experiment; see `open_output`."""
    open_output(out, earlier=_earlier_files)


def _earlier_files(out: Path) -> list[Path]:
    """List the files that a version of probsa without ledgers wrote beside the cells."""
    try:
        states = TextTable.read(out / "cells.csv")
    except TableError:  # there is none, or it is another table
        return []
    if states.columns != COLUMNS:
        return []
    folders = ("failures", "copies", "splits", "tables", "figures")
    files = ("grid.yaml", "cells.csv", "notes.json", "cells/*/*/*/cell.json")
    return files_matching(out, (*files, *(f"{name}/**/*" for name in folders)))


def is_done(cell: Cell, out: Path) -> bool:
    """Return True if a cell is trained, predicted and evaluated.

    Raises:
        InputError: The folder of the cell contains a different run.
    """
    run = RunFolder(cell.folder(out))
    if not run.config_file.is_file():
        return False
    differences = config_differences(run.config(), cell.config)
    if differences:
        key, (run_value, grid_value) = next(iter(differences.items()))
        raise InputError(
            f"{run.path} was run with {key} = {run_value!r}, but the grid has {grid_value!r}: give "
            "another --out, or remove that folder"
        )
    return (run.path / EVALUATION).is_file()


def state_of(cell: Cell, out: Path, *, done: bool | None = None) -> CellState:
    """Return the state of a cell; passing `done`, if known, avoids reading the disk."""
    if done is None:
        done = is_done(cell, out)
    if done:
        file = RunFolder(cell.folder(out)).metrics_file
        epochs = TextTable.read(file).rows if file.is_file() else []
        seconds = sum(float(epoch.get("seconds") or 0) for epoch in epochs)
        return CellState(cell=cell, status="done", seconds=seconds)
    reason = failure_reason(cell, out)
    if reason is None:
        return CellState(cell=cell, status="waiting")
    return CellState(cell=cell, status="failed", reason=reason)


def finish(cell: Cell, out: Path) -> None:
    """Predict and evaluate the held-out bags of a trained run.

    Raises:
        BagError: A bag cannot be read, so that the method would be evaluated on fewer bags than
            the others.
    """
    run = RunFolder(cell.folder(out))
    remove_leftovers(run.path)
    # no bootstrap: the tables compute intervals over several runs
    finished = finish_run(run, bootstrap=0, maps="none", extras=False)
    if finished.failures:
        remove_written(run.path / EVALUATION)
        bag, reason = finished.failures[0]
        raise BagError(
            f"{len(finished.failures)} held-out bags cannot be predicted. {bag!r}: {reason}"
        )


def complete(cell: Cell, out: Path, *, groups: Mapping[str, str] | None, keep: Keep) -> None:
    """Turn a finished run into a cell: write cell.json and remove checkpoints not to be kept."""
    folder = cell.folder(out)
    method = cell.method
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
    stored_metadata = None
    with suppress(InputError):  # missing or damaged: it is written again
        stored_metadata = read_json(file)
    if stored_metadata != metadata:
        write_json(file, metadata)
    run = RunFolder(folder)
    for member in run.members():
        if keep != "all":
            remove_written(member.last)
        if keep == "none":
            remove_written_folder(member.best.parent)
    remove_written(failure_file(cell, out))


@dataclass(frozen=True, kw_only=True, slots=True)
class CellFailure:
    """The record of a cell that failed."""

    cell: str
    reason: str
    traceback: str = ""
    """Where the error arose, unless probsa raised it on purpose: then the reason says all."""


def failure_file(cell: Cell, out: Path) -> Path:
    """Return the path of the record of a cell's failure."""
    return out / "failures" / f"{cell.name}.json"


def failure_reason(cell: Cell, out: Path) -> str | None:
    """Return the reason why the last attempt at a cell failed; None if none is recorded."""
    try:
        return read_record(CellFailure, failure_file(cell, out)).reason
    except InputError:  # there is none, or it is damaged
        return None


def record_failure(cell: Cell, out: Path, reason: str, *, traceback: str = "") -> None:
    """Record the reason why a cell failed, and where the error arose if nobody foresaw it."""
    failure = CellFailure(cell=cell.name, reason=reason, traceback=traceback)
    write_json(failure_file(cell, out), asdict(failure))


def write_states(out: Path, states: Sequence[CellState]) -> None:
    """Write cells.csv."""
    rows = [state.to_dict() | {"folder": f"cells/{state.cell.name}"} for state in states]
    write_csv(out / "cells.csv", COLUMNS, rows)
