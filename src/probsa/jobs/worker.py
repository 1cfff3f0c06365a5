"""What a worker does, wherever it runs: asks the desk for tasks, and tells it how they ended.

Every message of a worker has one answer. The same loop serves this process, another one and an
actor of a cluster.
"""

import pickle
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from ..errors import ProbSAError
from .locks import Lock
from .tasks import Outcome, Stage, Task


class Word(Enum):
    """What is said beside tasks and outcomes."""

    FIRST = "a task, please: I hold none, and can wait"
    NEXT = "another task, if there is one now"
    END = "not now: finish what you hold"
    STOP = "all is done"
    NOTED = "noted"


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A task, and the lock that the desk holds on it."""

    task: Task
    lock: Lock


Message = Word | Outcome | Exception
Answer = Word | Claim


def serve(stage: Stage, ask: Callable[[Message], Answer]) -> None:
    """Works until there is nothing left to do.

    A worker that holds tasks is never kept waiting for one that others hold: they might wait for
    it in turn. It is told of the end, finishes what it has, and begins anew.
    """
    turn = threading.Lock()  # a stage may read ahead in a thread

    def say(message: Message) -> Answer:
        with turn:
            return ask(message)

    stage.start()
    while isinstance(first := say(Word.FIRST), Claim):
        held: dict[str, Claim] = {}
        for outcome in stage.run(_feed(first, say, held)):
            claim = held.pop(outcome.name, None)
            if claim is None:
                raise RuntimeError(
                    f"{type(stage).__name__}.run gave an outcome for {outcome.name!r}, which it "
                    f"was not at work on: {sorted(held)}"
                )
            # Who lost the lock leaves the record to the taker; the desk sees it too.
            if claim.lock.still_mine():
                stage.record(claim.task, outcome)
            say(outcome)
        if held:
            raise RuntimeError(f"{type(stage).__name__}.run gave no outcome for {sorted(held)}")


def _feed(first: Claim, say: Callable[[Message], Answer], held: dict[str, Claim]) -> Iterator[Task]:
    claim: Answer = first
    while isinstance(claim, Claim):
        held[claim.task.name] = claim
        yield claim.task
        claim = say(Word.NEXT)


def portable(error: Exception) -> Exception:
    """The error as it can be sent to another process, with the trace of this one."""
    trace = "".join(traceback.format_exception(error))
    error.add_note(f"In a worker process:\n{trace}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - what an exception does when it is pickled is its own affair
        if isinstance(error, ProbSAError):
            return ProbSAError(str(error))
        return RuntimeError(trace)
    return error
