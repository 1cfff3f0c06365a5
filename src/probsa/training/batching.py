"""Stage 8: the batches of an epoch, and the loader that reads them.

The plan of an epoch depends only on (seed, epoch), so a resumed run sees the same batches. A thread
or worker processes read ahead, and several ranks may share a batch, without changing the plan.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset

from ..core import Bag, Bags, pack, random_stream
from ..models import look_up
from ..tasks import Target
from .read_ahead import read_ahead
from .windows import draw_window

if TYPE_CHECKING:
    from ..datasets import BagSet

Batch = tuple[str, ...]


def plan_epoch(
    names: tuple[str, ...],
    *,
    seed: int,
    epoch: int,
    batch_size: int,
    order: Sequence[str] | None = None,
    max_instances: int | None = None,
    size: Callable[[str], int] | None = None,
) -> list[Batch]:
    """Return the batches of an epoch (from 0), as names of bags.

    A batch ends after `batch_size` bags, or before it would exceed `max_instances` instances, which
    `size` counts. A bag that is larger than `max_instances` is a batch of its own. The order is
    shuffled unless it is given.
    """
    if order is None:
        shuffled = torch.randperm(len(names), generator=random_stream(seed, "order", epoch))
        order = [names[k] for k in shuffled.tolist()]
    batches: list[list[str]] = []
    total = 0
    limit = max_instances or math.inf
    for name in order:
        n = size(name) if max_instances and size else 0
        is_full = not batches or len(batches[-1]) == batch_size or total + n > limit
        if is_full:
            batches.append([])
            total = 0
        batches[-1].append(name)
        total += n
    return [tuple(batch) for batch in batches]


@dataclass(frozen=True, slots=True)
class Shard:
    """A rank's part of a batch."""

    names: Batch
    whole: int
    """Number of bags in the whole batch."""
    idle: bool = False
    """Whether this rank has no bag of the batch; it then processes one with weight 0."""
    epoch: int | None = None
    """The epoch (from 0) that trains on windows of these bags; None: they are read whole."""


def shard(batch: Batch, *, rank: int, world: int, epoch: int | None = None) -> Shard:
    """Return every `world`-th bag of a batch, starting at index `rank`."""
    rank_bags = batch[rank::world]
    return Shard(rank_bags or batch[:1], len(batch), idle=not rank_bags, epoch=epoch)


class BagReader(Dataset[Bags]):
    """Reads the bags of a shard and packs them, with labels; worker processes can unpickle it.

    Args:
        bags: The bags.
        targets: The label of each bag, by name.
        model: Registered name of the model, which checks every bag.
        window: Number of instances of a bag that an epoch trains on; None: all.
        seed: Seed of the windows, with the epoch and the name of the bag.
    """

    def __init__(
        self,
        bags: "BagSet",
        targets: Mapping[str, Target],
        *,
        model: str,
        window: int | None = None,
        seed: int = 0,
    ) -> None:
        self.bags = bags
        self.targets = targets
        self.model = model
        self.window = window
        self.seed = seed
        self.has_field = look_up(model).fixed.get("posterior") == "field"
        self.stopped = False
        """Whether nobody wants the batch any more that a thread is reading."""

    def __getitem__(self, batch: Shard) -> Bags:
        bags = self.read(batch)
        return self.planned(pack(bags), bags)

    def planned(self, packed: Bags, bags: Sequence[Bag]) -> Bags:
        """Make the plan of a batch for a model that needs it, ahead of the step; keep its parts."""
        if self.has_field:
            packed.elimination.make()
            for bag in bags:
                self.bags.keep_plan(bag)
        return packed

    def read(self, batch: Shard) -> list[Bag]:
        """Return the bags of a shard with labels: in training on windows, windows of them."""
        bags = [self.labelled(name) for name in batch.names]
        if self.window is not None and batch.epoch is not None:
            bags = [self._window(bag, batch.epoch) for bag in bags]
        return bags

    def bag(self, name: str) -> Bag:
        """Return a bag without its label."""
        return self.bags.bag(name)

    def _window(self, bag: Bag, epoch: int) -> Bag:
        assert self.window is not None
        generator = random_stream(self.seed, "window", epoch, bag.name)
        return draw_window(bag, size=self.window, generator=generator)

    def labelled(self, name: str) -> Bag:
        """Return a bag with its label; a BagError says why the model cannot use it."""
        if self.stopped:
            raise CancelledError
        bag = self.bag(name)
        look_up(self.model).model.check_bag(bag, name=self.model)
        return replace(bag, y=as_label(self.targets.get(name)))


def as_label(target: Target | None) -> int | float | torch.Tensor | None:
    """Return a target as the label of a bag: one value, or a tensor of target columns."""
    return torch.tensor(target) if isinstance(target, tuple) else target


class Loader:
    """Reads the packed batches of an epoch ahead: on a thread, or in `workers` processes.

    The processes live as long as the loader. For a CUDA device, batches are in pinned memory.
    """

    def __init__(self, reader: BagReader, *, workers: int = 0, device: torch.device) -> None:
        self.reader = reader
        self.workers = workers
        self.device = device
        self.shards: list[Shard] = []
        """Those of the next epoch; replaced before each one, so that workers keep their caches."""
        self.waited = 0.0
        """Seconds for which steps have waited for batches."""
        self.complete: Callable[[Any], Bags] | None = None
        """Makes bags of what is read; None if it is bags."""
        self.batches = self._batches()

    def read_with(self, reader: BagReader, complete: Callable[[Any], Bags]) -> None:
        """Read on the thread with another reader, whose batches become bags where steps are taken.

        Args:
            reader: What reads batches.
            complete: Makes bags of a batch.
        """
        assert not self.workers  # processes would not know what is on the device
        self.reader = reader
        self.complete = complete
        self.batches = self._batches()

    def _batches(self) -> Iterable[Any]:
        return DataLoader(
            self.reader,
            batch_size=None,
            sampler=self.shards,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # torch's own stays as it is
        )

    @contextmanager
    def epoch(self, shards: Sequence[Shard]) -> Iterator[Iterator[tuple[Shard, Bags]]]:
        """Yield an iterator over shards with their bags, in order; no thread outlives the block."""
        self.shards[:] = shards
        if self.workers:
            reading = nullcontext(iter(self.batches))
        else:
            reading = read_ahead(self.batches, device=self.device)
        try:
            with reading as batches:
                try:
                    yield zip(shards, self._timed(batches), strict=True)
                finally:
                    self.reader.stopped = True  # the thread ends before its next bag
        finally:
            self.reader.stopped = False

    def _timed(self, batches: Iterator[Any]) -> Iterator[Bags]:
        start = time.perf_counter()
        for batch in batches:
            self.waited += time.perf_counter() - start
            yield batch if self.complete is None else self.complete(batch)
            start = time.perf_counter()
