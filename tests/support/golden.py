"""Reference sets: inputs, weights and outputs of the original implementations.

The sets define the tolerance: max|a − b| ≤ 2·10⁻⁵ max|ref| + 10⁻⁶, and 10⁻⁴ for gradients.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from probsa import Bag
from probsa.models import Model

from .originals_of import framed, from_original, reference_of, renaming, sources


def close(got: Tensor, want: Tensor, *, relative: float = 2e-5) -> None:
    """Assert that a tensor is within the tolerance."""
    got = got.detach()
    assert got.shape == want.shape
    worst = (got - want).abs().max().item()
    assert worst <= relative * want.abs().max().item() + 1e-6


WEIGHTED = ("torchmil_gtp", "torchmil_camil")
"""Sets of models that read the weights of edges as they are."""


class Golden:
    """The reference set with this name."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.tensors = load_file(folder / f"{name}.safetensors")
        self.metadata: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())

    @property
    def reference(self) -> str:
        """The original whose set it is."""
        return reference_of(self.name)

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

    def has(self, what: str) -> bool:
        return f"expected.{what}" in self.tensors

    def bag(self, b: int, *, dtype: torch.dtype = torch.float32, **more: Any) -> Bag:
        """Return bag b with edges in both directions, and with x as a leaf that requires gradients.

        Stored cells are (row, column); the coordinates of a bag are (x, y).
        """
        edges = self.tensors[f"bag{b}.edge_index"]
        fields: dict[str, Any] = {
            "name": f"bag{b}",
            "x": self.tensors[f"bag{b}.x"].to(dtype).clone().requires_grad_(),
            "edges": edges,
            "weights": torch.ones(edges.shape[1], dtype=dtype)
            if self.name not in WEIGHTED
            else self.tensors[f"bag{b}.edge_weight"],
            "y": int(self.tensors[f"bag{b}.y"]),
            "coords": self.tensors[f"bag{b}.coords"].flip(1),
            "stride": 1.0,
        }
        bag = Bag(**{**fields, **more})
        canvas = self.constructor.get("img_size")
        return bag if canvas is None else framed(bag, canvas)

    def noise(self, b: int) -> Tensor | None:
        """Return the stored noise, or noise that sorts the instances into DTFD's order."""
        order = self.tensors.get(f"bag{b}.perm")
        if order is None:
            return self.tensors.get(f"bag{b}.eps")
        noise = torch.empty(len(order), 1)
        noise[order, 0] = torch.arange(len(order), dtype=noise.dtype)
        return noise

    def names(self, model: Model) -> dict[str, str]:
        """Return our name of each of the original's parameters that has one in our model."""
        rules = sources[self.reference].names
        renamed = {
            k: renaming(k.replace(".module.", "."), rules) for k in self.metadata["parameter_order"]
        }
        known = {k for k, _ in model.named_parameters()}
        return {k: name for k, name in renamed.items() if name in known}

    def check_gradients(
        self,
        model: Model,
        total: Tensor,
        x: Tensor,
        *,
        b: int,
        ours: Mapping[str, str] | None = None,
        adjust: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
        key: str = "",
    ) -> None:
        """Check the gradients of `total`, or their norms, at x (if stored) and at every parameter.

        Args:
            model: our model.
            total: the output to differentiate.
            x: the features of the bag.
            b: the number of the bag.
            ours: our parameter name for each name of the original that has a counterpart; None:
                those of `names`.
            adjust: for parameters of the original that ours differ from, its gradient from ours.
            key: prefix of `grad`, `grad_norms` and `grad_x` in the set (such as `svm.`).
        """
        ours = self.names(model) if ours is None else ours
        parameters = dict(model.named_parameters())
        grads = torch.autograd.grad(
            total, [x, *parameters.values()], allow_unused=True, retain_graph=True
        )
        if f"expected.bag{b}.{key}grad_x" in self.tensors:
            close(grads[0], self.expected(f"bag{b}.{key}grad_x"), relative=1e-4)
        gradients = dict(zip(parameters, grads[1:], strict=True))
        theirs = {k: gradients[name] for k, name in ours.items()}
        theirs |= {k: f(theirs[k]) for k, f in (adjust or {}).items()}
        full = {k: v for k, v in self.under(f"expected.bag{b}.{key}grad").items() if k in ours}
        assert full
        for name, want in full.items():
            got = theirs[name]
            assert got is not None, name
            close(got, want, relative=1e-4)
        order = self.metadata["parameter_order"]
        want = self.expected(f"bag{b}.{key}grad_norms")
        shared = [(k, w) for k, w in zip(order, want, strict=True) if k in ours]
        zero = torch.zeros(())
        norms = [g.norm() if (g := theirs[k]) is not None else zero for k, _ in shared]
        stored = torch.stack([w.clamp_min(0) for _, w in shared])  # −1: the original has none
        close(torch.stack(norms).to(stored.dtype), stored, relative=1e-4)
