"""Stage 8: which bags a step sees, and getting them there.

The plan of an epoch is a function of (seed, epoch) alone, so a resumed run meets the same batches;
reading may be done ahead by worker processes, and by several ranks, without changing it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from ..core import Bag, Bags, pack, stream

if TYPE_CHECKING:
    from ..datasets import BagSet

Batch = tuple[str, ...]


def plan_epoch(
    names: tuple[str, ...],
    *,
    seed: int,
    epoch: int,
    batch_size: int,
    max_instances: int | None = None,
    size: Callable[[str], int] | None = None,
) -> list[Batch]:
    """The batches of an epoch: a shuffle, cut after `batch_size` bags or `max_instances` instances.

    A bag larger than `max_instances` is a batch of its own.
    """
    order = torch.randperm(len(names), generator=stream(seed, "order", epoch)).tolist()
    batches: list[tuple[str, ...]] = []
    current: list[str] = []
    total = 0
    for k in order:
        n = size(names[k]) if max_instances and size else 0
        full = len(current) == batch_size or (max_instances and total + n > max_instances)
        if current and full:
            batches.append(tuple(current))
            current, total = [], 0
        current.append(names[k])
        total += n
    if current:
        batches.append(tuple(current))
    return batches


@dataclass(frozen=True, slots=True)
class Shard:
    """A rank's part of a batch: its bags, and how many the whole batch has."""

    names: Batch
    whole: int
    idle: bool = False
    """The batch has fewer bags than there are ranks: this rank runs one along, at weight 0."""


def shard(batch: Batch, *, rank: int, world: int) -> Shard:
    """Every `world`-th bag from `rank` on."""
    own = batch[rank::world]
    return Shard(own or batch[:1], len(batch), idle=not own)


class BagReader(Dataset[Bags]):
    """Names of a batch → the packed batch, labelled; picklable, for worker processes."""

    def __init__(self, bags: "BagSet", labels: Mapping[str, int]) -> None:
        self.bags, self.labels = bags, dict(labels)

    def __getitem__(self, batch: Shard) -> Bags:
        return pack([self.labelled(name) for name in batch.names])

    def labelled(self, name: str) -> Bag:
        """A stored bag with its label."""
        return replace(self.bags.bag(name), y=self.labels.get(name))


class _Plan(Sampler[Shard]):
    """What the next epoch reads; set anew before each epoch, so that workers and caches live on."""

    def __init__(self) -> None:
        self.shards: list[Shard] = []

    def __iter__(self) -> Iterator[Shard]:
        return iter(self.shards)

    def __len__(self) -> int:
        return len(self.shards)


class Loader:
    """Packed batches of an epoch, read here or by `workers` processes that keep their caches."""

    def __init__(self, reader: BagReader, *, workers: int = 0, pin: bool = False) -> None:
        self.reader, self.plan = reader, _Plan()
        self.loader: DataLoader[Bags] | None = None
        if workers:
            self.loader = DataLoader(
                reader,
                batch_size=None,
                sampler=self.plan,
                num_workers=workers,
                persistent_workers=True,
                pin_memory=pin,
            )

    def epoch(self, shards: Sequence[Shard]) -> Iterator[tuple[Shard, Bags]]:
        """Each shard with its bags, in order."""
        if self.loader is None:
            for s in shards:
                yield s, self.reader[s]
            return
        self.plan.shards = list(shards)
        yield from zip(shards, self.loader, strict=True)
