"""The loop of a worker: ask the scheduler for tasks, do them, and report their outcomes.

Every message of a worker gets one answer. The same loop runs in this process, in another process
and in an actor of a Ray cluster.
"""

import pickle
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from ..errors import ProbSAError
from .locks import Lock
from .tasks import Stage, Task, TaskOutcome


class Word(Enum):
    """Messages and answers other than tasks and outcomes."""

    FIRST = "the worker holds no task and waits for one"
    NEXT = "the worker asks for another task if there is one now"
    END = "there is none now: finish the tasks at hand"
    STOP = "all tasks are done"
    NOTED = "the outcome was received"


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A task with the lock that the scheduler holds on it."""

    task: Task
    lock: Lock


Message = Word | TaskOutcome | Exception
Answer = Word | Claim


def serve(stage: Stage, ask: Callable[[Message], Answer]) -> None:
    """Work until all tasks are done.

    To avoid deadlock, a worker that holds tasks never waits for a lock of another run: it is told
    `Word.END`, finishes its tasks, and asks again.

    Args:
        stage: The stage that does the tasks.
        ask: Sends a message to the scheduler and returns the answer.
    """
    one_at_a_time = threading.Lock()  # a stage may draw tasks in a thread

    def send(message: Message) -> Answer:
        with one_at_a_time:
            return ask(message)

    stage.start()
    while isinstance(first := send(Word.FIRST), Claim):
        claims: dict[str, Claim] = {}
        for outcome in stage.run(_draw_tasks(first, send, claims)):
            claim = claims.pop(outcome.name, None)
            if claim is None:
                raise RuntimeError(
                    f"{type(stage).__name__}.run gave an outcome for {outcome.name!r}, which it "
                    f"was not working on: {sorted(claims)}"
                )
            # If another run took the lock over, that run records the task.
            if claim.lock.still_mine():
                stage.record(claim.task, outcome)
            send(outcome)
        if claims:
            raise RuntimeError(f"{type(stage).__name__}.run gave no outcome for {sorted(claims)}")


def _draw_tasks(
    first: Claim, send: Callable[[Message], Answer], claims: dict[str, Claim]
) -> Iterator[Task]:
    claim: Answer = first
    while isinstance(claim, Claim):
        claims[claim.task.name] = claim
        yield claim.task
        claim = send(Word.NEXT)


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
