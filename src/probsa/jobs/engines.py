"""Many slides: in this process, in several of this machine, or on a Ray cluster, with one result.

Any number of such runs may share a folder, on any number of machines: the locks part the work.
"""

import errno
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Literal

from ..errors import InputError, ProbSAError
from .processes import Processes, visible_devices
from .scheduler import POLL, Desk
from .tasks import Outcome, Stage, Task
from .team import PATIENCE, Death, Team
from .worker import Answer, Message, Word, serve

Engine = Literal["local", "ray"]
FULL = (errno.ENOSPC, errno.EDQUOT)


def each(
    stage: Stage,
    tasks: Sequence[Task],
    *,
    engine: Engine = "local",
    workers: int = 1,
    gpus: bool = False,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Does every task that is not done yet; the outcomes, in the order of the tasks.

    A worker that is killed is replaced. What it was at is tried once more, alone and after all
    else, and has failed if a process dies at it again.

    Args:
        stage: What is done; it is pickled for each worker, unless this process is the only one.
        tasks: Each with a name and a target of its own.
        engine: `local`: this process, or several of this machine; `ray`: a cluster's actors.
        workers: Processes or actors at work at the same time.
        gpus: Each worker has one GPU: an actor asks Ray for it, local workers take turns.
        on_outcome: Called here with every outcome once it is known.

    Raises:
        InputError: two tasks of one name or target, or no worker.
        OSError: the disk is full; the other workers are stopped, and all locks released.
        KeyboardInterrupt: ctrl-C or SIGTERM came; likewise.
        MissingExtra: Ray is not installed.
    """
    if workers < 1:
        raise InputError(f"workers is {workers}: at least one is needed")
    desk = Desk(stage, tasks, tell=on_outcome or (lambda outcome: None))
    try:
        left = desk.begin()
        if left and engine == "local" and workers == 1:
            with _terminable():
                serve(stage, lambda message: _at_once(desk, message))
        elif left:
            _manage(desk, _team(stage, engine, gpus=gpus, workers=workers), min(workers, left))
    except OSError as e:
        if e.errno in FULL and e.filename is None:
            raise OSError(e.errno, e.strerror, str(tasks[0].target.parent)) from e
        raise
    finally:
        desk.close()
    return [desk.outcomes[task.name] for task in tasks]


def _team(stage: Stage, engine: Engine, *, gpus: bool, workers: int) -> Team:
    if engine == "local":
        return Processes(stage=stage, devices=visible_devices() if gpus else [])
    from .on_ray import Actors

    return Actors(stage=stage, gpus=gpus, workers=workers)


def _at_once(desk: Desk, message: Message) -> Answer:
    """The answer for a worker in this process, which waits here."""
    while (answer := desk.answer(0, message)) is None:
        time.sleep(POLL)
    return answer


def _manage(desk: Desk, team: Team, workers: int) -> None:
    """Runs a team until the desk is finished, and ends it whatever happens."""
    idle: set[int] = set()
    busy: set[int] = set()
    in_vain = 0
    try:
        with _terminable():
            for _ in range(workers):
                team.add()
            while not desk.finished:
                for worker, message in team.receive(POLL):
                    if isinstance(message, Death):
                        busy.discard(worker)
                        idle.discard(worker)
                        in_vain = 0 if desk.died(worker, message.how) else in_vain + 1
                        _give_up(in_vain, message.how)
                        if not desk.finished:
                            team.add()
                    elif message is Word.FIRST:
                        busy.discard(worker)
                        idle.add(worker)
                    else:
                        answer = desk.answer(worker, message)
                        assert answer is not None
                        team.answer(worker, answer)
                for worker in sorted(idle):
                    answer = desk.answer(worker, Word.FIRST)
                    if answer is not None:
                        idle.discard(worker)
                        busy.add(worker)
                        team.answer(worker, answer)
            _dismiss(team, idle, busy)
    finally:
        team.close()


def _give_up(in_vain: int, how: str) -> None:
    """A worker that dies before it has a task dies again and again."""
    if in_vain == 2:
        raise ProbSAError(
            f"a worker process died twice before its first slide ({how}): probably out of memory "
            "while the encoder was loaded. Use fewer workers"
        )


def _dismiss(team: Team, idle: set[int], busy: set[int]) -> None:
    """Lets the workers that ever worked end in order; those that still start are not waited for."""
    until = time.monotonic() + PATIENCE
    while True:
        for worker in idle:
            team.answer(worker, Word.STOP)
        for worker in idle:
            team.farewell(worker)
        idle.clear()
        if not busy or time.monotonic() > until:
            return
        for worker, message in team.receive(POLL):
            if message is Word.NEXT:
                team.answer(worker, Word.END)
            elif isinstance(message, Outcome):
                team.answer(worker, Word.NOTED)
            else:
                busy.discard(worker)
                if message is Word.FIRST:
                    idle.add(worker)


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM as ctrl-C: what is held is given back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
