"""Run tasks in this process, in a pool of processes of this machine, or as an array of Slurm jobs.

The results are the same: every worker makes the same call (`work`). Several runs may work in one
folder at the same time: each writes its files atomically, and keeps what another has done.
"""

import errno
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from ..core import remove_leftovers_of, stoppable
from ..errors import InputError, ProbSAError
from .processes import Death, Processes, visible_devices
from .shares import Share, share_of
from .slurm import SlurmJobs, run_jobs
from .tasks import Stage, Task, TaskOutcome, record_outcome, work

Engine = Literal["local", "slurm"]
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
POLL = 1.0
"""Seconds between two looks at the workers of a pool."""
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
        engine: `local` for this process or several processes of this machine; `slurm` for an array
            of jobs, each of which does a share of the tasks.
        workers: Number of processes or jobs that work at the same time.
        isolated: Give a single worker a process of its own as well, so that a crash of native code
            costs one task and not the run.
        gpus: Let local workers take turns on the GPUs.
        slurm: Where and how Slurm jobs are run.
        on_outcome: Called in this process with each outcome as soon as it is known.

    Raises:
        InputError: Two tasks have the same name or target, or `workers` is less than 1.
        OSError: The disk is full; the other workers are stopped.
        KeyboardInterrupt: After ctrl-C; workers are stopped, too.
        MissingExtra: submitit is not installed.
    """
    if workers < 1:
        raise InputError(f"workers is {workers}: expected at least 1")
    names = Counter(task.name for task in tasks)
    targets = Counter(task.target for task in tasks)
    clashes = [t for t in tasks if names[t.name] > 1 or targets[t.target] > 1]
    if clashes:
        raise InputError(
            f"{len(clashes)} inputs share a name or an output file: {clashes[0].name!r} "
            f"({clashes[0].target}), {clashes[1].name!r} ({clashes[1].target}), … Rename one of "
            "them"
        )
    outcomes: dict[str, TaskOutcome] = {}

    def tell(outcome: TaskOutcome) -> None:
        outcomes[outcome.name] = outcome
        if on_outcome is not None:
            on_outcome(outcome)

    def tell_recorded() -> list[Task]:
        """Tell the outcomes that are recorded by now; return the tasks that have none."""
        unfinished = []
        records = []
        for task in tasks:
            if task.name in outcomes:
                continue
            outcome = stage.known(task)
            if outcome is None:
                unfinished.append(task)
            else:
                records.append(outcome)
        for outcome in records:
            tell(outcome)
        return unfinished

    try:
        with stoppable():
            todo = tell_recorded()
            if todo and engine == "slurm":
                assert slurm is not None, "the command gives the options of the jobs"
                jobs = _divide(stage, todo, count=min(workers, len(todo)), isolated=isolated)
                run_jobs(jobs, settings=slurm, on_poll=tell_recorded)
                for task in tell_recorded():
                    reason = f"no Slurm job finished it: see {slurm.folder}, and run it again"
                    tell(stage.failure(task, reason))
            elif todo and workers == 1 and not isolated:
                work(stage, todo, tell=tell)
            elif todo:
                team = Processes(stage, devices=visible_devices() if gpus else [])
                _supervise(team, todo, workers, tell)
    except OSError as e:
        if e.errno in FULL_DISK and e.filename is None:
            raise OSError(e.errno, e.strerror, str(tasks[0].target.parent)) from e
        raise
    return [outcomes[task.name] for task in tasks]


def _divide(
    stage: Stage, tasks: Sequence[Task], *, count: int, isolated: bool
) -> list[Callable[[], object]]:
    """Return the picklable calls of `count` jobs, each of which does a share of the tasks."""
    jobs = []
    for index in range(count):
        share = share_of(tasks, Share(index, count), size=lambda task: task.size)
        jobs.append(partial(run_tasks, stage, share, isolated=isolated))
    return jobs


def _supervise(team: Processes, tasks: Sequence[Task], workers: int, tell: Tell) -> None:
    """Give tasks to the workers of a team, and end the team in any case."""
    current_tasks: defaultdict[int, dict[str, Task]] = defaultdict(dict)
    """The tasks that each worker has been given and has not finished, by name."""

    def do_tasks(tasks: Sequence[Task], workers: int) -> list[tuple[Task, Death]]:
        """Do some tasks; return those that a worker had in hand when it died."""
        waiting = deque(tasks)
        interrupted: list[tuple[Task, Death]] = []
        deaths_without_task = 0
        for _ in range(min(workers, len(tasks))):
            team.add()
        while waiting or any(current_tasks.values()):
            for worker, message in team.receive(POLL):
                if isinstance(message, Exception):
                    raise message
                if isinstance(message, TaskOutcome):
                    current_tasks[worker].pop(message.name)
                    tell(message)
                elif isinstance(message, Death):
                    lost_tasks = current_tasks.pop(worker, {})
                    interrupted += [(task, message) for task in lost_tasks.values()]
                    deaths_without_task = 0 if lost_tasks else deaths_without_task + 1
                    # a worker that dies while it starts will do so again
                    if deaths_without_task == 2:
                        raise ProbSAError(
                            f"a worker process died twice before its first task ({message.cause}): "
                            "probably out of memory while it started. Use fewer workers"
                        )
                    if waiting:
                        team.add()
                else:
                    task = waiting.popleft() if waiting else None
                    if task is not None:
                        current_tasks[worker][task.name] = task
                    team.answer(worker, task)
        return interrupted

    tasks_to_clean: list[Task] = []
    try:
        for task, _ in do_tasks(tasks, workers):
            tasks_to_clean.append(task)
            for _, death in do_tasks([task], 1):
                reason = (
                    f"the process died twice while working on this {task.noun} ({death.cause}): "
                    f"probably out of memory. {team.stage.advice_on_death}"
                )
                tell(record_outcome(team.stage, task, team.stage.failure(task, reason)))
    finally:
        team.close()
        for tasks_of_worker in current_tasks.values():
            tasks_to_clean += tasks_of_worker.values()
        for task in tasks_to_clean:
            remove_leftovers_of(task.target)
