"""Lookahead (Zhang et al., NeurIPS 2019, arXiv:1907.08610) for any PyTorch optimiser.

Every k steps, the slow weights move a fraction α of the way to the fast ones, which are then set to
them. The slow weights start at the initial weights (in TransMIL's code: at the first k-th step).
"""

from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError

COUNT = "lookahead_steps"
"""Key of the number of steps, in the optimiser's first parameter group."""
SLOW = "slow"
"""Key of a parameter's slow weights, in the state dict of the optimiser."""


class Lookahead:
    """Add Lookahead to an optimiser through hooks on its `step` and its state dict.

    A parameter without a gradient at a k-th step keeps its value, as in any other step.

    Args:
        optimizer: the optimiser of the fast weights.
        steps: k.
        alpha: α.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, *, steps: int, alpha: float) -> None:
        self.steps, self.alpha = steps, alpha
        self.fast: list[Tensor] = [p for g in optimizer.param_groups for p in g["params"]]
        self.slow = [p.detach().clone() for p in self.fast]
        optimizer.param_groups[0][COUNT] = 0
        optimizer.register_step_post_hook(self._after_step)
        optimizer.register_state_dict_post_hook(self._with_slow)
        optimizer.register_load_state_dict_pre_hook(self._take_slow)

    @torch.no_grad()
    def _after_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        first = optimizer.param_groups[0]
        first[COUNT] += 1
        if first[COUNT] % self.steps:
            return
        for fast, slow in zip(self.fast, self.slow, strict=True):
            if fast.grad is not None:
                slow.lerp_(fast, self.alpha)
                fast.copy_(slow)

    def _with_slow(self, _: object, state: dict[str, Any]) -> dict[str, Any]:
        fast = state["state"]
        both = {i: {**fast.get(i, {}), SLOW: slow} for i, slow in enumerate(self.slow)}
        return {**state, "state": both}

    def _take_slow(self, _: object, state: dict[str, Any]) -> dict[str, Any]:
        both = state["state"]
        if any(SLOW not in both.get(i, {}) for i in range(len(self.slow))):
            raise CheckpointError(
                "this optimiser's state has no slow weights: it was saved without Lookahead"
            )
        for i, slow in enumerate(self.slow):
            slow.copy_(both[i][SLOW])
        fast = {i: {k: v for k, v in values.items() if k != SLOW} for i, values in both.items()}
        return {**state, "state": {i: values for i, values in fast.items() if values}}
