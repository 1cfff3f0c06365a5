"""Copies of real bags with injected faults, and commands that should reject them."""

import csv
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

REFUSED = 2
SMALL = {"name": "abmil", "embed": 16, "attention_dim": 8}
Row = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A command with a fault in its inputs, its expected exit status and message."""

    what: str
    """A description of the fault."""
    command: list[str | Path]
    words: tuple[str, ...] = ()
    """Words that the message must contain."""
    status: int = REFUSED
    before: Callable[[], object] = lambda: None
    """A function called right before the command, for faults that need an existing run."""
    look: Callable[[], str] | None = None
    """A function that returns the text to search instead of the command's output."""
    never: tuple[str, ...] = ()
    """Words that must not occur."""
    limit: bool = False
    """Whether this fault is known to pass because the command does not check for it."""


class Workshop:
    """Makes faulty copies of data and the commands that use them."""

    def __init__(self, root: Path, data: Path, scans: Path) -> None:
        self.root, self.data, self.scans = root, data, scans
        self.count = 0

    def folder(self) -> Path:
        """Create a new folder."""
        self.count += 1
        path = self.root / f"f{self.count:02}"
        path.mkdir()
        return path

    def rows(self, name: str) -> list[Row]:
        """Return the rows of the real label table."""
        with (self.data / name / "labels.csv").open(newline="") as f:
            return list(csv.DictReader(f))

    def cohort(self, name: str, rows: list[Row] | None = None) -> Path:
        """Create a copy of a ready bag set with the given labels and links to the features."""
        folder = self.folder()
        (folder / "features").mkdir()
        for path in (self.data / name / "features").iterdir():
            (folder / "features" / path.name).symlink_to(path)
        if rows is not None:
            write_rows(folder / "labels.csv", rows)
        return folder

    def grid(self, epochs: int = 1, **keys: object) -> Path:
        """Write a grid of one small model; `keys` add to or replace its entries."""
        path = self.folder() / "grid.yaml"
        grid = {"models": [SMALL], "epochs": epochs, "device": "cpu", "threads": 1, **keys}
        path.write_text(yaml.safe_dump(grid))
        return path

    def benchmark(self, folder: Path, grid: Path | None = None) -> list[str | Path]:
        """Return the command that runs a grid on a folder."""
        return ["benchmark", grid or self.grid(), "--data", folder, "--out", self.folder() / "out"]

    def train(self, folder: Path, *more: str | Path) -> list[str | Path]:
        """Return the command that trains one run on a folder."""
        data = ["--features", folder / "features", "--labels", folder / "labels.csv"]
        quick = ["--embed", "16", "--epochs", "1", "--device", "cpu", "--maps", "none"]
        return ["train", "--model", "abmil", *data, *quick, "--out", self.folder() / "run", *more]


def write_rows(path: Path, rows: list[Row]) -> None:
    with path.open("w", newline="") as f:
        writer = csv.DictWriter(f, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def fixed(rows: list[Row]) -> list[Row]:
    """Turn folds into a fixed split: fold 0 is the test part and fold 1 the validation part."""
    part = {"0": "test", "1": "val"}
    return [
        {"bag": r["bag"], "label": r["label"], "split": part.get(r["fold"], "train")} for r in rows
    ]


def grouped(rows: list[Row], column: str, first: str, second: str) -> tuple[list[Row], str, str]:
    """Give each bag its own patient, except for two bags that share one; return their names too.

    One of the two has the value `first` in `column`, the other has `second`.
    """
    a = next(r["bag"] for r in rows if r[column] == first)
    b = next(r["bag"] for r in rows if r[column] == second)
    return [{**r, "group": "P7" if r["bag"] in (a, b) else f"p{r['bag']}"} for r in rows], a, b


def probsa(command: list[str | Path]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "probsa", *(str(c) for c in command)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "500"},
    )
