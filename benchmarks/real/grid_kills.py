"""Kill -9 a grid at random moments, start it again by the same command, compare all it leaves.

    python benchmarks/real/grid_kills.py --data DIR --log LOG.csv [--runs 10] [--seed 0]

DIR holds features/ and labels.csv with folds (the ready bags of ct_ich, say). One grid runs without
interruption, by `probsa benchmark`. Then each further run is killed, with all its processes, after
so many seconds of one phase (checking, training in a pass, training alone, predicting, tables,
figures), drawn over what that phase lasted; the last run in several phases, one after another. The
same command then runs to its end, and tables, figures, predictions, metrics but for their seconds
and weights must equal those of the first run byte for byte, with no file more or less.

A pass keeps its state every two minutes, which this grid's passes do not last: `--save-every` has
it kept more often in the runs that are killed, and it is noted from which epoch each pass went on.
"""

import argparse
import csv
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import yaml

PHASES = ("checking", "pass", "alone", "predicting", "tables", "figures")
PLAN = (
    ("pass",), ("predicting",), ("tables",), ("pass",), ("alone",), ("figures",), ("checking",),
    ("predicting",), ("pass",), ("pass", "alone", "predicting", "tables", "figures"),
)  # fmt: skip
"""The phases in which each run is killed; again from the start for more runs."""
LATEST = 0.9
"""Share of a phase, as the uninterrupted run had it, up to which moments are drawn."""
LOOK = 0.01
"""Seconds between two looks."""
DRIVER = """\
import sys
from probsa.cli import main
from probsa.heads import together
from probsa.heads.keeping import PassFolder
seconds, log = float(sys.argv.pop(1)), sys.argv.pop(1)
together.train_together.__kwdefaults__["save_every"] = seconds
restore = PassFolder.restore
def noted(self, of):
    restore(self, of)
    with open(log, "a") as f:
        f.write(f"{of.epoch} ")
PassFolder.restore = noted
sys.exit(main(sys.argv[1:]))
"""
"""`probsa` with states of passes kept more often, and a note of where each pass began."""


def write_grid(path: Path, data: Path, *, epochs: int) -> None:
    """Five methods, four of which train side by side and one alone."""
    small = {"embed": 16, "attention_dim": 8}
    grid = {
        "data": {"features": str(data / "features"), "labels": str(data / "labels.csv")},
        "models": [
            {"name": "abmil", **small},
            {"name": "abmil-probsa-diag", **small, "samples": 4, "predict_samples": 8},
            {"name": "tabmil", "embed": 16},
            {"name": "dsmil", "embed": 16},
        ],
        "kl_weight": [0, 0.1, "cyclical"],
        "seeds": 2,
        "epochs": epochs,
        "device": "cpu",
        "threads": 1,
    }
    path.write_text(yaml.safe_dump(grid, sort_keys=False))


@dataclass(kw_only=True)
class Running:
    """A grid at work, and how long it has been in each phase."""

    out: Path
    epochs: int
    process: subprocess.Popen[bytes]
    said: Path
    """Its standard error."""
    lasted: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    now: str = "checking"

    def watch(self, until: Callable[[], bool]) -> bool:
        """Looks on until it ends (False) or `until` says so (True)."""
        before = time.perf_counter()
        while self.process.poll() is None:
            self.now = self._phase()
            after = time.perf_counter()
            self.lasted[self.now] += after - before
            before = after
            if until():
                return True
            time.sleep(LOOK)
        return False

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _phase(self) -> str:
        told = self.said.read_text()
        if "making figures" in told:
            return "figures"
        if "making " in told:
            return "tables"
        lock = self._lock()
        if lock is None:  # between two units what was, is
            return self.now
        if lock.parent.name == "passes":
            runs = [
                p
                for p in self.out.glob("cells/*/*/split*")
                # one that was killed alone has a lock of its own still
                if (p / "run.yaml").is_file() and not p.with_name(f".{p.name}.lock").exists()
            ]
            return "predicting" if all(self._trained(p) for p in runs) else "pass"
        run = lock.with_name(lock.name[1:].removesuffix(".lock"))
        return "predicting" if self._trained(run) else "alone"

    def _lock(self) -> Path | None:
        """The lock that this process holds, not one that a killed one left."""
        for lock in (*self.out.glob("passes/.*.lock"), *self.out.glob("cells/*/*/.*.lock")):
            try:
                if json.loads(lock.read_text())["pid"] == self.process.pid:
                    return lock
            except (FileNotFoundError, ValueError):
                continue
        return None

    def _trained(self, run: Path) -> bool:
        if (run / "evaluation.json").is_file():
            return True
        try:
            epochs = len((run / "metrics.csv").read_text().splitlines()) - 1
        except FileNotFoundError:
            return False
        return epochs == self.epochs and (run / "checkpoints" / "last.safetensors").is_file()


def start(command: list[str], out: Path, *, epochs: int) -> Running:
    """In a process group of its own, so that all of it dies together."""
    said = out.with_name(f"{out.name}.stderr")
    with said.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, *command, "--out", str(out)],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
    return Running(out=out, epochs=epochs, process=process, said=said)


def checkpoint(data: bytes) -> tuple[bytes, bytes]:
    """What a checkpoint says of itself, without seconds, and its tensors."""
    size = struct.unpack("<Q", data[:8])[0]
    head, tensors = data[8 : 8 + size].rstrip(), data[8 + size :]
    return re.sub(rb'seconds\\?": [0-9.e+-]+', b"", head), tensors


