"""Counts of operations, and a device that cannot be asked for a value.

Tensors on PyTorch's device `meta` have a shape and no values. What a GPU would make the host wait
for (a number, a Boolean index, the size of a result) fails there, forward and backward, so a step
that runs there asks its device nothing. It takes the branches that a GPU takes.
"""

from collections import Counter
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

VIEWS = {
    "_reshape_alias",
    "_unsafe_view",
    "alias",
    "as_strided",
    "chunk",
    "detach",
    "diagonal",
    "empty",
    "empty_like",
    "empty_strided",
    "expand",
    "lift_fresh",
    "mT",
    "movedim",
    "narrow",
    "new_empty",
    "new_empty_strided",
    "permute",
    "reshape",
    "resize_",
    "select",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "stride",
    "t",
    "transpose",
    "unbind",
    "unfold",
    "unsqueeze",
    "view",
}
"""Names of operations that compute nothing."""


class CountedOperations(TorchDispatchMode):
    """Counts operations that are not views, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.__name__.split(".")[0]
        if name not in VIEWS:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))

    @property
    def total(self) -> int:
        """The number of operations."""
        return sum(self.counts.values())
