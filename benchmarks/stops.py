"""Send SIGTERM to commands at random moments, and check what they leave.

    python benchmarks/stops.py --log LOG.csv [--moments 15] [--seed 0] [--commands predict map …]

A stopped command must end with status 143 (0 if it was done) and one line of text, and leave no
temporary file, no process and no incomplete output; the same command, with `--overwrite`
where it has that flag, must then give the files of an uninterrupted run. The commands run in
processes that have the package imported, so that the moments fall into the work.
"""

import argparse
import csv
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kills import content, make_slides

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import forks
from support.stored import write_folder

STATUS = 128 + signal.SIGTERM
PROGRAM = "import sys; from probsa.cli import main; sys.exit(main())"


def commands(root: Path) -> dict[str, tuple[list[str], bool]]:
    """Return each command, and whether it needs `--overwrite` to run again."""
    data = root / "data"
    run = root / "run"
    return {
        "predict": (["predict", f"{run}", "--features", f"{data}/features", "--out", "{}"], True),
        "convert": (
            [
                "convert",
                f"{data}/features",
                "--from",
                "probsa",
                "--slide-mpp",
                "0.5",
                "--labels",
                f"{data}/labels.csv",
                "--out",
                "{}",
            ],
            True,
        ),
        "map": (["map", f"{run}/predictions", "--out", "{}"], False),
        "extract": (
            [
                "extract",
                "{}",
                "--encoder",
                "handcrafted",
                "--batch",
                "8",
                "--readers",
                "1",
                "--threads",
                "1",
            ],
            False,
        ),
        "train": (training(root, "{}"), True),
    }


def training(root: Path, out: str) -> list[str]:
    return [
        "train",
        "--features",
        f"{root}/data/features",
        "--labels",
        f"{root}/data/labels.csv",
        "--out",
        out,
        "--model",
        "abmil-probsa-diag",
        "--model.embed",
        "8",
        "--test-fold",
        "0",
        "--epochs",
        "8",
        "--device",
        "cpu",
        "--tensorboard",
        "false",
    ]


def processes(folder: Path) -> list[str]:
    """Return the processes that were started for a folder and are still there."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if f"STOPS={folder}".encode() in environment and state not in "ZX":
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found.append(f"{entry.name}: {command[:60]}")
    return found


def start(command: list[str], folder: Path) -> forks.Fork:
    # a process that was forked keeps its first environment in /proc: the children have this one
    return forks.begin(PROGRAM, *command, environment={"STOPS": str(folder)})


def hidden(folder: Path) -> list[str]:
    """Return the hidden files below a folder, without the ledgers of output folders."""
    return sorted(p.name for p in folder.rglob(".*") if p.name != ".probsa")


def prepared(root: Path, name: str, out: Path, patched: Path) -> None:
    """Make what a command starts from."""
    if name == "extract":
        subprocess.run(["cp", "-r", str(patched), str(out)], check=True)


def stop(root: Path, name: str, moment: float, whole: dict[str, object]) -> dict[str, object]:
    """Stop a command after some seconds, check what it left, and run it to its end."""
    command, overwrite = commands(root)[name]
    with tempfile.TemporaryDirectory(dir=root) as place:
        out = Path(place, "out")
        prepared(root, name, out, root / "patched")
        process = start([c.format(out) for c in command], out)
        until = time.monotonic() + moment
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.002)
        running = process.poll() is None
        if running:
            process.send_signal(signal.SIGTERM)
        status = process.wait()
        done = status == 0 and names(out) == set(whole)  # it ended before the signal came
        left = hidden(Path(place))
        errors = process.errors()
        time.sleep(0.3)
        alive = processes(out)
        there = out.exists()
        again = [c.format(out) for c in command]
        second = start([*again, "--overwrite"] if overwrite and there else again, out)
        resumed = second.wait()
        equal = names(out) == set(whole)
        faults = {
            "status": not done and (status != STATUS or not running),
            "traceback": "Traceback" in errors or "unforeseen" in errors or "leaked" in errors,
            "left": bool(left),
            "alive": bool(alive),
            "resumed": bool(resumed) or not equal or bool(hidden(Path(place))),
        }
        return {
            "command": name,
            "moment": f"{moment:.2f}",
            "running": running,
            "status": status,
            "faults": " ".join(k for k, wrong in faults.items() if wrong),
            "left": " ".join(left),
            "alive": "; ".join(alive),
            "errors": " | ".join(errors.strip().splitlines()[-2:])[-300:],
            "second": " | ".join(second.errors().strip().splitlines()[-1:])[-200:]
            if resumed
            else "",
        }


def names(folder: Path) -> set[str]:
    """Return what is in a folder: files, datasets and attributes."""
    return set(content(folder))


def main() -> None:
    """Stop all commands at all moments; exit with status 1 if one left something."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--moments", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commands", nargs="+", default=list(commands(Path())))
    a = parser.parse_args()
    rng = random.Random(a.seed)
    rows = []
    os.environ["STOPS"] = "none"
    with tempfile.TemporaryDirectory() as folder, a.log.open("w", newline="") as log:
        root = Path(folder)
        writer = None
        write_folder(root / "data", bags=60)
        assert start(training(root, str(root / "run")), root).wait() == 0
        if "extract" in a.commands:
            make_slides(root / "slides")
            patch = ["patch", f"{root}/slides", "--out", f"{root}/patched", "--patch-size", "256"]
            assert start(patch, root).wait() == 0
        for name in a.commands:
            whole = root / f"whole-{name}"
            prepared(root, name, whole, root / "patched")
            began = time.monotonic()
            process = start([c.format(whole) for c in commands(root)[name][0]], whole)
            while process.poll() is None:
                time.sleep(0.002)
            lasted = time.monotonic() - began
            assert process.wait() == 0, process.errors()
            own: list[dict[str, object]] = []
            while sum(bool(r["running"]) for r in own) < a.moments and len(own) < 3 * a.moments:
                own.append(stop(root, name, rng.uniform(0, lasted), names(whole)))
                rows.append(own[-1])
                if writer is None:
                    writer = csv.DictWriter(log, rows[0], lineterminator="\n")
                    writer.writeheader()
                writer.writerow(rows[-1])
                log.flush()
            bad = [r["faults"] for r in own if r["faults"]]
            print(
                f"{name}: {sum(r['running'] for r in own)} stopped of {len(own)} in "
                f"{lasted:.1f} s, {len(bad)} with faults: {bad}",
                flush=True,
            )
    sys.exit(any(r["faults"] for r in rows))


if __name__ == "__main__":
    main()
