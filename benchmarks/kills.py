"""Kill -9 patch and extract at many moments, resume, and compare with an uninterrupted run.

    python benchmarks/kills.py --log LOG.csv [--moments 50] [--seed 0] [--disk 0.05]

Moments are drawn over the measured duration of each command; every fifth run is killed instead when
a temporary file appears. Flushing a file is slowed down by `--disk` seconds, so that some moments
fall inside writes. After the kill the same command runs to its end, and every dataset and attribute
of the folder must equal, byte for byte, that of a folder that was never interrupted.
"""

import argparse
import csv
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np
import tifffile

SLIDES = 12
SIDE = 2048
INSIDE = 5
"""One of this many kills waits for a write."""


def make_slides(folder: Path) -> None:
    """Write slides with noisy pink boxes of several sizes on white."""
    folder.mkdir(parents=True)
    for k in range(SLIDES):
        rng = np.random.default_rng(k)
        image = np.full((SIDE, SIDE, 3), 243, np.uint8)
        w, h = 700 + 100 * k, 1200
        noise = rng.integers(-20, 20, (h, w, 3))
        image[200 : 200 + h, 100 : 100 + w] = np.clip(np.array([200, 110, 160]) + noise, 0, 255)
        with tifffile.TiffWriter(folder / f"slide{k:02}.tiff") as tif:
            tif.write(
                image,
                tile=(256, 256),
                photometric="rgb",
                compression="zlib",
                resolution=(20000, 20000),
                resolutionunit="CENTIMETER",
                metadata=None,
            )


def content(folder: Path) -> dict[str, object]:
    """Return every file, dataset and attribute below a folder; of tables only the name."""
    files: dict[str, object] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        key = str(path.relative_to(folder))
        if path.suffix == ".h5":
            with h5py.File(path) as f:
                files[key] = {k: str(v) for k, v in f.attrs.items()}
                for name, d in f.items():
                    attributes = {k: str(v) for k, v in d.attrs.items()}
                    files[f"{key}:{name}"] = (str(d.dtype), d.shape, d[...].tobytes(), attributes)
        elif path.suffix in (".csv", ".json", ".jsonl"):
            files[key] = "exists"  # these files contain durations, or digests of files that do
        else:
            files[key] = path.read_bytes()
    return files


def slow_disk(folder: Path, seconds: float) -> None:
    """Slow down the flushing of files in all Python processes that are started from now on."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import os, time\n"
        "flush = os.fsync\n"
        "def fsync(number):\n"
        f"    time.sleep({seconds})\n"
        "    flush(number)\n"
        "os.fsync = fsync\n"
    )
    current = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *([current] if current else [])])


def start(command: list[str]) -> subprocess.Popen[bytes]:
    """Start a command in a new process group, so that its workers can be killed with it."""
    return subprocess.Popen(
        [sys.executable, "-m", "probsa", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def temporaries(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob(".*.tmp"))


def kill_at(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Kill the process after this many seconds; return False if it had already ended."""
    try:
        process.wait(seconds)
        return False
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return True


def kill_inside(process: subprocess.Popen[bytes], folder: Path, *, nth: int) -> bool:
    """Kill the process when the n-th temporary file appears; return False if it ended first."""
    seen: set[str] = set()
    while process.poll() is None:
        now = temporaries(folder)
        seen.update(now)
        if now and len(seen) >= nth:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return True
    return False


def main() -> None:
    """Make all kills; exit with status 1 if a folder differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--moments", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--disk", type=float, default=0.05, help="seconds added to each flush")
    a = parser.parse_args()
    root = Path(tempfile.mkdtemp())
    slow_disk(root / "slow", a.disk)
    slides = root / "slides"
    whole = root / "whole"
    make_slides(slides)
    rng = random.Random(a.seed)
    stages = {
        "patch": ["patch", str(slides), "--out", "{}", "--patch-size", "128", "--workers", "2"],
        "extract": ["extract", "{}", "--batch", "8", "--readers", "1", "--threads", "1"],
    }
    lasted = {}
    before = {}
    for name, command in stages.items():
        began = time.perf_counter()
        assert start([c.format(whole) for c in command]).wait() == 0
        lasted[name] = time.perf_counter() - began
        before[name] = root / f"after_{name}"
        shutil.copytree(whole, before[name])
    rows = []
    for k in range(a.moments):
        name = ("patch", "extract")[k % 2]
        work = root / "work"
        shutil.rmtree(work, ignore_errors=True)
        if name == "extract":
            shutil.copytree(before["patch"], work)
        command = [c.format(work) for c in stages[name]]
        moment = rng.uniform(0, lasted[name])
        nth = rng.randint(1, 2 * SLIDES)
        process = start(command)
        inside = k % INSIDE == INSIDE - 1
        began = time.perf_counter()
        killed = kill_inside(process, work, nth=nth) if inside else kill_at(process, moment)
        after = time.perf_counter() - began
        left = temporaries(work)
        done = len(list(work.rglob("*_patches.h5" if name == "patch" else "features_*/*.h5")))
        status = start(command).wait()
        equal = content(work) == content(before[name])
        rows.append(
            {
                "kill": k,
                "command": name,
                "drawn": f"temporary file {nth}" if inside else f"{moment:.3f} s",
                "of_s": f"{lasted[name]:.3f}",
                "after_s": f"{after:.3f}",
                "killed": killed,
                "files_done": done,
                "half_written": " ".join(left),
                "resumed_status": status,
                "equal": equal,
            }
        )
        print(rows[-1], flush=True)
    with a.log.open("w", newline="") as f:
        writer = csv.DictWriter(f, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    shutil.rmtree(root)
    bad = [r for r in rows if not r["equal"] or r["resumed_status"]]
    print(
        f"{len(rows)} kills, {sum(r['killed'] for r in rows)} before the end, "
        f"{sum(bool(r['half_written']) for r in rows)} inside a write, {len(bad)} unequal"
    )
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
