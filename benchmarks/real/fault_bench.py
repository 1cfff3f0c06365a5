"""Where faults are made: copies of real bags, and commands that should refuse them."""

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
    """A command that should end so, and say these words."""

    what: str
    command: list[str | Path]
    words: tuple[str, ...] = ()
    status: int = REFUSED
    before: Callable[[], object] = lambda: None
    """Done right before: what needs a run that is there."""
    look: Callable[[], str] | None = None
    """What has the words, rather than what is said."""
    never: tuple[str, ...] = ()
    """Words that must not be there."""
    limit: bool = False
    """It is known not to be caught: the command does not look for it."""


class Workshop:
    """Makes copies with faults in them."""

    def __init__(self, root: Path, data: Path, scans: Path) -> None:
        self.root, self.data, self.scans = root, data, scans
        self.count = 0

    def folder(self) -> Path:
        """A new one."""
        self.count += 1
        made = self.root / f"f{self.count:02}"
        made.mkdir()
        return made

    def rows(self, name: str) -> list[Row]:
        """The real labels."""
        with (self.data / name / "labels.csv").open(newline="") as f:
            return list(csv.DictReader(f))

    def cohort(self, name: str, rows: list[Row] | None = None) -> Path:
        """A copy of ready bags: labels as given, links to features."""
        folder = self.folder()
        (folder / "features").mkdir()
        for path in (self.data / name / "features").iterdir():
            (folder / "features" / path.name).symlink_to(path)
        if rows is not None:
            write_rows(folder / "labels.csv", rows)
        return folder

    def grid(self, epochs: int = 1, **keys: object) -> Path:
        """A grid of one small model, unless the keys say otherwise."""
        path = self.folder() / "grid.yaml"
        given = {"models": [SMALL], "epochs": epochs, "device": "cpu", "threads": 1, **keys}
        path.write_text(yaml.safe_dump(given))
        return path

    def benchmark(self, folder: Path, grid: Path | None = None) -> list[str | Path]:
        """The command that runs a grid on a folder."""
        return ["benchmark", grid or self.grid(), "--data", folder, "--out", self.folder() / "out"]

    def train(self, folder: Path, *more: str | Path) -> list[str | Path]:
        """The command that trains one run on a folder."""
        of = ["--features", folder / "features", "--labels", folder / "labels.csv"]
        quick = ["--embed", "16", "--epochs", "1", "--device", "cpu", "--maps", "none"]
        return ["train", "--model", "abmil", *of, *quick, "--out", self.folder() / "run", *more]


def write_rows(path: Path, rows: list[Row]) -> None:
    with path.open("w", newline="") as f:
        writer = csv.DictWriter(f, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def fixed(rows: list[Row]) -> list[Row]:
    """Folds as a fixed split: fold 0 tests, fold 1 validates."""
    part = {"0": "test", "1": "val"}
    return [
        {"bag": r["bag"], "label": r["label"], "split": part.get(r["fold"], "train")} for r in rows
    ]


def grouped(rows: list[Row], column: str, first: str, second: str) -> tuple[list[Row], str, str]:
    """Every bag its own patient, but for one with a bag in either part; and their names."""
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
