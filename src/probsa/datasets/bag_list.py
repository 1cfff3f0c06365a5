"""Stage 5: bags that are in memory already, with the interface of a folder of stored bags."""

from collections.abc import Sequence
from pathlib import Path

from ..core import Bag, GraphOptions, StoredBag, as_array
from ..errors import BagError, InputError
from .bag_set import BagSet
from .metadata import Metadata

IN_MEMORY = Path("in-memory")
"""Stands for the folder of bags that have none."""


class BagList(BagSet):
    """Bags in memory, by name; their graphs and features are used as they are.

    Args:
        bags: The bags, at least one, each with a name of its own.

    Raises:
        InputError: There are no bags.
        BagError: Two bags have the same name.
    """

    def __init__(self, bags: Sequence[Bag]) -> None:
        if not bags:
            raise InputError("there are no bags: give at least one")
        self._bags = {bag.name: bag for bag in bags}
        super().__init__(
            IN_MEMORY, dict.fromkeys(self._bags, IN_MEMORY), graph=GraphOptions(), cache_gb=0.0
        )
        if len(self._bags) < len(bags):
            names = [bag.name for bag in bags]
            twice = next(name for name in names if names.count(name) > 1)
            raise BagError(f"two bags are named {twice!r}: give each a name of its own")

    def bag(self, name: str) -> Bag:
        """Return a bag; see `BagSet.bag`."""
        bag = self._bags[self._open(name)]
        self._check_width(name, bag.x.shape[1])
        return bag

    def metadata(self, name: str) -> Metadata:
        bag = self._bags[self._known(name)]
        one_column = bag.coords is not None and bag.coords.shape[1] == 1
        kind = None if bag.coords is None else "ct" if one_column else "slide"
        return Metadata(kind=kind)

    def _read(self, name: str) -> StoredBag:
        bag = self._bags[name]
        labels = bag.instance_labels
        return StoredBag(
            name=name,
            features=as_array(bag.x),
            coords=None if bag.coords is None else as_array(bag.coords),
            instance_labels=None if labels is None else as_array(labels),
            stride=bag.stride,
        )

    def _peek(self, name: str) -> tuple[int, int]:
        instances, width = self._bags[name].x.shape
        return int(instances), int(width)
