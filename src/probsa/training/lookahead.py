"""Lookahead (Zhang et al., NeurIPS 2019, arXiv:1907.08610) around any optimiser of torch.

Every k steps the slow weights go a share α of the way to the fast ones, and the fast ones go back
to them. Slow weights start where training starts (TransMIL's code: at its first k-th step).
"""

from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError

COUNT = "lookahead_steps"
"""Steps taken: a number in the optimiser's first group, which its state dict holds."""
SLOW = "slow"
"""A parameter's slow weights, beside the optimiser's own tensors in its state dict."""


class Lookahead:
    """Hooks on an optimiser: `step` and the state dict are its own, with the slow weights in them.

    A parameter that has no gradient at a k-th step stays as it is, as in any other step.
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
        each = state["state"]
        whole = {i: {**each.get(i, {}), SLOW: slow} for i, slow in enumerate(self.slow)}
        return {**state, "state": whole}

    def _take_slow(self, _: object, state: dict[str, Any]) -> dict[str, Any]:
        whole = state["state"]
        if any(SLOW not in whole.get(i, {}) for i in range(len(self.slow))):
            raise CheckpointError("this optimiser's state has no slow weights: it had no Lookahead")
        for i, slow in enumerate(self.slow):
            slow.copy_(whole[i][SLOW])
        own = {i: {k: v for k, v in values.items() if k != SLOW} for i, values in whole.items()}
        return {**state, "state": {i: values for i, values in own.items() if values}}
