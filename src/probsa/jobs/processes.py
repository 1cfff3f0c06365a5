"""Workers as processes of this machine, begun afresh: threads and forks do not go together."""

import multiprocessing
import os
import pickle
import signal
import threading
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from .tasks import Stage
from .team import PATIENCE, Death, Team
from .worker import Answer, Message, portable, serve

METHOD = "spawn"
"""How a process begins."""


@dataclass(kw_only=True, slots=True)
class Processes(Team):
    """Workers by number; each has a pipe to us."""

    stage: Stage
    devices: list[str]
    """What each may see of the GPUs, in turn; empty where they are not parted."""
    pickled: bytes = b""
    processes: dict[int, BaseProcess] = field(default_factory=dict)
    pipes: dict[int, Connection] = field(default_factory=dict)
    seen: dict[int, str] = field(default_factory=dict)
    """The GPU that each worker sees."""
    started: int = 0

    def __post_init__(self) -> None:
        self.pickled = pickle.dumps(self.stage)

    def add(self) -> int:
        context: Any = multiprocessing.get_context(METHOD)
        ours, theirs = context.Pipe()
        number, self.started = self.started, self.started + 1
        used = list(self.seen.values())
        device = min(self.devices, key=used.count, default=None)
        process = context.Process(
            target=_work, args=(theirs, self.pickled, device), name=f"worker {number}", daemon=False
        )
        process.start()
        theirs.close()
        self.processes[number], self.pipes[number] = process, ours
        if device is not None:
            self.seen[number] = device
        return number

    def receive(self, seconds: float) -> list[tuple[int, Message | Death]]:
        ready = wait(list(self.pipes.values()), seconds)
        came: list[tuple[int, Message | Death]] = []
        for number, pipe in list(self.pipes.items()):
            # A process that the worker started may keep its pipe open: so the worker is asked too.
            gone = self.processes[number].exitcode is not None
            if pipe in ready or (gone and pipe.poll()):
                try:
                    came.append((number, pipe.recv()))
                except (EOFError, OSError):
                    came.append((number, self._bury(number)))
            elif gone:
                came.append((number, self._bury(number)))
        return came

    def answer(self, worker: int, answer: Answer) -> None:
        try:
            self.pipes[worker].send(answer)
        except OSError:
            return  # it died meanwhile, which `receive` will say

    def close(self) -> None:
        until = time.monotonic() + PATIENCE
        for process in self.processes.values():
            process.terminate()
        for number, process in list(self.processes.items()):
            process.join(max(0.0, until - time.monotonic()))
            self._bury(number)

    def farewell(self, worker: int) -> None:
        self.processes[worker].join(PATIENCE)

    def _bury(self, number: int) -> Death:
        process = self.processes.pop(number)
        self.pipes.pop(number).close()
        self.seen.pop(number, None)
        if process.exitcode is None:
            process.join(PATIENCE)
        if process.exitcode is None:
            process.kill()
            process.join()
        code = process.exitcode or 0
        process.close()
        return Death(f"killed by signal {-code}" if code < 0 else f"exit status {code}")


def visible_devices() -> list[str]:
    """The GPUs that this process may use, in the words of CUDA_VISIBLE_DEVICES."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [d.strip() for d in given.split(",") if d.strip()]
    import torch

    return [str(i) for i in range(torch.cuda.device_count())]


def _work(pipe: Connection, pickled: bytes, device: str | None) -> None:
    # Ctrl-C reaches every process of the terminal: the caller decides, and ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device

    def ask(message: Message) -> Answer:
        pipe.send(message)
        return pipe.recv()

    try:
        serve(pickle.loads(pickled), ask)
    except Exception as e:  # noqa: BLE001 - the caller raises it
        pipe.send(portable(e))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what Python does at its end is not torn


def _leave(number: int, frame: object) -> None:
    """Lets temporary files be removed on the way out."""
    raise SystemExit(128 + number)


def _end_with_parent() -> None:
    """A worker whose caller was killed must not go on: the lock is its caller's."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
