"""Shares of a list of tasks, for machines or jobs that divide the work among themselves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ..errors import InputError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Share:
    """The part `index` of `count` equal parts, counted from 0; written as `index/count`."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise InputError(f"share {self}: give i/n with i from 0 to n − 1")

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> "Share":
        """Read a share as users write it.

        Raises:
            InputError: It is not i/n with whole numbers, i from 0 to n − 1.
        """
        index, _, count = text.partition("/")
        if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
            raise InputError(f"--shard is {text!r}: expected I/N, as in 0/4, 1/4, 2/4, 3/4")
        return cls(int(index), int(count))


WHOLE = Share()


def share_of(items: Sequence[T], share: Share, *, size: Callable[[T], float]) -> list[T]:
    """Return a share of some items: sorted by size, every `count`-th is in the same share.

    So each share has as many large items as the others. The order of the items is kept.

    Args:
        items: The items, in the same order for all shares.
        share: The share.
        size: Returns a number that grows with the time that an item takes.
    """
    by_size = sorted(range(len(items)), key=lambda k: -size(items[k]))
    positions = sorted(by_size[share.index :: share.count])
    return [items[k] for k in positions]
