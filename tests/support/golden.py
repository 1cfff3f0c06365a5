"""Reference sets: inputs, weights and outputs of the original implementations.

The sets define the tolerance: max|a − b| ≤ 2·10⁻⁵ max|ref| + 10⁻⁶, and 10⁻⁴ for gradients.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from probsa import Bag
from probsa.models import Model, from_original

from . import originals as originals


def close(got: Tensor, want: Tensor, *, relative: float = 2e-5) -> None:
    """Assert that a tensor is within the tolerance."""
    got = got.detach()
    assert got.shape == want.shape
    worst = (got - want).abs().max().item()
    assert worst <= relative * want.abs().max().item() + 1e-6


class Golden:
    """The reference set with this name."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.tensors = load_file(folder / f"{name}.safetensors")
        self.metadata: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())

    @property
    def constructor(self) -> dict[str, Any]:
        """The arguments of the original constructor, as stored (some values are strings)."""
        return self.metadata["constructor"]

    @property
    def state(self) -> dict[str, Tensor]:
        """The parameters of the original, with its own names."""
        return self.under("state")

    def model(self, **more: Any) -> Model:
        """Return our model with the original's weights, built by `from_original`."""
        return from_original(self.name, self.state, **{**self.constructor, **more})

    def under(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors whose names start with `prefix.`, which is removed."""
        start = f"{prefix}."
        return {k.removeprefix(start): v for k, v in self.tensors.items() if k.startswith(start)}

    def expected(self, what: str, *, double: bool = False) -> Tensor:
        return self.tensors[f"expected64.{what}" if double else f"expected.{what}"]

    def bag(self, b: int, *, dtype: torch.dtype = torch.float32, **more: Any) -> Bag:
        """Return bag b with edges in both directions, and with x as a leaf that requires gradients.

        Stored cells are (row, column); the coordinates of a bag are (x, y).
        """
        edges = self.tensors[f"bag{b}.edge_index"]
        fields: dict[str, Any] = {
            "name": f"bag{b}",
            "x": self.tensors[f"bag{b}.x"].to(dtype).clone().requires_grad_(),
            "edges": edges,
            "weights": torch.ones(edges.shape[1], dtype=dtype),
            "y": int(self.tensors[f"bag{b}.y"]),
            "coords": self.tensors[f"bag{b}.coords"].flip(1),
            "stride": 1.0,
        }
        bag = Bag(**{**fields, **more})
        canvas = self.constructor.get("img_size")
        return bag if canvas is None else originals.framed(bag, canvas)

    def check_gradients(
        self, model: Model, total: Tensor, x: Tensor, *, b: int, ours: dict[str, str], key: str = ""
    ) -> None:
        """Check the gradients of `total`, or their norms, at x (if stored) and at every parameter.

        Args:
            model: our model.
            total: the output to differentiate.
            x: the features of the bag.
            b: the number of the bag.
            ours: our parameter name for each name of the original that has a counterpart.
            key: prefix of `grad`, `grad_norms` and `grad_x` in the set (such as `svm.`).
        """
        parameters = dict(model.named_parameters())
        grads = torch.autograd.grad(
            total, [x, *parameters.values()], allow_unused=True, retain_graph=True
        )
        if f"expected.bag{b}.{key}grad_x" in self.tensors:
            close(grads[0], self.expected(f"bag{b}.{key}grad_x"), relative=1e-4)
        gradients = dict(zip(parameters, grads[1:], strict=True))
        full = self.under(f"expected.bag{b}.{key}grad")
        assert full
        for theirs, want in full.items():
            got = gradients[ours[theirs]]
            assert got is not None, theirs
            close(got, want, relative=1e-4)
        order = self.metadata["parameter_order"]
        want = self.expected(f"bag{b}.{key}grad_norms")
        shared = [(k, w) for k, w in zip(order, want, strict=True) if k in ours]
        zero = torch.zeros(())
        norms = [g.norm() if (g := gradients[ours[k]]) is not None else zero for k, _ in shared]
        stored = torch.stack([w.clamp_min(0) for _, w in shared])  # −1: the original has none
        close(torch.stack(norms).to(stored.dtype), stored, relative=1e-4)
