"""Layers of K models that are trained jointly: one batched product replaces K small ones.

Rows are model-major: K·n rows, all n instances of model 0 first. Layers without parameters
(softmax, pooling, the prior) need no counterpart: for them there are K times as many bags.
"""

import copy
from collections.abc import Sequence
from typing import Any, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import InputError

Linears = Sequence[nn.Linear]


class StackedLinear(nn.Module):
    """K linear maps; with `shared`, all of them read the same n rows, as the first layer does."""

    def __init__(self, layers: Linears, *, shared: bool = False) -> None:
        super().__init__()
        self.heads, self.shared = len(layers), shared
        self.weight = nn.Parameter(torch.stack([m.weight.detach() for m in layers]))
        biases = [m.bias.detach() for m in layers if m.bias is not None]
        self.bias = nn.Parameter(torch.stack(biases)) if biases else None

    def forward(self, x: Float[Tensor, "rows *s i"]) -> Float[Tensor, "heads_rows *s o"]:
        return self._product(x, self.bias)

    def project(self, x: Float[Tensor, "rows *s i"]) -> Float[Tensor, "heads_rows *s o"]:
        """Return the product without the bias."""
        return self._product(x, None)

    def _product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self.shared:
            stacked = x.flatten(0, -2).expand(self.heads, -1, -1)
        else:
            stacked = x.reshape(self.heads, -1, x.shape[-1])
        y = _Product.apply(stacked, self.weight, bias)
        assert isinstance(y, Tensor)
        return y.reshape(-1, *x.shape[1:-1], y.shape[2])


class _Product(torch.autograd.Function):
    """x Wᵀ + b of each model, in the autocast dtype if autocast is on.

    Autograd would compute the gradient of W transposed, and the copy that transposes it back costs
    more than the product.
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
    """Return the product of a layer without its bias."""
    if isinstance(layer, StackedLinear):
        return layer.project(x)
    return nn.functional.linear(x, layer.weight)


def bias_of(layer: nn.Linear | StackedLinear, *, bags: int) -> Tensor:
    """Return the bias in a shape that can be added to logits (bags, samples, classes)."""
    assert layer.bias is not None
    if isinstance(layer, StackedLinear):
        return layer.bias.repeat_interleave(bags // layer.heads, 0)[:, None]
    return layer.bias


@runtime_checkable
class Stackable(Protocol):
    """A module that knows its own K-fold version, for parameters that are no linear map or norm."""

    def stacked(self, layers: Sequence[nn.Module]) -> nn.Module:
        """Return one module that holds the parameters of all K, each with K as first dimension.

        Args:
            layers: the K modules of this structure, `self` or an equal one first.
        """
        ...


def stack(models: Sequence[nn.Module], *, first: str | None) -> nn.Module:
    """Return a copy of the first module in which the parameters of all K are stacked.

    Linear maps and layer norms have K-fold versions here; other submodules bring their own
    (`Stackable`). Persistent floating buffers are stacked too, so that a buffer of shape () has
    the shape (K,); a module lists constants that all K share in an attribute `shared_buffers`.

    Args:
        models: K modules of one structure.
        first: Name of the linear map whose input all models share; None if there is none.

    Raises:
        InputError: If another kind of layer has parameters.
    """
    stacked = copy.deepcopy(models[0])
    parts = [dict(m.named_modules()) for m in models]
    done: list[str] = []
    for name, module in list(stacked.named_modules()):
        if any(name.startswith(f"{parent}.") for parent in done):
            continue  # its parent has stacked it
        layers = [p[name] for p in parts]
        if isinstance(module, nn.Linear):
            new: nn.Module = StackedLinear(cast(Linears, layers), shared=name == first)
        elif isinstance(module, nn.LayerNorm):
            new = StackedNorm(cast(Sequence[nn.LayerNorm], layers))
        elif name and isinstance(module, Stackable):
            new = module.stacked(layers)
            done.append(name)
        elif module._parameters:
            raise InputError(f"{type(module).__name__} ({name}) cannot be stacked with others")
        else:
            for buffer in _own_buffers(module):
                values = [layer.get_buffer(buffer).detach() for layer in layers]
                setattr(module, buffer, torch.stack(values))
            continue
        stacked.set_submodule(name, new)
    return stacked


def per_model_names(stacked: nn.Module) -> set[str]:
    """Return the names of the parameters and buffers whose first dimension is that of the models.

    Args:
        stacked: what `stack` returned.
    """
    names = {name for name, _ in stacked.named_parameters()}
    for prefix, module in stacked.named_modules():
        names |= {f"{prefix}.{name}".lstrip(".") for name in _own_buffers(module)}
    return names


def _own_buffers(module: nn.Module) -> list[str]:
    """Return the names of a module's own buffers that differ between models."""
    shared = {*getattr(module, "shared_buffers", ()), *module._non_persistent_buffers_set}
    return [
        name
        for name, value in module._buffers.items()
        if name not in shared and value is not None and value.is_floating_point()
    ]
