"""Run tasks in this process, in several processes of this machine, or on a Ray cluster.

The results are the same. Any number of runs on any number of machines may share a folder: they
divide the tasks among themselves by locks.
"""

import errno
import time
from collections.abc import Callable, Sequence
from typing import Literal

from ..errors import InputError, ProbSAError
from .interrupts import sigterm_as_interrupt
from .processes import Processes, visible_devices
from .scheduler import POLL, Scheduler
from .tasks import Stage, Task, TaskOutcome
from .team import PATIENCE, Death, Team
from .worker import Answer, Message, Word, serve

Engine = Literal["local", "ray"]
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


def run_tasks(
    stage: Stage,
    tasks: Sequence[Task],
    *,
    engine: Engine = "local",
    workers: int = 1,
    gpus: bool = False,
    on_outcome: Callable[[TaskOutcome], None] | None = None,
) -> list[TaskOutcome]:
    """Do every task that is not done yet and return all outcomes, in the order of the tasks.

    A worker that dies is replaced. The tasks that it held are tried once more, each by itself and
    after all others; a task at which a process dies again has failed.

    Args:
        stage: The stage that does the tasks. It is pickled for each worker, unless the only
            worker is this process.
        tasks: Tasks with unique names and targets.
        engine: `local` for this process or several processes of this machine; `ray` for actors of
            a cluster.
        workers: Number of processes or actors that work at the same time.
        gpus: Give each worker one GPU: actors request it from Ray, local workers take turns.
        on_outcome: Called in this process with each outcome as soon as it is known.

    Raises:
        InputError: Two tasks have the same name or target, or `workers` is less than 1.
        OSError: The disk is full; the other workers are stopped and all locks released.
        KeyboardInterrupt: After ctrl-C or SIGTERM; workers are stopped and locks released, too.
        MissingExtra: Ray is not installed.
    """
    if workers < 1:
        raise InputError(f"workers is {workers}: expected at least 1")
    scheduler = Scheduler(stage, tasks, tell=on_outcome or (lambda outcome: None))
    try:
        remaining = scheduler.begin()
        if remaining and engine == "local" and workers == 1:
            with sigterm_as_interrupt():
                serve(stage, lambda message: _wait_for_answer(scheduler, message))
        elif remaining:
            team = _team(stage, engine, gpus=gpus, workers=workers)
            _manage(scheduler, team, min(workers, remaining))
    except OSError as e:
        if e.errno in FULL_DISK and e.filename is None:
            raise OSError(e.errno, e.strerror, str(tasks[0].target.parent)) from e
        raise
    finally:
        scheduler.close()
    return [scheduler.outcomes[task.name] for task in tasks]


def _team(stage: Stage, engine: Engine, *, gpus: bool, workers: int) -> Team:
    if engine == "local":
        return Processes(stage=stage, devices=visible_devices() if gpus else [])
    from .ray_actors import Actors

    return Actors(stage=stage, gpus=gpus, workers=workers)


def _wait_for_answer(scheduler: Scheduler, message: Message) -> Answer:
    """Answer the only worker, which runs in this process and therefore waits here."""
    while (answer := scheduler.answer(0, message)) is None:
        time.sleep(POLL)
    return answer


def _manage(scheduler: Scheduler, team: Team, workers: int) -> None:
    """Pass messages between scheduler and team until all is done; end the team in any case."""
    idle: set[int] = set()
    busy: set[int] = set()
    deaths_without_task = 0
    try:
        with sigterm_as_interrupt():
            for _ in range(workers):
                team.add()
            while not scheduler.finished:
                for worker, message in team.receive(POLL):
                    if isinstance(message, Death):
                        busy.discard(worker)
                        idle.discard(worker)
                        held_tasks = scheduler.note_death(worker, message.how)
                        deaths_without_task = 0 if held_tasks else deaths_without_task + 1
                        _check_deaths(deaths_without_task, message.how)
                        if not scheduler.finished:
                            team.add()
                    elif message is Word.FIRST:
                        busy.discard(worker)
                        idle.add(worker)
                    else:
                        answer = scheduler.answer(worker, message)
                        assert answer is not None
                        team.answer(worker, answer)
                for worker in sorted(idle):
                    answer = scheduler.answer(worker, Word.FIRST)
                    if answer is not None:
                        idle.discard(worker)
                        busy.add(worker)
                        team.answer(worker, answer)
            _dismiss(team, idle, busy)
    finally:
        team.close()


def _check_deaths(without_task: int, how: str) -> None:
    # A worker that dies while it starts will do so again: do not replace it for ever.
    if without_task == 2:
        raise ProbSAError(
            f"a worker process died twice before its first task ({how}): probably out of memory "
            "while it started. Use fewer workers"
        )


def _dismiss(team: Team, idle: set[int], busy: set[int]) -> None:
    """Let workers that have had a task end in order; do not wait for those still starting."""
    until = time.monotonic() + PATIENCE
    while True:
        for worker in idle:
            team.answer(worker, Word.STOP)
        for worker in idle:
            team.join(worker)
        idle.clear()
        if not busy or time.monotonic() > until:
            return
        for worker, message in team.receive(POLL):
            if message is Word.NEXT:
                team.answer(worker, Word.END)
            elif isinstance(message, TaskOutcome):
                team.answer(worker, Word.NOTED)
            else:
                busy.discard(worker)
                if message is Word.FIRST:
                    idle.add(worker)
