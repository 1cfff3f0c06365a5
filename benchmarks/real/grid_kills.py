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
STATE = "state"
"""In a pass that has kept a state by now."""
PLAN = (
    ("pass",), ("predicting",), ("tables",), (STATE,), ("alone",), ("figures",), ("checking",),
    ("predicting",), (STATE,), (STATE, "alone", "predicting", "tables", "figures"),
)  # fmt: skip
"""The phases in which each run is killed; again from the start for more runs."""
LATEST = 0.9
"""Share of a phase, as the uninterrupted run had it, up to which moments are drawn."""
LOOK = 0.01
"""Seconds between two looks."""
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
    note("pass" if unit.together else "alone", phase, "w")
    train(self, unit, todo)
def finished(self, cell):
    note("predicting", phase, "w")
    finish(self, cell)
JointKeeper.restore, Training._train, Training._finish = restored, trained, finished
sys.exit(main(sys.argv[1:]))
"""
"""`probsa` with states of passes kept more often, and notes of what it is at."""


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
    process: subprocess.Popen[bytes]
    said: Path
    """Its standard error."""
    at: Path
    """Where it notes its phase."""
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

    def reached(self, phase: str, moment: float) -> bool:
        """Whether it is in a phase, and has been for so many seconds."""
        name = "pass" if phase == STATE else phase
        there = phase != STATE or any(self.out.glob("passes/*/pass.safetensors"))
        return self.now == name and there and self.lasted[name] >= moment

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _phase(self) -> str:
        told = self.said.read_text()
        if "making figures" in told:
            return "figures"
        if "making " in told:
            return "tables"
        noted = self.at.read_text() if self.at.is_file() else ""
        return noted if noted in PHASES else self.now


def start(command: list[str], out: Path) -> Running:
    """In a process group of its own, so that all of it dies together."""
    said, at = out.with_name(f"{out.name}.stderr"), out.with_name("phase.txt")
    at.unlink(missing_ok=True)
    with said.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, *command, "--out", str(out)],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
    return Running(out=out, process=process, said=said, at=at)


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
        moment = rng.uniform(0, LATEST) * lasted["pass" if phase == STATE else phase]
        running = begin()
        if not running.watch(lambda r=running, p=phase, m=moment: r.reached(p, m)):
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
    plain = start(["-m", "probsa", "benchmark", str(grid)], root / "plain")
    plain.watch(lambda: False)
    assert plain.process.wait() == 0, plain.said.read_text()
    wanted, left = content(plain.out), left_behind(plain.out)
    command = ["-c", DRIVER, str(a.save_every), str(began), str(root / "phase.txt")]
    command += ["benchmark", str(grid)]
    whole = start(command, root / "whole")
    whole.watch(lambda: False)
    alike = not any(differing(content(whole.out), wanted).values())
    phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in whole.lasted.items())
    print(f"uninterrupted: {phases}; alike with states kept: {alike}; left: {left}", flush=True)
    rows, bad = [], int(bool(left) or not alike)
    for k in range(a.runs):
        out, plan, lasted = root / "killed", PLAN[k % len(PLAN)], whole.lasted
        kills: list[Killed] = []
        while len(kills) < len(plan):  # again, earlier, if the machine was faster this time
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
        differ, left = differing(content(out), wanted), left_behind(out)
        bad += bool(status or left or any(differ.values()))
        rows.append(
            {
                "run": k,
                "killed_in": " ".join(i.phase for i in kills),
                "after_s": " ".join(f"{i.drawn:.2f}" for i in kills),
                "of_s": " ".join(
                    f"{whole.lasted['pass' if i.phase == STATE else i.phase]:.2f}" for i in kills
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
        f"{len(wanted)} files each compared, {bad} runs unequal or with something left"
    )
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
