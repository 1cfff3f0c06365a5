"""The first layers of a model, which map each instance's features to the model's width."""

from itertools import pairwise
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from ..core import Rate, Width, check_value
from ..errors import InputError

Widths = Width | tuple[Width, ...] | None


class Embed(nn.Module):
    """A linear layer, optionally with a ReLU and dropout, for each of the given widths.

    Args:
        in_dim: Number of features of an instance.
        widths: Width or widths of the layers; None for no layers, so that features pass unchanged.
        activation: `identity` keeps the layers linear, as before the paper's transformers.
        dropout: Dropout after each layer, in training.
        bias: Whether the layers have biases; DTFD-MIL's have none.
    """

    def __init__(
        self,
        in_dim: int,
        widths: Widths,
        *,
        activation: Literal["relu", "identity"] = "relu",
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if widths is None:
            dims = (in_dim,)
        elif isinstance(widths, int):
            dims = (in_dim, widths)
        else:
            dims = (in_dim, *widths)
        if min(dims) < 1:
            raise InputError(
                f"embed is {widths} on {in_dim} features; expected widths of at least 1"
            )
        check_value("dropout", dropout, Rate)
        layers: list[nn.Module] = []
        for a, b in pairwise(dims):
            layers.append(nn.Linear(a, b, bias=bias))
            if activation == "relu":
                layers.append(nn.ReLU(inplace=True))
            if dropout:
                layers.append(nn.Dropout(dropout))
        self.net = nn.Sequential(*layers)
        self.out_dim = dims[-1]

    def forward(self, x: Float[Tensor, "n features"]) -> Float[Tensor, "n d"]:
        return self.net(x)
