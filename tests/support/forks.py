"""Processes that have the package imported when they begin, since importing it takes seconds.

They are forked from one server, so they share nothing with the tests, and end and are killed as
any other process. Where the system cannot fork, they are new processes.
"""

import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from support.paths import SOURCE, TESTS

PATHS = os.pathsep.join(map(str, (SOURCE, TESTS)))
POLL = 0.005


class Server:
    """The process that forks; it answers one request after another."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.fork_server"],
            env={**os.environ, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self.close)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


server = functools.cache(Server)


@functools.cache
def logs() -> Path:
    """Return the folder of what the processes print."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class Fork:
    """A process that runs a program, with the methods of `subprocess.Popen` that tests use."""

    def __init__(
        self, program: str, *arguments: object, environment: dict[str, str] | None = None
    ) -> None:
        self.folder = tempfile.mkdtemp(dir=logs())
        self.returncode: int | None = None
        for name in ("out", "err"):
            self.file(name).touch()
        self.pid = server().ask(
            program=program,
            arguments=list(map(str, arguments)),
            environment={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
            directory=str(Path.cwd()),
            output=str(self.file("out")),
            errors=str(self.file("err")),
        )

    def file(self, name: str) -> Path:
        return Path(self.folder, name)

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = server().ask(wait=self.pid)
        return self.returncode

    def wait(self, timeout: float = 240) -> int:
        until = time.monotonic() + timeout
        while self.poll() is None:
            assert time.monotonic() < until, f"it takes longer than {timeout} s: {self.errors()}"
            time.sleep(POLL)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def output(self) -> str:
        return self.file("out").read_text()

    def errors(self) -> str:
        return self.file("err").read_text()


class NewProcess(Fork):
    """The same where the system cannot fork."""

    def __init__(
        self, program: str, *arguments: object, environment: dict[str, str] | None = None
    ) -> None:
        self.folder = tempfile.mkdtemp(dir=logs())
        with self.file("out").open("wb") as out, self.file("err").open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, *map(str, arguments)],
                env={
                    **os.environ,
                    "PYTHONPATH": PATHS,
                    "OMP_NUM_THREADS": "1",
                    **(environment or {}),
                },
                stdout=out,
                stderr=err,
            )
        self.pid = self.process.pid
        self.returncode = None

    def poll(self) -> int | None:
        self.returncode = self.process.poll()
        return self.returncode

    def send_signal(self, number: int) -> None:
        self.process.send_signal(number)


def begin(program: str, *arguments: object, environment: dict[str, str] | None = None) -> Fork:
    """Run a Python program in a process of its own and return at once."""
    kind = Fork if hasattr(os, "fork") else NewProcess
    return kind(program, *arguments, environment=environment)


def run(program: str, *arguments: object, environment: dict[str, str] | None = None) -> Fork:
    """Run a Python program in a process of its own and return when it has ended."""
    process = begin(program, *arguments, environment=environment)
    process.wait()
    return process
