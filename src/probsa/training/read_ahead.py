"""Stage 8: read the next batch on a thread while a step works on the one before."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")


@contextmanager
def read_ahead(values: Iterable[T], *, device: torch.device) -> Iterator[Iterator[T]]:
    """Yield an iterator over values of which a thread makes the next one in advance.

    The thread begins with a value when the one before is handed out, so that there are two at most.
    What it raises is raised in its place in the iteration. At the end of the block, the thread ends
    as soon as the value that it works on is complete.

    Args:
        values: What to iterate over; its iterator is made on the calling thread.
        device: The CUDA device for which the thread pins memory; others have no effect.
    """
    iterator = iter(values)
    with ThreadPoolExecutor(1, "read-ahead", _use_device, (device,)) as pool:
        yield _iterate(iterator, pool)


def _iterate(iterator: Iterator[T], pool: ThreadPoolExecutor) -> Iterator[T]:
    pending = pool.submit(_following, iterator)
    while (item := pending.result()) is not None:
        pending = pool.submit(_following, iterator)
        yield item[0]


def _following(iterator: Iterator[T]) -> tuple[T] | None:
    """Return the next value, in a tuple; None at the end."""
    for value in iterator:
        return (value,)
    return None


def _use_device(device: torch.device) -> None:
    """Make a CUDA device the current one of this thread; it would otherwise be the first."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
