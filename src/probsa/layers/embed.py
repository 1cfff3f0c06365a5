"""The first layers: from the encoder's features to the model's width, one instance at a time."""

from itertools import pairwise
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from ..errors import InputError

Widths = int | tuple[int, ...] | None


class Embed(nn.Module):
    """h_n: Linear (+ ReLU, + dropout) for each width; `widths=None` passes the features on.

    `activation="identity"` leaves every layer linear (the paper's transformers start so);
    `bias=False` is DTFD-MIL's form.
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
        given = () if widths is None else (widths,) if isinstance(widths, int) else tuple(widths)
        dims = (in_dim, *given)
        if min(dims) < 1:
            raise InputError(f"embed is {widths} on {in_dim} features: widths are at least 1")
        if not 0 <= dropout < 1:
            raise InputError(f"dropout is {dropout}: 0 or more, below 1")
        steps: list[nn.Module] = []
        for a, b in pairwise(dims):
            steps.append(nn.Linear(a, b, bias=bias))
            if activation == "relu":
                steps.append(nn.ReLU(inplace=True))
            if dropout:
                steps.append(nn.Dropout(dropout))
        self.net = nn.Sequential(*steps)
        self.out_dim = dims[-1]

    def forward(self, x: Float[Tensor, "n features"]) -> Float[Tensor, "n d"]:
        return self.net(x)
