"""Which task is done when, and by which worker: the part of a run that is the same everywhere.

The process that was called sits at the desk. It claims tasks by their locks, so that other
processes and machines may work on the same folder, and hands them to its workers.
"""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence

from ..core import unfinished
from ..errors import InputError
from .locks import Lock, claim
from .tasks import Outcome, Stage, Task
from .worker import Answer, Claim, Message, Word

POLL = 1.0
"""Seconds between two looks at what others hold."""
TRIES = 2
"""Deaths of a process at one task after which the task has failed."""


class Desk:
    """The state of a run.

    A task at which a process died (a worker of ours, or the owner of a lock that was taken over)
    is a suspect: it is done last and alone, so that nothing else dies with it.
    """

    def __init__(
        self, stage: Stage, tasks: Sequence[Task], *, tell: Callable[[Outcome], None]
    ) -> None:
        names, targets = Counter(t.name for t in tasks), Counter(t.target for t in tasks)
        twice = [t for t in tasks if names[t.name] > 1 or targets[t.target] > 1]
        if twice:
            raise InputError(
                f"{len(twice)} inputs have the name or the output of another: {twice[0].name!r} "
                f"({twice[0].target}), {twice[1].name!r} ({twice[1].target}), … Rename one of them"
            )
        self.stage, self.tasks, self.tell = stage, tasks, tell
        self.outcomes: dict[str, Outcome] = {}
        self.fresh: deque[Task] = deque()
        self.elsewhere: deque[Task] = deque()
        """Others hold these."""
        self.suspects: deque[Task] = deque()
        """Ours already, kept for the end."""
        self.locks: dict[str, Lock] = {}
        self.at: defaultdict[int, dict[str, Task]] = defaultdict(dict)
        """What each worker is at."""
        self.alone: set[int] = set()
        """Workers that are at a suspect."""
        self.deaths: Counter[str] = Counter()
        self.looked = float("-inf")

    @property
    def finished(self) -> bool:
        return len(self.outcomes) == len(self.tasks)

    def begin(self) -> int:
        """Sets aside what is known; the number of tasks that are left."""
        for task in self.tasks:
            if not self._settled(task):
                self.fresh.append(task)
        return len(self.fresh)

    def answer(self, worker: int, message: Message) -> Answer | None:
        """The answer to a message of a worker; None where it has to wait and be asked for again.

        Raises:
            Exception: what the worker's stage raised.
        """
        if isinstance(message, Exception):
            raise message
        if isinstance(message, Outcome):
            self._end(self.at[worker].pop(message.name), message)
            return Word.NOTED
        if message is Word.NEXT:
            task = None if worker in self.alone else self._next()
            return Word.END if task is None else self._hand(worker, task)
        self.alone.discard(worker)
        task = self._next()
        if task is None and self.suspects:
            task = self.suspects.popleft()
            self.alone.add(worker)
        if task is not None:
            return self._hand(worker, task)
        return Word.STOP if self.finished else None

    def died(self, worker: int, how: str) -> bool:
        """What a worker that died was at is tried once more; False if it was at nothing."""
        held = self.at.pop(worker, {})
        self.alone.discard(worker)
        for task in held.values():
            self._sweep(task)
            self.deaths[task.name] += 1
            if self.deaths[task.name] < TRIES:
                self.suspects.append(task)
                continue
            reason = (
                f"the process died twice while at this slide ({how}): probably out of memory. Try "
                "it with fewer workers or smaller batches; if it dies again, its file may be "
                "damaged in a way that crashes the reader"
            )
            failed = Outcome(name=task.name, status="failed", reason=reason)
            if self.locks[task.name].still_mine():
                self.stage.record(task, failed)
            self._end(task, failed)
        return bool(held)

    def close(self) -> None:
        """Releases what is still locked; the workers are gone."""
        for task in self.tasks:
            if task.name in self.locks:
                self._sweep(task)
                self._release(task)

    def _next(self) -> Task | None:
        """A task that is ours now."""
        while self.fresh:
            task = self.fresh.popleft()
            if self._taken(task):
                return task
        if time.monotonic() - self.looked < POLL:
            return None
        for _ in range(len(self.elsewhere)):
            task = self.elsewhere.popleft()
            if self._taken(task):
                return task
        self.looked = time.monotonic()
        return None

    def _taken(self, task: Task) -> bool:
        """Whether we hold the task now, and may begin."""
        if self._settled(task):
            return False
        lock = claim(task.target)
        if lock is None:
            self.elsewhere.append(task)
            return False
        self.locks[task.name] = lock
        if self._settled(task):  # another finished it between the two looks
            self._release(task)
            return False
        if lock.taken_over:
            self.suspects.append(task)
            return False
        return True

    def _hand(self, worker: int, task: Task) -> Claim:
        self.at[worker][task.name] = task
        return Claim(task=task, lock=self.locks[task.name])

    def _settled(self, task: Task) -> bool:
        known = self.stage.known(task)
        if known is not None:
            self._note(known)
        return known is not None

    def _end(self, task: Task, outcome: Outcome) -> None:
        """Notes what a worker did, unless the task was taken from us meanwhile."""
        if self.locks[task.name].still_mine():
            self._release(task)
            self._note(outcome)
        else:
            self._release(task)
            self.elsewhere.append(task)

    def _note(self, outcome: Outcome) -> None:
        self.outcomes[outcome.name] = outcome
        self.tell(outcome)

    def _release(self, task: Task) -> None:
        self.locks.pop(task.name).release()

    def _sweep(self, task: Task) -> None:
        """What a process that is gone left half written, if the task is still ours."""
        if self.locks[task.name].still_mine():
            for left in unfinished(task.target):
                left.unlink(missing_ok=True)
