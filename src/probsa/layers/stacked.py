"""Layers of K models side by side: one batched product where K small ones would be.

Rows are head-major: K·n rows, all n instances of head 0 first. What has no parameters (softmax,
pooling, the prior) needs no counterpart: to it, K heads are K times as many bags.
"""

import copy
from collections.abc import Sequence
from typing import Any, cast

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
        return self._product(x, self.bias)

    def project(self, x: Float[Tensor, "rows *s i"]) -> Float[Tensor, "heads_rows *s o"]:
        """Without the bias."""
        return self._product(x, None)

    def _product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self.shared:
            own = x.flatten(0, -2).expand(self.heads, -1, -1)
        else:
            own = x.reshape(self.heads, -1, x.shape[-1])
        y = _Product.apply(own, self.weight, bias)
        assert isinstance(y, Tensor)
        return y.reshape(-1, *x.shape[1:-1], y.shape[2])


class _Product(torch.autograd.Function):
    """x Wᵀ + b of each head, in the autocast's type where there is one.

    Autograd's own gradient of W would come transposed, and the copy that puts it right costs more
    than the product.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        ctx.full = w.dtype
        kind = x.device.type
        if torch.is_autocast_enabled(kind):
            lower = torch.get_autocast_dtype(kind)
            x, w, b = x.to(lower), w.to(lower), None if b is None else b.to(lower)
        ctx.save_for_backward(x, w)
        return torch.bmm(x, w.mT) if b is None else torch.baddbmm(b[:, None], x, w.mT)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        x, w = ctx.saved_tensors
        needs_x, needs_w, needs_b = ctx.needs_input_grad
        return (
            torch.bmm(grad, w) if needs_x else None,
            torch.bmm(grad.mT, x).to(ctx.full) if needs_w else None,
            grad.sum(1, dtype=ctx.full) if needs_b else None,
        )


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
