"""Stage 8: the memory of a GPU: what steps have needed of it, and what helps when it runs out."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

from ..core import Bags, counted
from ..errors import InputError

MARGIN = 0.9
"""Share of the memory that steps are assumed to be able to use, as free blocks are scattered."""

Option = Literal["max_instances", "window", "batch_size", "precision"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryState:
    """The memory of a CUDA device in bytes, as this process sees it."""

    allocated: int
    peak: int
    """Most that was ever allocated."""
    capacity: int
    """What this process may allocate: what it holds, and what is free."""


def memory_state(device: torch.device) -> MemoryState | None:
    """Return the memory of a CUDA device; None for another device."""
    if device.type != "cuda":
        return None
    stats = torch.cuda.memory_stats(device)
    free = torch.cuda.mem_get_info(device)[0]
    return MemoryState(
        allocated=stats["allocated_bytes.all.current"],
        peak=stats["allocated_bytes.all.peak"],
        capacity=free + stats["reserved_bytes.all.current"],
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Shortage:
    """A batch for which the memory of a device did not suffice."""

    sizes: tuple[int, ...]
    """Number of instances of each bag of the batch."""
    fitting: int | None
    """Number of instances that are expected to fit; None if no step was completed before."""
    is_training: bool
    precision: Literal["float32", "bf16"]

    @property
    def instances(self) -> int:
        return sum(self.sizes)

    @property
    def limit(self) -> int:
        """Number of instances to try next: two significant digits of those that fit, or half."""
        limit = self.instances // 2
        if self.fitting is not None:
            limit = min(self.fitting, self.instances - 1)
        unit = 10 ** max(0, len(str(limit)) - 2)
        return max(1, limit // unit * unit)

    @property
    def options(self) -> dict[Option, str]:
        """The options that reduce the memory of such a batch, with values to try."""
        options: dict[Option, str] = {}
        has_larger_bag = max(self.sizes) > self.limit
        if self.is_training and has_larger_bag:
            options["window"] = str(self.limit)
        if self.is_training and len(self.sizes) > 1:
            options["max_instances"] = str(self.limit)
        if not self.is_training and len(self.sizes) > 1:
            fitting_bags = self.limit // max(self.sizes)
            options["batch_size"] = str(max(1, fitting_bags))
        if self.precision == "float32":
            options["precision"] = "bf16"
        return options


def fitting_instances(*, instances: int, peak: int, resting: int, capacity: int) -> int:
    """Return how many instances a step can have, if its memory grows in proportion to them.

    Args:
        instances: Number of instances of the largest step so far.
        peak: Bytes that were in use in it.
        resting: Bytes that are in use between steps: weights, optimizer and features.
        capacity: Bytes that the process can use.
    """
    bytes_per_instance = max(1.0, (peak - resting) / instances)
    return max(0, int((MARGIN * capacity - resting) / bytes_per_instance))


class StepMemory:
    """Notes what the largest step of a run has needed, and explains an error of a lack of memory.

    Args:
        device: Where the run is trained.
        precision: The precision of its matrix products.
    """

    def __init__(self, device: torch.device, *, precision: Literal["float32", "bf16"]) -> None:
        self.device = device
        self.precision: Literal["float32", "bf16"] = precision
        self.instances = 0
        """Number of instances of the largest step that was completed."""
        self.largest: MemoryState | None = None
        """The memory after it. The device is not asked more often, as that takes longer than a
        small step."""

    @contextmanager
    def step(self, bags: Bags, *, is_training: bool) -> Iterator[None]:
        """Explain a lack of memory for a batch within the block, and note what it has needed.

        Raises:
            InputError: the device has run out of memory; the message names options that help.
        """
        try:
            yield
        except torch.OutOfMemoryError as error:
            shortage = Shortage(
                sizes=tuple(bags.sizes),
                fitting=self._fitting(),
                is_training=is_training,
                precision=self.precision,
            )
            raise InputError(_message(shortage, self.device, bags.names)) from error
        if is_training and len(bags.x) > self.instances:
            self.instances = len(bags.x)
            self.largest = memory_state(self.device)

    def _fitting(self) -> int | None:
        if self.largest is None:
            return None
        return fitting_instances(
            instances=self.instances,
            peak=self.largest.peak,
            resting=self.largest.allocated,
            capacity=self.largest.capacity,
        )


def _message(shortage: Shortage, device: torch.device, names: tuple[str, ...]) -> str:
    """Return what ran out of memory, how much fits, and what to do."""
    what = "a step" if shortage.is_training else "validation"
    largest = max(shortage.sizes)
    largest_bag = names[shortage.sizes.index(largest)]
    fitting = "No step was completed before"
    if shortage.fitting is not None:
        fitting = f"From the steps before, about {counted(shortage.fitting, 'instance')} fit"
    options = " or ".join(f"{option}: {value}" for option, value in shortage.options.items())
    advice = f"Try {options}" if options else "Train on a device with more memory, or device: cpu"
    return (
        f"{device} ran out of memory in {what} of {counted(shortage.instances, 'instance')} in "
        f"{counted(len(names), 'bag')}; the largest bag, {largest_bag!r}, has {largest:,}. "
        f"{fitting}. {advice}"
    )
