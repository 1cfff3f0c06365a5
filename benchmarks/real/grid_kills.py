"""Kill -9 a grid at random moments, rerun the same command, and compare all resulting files.

    python benchmarks/real/grid_kills.py --data DIR --log LOG.csv [--runs 10] [--seed 0]

DIR holds features/ and labels.csv with folds (for example the ready bags of ct_ich). One grid runs
without interruption, by `probsa benchmark`. Each further run is killed, with all its processes, at
a random moment within a phase (checking, joint training, training alone, predicting, tables,
figures); the last run is killed in several phases, one after another. The same command then runs
to its end, and all files must equal those of the first run byte for byte, except for durations.

Joint training saves its state every two minutes, but takes less time in this grid. `--save-every`
saves it more often in the runs that are killed, and the epochs at which joint trainings resume are
logged.
"""

import argparse
import csv
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

PHASES = ("checking", "joint", "alone", "predicting", "tables", "figures")
STATE = "state"
"""The part of joint training after a state has been saved."""
PLAN = (
    ("joint",), ("predicting",), ("tables",), (STATE,), ("alone",), ("figures",), ("checking",),
    ("predicting",), (STATE,), (STATE, "alone", "predicting", "tables", "figures"),
)  # fmt: skip
"""The phases in which each run is killed; further runs start again at the first entry."""
LATEST = 0.9
"""Fraction of a phase's duration in the uninterrupted run up to which moments are drawn."""
POLL_SECONDS = 0.01
DRIVER = """\
import sys
from probsa.benchmark.execution.units import Training
from probsa.cli.entry import main
from probsa.training import joint
from probsa.training.joint_keeper import JointKeeper
seconds, began, phase = float(sys.argv.pop(1)), sys.argv.pop(1), sys.argv.pop(1)
joint.train_jointly.__kwdefaults__["save_every"] = seconds
restore, train, finish = JointKeeper.restore, Training._train, Training._finish
def note(text, path, mode):
    with open(path, mode) as f:
        f.write(text)
def restored(self, state):
    restore(self, state)
    note(f"{state.epoch} ", began, "a")
def trained(self, unit, todo):
    note("joint" if unit.together else "alone", phase, "w")
    train(self, unit, todo)
def finished(self, cell):
    note("predicting", phase, "w")
    finish(self, cell)
JointKeeper.restore, Training._train, Training._finish = restored, trained, finished
sys.exit(main(sys.argv[1:]))
"""
"""`probsa` with more frequent states of joint trainings; writes its phase to a file."""


def write_grid(path: Path, data: Path, *, epochs: int) -> None:
    """Write a grid of models that train jointly (abmil, tabmil) and of one that cannot (dsmil)."""
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
    """A running grid and the time that it has spent in each phase."""

    out: Path
    process: subprocess.Popen[bytes]
    stderr: Path
    """The file with its standard error."""
    phase_file: Path
    """The file to which it writes its phase."""
    lasted: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    """Seconds spent in each phase."""
    now: str = "checking"

    def watch(self, until: Callable[[], bool]) -> bool:
        """Wait until the process ends (return False) or `until()` is true (return True)."""
        before = time.perf_counter()
        while self.process.poll() is None:
            self.now = self._phase()
            after = time.perf_counter()
            self.lasted[self.now] += after - before
            before = after
            if until():
                return True
            time.sleep(POLL_SECONDS)
        return False

    def reached(self, phase: str, moment: float) -> bool:
        """Return True if the grid has been in a phase, and still is, for `moment` seconds."""
        name = "joint" if phase == STATE else phase
        has_state = phase != STATE or any(self.out.glob("passes/*/pass.safetensors"))
        return self.now == name and has_state and self.lasted[name] >= moment

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _phase(self) -> str:
        messages = self.stderr.read_text()
        if "making figures" in messages:
            return "figures"
        if "making " in messages:
            return "tables"
        phase = self.phase_file.read_text() if self.phase_file.is_file() else ""
        return phase if phase in PHASES else self.now


def start(command: list[str], out: Path) -> Running:
    """Start a command in a new process group, so that its workers can be killed with it."""
    stderr, phase_file = out.with_name(f"{out.name}.stderr"), out.with_name("phase.txt")
    phase_file.unlink(missing_ok=True)
    with stderr.open("wb") as f:
        process = subprocess.Popen(
            [sys.executable, *command, "--out", str(out)],
            stdout=subprocess.DEVNULL,
            stderr=f,
            start_new_session=True,
        )
    return Running(out=out, process=process, stderr=stderr, phase_file=phase_file)


def checkpoint(data: bytes) -> tuple[bytes, bytes]:
    """Return the header of a checkpoint without seconds, and its tensors."""
    size = struct.unpack("<Q", data[:8])[0]
    header, tensors = data[8 : 8 + size].rstrip(), data[8 + size :]
    return re.sub(rb'seconds\\?": [0-9.e+-]+', b"", header), tensors


