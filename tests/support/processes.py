"""Scripts that run in several processes, and workers that begin quickly."""

import multiprocessing
import socket
from pathlib import Path

import pytest
from support.fork_server import PRELOADED
from support.forks import PATHS, begin

from probsa.cohorts import reading
from probsa.jobs import processes as started


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_script(script: Path, *arguments: object, processes: int) -> None:
    """Run a script in one process, or in several with gloo; fail with its messages."""
    port = str(free_port())
    program = script.read_text()
    begun = []
    for rank in map(str, range(processes)):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(processes)}
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        several = {**place, **address} if processes > 1 else {}
        begun.append(begin(program, *arguments, environment=several))
    ended = [process.wait() for process in begun]
    assert not any(ended), "\n".join(process.errors()[-3000:] for process in begun)


def fork_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the workers and the readers of a run from a process that has imported the package."""
    multiprocessing.set_forkserver_preload([*PRELOADED, "support.toy_stage"])
    monkeypatch.setattr(started, "METHOD", "forkserver")
    monkeypatch.setattr(reading, "METHOD", "forkserver")
    monkeypatch.setenv("PYTHONPATH", PATHS)
