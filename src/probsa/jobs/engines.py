"""Run tasks in this process, in processes of this machine, on a Ray cluster or as Slurm jobs.

The results are the same: every worker makes the same call (`work`). Any number of runs on any
number of machines may share a folder: they divide the tasks among themselves by locks.
"""

import errno
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from ..core import stoppable
from ..errors import InputError, ProbSAError
from .locks import claim
from .processes import Death, Processes, visible_devices
from .slurm import SlurmJobs, run_jobs
from .tasks import POLL, Stage, Task, TaskOutcome, work

if TYPE_CHECKING:
    from .ray_actors import Actors

Engine = Literal["local", "ray", "slurm"]
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
Tell = Callable[[TaskOutcome], None]


def run_tasks(
    stage: Stage,
    tasks: Sequence[Task],
    *,
    engine: Engine = "local",
    workers: int = 1,
    isolated: bool = False,
    gpus: bool = False,
    slurm: SlurmJobs | None = None,
    on_outcome: Tell | None = None,
) -> list[TaskOutcome]:
    """Do every task that is not done yet and return all outcomes, in the order of the tasks.

    A worker process that dies is replaced. The tasks that it held are tried once more, each by
    itself and after all others; a task at which a process dies again has failed.

    Args:
        stage: The stage that does the tasks. It is pickled for each worker, unless the only
            worker is this process.
        tasks: Tasks with unique names and targets.
        engine: `local` for this process or several processes of this machine; `ray` for actors of
            a cluster; `slurm` for an array of jobs.
        workers: Number of processes, actors or jobs that work at the same time.
        isolated: Give a single worker a process of its own as well, so that a crash of native code
            costs one task and not the run.
        gpus: Give each worker one GPU: actors request it from Ray, local workers take turns.
        slurm: Where and how Slurm jobs are run.
        on_outcome: Called in this process with each outcome as soon as it is known.

    Raises:
        InputError: Two tasks have the same name or target, or `workers` is less than 1.
        OSError: The disk is full; the other workers are stopped and all locks released.
        KeyboardInterrupt: After ctrl-C; workers are stopped and locks released, too.
        MissingExtra: Ray or submitit is not installed.
    """
    if workers < 1:
        raise InputError(f"workers is {workers}: expected at least 1")
    names, targets = Counter(t.name for t in tasks), Counter(t.target for t in tasks)
    twice = [t for t in tasks if names[t.name] > 1 or targets[t.target] > 1]
    if twice:
        raise InputError(
            f"{len(twice)} inputs share a name or an output file: {twice[0].name!r} "
            f"({twice[0].target}), {twice[1].name!r} ({twice[1].target}), … Rename one of them"
        )
    outcomes: dict[str, TaskOutcome] = {}

    def tell(outcome: TaskOutcome) -> None:
        outcomes[outcome.name] = outcome
        if on_outcome is not None:
            on_outcome(outcome)

    def tell_known() -> list[Task]:
        """Tell the outcomes that are recorded by now; return the tasks that have none."""
        waiting = [t for t in tasks if t.name not in outcomes]
        known = {t.name: stage.known(t) for t in waiting}
        for outcome in filter(None, known.values()):
            tell(outcome)
        return [t for t in waiting if known[t.name] is None]

    try:
        with stoppable():
            todo = tell_known()
            if todo and engine == "slurm":
                assert slurm is not None, "the command gives the options of the jobs"
                job = partial(run_tasks, stage, todo, isolated=isolated)
                run_jobs(job, jobs=workers, settings=slurm, on_poll=tell_known)
                for task in tell_known():
                    reason = f"no Slurm job finished it: see {slurm.folder}, and run it again"
                    tell(stage.failure(task, reason))
            elif todo and engine == "local" and workers == 1 and not isolated:
                work(stage, todo, tell=tell)
            elif todo:
                if engine == "local":
                    team = Processes(stage, devices=visible_devices() if gpus else [])
                else:
                    from .ray_actors import Actors

                    team = Actors(stage, gpus=gpus, workers=workers)
                _supervise(team, todo, workers, tell)
    except OSError as e:
        if e.errno in FULL_DISK and e.filename is None:
            raise OSError(e.errno, e.strerror, str(tasks[0].target.parent)) from e
        raise
    return [outcomes[task.name] for task in tasks]


def _supervise(team: "Processes | Actors", tasks: Sequence[Task], workers: int, tell: Tell) -> None:
    """Give tasks to the workers of a team, and end the team in any case."""
    held: defaultdict[int, dict[str, Task]] = defaultdict(dict)
    """The tasks that each worker has been given and has not finished."""

    def deal(tasks: Sequence[Task], workers: int) -> list[tuple[Task, str]]:
        """Do some tasks; return those at which a worker died, and how."""
        waiting, died, deaths_without_task = deque(tasks), list[tuple[Task, str]](), 0
        for _ in range(min(workers, len(tasks))):
            team.add()
        while waiting or any(held.values()):
            for worker, message in team.receive(POLL):
                if isinstance(message, Exception):
                    raise message
                if isinstance(message, TaskOutcome):
                    held[worker].pop(message.name)
                    tell(message)
                elif isinstance(message, Death):
                    lost = held.pop(worker, {})
                    died += [(task, message.how) for task in lost.values()]
                    deaths_without_task = 0 if lost else deaths_without_task + 1
                    # a worker that dies while it starts will do so again
                    if deaths_without_task == 2:
                        raise ProbSAError(
                            f"a worker process died twice before its first task ({message.how}): "
                            "probably out of memory while it started. Use fewer workers"
                        )
                    if waiting:
                        team.add()
                else:
                    task = waiting.popleft() if waiting else None
                    if task is not None:
                        held[worker][task.name] = task
                    team.answer(worker, task)
        return died

    try:
        for task, _ in deal(tasks, workers):
            for _, how in deal([task], 1):
                _give_up(team.stage, task, how, tell)
    finally:
        team.close()
        for task in [task for tasks in held.values() for task in tasks.values()]:
            lock = claim(task.target)  # it removes what a worker that was killed left half written
            if lock is not None:
                lock.release()


def _give_up(stage: Stage, task: Task, how: str, tell: Tell) -> None:
    """Record that a process died twice at a task, unless another run has done it."""
    reason = (
        f"the process died twice while working on this {task.noun} ({how}): probably out "
        f"of memory. {stage.advice_on_death}"
    )
    while (lock := claim(task.target)) is None:
        outcome = stage.known(task)
        if outcome is not None:
            tell(outcome)
            return
        time.sleep(POLL)
    with lock:
        failed = stage.failure(task, reason)
        stage.record(task, failed)
    tell(failed)
