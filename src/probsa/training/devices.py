"""Where tensors live and how many processes share the work (torchrun sets the environment)."""

import contextlib
import ctypes
import gc
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..errors import InputError


def choose_device(wanted: str) -> torch.device:
    """`auto` takes cuda, else mps, else cpu.

    Raises:
        InputError: the device asked for is not there.
    """
    there = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if wanted == "auto":
        wanted = next(d for d in ("cuda", "mps", "cpu") if there[d])
    if wanted not in there:
        raise InputError(f"device is {wanted!r}: auto, cpu, cuda or mps")
    if not there[wanted]:
        raise InputError(f"device {wanted!r} was asked for, but this machine (or torch) has none")
    if wanted == "cuda":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device(wanted)


def gpus() -> int:
    """CUDA devices that this process may use, at least 1."""
    return max(1, torch.cuda.device_count())


def precision_context(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """bf16 autocast, or nothing."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


@dataclass(frozen=True, slots=True)
class World:
    """This process among those that train together."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """What every process has, in rank order, at every process."""
        if self.size == 1:
            return [value]
        out: list[Any] = [None] * self.size
        dist.all_gather_object(out, value)
        return out

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Puts the sum over the processes in each parameter's `.grad`.

        One message for all of them. A parameter that no process gave a gradient keeps none, as
        in a run of one process; losses may use parts of the model that `forward` does not.
        """
        if self.size == 1:
            return
        parameters = list(parameters)
        given = [p.grad is not None for p in parameters]
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        device = parameters[0].device
        flat = torch.cat([torch.tensor(given, device=device).float(), *map(torch.ravel, parts)])
        dist.all_reduce(flat)
        counts, *sums = flat.split([len(parts), *(p.numel() for p in parts)])
        for p, count, total in zip(parameters, counts.tolist(), sums, strict=True):
            p.grad = total.view_as(p) if count else None

    def wait(self) -> None:
        """Until every process is here."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def world(device: torch.device) -> Iterator[World]:
    """Joins the process group that torchrun describes; a world of one without it."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(dist.get_rank(), size)
        # Nobody leaves while another still talks to it: gloo's threads, which may hold tensors,
        # have to be gone before the interpreter ends, or they abort it.
        dist.barrier()
    finally:
        dist.destroy_process_group()
        gc.collect()


def keep_memory() -> None:
    """Has freed memory kept by this process, where its C library (glibc) can be told to.

    By default large blocks go back to the system when they are freed, and every new one costs a
    page fault for each 4 kB: a tenth of the time of steps over tens of megabytes.
    """
    threshold, trim, most = -3, -1, 1 << 30
    with contextlib.suppress(OSError, AttributeError):
        c = ctypes.CDLL(None)
        c.mallopt(threshold, most)
        c.mallopt(trim, most)
