"""Workers as processes of this machine.

They are forked from a server process that has imported the stage and runs no threads, or spawned
where the system has no such server. Forking this process itself would not be safe with threads.
"""

import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from ..core import stoppable
from ..errors import ProbSAError
from .tasks import Stage, Task, TaskOutcome, work

METHODS = multiprocessing.get_all_start_methods()
METHOD = "forkserver" if "forkserver" in METHODS else "spawn"
PATIENCE = 5.0
"""Seconds that a worker has to end by itself."""


@dataclass(frozen=True, slots=True)
class Death:
    """Received instead of a message when a worker has died."""

    exit_code: int
    """The status of the process, or minus the number of the signal that killed it."""

    @property
    def cause(self) -> str:
        """The cause of the death, for messages."""
        if self.exit_code < 0:
            return f"killed by signal {-self.exit_code}"
        return f"exit status {self.exit_code}"


Message = TaskOutcome | Exception | Death | None
"""What comes from a worker; None asks for a task, and must be answered."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker process, as this process sees it."""

    process: BaseProcess
    pipe: Connection
    """This process's end of the pipe."""
    device: str | None
    """The GPU that the worker uses; None for all of them."""


class Processes:
    """Worker processes, each connected to this process by a pipe.

    Args:
        stage: The stage that does the tasks.
        devices: The GPUs that workers take turns on; if empty, each worker sees all of them.
    """

    def __init__(self, stage: Stage, *, devices: Sequence[str] = ()) -> None:
        self.stage = stage
        self.pickled = pickle.dumps(stage)
        self.devices = devices
        self.workers: dict[int, Worker] = {}
        self.started = 0

    def add(self) -> None:
        """Start a worker."""
        context: Any = multiprocessing.get_context(METHOD)
        if METHOD == "forkserver":
            context.set_forkserver_preload([type(self.stage).__module__])
        ours, theirs = context.Pipe()
        busy_devices = [worker.device for worker in self.workers.values()]
        device = min(self.devices, key=busy_devices.count, default=None)
        process = context.Process(target=_serve, args=(theirs, self.pickled, device), daemon=False)
        process.start()
        theirs.close()
        self.workers[self.started] = Worker(process, ours, device)
        self.started += 1

    def receive(self, seconds: float) -> list[tuple[int, Message]]:
        """Return the messages that have come, with their workers; wait at most `seconds`."""
        ready = wait([worker.pipe for worker in self.workers.values()], seconds)
        messages: list[tuple[int, Message]] = []
        for number, worker in list(self.workers.items()):
            is_ready = worker.pipe in ready
            # a child of the worker may keep the pipe open, so check the process as well
            has_ended = worker.process.exitcode is not None
            if not is_ready and not has_ended:
                continue
            try:
                if is_ready or worker.pipe.poll():
                    messages.append((number, worker.pipe.recv()))
                    continue
            except (EOFError, OSError):
                pass  # the worker has closed its end of the pipe
            exit_code = self._remove(number)
            if exit_code != 0:
                messages.append((number, Death(exit_code)))
        return messages

    def answer(self, worker: int, task: Task | None) -> None:
        """Give a worker that asked for it a task, or None if there is none now."""
        try:
            self.workers[worker].pipe.send(task)
        except OSError:
            return  # the worker has died, which `receive` will report

    def close(self) -> None:
        """End every worker; kill those that have not stopped by themselves."""
        deadline = time.monotonic() + PATIENCE
        for worker in self.workers.values():
            worker.process.terminate()
        for number, worker in list(self.workers.items()):
            worker.process.join(max(0.0, deadline - time.monotonic()))
            self._remove(number)

    def _remove(self, number: int) -> int:
        """Make sure that a worker has ended, forget it, and return its exit code."""
        worker = self.workers.pop(number)
        worker.pipe.close()
        process = worker.process
        if process.exitcode is None:
            process.join(PATIENCE)
        if process.exitcode is None:
            process.kill()
            process.join()
        exit_code = process.exitcode or 0
        process.close()
        return exit_code


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def visible_devices() -> list[str]:
    """List the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        return [name for name in names if name]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


def _serve(pipe: Connection, pickled: bytes, device: str | None) -> None:
    """Do tasks in a worker process: ask for each through the pipe, and send its outcome back."""
    # Ctrl-C reaches all processes of the terminal; the parent process shuts the workers down.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device

    def ask() -> Task | None:
        pipe.send(None)
        return pipe.recv()

    with stoppable(restore=False):
        try:
            work(pickle.loads(pickled), iter(ask, None), tell=pipe.send)
        except Exception as e:  # noqa: BLE001 - the parent process raises it
            pipe.send(picklable(e))
        finally:
            # SIGTERM must not interrupt the interpreter's shutdown.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)


def end_with_parent(number: int = 0) -> None:
    """End this process if its parent is killed, since nobody would stop it or use its outcomes.

    Args:
        number: The number of the process. PyTorch's loaders pass it; it is not used.
    """

    def wait_for_end() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=wait_for_end, name="parent", daemon=True).start()


def picklable(error: Exception) -> Exception:
    """Return the error in a form that can be sent to another process, with its traceback."""
    trace = "".join(traceback.format_exception(error))
    error.add_note(f"In a worker process:\n{trace}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - pickling a foreign exception may raise anything
        if isinstance(error, ProbSAError):
            return ProbSAError(str(error))
        return RuntimeError(trace)
    return error
