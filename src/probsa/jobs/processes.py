"""Workers as processes of this machine, started by spawn: forking is not safe with threads."""

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
from .worker import Answer, Message, picklable, serve

METHOD = "spawn"
"""Start method of the worker processes."""


@dataclass(kw_only=True, slots=True)
class Processes(Team):
    """Worker processes, each connected to this process by a pipe."""

    stage: Stage
    devices: list[str]
    """The GPUs that workers take turns on; if empty, each worker sees all of them."""
    pickled: bytes = b""
    processes: dict[int, BaseProcess] = field(default_factory=dict)
    pipes: dict[int, Connection] = field(default_factory=dict)
    device_of: dict[int, str] = field(default_factory=dict)
    """The GPU that each worker sees."""
    started: int = 0

    def __post_init__(self) -> None:
        self.pickled = pickle.dumps(self.stage)

    def add(self) -> int:
        context: Any = multiprocessing.get_context(METHOD)
        our_end, worker_end = context.Pipe()
        number, self.started = self.started, self.started + 1
        used = list(self.device_of.values())
        device = min(self.devices, key=used.count, default=None)
        process = context.Process(
            target=_work,
            args=(worker_end, self.pickled, device),
            name=f"worker {number}",
            daemon=False,
        )
        process.start()
        worker_end.close()
        self.processes[number], self.pipes[number] = process, our_end
        if device is not None:
            self.device_of[number] = device
        return number

    def receive(self, seconds: float) -> list[tuple[int, Message | Death]]:
        ready = wait(list(self.pipes.values()), seconds)
        received: list[tuple[int, Message | Death]] = []
        for number, pipe in list(self.pipes.items()):
            # A child of the worker may keep the pipe open, so check the worker as well.
            gone = self.processes[number].exitcode is not None
            if pipe in ready or (gone and pipe.poll()):
                try:
                    received.append((number, pipe.recv()))
                except (EOFError, OSError):
                    received.append((number, self._remove(number)))
            elif gone:
                received.append((number, self._remove(number)))
        return received

    def answer(self, worker: int, answer: Answer) -> None:
        try:
            self.pipes[worker].send(answer)
        except OSError:
            return  # the worker has died, which `receive` will report

    def close(self) -> None:
        until = time.monotonic() + PATIENCE
        for process in self.processes.values():
            process.terminate()
        for number, process in list(self.processes.items()):
            process.join(max(0.0, until - time.monotonic()))
            self._remove(number)

    def join(self, worker: int) -> None:
        self.processes[worker].join(PATIENCE)

    def _remove(self, number: int) -> Death:
        """Make sure that a worker has ended, and forget it."""
        process = self.processes.pop(number)
        self.pipes.pop(number).close()
        self.device_of.pop(number, None)
        if process.exitcode is None:
            process.join(PATIENCE)
        if process.exitcode is None:
            process.kill()
            process.join()
        code = process.exitcode or 0
        process.close()
        return Death(f"killed by signal {-code}" if code < 0 else f"exit status {code}")


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def visible_devices() -> list[str]:
    """List the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [d.strip() for d in visible.split(",") if d.strip()]
    import torch

    return [str(i) for i in range(torch.cuda.device_count())]


def _work(pipe: Connection, pickled: bytes, device: str | None) -> None:
    # Ctrl-C reaches all processes of the terminal; the parent process shuts the workers down.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _exit)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device

    def ask(message: Message) -> Answer:
        pipe.send(message)
        return pipe.recv()

    try:
        serve(pickle.loads(pickled), ask)
    except Exception as e:  # noqa: BLE001 - the parent process raises it
        pipe.send(picklable(e))
    finally:
        # A second SIGTERM must not interrupt the interpreter's shutdown.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _exit(number: int, frame: object) -> None:
    # Unlike the default action, SystemExit lets context managers remove temporary files.
    raise SystemExit(128 + number)


def _end_with_parent() -> None:
    # If the parent was killed, its locks are free: a worker must not go on.
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
