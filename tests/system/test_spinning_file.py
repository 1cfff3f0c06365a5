"""A damaged HDF5 file makes the library loop for ever: a signal ends the command all the same."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.made_spinning import make_spin
from support.stored import write_folder

from probsa.cli import main

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files of Linux")
LONGEST = 5.0
"""Seconds from the signal to the end, which are promised."""
SURE = 2.0
"""Seconds that a small file is open when the library loops."""


@pytest.fixture(scope="module")
def spinning(tmp_path_factory):
    """A run, and a copy of its bags of which one has a damaged heap."""
    home = tmp_path_factory.mktemp("spinning")
    features, labels = write_folder(home / "data")
    flags = (
        f"train --features {features} --labels {labels} --out {home / 'run'} "
        "--model abmil --model.embed 8 --test-fold 0 --epochs 1 --device cpu "
        "--tensorboard false --maps none"
    ).split()
    assert main(flags) == 0
    make_spin(features / "003.h5")
    return home


def holds(process: int, path: Path) -> bool:
    """Return whether a process has a file open."""
    for handle in Path(f"/proc/{process}/fd").iterdir():
        try:
            if handle.readlink() == path:
                return True
        except OSError:
            continue
    return False


def wait_until_it_spins(process: subprocess.Popen[str], path: Path) -> None:
    """Wait until a file has been open for some time, which is read at once if it is whole."""
    since: float | None = None
    until = time.monotonic() + 240
    while since is None or time.monotonic() - since < SURE:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        if not holds(process.pid, path):
            since = None
        elif since is None:
            since = time.monotonic()
        time.sleep(0.05)


TWICE = [signal.SIGINT, signal.SIGINT]
NIGHTLY = pytest.mark.nightly


def files_below(folder: Path) -> set[str]:
    """Return the paths of all files within a folder, except those of its ledger."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path.as_posix() for path in paths if ".probsa" not in path.parts}


@pytest.mark.parametrize(
    ("command", "signals"),
    [
        ("convert", [signal.SIGTERM]),
        pytest.param("predict", TWICE, marks=NIGHTLY),
        pytest.param("convert", TWICE, marks=NIGHTLY),
        pytest.param("predict", [signal.SIGTERM], marks=NIGHTLY),
    ],
)
def test_a_command_ends_and_leaves_nothing_half_written(spinning, tmp_path, command, signals):
    features = spinning / "data" / "features"
    out = tmp_path / "out"
    arguments = {
        "convert": [str(features), "--from", "probsa", "--slide-mpp", "0.5"],
        "predict": [str(spinning / "run"), "--features", str(features)],
    }[command]
    process = subprocess.Popen(
        [sys.executable, "-m", "probsa", command, *arguments, "--out", str(out)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until_it_spins(process, (features / "003.h5").resolve())
        for number in signals[:-1]:
            process.send_signal(number)
            time.sleep(0.2)
        began = time.monotonic()
        process.send_signal(signals[-1])
        process.communicate(timeout=60)
        assert time.monotonic() - began < LONGEST
    finally:
        process.kill()
        process.wait()
    # Python never gets to handle the signal: the process that watches this one ends it
    assert process.returncode == -signal.SIGKILL
    # bags that were converted before the damaged one are complete
    complete = {f"{k:03}.h5" for k in range(3)} if command == "convert" else set()
    assert files_below(out) == complete
