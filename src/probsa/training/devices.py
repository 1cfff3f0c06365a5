"""Devices, precision, and the processes that train together under torchrun."""

import gc
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import InputError


def choose_device(wanted: str) -> torch.device:
    """Return a device by name; `auto` selects cuda, else mps, else cpu.

    Raises:
        InputError: the device is unknown or not available.
    """
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if wanted == "auto":
        wanted = next(device for device, is_there in available.items() if is_there)
    if wanted not in available:
        raise InputError(f"device is {wanted!r}; expected auto, cpu, cuda or mps")
    if not available[wanted]:
        raise InputError(f"device {wanted!r} was requested, but this machine (or torch) has none")
    if wanted != "cuda":
        return torch.device(wanted)
    # torchrun tells each of its processes which device of the machine is its own
    return torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}")


def gpu_count() -> int:
    """Return the number of CUDA devices that this process may use, at least 1."""
    return max(1, torch.cuda.device_count())


def device_bytes(device: torch.device) -> int | None:
    """Return the free memory of a CUDA device in bytes; None for any other device."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def host_bytes() -> int | None:
    """Return the memory of this machine in bytes; None where the system does not say."""
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", {}):  # Windows
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def precision_context(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Return an autocast context for `bf16`, and one without effect for `float32`."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


@contextmanager
def thread_count(threads: int | None) -> Iterator[None]:
    """Set PyTorch's number of threads, and set it back at the end; None leaves it as it is."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads or before)
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True, slots=True)
class World:
    """The processes that train together, as one of them sees them."""

    rank: int = 0
    """Index of this process."""
    size: int = 1
    """Number of processes."""

    @property
    def first(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, in the order of their ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace each parameter's `.grad` by its sum over the processes, in one message.

        A parameter without a gradient in any process keeps none, as with a single process.
        """
        if self.size == 1:
            return
        parameters = list(parameters)
        # a 1 for each parameter with a gradient, then all gradients one after another
        has_gradient = torch.tensor([p.grad is not None for p in parameters]).float()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        message = torch.cat([has_gradient.to(gradients[0].device), *map(torch.ravel, gradients)])
        dist.all_reduce(message)
        counts, *sums = message.split([len(parameters), *(p.numel() for p in parameters)])
        for p, count, total in zip(parameters, counts.tolist(), sums, strict=True):
            p.grad = total.view_as(p) if count else None

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum of a tensor over the processes."""
        if self.size > 1:
            value = value.clone()
            dist.all_reduce(value)
        return value

    def wait(self) -> None:
        """Wait until every process has called this."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def world(device: torch.device) -> Iterator[World]:
    """Join the process group that torchrun describes; without torchrun, yield a single process."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(dist.get_rank(), size)
        # No process may leave while another still communicates with it: gloo's threads, which may
        # hold tensors, abort the interpreter if they outlive it.
        dist.barrier()
    finally:
        dist.destroy_process_group()
        gc.collect()