def content(out: Path) -> dict[str, object]:
    """Every file of an experiment by its name, without what differs between any two runs.

    Those are seconds and the time and machine of a run; the folder's own name becomes OUT.
    """
    found: dict[str, object] = {}
    for path in sorted(p for p in out.rglob("*") if p.is_file()):
        key = path.relative_to(out).as_posix()
        if path.name == "about.json":
            found[key] = "there"
        elif path.suffix == ".safetensors":
            found[key] = checkpoint(path.read_bytes())
        elif path.name in ("metrics.csv", "cells.csv"):
            with path.open(newline="") as f:
                found[key] = [{**row, "seconds": ""} for row in csv.DictReader(f)]
        else:
            found[key] = path.read_bytes().replace(str(out).encode(), b"OUT")
    return found


def kind(name: str) -> str:
    """What a file counts as in the log."""
    first = name.partition("/")[0]
    if first in ("tables", "figures"):
        return first
    return "predictions" if name.endswith("predictions.csv") else "others"


def differing(found: dict[str, object], wanted: dict[str, object]) -> dict[str, list[str]]:
    """Files that are not the same, missing or too many, by kind."""
    bad: dict[str, list[str]] = {k: [] for k in ("tables", "figures", "predictions", "others")}
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            bad[kind(name)].append(name)
    return bad


def left_behind(out: Path) -> list[str]:
    """What only an unfinished experiment has."""
    marks = (".*.tmp", ".*.lock*", "passes", "failures")
    return sorted({p.relative_to(out).as_posix() for m in marks for p in out.rglob(m)})


@dataclass(frozen=True, kw_only=True)
class Killed:
    """What was there when a run was killed."""

    phase: str
    drawn: float
    states: int
    """Passes that had kept a state."""
    done: int
    """Cells that were done."""
    half_written: int
    """Files under a temporary name."""


def kill_in(
    phases: tuple[str, ...],
    begin: Callable[[], Running],
    *,
    lasted: dict[str, float],
    rng: random.Random,
    began: Path,
) -> list[Killed]:
    """Kills a run in each phase, one after another; fewer kills where it ended before one.

    began: where passes note the epoch that they begin at; emptied at the first kill.
    """
    kills: list[Killed] = []
    for phase in phases:
        moment = rng.uniform(0, LATEST) * lasted[phase]
        running = begin()
        if not running.watch(lambda r=running, p=phase, m=moment: r.now == p and r.lasted[p] >= m):
            print(f"it ended before {moment:.2f} s of {phase}: once more, earlier", flush=True)
            return kills
        running.kill()
        out = running.out
        kills.append(
            Killed(
                phase=phase,
                drawn=moment,
                states=len(list(out.glob("passes/*/pass.safetensors"))),
                done=len(list(out.glob("cells/*/*/*/cell.json"))),
                half_written=len(list(out.rglob(".*.tmp"))),
            )
        )
        if len(kills) == 1:
            began.unlink(missing_ok=True)
    return kills


def main() -> None:
    """All runs; exit status 1 if anything differs or is left."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="features/ and labels.csv")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=len(PLAN), help="that are killed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--save-every", type=float, default=0.5, help="seconds, of passes' states")
    a = parser.parse_args()
    rng, root = random.Random(a.seed), Path(tempfile.mkdtemp())
    grid, began = root / "grid.yaml", root / "began.txt"
    write_grid(grid, a.data.resolve(), epochs=a.epochs)
    whole = root / "whole"
    first = start(["-m", "probsa", "benchmark", str(grid)], whole, epochs=a.epochs)
    first.watch(lambda: False)
    assert first.process.wait() == 0, first.said.read_text()
    wanted, left = content(whole), left_behind(whole)
    print(
        "uninterrupted:",
        {k: round(v, 1) for k, v in first.lasted.items()},
        "left:",
        left,
        flush=True,
    )
    rows, bad = [], 0
    command = ["-c", DRIVER, str(a.save_every), str(began), "benchmark", str(grid)]
    for k in range(a.runs):
        out, plan, lasted = root / "killed", PLAN[k % len(PLAN)], first.lasted
        kills: list[Killed] = []
        while len(kills) < len(plan):  # again, earlier, if the machine was faster this time
            shutil.rmtree(out, ignore_errors=True)
            began.unlink(missing_ok=True)
            kills = kill_in(
                plan,
                lambda out=out: start(command, out, epochs=a.epochs),
                lasted=lasted,
                rng=rng,
                began=began,
            )
            lasted = {name: seconds / 2 for name, seconds in lasted.items()}
        last = start(command, out, epochs=a.epochs)
        last.watch(lambda: False)
        status = last.process.wait()
        epochs = began.read_text().split() if began.is_file() else []
        differ, left = differing(content(out), wanted), left_behind(out)
        bad += bool(status or left or any(differ.values()))
        rows.append(
            {
                "run": k,
                "killed_in": " ".join(i.phase for i in kills),
                "after_s": " ".join(f"{i.drawn:.2f}" for i in kills),
                "of_s": " ".join(f"{first.lasted[i.phase]:.2f}" for i in kills),
                "cells_done": " ".join(str(i.done) for i in kills),
                "states_of_passes": " ".join(str(i.states) for i in kills),
                "half_written": " ".join(str(i.half_written) for i in kills),
                "passes_went_on_after_epoch": " ".join(epochs),
                "status": status,
                **{f"differ_{name}": len(names) for name, names in differ.items()},
                "left": " ".join(left),
            }
        )
        print(rows[-1], [n for names in differ.values() for n in names][:8], flush=True)
    with a.log.open("w", newline="") as f:
        writer = csv.DictWriter(f, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    shutil.rmtree(root)
    print(
        f"{len(rows)} runs, {sum(len(r['killed_in'].split()) for r in rows)} kills, "
        f"{len(wanted)} files each compared, {bad} runs unequal or with something left"
    )
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
