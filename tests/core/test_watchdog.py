"""A process ends within seconds of its signals, whatever a library does, and leaves nothing."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from probsa.core.watchdog import descendants

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
LONGEST = 5.0
"""Seconds from the signal to the end, which are promised."""
HEAD = """
import ctypes, sys, time
from pathlib import Path
from probsa.core import remove_at_stop, keep, stoppable, orderly_stop
import signal

def hold(library):
    print("ready", flush=True)
    library("libc.so.6").sleep(600)

def work(folder):
    (remove_at_stop(folder / ".a.h5.tmp")).write_text("half")
    half = remove_at_stop(folder / ".b.tmp")
    half.mkdir()
    (half / "x").write_text("half")
    kept = remove_at_stop(folder / "kept")
    kept.write_text("whole")
    keep(kept)
"""
MAIN = (
    HEAD
    + """
work(Path(sys.argv[1]))
with stoppable(signal.SIGTERM, signal.SIGINT, message="stopped\\n", restore=False, watched=True):
    hold({library})
"""
)
WORKER = (
    HEAD
    + """
import multiprocessing

if __name__ == "__main__":
    work(Path(sys.argv[1]))
    how = {{"message": "stopped\\n", "restore": False, "watched": True}}
    with stoppable(signal.SIGTERM, signal.SIGINT, **how):
        context = multiprocessing.get_context("{method}")
        process = context.Process(target=hold, args=({library},))
        process.start()
        {wait}
"""
)
BUSY = """for _ in iter(int, 1):
            time.sleep(0.1)"""


def start(tmp_path, text):
    program = tmp_path / "program.py"
    program.write_text(text)
    folder = tmp_path / "out"
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, str(program), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)  # the call has begun
    return process, folder


def ended(process, folder, others, *signals):
    """Send signals, and check that everything ends within seconds of the last, and what is left."""
    for number in signals[:-1]:
        process.send_signal(number)
        time.sleep(0.2)
    began = time.monotonic()
    process.send_signal(signals[-1])
    words = process.communicate(timeout=60)[1]
    assert time.monotonic() - began < LONGEST
    assert "stopped" in words
    while not all(_is_gone(p) for p in others):
        assert time.monotonic() - began < LONGEST
        time.sleep(0.05)
    assert [p.name for p in folder.iterdir()] == ["kept"]


def _is_gone(process):
    try:
        with pathlib.Path(f"/proc/{process}/stat").open() as f:
            return f.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


TERMINATED = [signal.SIGTERM]
INTERRUPTED = [signal.SIGINT, signal.SIGINT]
NIGHTLY = pytest.mark.nightly


@pytest.mark.parametrize(
    ("library", "signals"),
    [
        ("ctypes.PyDLL", TERMINATED),
        ("ctypes.CDLL", INTERRUPTED),
        pytest.param("ctypes.PyDLL", INTERRUPTED, marks=NIGHTLY),
        pytest.param("ctypes.CDLL", TERMINATED, marks=NIGHTLY),
    ],
)
def test_a_call_that_never_returns_ends(tmp_path, library, signals):
    """PyDLL keeps Python's lock during the call, as HDF5's wrapper does; CDLL releases it."""
    process, folder = start(tmp_path, MAIN.format(library=library))
    others = descendants(process.pid)
    ended(process, folder, others, *signals)


CALL = "time.sleep(1)\n        {library}('libc.so.6').sleep(600)"
JOIN = "process.join()"


@pytest.mark.parametrize(
    ("method", "wait"),
    [
        ("fork", CALL),
        ("spawn", JOIN),
        ("forkserver", BUSY),
        pytest.param("fork", JOIN, marks=NIGHTLY),
        pytest.param("fork", BUSY, marks=NIGHTLY),
        pytest.param("spawn", CALL, marks=NIGHTLY),
        pytest.param("spawn", BUSY, marks=NIGHTLY),
        pytest.param("forkserver", CALL, marks=NIGHTLY),
        pytest.param("forkserver", JOIN, marks=NIGHTLY),
    ],
)
def test_a_worker_whose_call_never_returns_ends_with_the_process(tmp_path, method, wait):
    library = "ctypes.PyDLL"
    text = WORKER.format(library=library, method=method, wait=wait.format(library=library))
    process, folder = start(tmp_path, text)
    others = descendants(process.pid)
    assert len(others) >= 2  # the watchdog and the worker
    ended(process, folder, others, signal.SIGTERM)


def test_the_watchdog_ends_with_its_process(tmp_path):
    text = HEAD + (
        "with stoppable(signal.SIGTERM, restore=False, watched=True):\n"
        "    print('ready', flush=True)\n    time.sleep(1)\n"
    )
    process, _ = start(tmp_path, text)
    (watchdog,) = descendants(process.pid)
    process.communicate(timeout=60)
    until = time.monotonic() + 20
    while not _is_gone(watchdog):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_one_interrupt_leaves_time_for_a_cleanup_of_its_own(tmp_path):
    text = HEAD + (
        "with stoppable(signal.SIGINT, restore=False, watched=True):\n"
        "    try:\n"
        "        with orderly_stop():\n"
        "            print('ready', flush=True)\n            time.sleep(60)\n"
        "    except KeyboardInterrupt:\n"
        "        time.sleep(6)\n        print('cleaned up', flush=True)\n"
    )
    process, _ = start(tmp_path, text)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "cleaned up\n"


@pytest.mark.parametrize(
    ("command", "library"),
    [
        ("models", "ctypes.CDLL"),
        ("info x", "ctypes.PyDLL"),
        pytest.param("models", "ctypes.PyDLL", marks=NIGHTLY),
        pytest.param("info x", "ctypes.CDLL", marks=NIGHTLY),
    ],
)
def test_a_command_whose_library_never_returns_ends(tmp_path, command, library):
    """The command line has a watchdog: a library that hangs is put in place of a reader."""
    module, function = (
        ("models", "catalogue_rows")
        if command == "models"
        else (
            "slides",
            "is_scan",
        )
    )
    text = f"""
import ctypes, sys
import probsa.{module} as room
def hang(*_):
    print("ready", flush=True)
    {library}("libc.so.6").sleep(600)
setattr(room, {function!r}, hang)
from pathlib import Path
Path(sys.argv[1], "kept").write_text("")
made = Path(sys.argv[1]).with_name("x")
made.write_text("text")
sys.argv[1:] = [str(made) if a == "x" else a for a in {command.split()!r}]
from probsa.cli import main
sys.exit(main())
"""
    process, folder = start(tmp_path, text)
    others = descendants(process.pid)
    ended(process, folder, others, signal.SIGTERM)
