"""Workers as processes of this machine.

They are forked from a server that has imported the stage and nothing runs in, or started by spawn
where that is impossible: forking this process would not be safe with threads.
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

    how: str


Message = TaskOutcome | Exception | Death | None
"""What comes from a worker; None asks for a task, and must be answered."""


class Processes:
    """Worker processes, each connected to this process by a pipe.

    Args:
        stage: The stage that does the tasks.
        devices: The GPUs that workers take turns on; if empty, each worker sees all of them.
    """

    def __init__(self, stage: Stage, *, devices: Sequence[str] = ()) -> None:
        self.stage, self.pickled, self.devices = stage, pickle.dumps(stage), devices
        self.workers: dict[int, tuple[BaseProcess, Connection, str | None]] = {}
        self.started = 0

    def add(self) -> None:
        """Start a worker."""
        context: Any = multiprocessing.get_context(METHOD)
        if METHOD == "forkserver":
            context.set_forkserver_preload([type(self.stage).__module__])
        ours, theirs = context.Pipe()
        used = [device for _, _, device in self.workers.values()]
        device = min(self.devices, key=used.count, default=None)
        process = context.Process(target=_serve, args=(theirs, self.pickled, device), daemon=False)
        process.start()
        theirs.close()
        self.workers[self.started] = process, ours, device
        self.started += 1

    def receive(self, seconds: float) -> list[tuple[int, Message]]:
        """Return the messages that have come, with their workers; wait at most `seconds`."""
        ready = wait([pipe for _, pipe, _ in self.workers.values()], seconds)
        received: list[tuple[int, Message]] = []
        for number, (process, pipe, _) in list(self.workers.items()):
            # a child of the worker may keep the pipe open, so check the worker as well
            gone = process.exitcode is not None
            if pipe in ready or gone:
                try:
                    if pipe in ready or pipe.poll():
                        received.append((number, pipe.recv()))
                        continue
                except (EOFError, OSError):
                    pass
                code = self._remove(number)
                if code:  # else it has ended in order
                    how = f"killed by signal {-code}" if code < 0 else f"exit status {code}"
                    received.append((number, Death(how)))
        return received

    def answer(self, worker: int, task: Task | None) -> None:
        """Give a worker that asked for it a task, or None if there is none now."""
        try:
            self.workers[worker][1].send(task)
        except OSError:
            return  # the worker has died, which `receive` will report

    def close(self) -> None:
        """End every worker; kill those that have not stopped by themselves."""
        until = time.monotonic() + PATIENCE
        for process, _, _ in self.workers.values():
            process.terminate()
        for number, (process, _, _) in list(self.workers.items()):
            process.join(max(0.0, until - time.monotonic()))
            self._remove(number)

    def _remove(self, number: int) -> int:
        """Make sure that a worker has ended, forget it, and return its exit code."""
        process, pipe, _ = self.workers.pop(number)
        pipe.close()
        if process.exitcode is None:
            process.join(PATIENCE)
        if process.exitcode is None:
            process.kill()
            process.join()
        code = process.exitcode or 0
        process.close()
        return code


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


def _serve(pipe: Connection, pickled: bytes, device: str | None) -> None:
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
    """End this process if its parent is killed: nobody would stop it, or hear of its outcomes.

    Args:
        number: of the process, as PyTorch's loaders call this function.
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
