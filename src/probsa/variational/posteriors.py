"""Stage 6: q(f | X): what a model believes about the attention f of each instance.

`Dirac` and `Diagonal` are siblings with one interface; nothing downstream asks which it was given.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import Bags, segment_sum
from ..errors import InputError
from .priors import Prior


@runtime_checkable
class Posterior(Protocol):
    """q(f | X): mean and variance are (n,), or (n, classes) where a method has one per class."""

    @property
    def mean(self) -> Tensor: ...
    @property
    def variance(self) -> Tensor: ...
    def rsample(
        self,
        samples: int,
        *,
        noise: Float[Tensor, "n samples"] | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "n drawn *classes"]: ...
    def kl(self, prior: Prior, bags: Bags, *, exact: bool = False) -> Float[Tensor, " bags"]: ...


@dataclass(frozen=True, slots=True)
class Dirac:
    """Σ = 0: all mass at the mean, q(f | X) = δ(f − μ(X))."""

    mean: Float[Tensor, "n *classes"]

    @property
    def variance(self) -> Float[Tensor, "n *classes"]:
        return torch.zeros_like(self.mean)

    def rsample(
        self,
        samples: int,
        *,
        noise: Float[Tensor, "n samples"] | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "n 1 *classes"]:
        del samples, noise, generator  # one point is all there is to draw
        return self.mean[:, None]

    def kl(self, prior: Prior, bags: Bags, *, exact: bool = False) -> Float[Tensor, " bags"]:
        """The energy at μ, eq. (3): what a Dirac's ELBO keeps of the KL (paper, appendix A)."""
        if exact:
            raise InputError("a Dirac has no density, so its KL is infinite: exact=True is refused")
        return prior.energy(self.mean, bags)


@dataclass(frozen=True, slots=True)
class Diagonal:
    """Σ = Diag: an independent normal for each instance, q(f | X) = N(μ(X), diag σ²(X))."""

    mean: Float[Tensor, " n"]
    variance: Float[Tensor, " n"]

    def rsample(
        self,
        samples: int,
        *,
        noise: Float[Tensor, "n samples"] | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "n drawn"]:
        """f = μ + σ ⊙ ε, reparameterised."""
        if noise is None:
            noise = torch.randn(
                len(self.mean),
                samples,
                generator=generator,
                dtype=self.mean.dtype,
                device=self.mean.device,
            )
        return self.mean[:, None] + self.variance.sqrt()[:, None] * noise

    def kl(self, prior: Prior, bags: Bags, *, exact: bool = False) -> Float[Tensor, " bags"]:
        """κ[E(μ) + ε‖μ‖² + Σ_n (L_nn + ε) σ_n²] − ½ Σ_n log σ_n², eq. (5), summed over the bag.

        That is the KL up to terms that no network touches (and the paper misprints: docs/paper.md).
        `exact=True` adds them; with ε = 0 it is the KL on the contrasts: q projected off the
        constant, to which softmax is blind (inference 3.2).
        """
        log_variance = self.variance.log()
        per_instance = prior.diagonal(bags, dtype=self.mean.dtype) * self.variance
        kl = prior.energy(self.mean, bags) + segment_sum(
            per_instance - 0.5 * log_variance, bags.sizes
        )
        if not exact:
            return kl
        n = torch.tensor(bags.sizes, dtype=kl.dtype, device=kl.device)
        log_det = prior.log_determinant(bags).to(kl.dtype)
        if prior.proper:
            return kl - 0.5 * n - 0.5 * log_det
        # Projecting off the constant loses one degree of freedom, and Diag is no longer diagonal:
        # its log-determinant on the contrasts is Σ log σ² + log(mean 1/σ²).
        contrast = (segment_sum(self.variance.reciprocal(), bags.sizes) / n).log()
        # tr(L Σ) is unchanged by the projection, for L ignores the constant.
        return kl - 0.5 * contrast - 0.5 * (n - 1) - 0.5 * log_det
