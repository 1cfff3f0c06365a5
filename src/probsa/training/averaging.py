"""The exponential average of weights over steps (select: ema-nll).

It is corrected for its start, as Adam's moments are: it begins at the weights after the first
step. The initial weights, which say nothing of the data, would otherwise be part of it for
hundreds of steps, which is all of the training on a small data set.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """A running average of a module's parameters and floating buffers.

    Buffers that count or index are not averaged: the module keeps its latest.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.tensors: dict[str, Tensor] = {}
        """The average by name in the state dict; empty before the first update."""

    def _current(self) -> dict[str, Tensor]:
        state = self.module.state_dict()
        return {name: v for name, v in state.items() if v.is_floating_point()}

    @torch.no_grad()
    def update(self, rate: float) -> None:
        """Move the average a fraction `rate` of the way to the current weights."""
        current = self._current()
        if not self.tensors:
            self.tensors = {name: v.clone() for name, v in current.items()}
            return
        for name, v in current.items():
            self.tensors[name].lerp_(v, rate)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the module the average inside the context; before the first update, do nothing."""
        current = self._current() if self.tensors else {}
        own = {name: v.clone() for name, v in current.items()}
        _copy(self.tensors, current)
        try:
            yield
        finally:
            _copy(own, current)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take the tensors of an earlier process."""
        current = self._current()
        if any(tensors[name].shape != v.shape for name, v in current.items() if tensors):
            raise ValueError("the averages have other shapes than the weights")
        self.tensors = {name: v.to(current[name].device) for name, v in tensors.items()}


@torch.no_grad()
def _copy(source: dict[str, Tensor], target: dict[str, Tensor]) -> None:
    for name, v in source.items():
        target[name].copy_(v)


def exponential_rate(decay: float, *, step: int) -> float:
    """Return the rate at which step `step` (from 1) enters an exponential average.

    (1 − d) / (1 − dᵗ), so that the weights of t steps sum to 1.
    """
    return (1 - decay) / (1 - decay**step)
