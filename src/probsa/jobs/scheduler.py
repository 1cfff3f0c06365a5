"""The scheduler of a run: which worker does which task, and when.

It runs in the process that started the run. It claims tasks by their locks, so that other
processes and machines can work on the same folder, and gives them to its workers.
"""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence

from ..core import temporary_files
from ..errors import InputError
from .locks import Lock, claim
from .tasks import Stage, Task, TaskOutcome
from .worker import Answer, Claim, Message, Word

POLL = 1.0
"""Seconds between two attempts to claim tasks that other runs hold."""
TRIES = 2
"""Number of times that a process may die at a task before the task counts as failed."""


class Scheduler:
    """The state of a run.

    A task at which a process died (one of our workers, or the owner of a lock that was taken over)
    is a suspect: it is done last and by itself, so that no other task is lost if the process dies
    again.

    Args:
        stage: The stage of the run.
        tasks: Tasks with unique names and targets.
        tell: Called with each outcome as soon as it is known.

    Raises:
        InputError: Two tasks have the same name or target.
    """

    def __init__(
        self, stage: Stage, tasks: Sequence[Task], *, tell: Callable[[TaskOutcome], None]
    ) -> None:
        names, targets = Counter(t.name for t in tasks), Counter(t.target for t in tasks)
        twice = [t for t in tasks if names[t.name] > 1 or targets[t.target] > 1]
        if twice:
            raise InputError(
                f"{len(twice)} inputs share a name or an output file: {twice[0].name!r} "
                f"({twice[0].target}), {twice[1].name!r} ({twice[1].target}), … Rename one of them"
            )
        self.stage, self.tasks, self.tell = stage, tasks, tell
        self.outcomes: dict[str, TaskOutcome] = {}
        self.fresh: deque[Task] = deque()
        """Tasks that have not been examined yet."""
        self.elsewhere: deque[Task] = deque()
        """Tasks that other runs hold."""
        self.suspects: deque[Task] = deque()
        """Suspects, which we hold already."""
        self.locks: dict[str, Lock] = {}
        self.in_work: defaultdict[int, dict[str, Task]] = defaultdict(dict)
        """The tasks that each worker holds, by name."""
        self.at_suspects: set[int] = set()
        """The workers that are working on a suspect."""
        self.deaths: Counter[str] = Counter()
        self.last_poll = float("-inf")

    @property
    def finished(self) -> bool:
        return len(self.outcomes) == len(self.tasks)

    def begin(self) -> int:
        """Note all tasks whose outcomes are recorded; return the number of the others."""
        for task in self.tasks:
            if not self._is_settled(task):
                self.fresh.append(task)
        return len(self.fresh)

    def answer(self, worker: int, message: Message) -> Answer | None:
        """Answer the message of a worker, or return None if the worker has to wait.

        Raises:
            Exception: The exception that the stage of the worker raised.
        """
        if isinstance(message, Exception):
            raise message
        if isinstance(message, TaskOutcome):
            self._end(self.in_work[worker].pop(message.name), message)
            return Word.NOTED
        if message is Word.NEXT:
            task = None if worker in self.at_suspects else self._next()
            return Word.END if task is None else self._hand_out(worker, task)
        self.at_suspects.discard(worker)
        task = self._next()
        if task is None and self.suspects:
            task = self.suspects.popleft()
            self.at_suspects.add(worker)
        if task is not None:
            return self._hand_out(worker, task)
        return Word.STOP if self.finished else None

    def note_death(self, worker: int, how: str) -> bool:
        """Make the tasks of a dead worker suspects, or let them fail after `TRIES` deaths.

        Return False if the worker held no task.
        """
        tasks = self.in_work.pop(worker, {})
        self.at_suspects.discard(worker)
        for task in tasks.values():
            self._remove_unfinished(task)
            self.deaths[task.name] += 1
            if self.deaths[task.name] < TRIES:
                self.suspects.append(task)
                continue
            reason = (
                f"the process died twice while working on this {task.noun} ({how}): probably out "
                f"of memory. {self.stage.advice_on_death}"
            )
            failed = TaskOutcome(name=task.name, status="failed", reason=reason)
            if self.locks[task.name].still_mine():
                self.stage.record(task, failed)
            self._end(task, failed)
        return bool(tasks)

    def close(self) -> None:
        """Release all locks, after the workers have ended."""
        for task in self.tasks:
            if task.name in self.locks:
                self._remove_unfinished(task)
                self._release(task)

    def _next(self) -> Task | None:
        """Claim a task and return it, or None if there is none now."""
        while self.fresh:
            task = self.fresh.popleft()
            if self._take(task):
                return task
        if time.monotonic() - self.last_poll < POLL:
            return None
        for _ in range(len(self.elsewhere)):
            task = self.elsewhere.popleft()
            if self._take(task):
                return task
        self.last_poll = time.monotonic()
        return None

    def _take(self, task: Task) -> bool:
        """Try to claim a task; return True if a worker can begin with it now."""
        if self._is_settled(task):
            return False
        lock = claim(task.target)
        if lock is None:
            self.elsewhere.append(task)
            return False
        self.locks[task.name] = lock
        if self._is_settled(task):  # another run finished it just before we got the lock
            self._release(task)
            return False
        if lock.taken_over:
            self.suspects.append(task)
            return False
        return True

    def _hand_out(self, worker: int, task: Task) -> Claim:
        self.in_work[worker][task.name] = task
        return Claim(task=task, lock=self.locks[task.name])

    def _is_settled(self, task: Task) -> bool:
        """Note the outcome of a task if it is recorded."""
        outcome = self.stage.known(task)
        if outcome is not None:
            self._note(outcome)
        return outcome is not None

    def _end(self, task: Task, outcome: TaskOutcome) -> None:
        """Note an outcome, unless another run has taken the task over."""
        if self.locks[task.name].still_mine():
            self._release(task)
            self._note(outcome)
        else:
            self._release(task)
            self.elsewhere.append(task)

    def _note(self, outcome: TaskOutcome) -> None:
        self.outcomes[outcome.name] = outcome
        self.tell(outcome)

    def _release(self, task: Task) -> None:
        self.locks.pop(task.name).release()

    def _remove_unfinished(self, task: Task) -> None:
        """Remove what a dead process left half written, if we still hold the task."""
        if self.locks[task.name].still_mine():
            for temporary in temporary_files(task.target):
                temporary.unlink(missing_ok=True)