def content(out: Path) -> dict[str, object]:
    """Return every file of an experiment by its name, without what differs between any two runs.

    Durations, and the time and machine of a run, are removed; the name of the folder becomes OUT.
    """
    files: dict[str, object] = {}
    for path in sorted(p for p in out.rglob("*") if p.is_file()):
        key = path.relative_to(out).as_posix()
        if path.name == "about.json":
            files[key] = "exists"
        elif path.suffix == ".safetensors":
            files[key] = checkpoint(path.read_bytes())
        elif path.name in ("metrics.csv", "cells.csv"):
            with path.open(newline="") as f:
                files[key] = [{**row, "seconds": ""} for row in csv.DictReader(f)]
        else:
            files[key] = path.read_bytes().replace(str(out).encode(), b"OUT")
    return files


def kind(name: str) -> str:
    """Return the group in which the log counts a file."""
    first = name.partition("/")[0]
    if first in ("tables", "figures"):
        return first
    return "predictions" if name.endswith("predictions.csv") else "others"


def differing(files: dict[str, object], expected: dict[str, object]) -> dict[str, list[str]]:
    """Return the files that differ, are missing or are not expected, by kind."""
    names: dict[str, list[str]] = {k: [] for k in ("tables", "figures", "predictions", "others")}
    for name in sorted(files.keys() | expected.keys()):
        if files.get(name) != expected.get(name):
            names[kind(name)].append(name)
    return names


def left_behind(out: Path) -> list[str]:
    """Return the files and folders that only an unfinished experiment has."""
    marks = (".*.tmp", ".*.lock*", "passes", "failures")
    return sorted({p.relative_to(out).as_posix() for m in marks for p in out.rglob(m)})


@dataclass(frozen=True, kw_only=True)
class Killed:
    """The state of an experiment when it was killed."""

    phase: str
    drawn: float
    """Seconds of the phase after which it was killed."""
    states: int
    """Number of joint trainings that had saved a state."""
    done: int
    """Number of cells that were done."""
    half_written: int
    """Number of temporary files."""


def kill_in(
    phases: tuple[str, ...],
    begin: Callable[[], Running],
    *,
    lasted: dict[str, float],
    rng: random.Random,
    began: Path,
) -> list[Killed]:
    """Kill a run in each phase, one after another; stop if the run ends before a kill.

    Args:
        phases: the phases in which to kill the run.
        begin: a function that starts the run.
        lasted: the duration of each phase, over which moments are drawn.
        rng: the generator that draws the moments.
        began: file with the epochs at which joint trainings resumed; removed at the first kill.
    """
    kills: list[Killed] = []
    for phase in phases:
        moment = rng.uniform(0, LATEST) * lasted["joint" if phase == STATE else phase]
        running = begin()
        if not running.watch(lambda r=running, p=phase, m=moment: r.reached(p, m)):
            print(
                f"the run ended before {moment:.2f} s of {phase}: try again with earlier moments",
                flush=True,
            )
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
    """Make all runs; exit with status 1 if a file differs or temporary files remain."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="features/ and labels.csv")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument(
        "--runs", type=int, default=len(PLAN), help="number of runs that are killed"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument(
        "--save-every",
        type=float,
        default=0.5,
        help="seconds between two saved states of a joint training",
    )
    a = parser.parse_args()
    rng, root = random.Random(a.seed), Path(tempfile.mkdtemp())
    grid, began = root / "grid.yaml", root / "began.txt"
    write_grid(grid, a.data.resolve(), epochs=a.epochs)
    plain = start(["-m", "probsa", "benchmark", str(grid)], root / "plain")
    plain.watch(lambda: False)
    assert plain.process.wait() == 0, plain.stderr.read_text()
    expected, left = content(plain.out), left_behind(plain.out)
    command = ["-c", DRIVER, str(a.save_every), str(began), str(root / "phase.txt")]
    command += ["benchmark", str(grid)]
    whole = start(command, root / "whole")
    whole.watch(lambda: False)
    equal = not any(differing(content(whole.out), expected).values())
    phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in whole.lasted.items())
    print(
        f"uninterrupted: {phases}; equal with saved states: {equal}; leftovers: {left}", flush=True
    )
    rows, bad = [], int(bool(left) or not equal)
    for k in range(a.runs):
        out, plan, lasted = root / "killed", PLAN[k % len(PLAN)], whole.lasted
        kills: list[Killed] = []
        while len(kills) < len(plan):  # repeat with earlier moments if the run was faster
            shutil.rmtree(out, ignore_errors=True)
            began.unlink(missing_ok=True)
            kills = kill_in(
                plan,
                lambda out=out: start(command, out),
                lasted=lasted,
                rng=rng,
                began=began,
            )
            lasted = {name: seconds / 2 for name, seconds in lasted.items()}
        last = start(command, out)
        last.watch(lambda: False)
        status = last.process.wait()
        epochs = began.read_text().split() if began.is_file() else []
        differ, left = differing(content(out), expected), left_behind(out)
        bad += bool(status or left or any(differ.values()))
        rows.append(
            {
                "run": k,
                "killed_in": " ".join(i.phase for i in kills),
                "after_s": " ".join(f"{i.drawn:.2f}" for i in kills),
                "of_s": " ".join(
                    f"{whole.lasted['joint' if i.phase == STATE else i.phase]:.2f}" for i in kills
                ),
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
        f"{len(expected)} files compared per run, {bad} runs with differences or leftovers"
    )
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
