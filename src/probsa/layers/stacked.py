"""Layers of K models side by side: one batched product where K small ones would be.

Rows are head-major: K·n rows, all n instances of head 0 first. What has no parameters (softmax,
pooling, the prior) needs no counterpart: to it, K heads are K times as many bags.
"""

import copy
from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import InputError

Linears = Sequence[nn.Linear]


class StackedLinear(nn.Module):
    """K linear maps; `shared`: all read the same n rows, as the first layer does."""

    def __init__(self, layers: Linears, *, shared: bool = False) -> None:
        super().__init__()
        self.heads, self.shared = len(layers), shared
        self.weight = nn.Parameter(torch.stack([m.weight.detach() for m in layers]))
        biases = [m.bias.detach() for m in layers if m.bias is not None]
        self.bias = nn.Parameter(torch.stack(biases)) if biases else None

    def forward(self, x: Float[Tensor, "rows *s i"]) -> Float[Tensor, "heads_rows *s o"]:
        if self.bias is None:
            return self.project(x)
        y = torch.baddbmm(self.bias[:, None], self._own(x), self.weight.mT)
        return y.reshape(-1, *x.shape[1:-1], y.shape[2])

    def project(self, x: Float[Tensor, "rows *s i"]) -> Float[Tensor, "heads_rows *s o"]:
        """Without the bias."""
        y = torch.bmm(self._own(x), self.weight.mT)
        return y.reshape(-1, *x.shape[1:-1], y.shape[2])

    def _own(self, x: Tensor) -> Float[Tensor, "heads n i"]:
        if self.shared:
            return x.flatten(0, -2).expand(self.heads, -1, -1)
        return x.reshape(self.heads, -1, x.shape[-1])


class StackedNorm(nn.Module):
    """K layer norms."""

    def __init__(self, layers: Sequence[nn.LayerNorm]) -> None:
        super().__init__()
        self.heads, self.eps, self.shape = len(layers), layers[0].eps, layers[0].normalized_shape
        self.weight = nn.Parameter(torch.stack([m.weight.detach() for m in layers]))
        self.bias = nn.Parameter(torch.stack([m.bias.detach() for m in layers]))

    def forward(self, x: Float[Tensor, "heads_rows d"]) -> Float[Tensor, "heads_rows d"]:
        z = nn.functional.layer_norm(x, self.shape, eps=self.eps).unflatten(0, (self.heads, -1))
        return (z * self.weight[:, None] + self.bias[:, None]).flatten(0, 1)


def without_bias(layer: nn.Linear | StackedLinear, x: Float[Tensor, "n d"]) -> Tensor:
    """The product alone, of one linear map or of K."""
    if isinstance(layer, StackedLinear):
        return layer.project(x)
    return nn.functional.linear(x, layer.weight)


def bias_of(layer: nn.Linear | StackedLinear, *, bags: int) -> Tensor:
    """The bias, to be added to logits (bags, samples, classes)."""
    assert layer.bias is not None
    if isinstance(layer, StackedLinear):
        return layer.bias.repeat_interleave(bags // layer.heads, 0)[:, None]
    return layer.bias


def stack(models: Sequence[nn.Module], *, first: str | None) -> nn.Module:
    """One module of K alike: its linear maps and layer norms are stacked, all else is the first's.

    Args:
        models: of one structure.
        first: name of the linear map that reads what all heads share; None: none does.

    Raises:
        InputError: a parameter that belongs to neither kind of layer.
    """
    stacked = copy.deepcopy(models[0])
    parts = [dict(m.named_modules()) for m in models]
    for name, module in list(stacked.named_modules()):
        own = [p[name] for p in parts]
        if isinstance(module, nn.Linear):
            new: nn.Module = StackedLinear(cast(Linears, own), shared=name == first)
        elif isinstance(module, nn.LayerNorm):
            new = StackedNorm(cast(Sequence[nn.LayerNorm], own))
        elif module._parameters:
            raise InputError(f"{type(module).__name__} ({name}) cannot stand beside others")
        else:
            continue
        stacked.set_submodule(name, new)
    return stacked
