"""Stage 8: features that stay on a GPU between the steps, in the precision of their files.

The first batch with a bag brings its features to the device. Later batches have their rows' numbers
only, so that the bag is neither read nor copied again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Shaped
from torch import Tensor

from ..core import Bag, Bags, check_bag, pack
from ..datasets import BagSet
from .batching import BagReader, Shard
from .device_memory import memory_state

SHARE = 0.5
"""Share of the free memory that features may take; steps need the rest."""


def resident_names(sizes: Mapping[str, int], *, free: int) -> frozenset[str]:
    """Return the bags whose features stay on a device: in order, each that fits into the share.

    Args:
        sizes: Bytes of the features of each bag.
        free: Bytes of the device that nothing uses yet.
    """
    budget = SHARE * free
    total = 0
    names: list[str] = []
    for name, size in sizes.items():
        if total + size <= budget:
            names.append(name)
            total += size
    return frozenset(names)


def resident_features(
    bags: BagSet, names: Sequence[str], *, device: torch.device
) -> "ResidentFeatures | None":
    """Return a place for the features of as many of the named bags as a CUDA device has room for.

    Their sizes are those that the files state, in the precision of the first one. For another
    device, or if no bag fits, the result is None.
    """
    state = memory_state(device)
    if state is None or not names:
        return None
    bytes_per_value = bags.bag(names[0]).x.element_size()
    sizes = {name: bags.size(name) * bags.in_dim * bytes_per_value for name in names}
    resident = resident_names(sizes, free=state.capacity - state.allocated)
    if not resident:
        return None
    return ResidentFeatures(resident, device=device, nbytes=sum(sizes[name] for name in resident))


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitBatch:
    """A packed batch without its features: `bags.x` are the numbers of the rows in each bag."""

    bags: Bags
    features: tuple[Shaped[Tensor, "n features"] | None, ...]
    """Of each bag, in memory of the host; None for a bag whose features stay on the device."""
    uploads: Mapping[str, Shaped[Tensor, "n features"]]
    """Features of whole bags that the device does not have yet, and that stay there."""

    def pin_memory(self) -> "SplitBatch":
        """Return the batch in pinned memory; see `Bags.pin_memory`."""
        return SplitBatch(
            bags=self.bags.pin_memory(),
            features=tuple(None if x is None else x.pin_memory() for x in self.features),
            uploads={name: x.pin_memory() for name, x in self.uploads.items()},
        )


class ResidentFeatures:
    """The features of some bags on a device.

    A thread reads batches (`ResidentReader`) while another one takes steps (`on_device`).

    Args:
        names: The bags whose features stay.
        device: Where they stay.
        nbytes: Bytes of the features, as the files state them.
    """

    def __init__(self, names: Iterable[str], *, device: torch.device, nbytes: int) -> None:
        self.names = frozenset(names)
        self.device = device
        self.nbytes = nbytes
        self.features: dict[str, Tensor] = {}
        """Those that are on the device."""
        self.waiting: dict[str, Tensor] = {}
        """Those that were read, until they are on the device."""
        self.bags: dict[str, Bag] = {}
        """The bags that were read, with row numbers as features."""

    def bag(self, name: str, bags: BagSet) -> Bag:
        """Return a bag, with its row numbers as features if its features stay on the device.

        Raises:
            BagError: see `BagSet.bag`.
        """
        if name in self.bags:
            return self.bags[name]
        bag = bags.bag(name)
        if name not in self.names:
            return bag
        check_bag(bag)
        self.waiting[name] = bag.x
        self.bags[name] = replace(bag, x=_row_numbers(bag))
        return self.bags[name]

    def pack(self, bags: Sequence[Bag]) -> SplitBatch:
        """Pack bags of `bag`, or parts of them, as `core.pack` does."""
        features: list[Tensor | None] = []
        numbered: list[Bag] = []
        uploads: dict[str, Tensor] = {}
        for bag in bags:
            if bag.name in self.bags:
                features.append(None)
                numbered.append(bag)
                if bag.name in self.waiting:
                    uploads[bag.name] = self.waiting[bag.name]
            else:
                check_bag(bag)
                features.append(bag.x)
                numbered.append(replace(bag, x=_row_numbers(bag)))
        return SplitBatch(bags=pack(numbered), features=tuple(features), uploads=uploads)

    def on_device(self, batch: SplitBatch) -> Bags:
        """Return a batch with its features on the device, of which new ones stay there."""
        for name, x in batch.uploads.items():
            if name not in self.features:
                self.features[name] = x.to(self.device, non_blocking=x.is_pinned())
                self.waiting.pop(name)
        bags = batch.bags.to(self.device)
        rows = bags.x[:, 0].long().split(list(bags.sizes))
        parts: list[Tensor] = []
        for name, x, bag_rows in zip(bags.names, batch.features, rows, strict=True):
            if x is not None:
                parts.append(x.to(self.device, non_blocking=x.is_pinned()))
            elif len(bag_rows) == len(self.features[name]):
                parts.append(self.features[name])
            else:
                parts.append(self.features[name].index_select(0, bag_rows))
        return replace(bags, x=parts[0] if len(parts) == 1 else torch.cat(parts))


def _row_numbers(bag: Bag) -> Tensor:
    return torch.arange(len(bag), dtype=torch.float64)[:, None]


class ResidentReader(BagReader):
    """Reads shards as batches without the features that stay on the device.

    Args:
        reader: How bags are read.
        resident: The features that stay.
    """

    def __init__(self, reader: BagReader, resident: ResidentFeatures) -> None:
        self.__dict__.update(reader.__dict__)
        self.resident = resident

    def __getitem__(self, batch: Shard) -> SplitBatch:  # pyright: ignore[reportIncompatibleMethodOverride]
        bags = self.read(batch)
        packed = self.resident.pack(bags)
        self.planned(packed.bags, bags)
        return packed

    def bag(self, name: str) -> Bag:
        return self.resident.bag(name, self.bags)
