"""The reference outputs: inputs, weights and numbers of the original implementations.

The rule is theirs: max|a − b| ≤ 2·10⁻⁵ max|ref| + 10⁻⁶, and 10⁻⁴ for gradients.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from probsa import Bag
from probsa.models import Model, from_original


def close(got: Tensor, want: Tensor, *, relative: float = 2e-5) -> None:
    """The rule for one tensor."""
    got = got.detach()
    assert got.shape == want.shape
    worst = (got - want).abs().max().item()
    assert worst <= relative * want.abs().max().item() + 1e-6


class Golden:
    """One set by its name."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.tensors = load_file(folder / f"{name}.safetensors")
        self.metadata: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())

    @property
    def constructor(self) -> dict[str, Any]:
        """The original constructor's arguments, as stored (some values are strings)."""
        return self.metadata["constructor"]

    @property
    def state(self) -> dict[str, Tensor]:
        """The original's parameters under its own names."""
        return self.under("state")

    def model(self, **more: Any) -> Model:
        """Our model with the original's weights, through the public function."""
        return from_original(self.name, self.state, **{**self.constructor, **more})

    def under(self, prefix: str) -> dict[str, Tensor]:
        """Every tensor whose name starts with `prefix.`, without it."""
        start = f"{prefix}."
        return {k.removeprefix(start): v for k, v in self.tensors.items() if k.startswith(start)}

    def expected(self, what: str, *, double: bool = False) -> Tensor:
        return self.tensors[f"expected64.{what}" if double else f"expected.{what}"]

    def bag(self, b: int, *, dtype: torch.dtype = torch.float32, **more: Any) -> Bag:
        """Bag b; its edges come in both directions, and x is a leaf whose gradient is asked for.

        Stored cells are (row, column); a bag's coordinates are (x, y).
        """
        edges = self.tensors[f"bag{b}.edge_index"]
        given: dict[str, Any] = {
            "name": f"bag{b}",
            "x": self.tensors[f"bag{b}.x"].to(dtype).clone().requires_grad_(),
            "edges": edges,
            "weights": torch.ones(edges.shape[1], dtype=dtype),
            "y": int(self.tensors[f"bag{b}.y"]),
            "coords": self.tensors[f"bag{b}.coords"].flip(1),
            "stride": 1.0,
        }
        return Bag(**{**given, **more})

    def check_gradients(
        self, model: Model, total: Tensor, x: Tensor, *, b: int, ours: dict[str, str], key: str = ""
    ) -> None:
        """Gradients of `total` at x (where stored) and at every parameter: full, or their norms.

        Args:
            ours: the original's parameter names → ours (none where no parameter of ours is meant).
            key: what stands before `grad`, `grad_norms` and `grad_x` in the set (`svm.`).
        """
        parameters = dict(model.named_parameters())
        grads = torch.autograd.grad(
            total, [x, *parameters.values()], allow_unused=True, retain_graph=True
        )
        if f"expected.bag{b}.{key}grad_x" in self.tensors:
            close(grads[0], self.expected(f"bag{b}.{key}grad_x"), relative=1e-4)
        found = dict(zip(parameters, grads[1:], strict=True))
        full = self.under(f"expected.bag{b}.{key}grad")
        assert full
        for theirs, want in full.items():
            got = found[ours[theirs]]
            assert got is not None, theirs
            close(got, want, relative=1e-4)
        order = self.metadata["parameter_order"]
        want = self.expected(f"bag{b}.{key}grad_norms")
        kept = [(k, w) for k, w in zip(order, want, strict=True) if k in ours]
        zero = torch.zeros(())
        norms = [g.norm() if (g := found[ours[k]]) is not None else zero for k, _ in kept]
        stored = torch.stack([w.clamp_min(0) for _, w in kept])  # −1: the original has none
        close(torch.stack(norms).to(stored.dtype), stored, relative=1e-4)
