"""Networks for μ(X) and log σ²(X): from instance vectors to the posterior of attention logits."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core import Bags, PositiveInt, Rate, check_value, without_autocast
from ..errors import InputError
from ..variational import (
    Diagonal,
    Dirac,
    Field,
    FieldOptions,
    LearnedPrior,
    Posterior,
    PosteriorOptions,
    PriorOptions,
    full_precision,
)

Trunk = Literal["tanh", "gated", "mlp"]
Activation = Literal["tanh", "relu", "gelu"]
PosteriorKind = Literal["dirac", "diag", "field"]
ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu, "gelu": nn.functional.gelu}


class AttentionTrunk(nn.Module):
    """The hidden layer t_n, from which both μ_n and log σ²_n are computed.

    Args:
        dim: Width of the instance vectors.
        attention_dim: Width of the hidden layer.
        trunk: `tanh`: tanh(V h), as in the paper (eq. (1) of ABMIL); `gated`: tanh(V h) ⊙ σ(U h)
            (Ilse et al. 2018); `mlp`: GELU(W₂ GELU(W₁ h)) of width 2 · attention_dim, as in the
            authors' library.
        activation: Function in the place of tanh, for the first two trunks.
        dropout: Dropout after each activation and after σ, in training.
    """

    def __init__(
        self,
        dim: int,
        attention_dim: int,
        *,
        trunk: Trunk = "tanh",
        activation: Activation = "tanh",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_value("trunk", trunk, Trunk)
        check_value("attention_activation", activation, Activation)
        check_value("attention_dim", attention_dim, PositiveInt)
        check_value("dropout in the attention", dropout, Rate)
        if trunk == "mlp" and activation != "tanh":
            raise InputError(
                "attention_activation has no effect on the 'mlp' trunk, which uses GELU"
            )
        self.kind = trunk
        self.activation = ACTIVATIONS[activation]
        self.out_dim = 2 * attention_dim if trunk == "mlp" else attention_dim
        self.first = nn.Linear(dim, self.out_dim)
        self.gate = nn.Linear(dim, attention_dim) if trunk == "gated" else None
        self.second = nn.Linear(self.out_dim, self.out_dim) if trunk == "mlp" else None
        self.dropout = nn.Dropout(dropout)

    def forward(self, h: Float[Tensor, "n d"]) -> Float[Tensor, "n t"]:
        v = self.first(h)
        if self.second is not None:
            v = self.second(self.dropout(nn.functional.gelu(v)))
            return self.dropout(nn.functional.gelu(v))
        t = self.dropout(self.activation(v))
        return t if self.gate is None else t * self.dropout(self.gate(h).sigmoid())


class AttentionPosterior(nn.Module):
    """The network that maps instance vectors to q(f | X).

    Args:
        dim: Width of the instance vectors.
        attention_dim: Width of the trunk.
        kind: `dirac` (Σ = 0), `diag` (Σ = Diag) or `field` (Σ = Q⁻¹, smooth on the graph).
        trunk: Kind of `AttentionTrunk`.
        mean_bias: Whether μ has a bias, which a softmax ignores; by default only with the `mlp`
            trunk, as in the authors' library.
        sampling: Bounds of log σ² = c + r tanh((ℓ − c)/r), so that variances neither overflow nor
            vanish, and its value before the first step.
        columns: Number of maps, f of shape (n, columns); None for one map of shape (n,).
        activation: Activation of the trunk.
        dropout: Dropout of the trunk.
        prior: The prior, of which a field is made.
        field: Whether a field's κ is learned.
    """

    level: float | tuple[float, ...] = 0.0
    """What is subtracted from f, one number or one per column."""

    def __init__(  # noqa: PLR0913 - each is a choice of its own
        self,
        dim: int,
        attention_dim: int,
        *,
        kind: PosteriorKind,
        trunk: Trunk = "tanh",
        mean_bias: bool | None = None,
        sampling: PosteriorOptions | None = None,
        columns: int | None = None,
        activation: Activation = "tanh",
        dropout: float = 0.0,
        prior: PriorOptions | None = None,
        field: FieldOptions | None = None,
    ) -> None:
        super().__init__()
        check_value("posterior", kind, PosteriorKind)
        sampling = sampling or PosteriorOptions()
        self.trunk = AttentionTrunk(
            dim,
            attention_dim,
            trunk=trunk,
            activation=activation,
            dropout=dropout,
        )
        self.bounds = sampling.log_variance_bounds
        self.prior: LearnedPrior | None = None
        if kind == "field":
            self.prior = LearnedPrior(prior or PriorOptions(), field or FieldOptions())
        t = self.trunk.out_dim
        self.columns = columns
        out_dim = 1 if columns is None else columns
        bias = trunk == "mlp" if mean_bias is None else mean_bias
        self.mean = nn.Linear(t, out_dim, bias=bias)
        # skip_init draws no numbers, so one seed gives Dirac and Diag the same other weights.
        self.log_variance: nn.Linear | None = None
        if kind != "dirac":
            head = nn.utils.skip_init(nn.Linear, t, out_dim)
            assert isinstance(head, nn.Linear)
            nn.init.zeros_(head.weight)
            nn.init.constant_(head.bias, self._unbounded(sampling.initial_log_variance))
            self.log_variance = head

    def forward(self, h: Float[Tensor, "n d"], bags: Bags | None = None) -> Posterior:
        """Return q; a field needs the `bags`, for their graphs."""
        t = full_precision(self.trunk(h))
        with without_autocast(t):
            mean = self.mean(t)
            if self.columns is None:
                mean = mean[:, 0]
            level = 0.0
            if self.level != 0.0:
                level = torch.tensor(self.level, dtype=mean.dtype, device=mean.device)
                if self.prior is None:  # a field subtracts the level itself, after smoothing
                    mean = mean - level
            if self.log_variance is None:
                return Dirac(mean, level)
            variance = self._bounded(self.log_variance(t)).exp()
            if self.columns is None:
                variance = variance[:, 0]
            if self.prior is None:
                return Diagonal(mean, variance, level)
            assert bags is not None, "a field needs the bags' graphs"
            prior = self.prior.prior(bags)
            return Field(mean, variance.reciprocal(), prior=prior, bags=bags, level=level)

    def _bounded(self, ell: Tensor) -> Tensor:
        if self.bounds is None:
            return ell
        low, high = self.bounds
        centre = (low + high) / 2
        reach = (high - low) / 2
        return centre + reach * ((ell - centre) / reach).tanh()

    def _unbounded(self, value: float) -> float:
        if self.bounds is None:
            return value
        low, high = self.bounds
        if not low < value < high:
            raise InputError(f"initial_log_variance {value} lies outside the bounds {low}, {high}")
        centre = (low + high) / 2
        reach = (high - low) / 2
        return centre + reach * math.atanh((value - centre) / reach)
