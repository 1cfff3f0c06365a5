"""Stage 6: q(f | X), the posterior of the attention logits f of each instance.

`Dirac` and `Diagonal` share one interface, `Posterior`, which other classes may implement as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import Bags, segment_sum
from ..errors import InputError
from .priors import Prior


@runtime_checkable
class Sampler(Protocol):
    """Samples of f for the bags of a batch, as a function of standard normal noise."""

    def __call__(
        self, bag: int, noise: Float[Tensor, "s n"] | None, *, out: Tensor | None = None
    ) -> Float[Tensor, "s n"]:
        """Return s samples of the n instances of bag number `bag`.

        Args:
            bag: The bag's position in the batch.
            noise: Standard normal numbers; None for a posterior that is not `stochastic`.
            out: Memory of the noise's shape, or the noise itself, that may be overwritten with
                the result. Only given when no gradient is recorded; it may be ignored.
        """
        ...


@runtime_checkable
class Posterior(Protocol):
    """q(f | X) of all bags of a batch. A posterior draws its own samples; pooling only reads them.

    Training draws all samples at once, by `rsample`, and gradients reach the tensors of the
    posterior by autograd. Prediction asks for samples a block at a time: it draws the noise of some
    samples of one bag (from that bag's generator) and calls `sampler`. It keeps no block, so memory
    stays O(n) per sample of a block.

    Autocast is off while samples are drawn: noise and samples have the dtype of `mean`.
    """

    @property
    def mean(self) -> Float[Tensor, "n *classes"]:
        """E[f_n]; (n, classes) where a method has one attention map per class."""
        ...

    @property
    def variance(self) -> Float[Tensor, "n *classes"]:
        """Var[f_n] of each instance, of the shape of `mean`."""
        ...

    @property
    def stochastic(self) -> bool:
        """False if all samples are equal: one sample is then drawn, without noise."""
        ...

    def sampler(self, sizes: Sequence[int]) -> Sampler:
        """Return the function from noise to samples, for bags with these numbers of instances.

        The samples of a bag must depend only on the bag and on its noise.
        """
        ...

    def rsample(
        self,
        samples: int,
        *,
        noise: Float[Tensor, "n samples"] | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "n drawn *classes"]:
        """Return samples of all instances at once, the same function of noise as `sampler`."""
        ...

    def kl(self, prior: Prior, bags: Bags, *, exact: bool = False) -> Float[Tensor, " bags"]:
        """Return KL(q ‖ p) of each bag, up to a constant unless `exact`."""
        ...


@dataclass(frozen=True, slots=True)
class Dirac:
    """A point mass at the mean (Σ = 0): q(f | X) = δ(f − μ(X))."""

    mean: Float[Tensor, "n *classes"]

    @property
    def variance(self) -> Float[Tensor, "n *classes"]:
        return torch.zeros_like(self.mean)

    @property
    def stochastic(self) -> bool:
        return False

    def sampler(self, sizes: Sequence[int]) -> Sampler:
        means = self.mean[None].split(list(sizes), 1)

        def sample(bag: int, noise: Tensor | None, *, out: Tensor | None = None) -> Tensor:
            del noise, out
            return means[bag]

        return sample

    def rsample(
        self,
        samples: int,
        *,
        noise: Float[Tensor, "n samples"] | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "n 1 *classes"]:
        del samples, noise, generator  # all samples are equal
        return self.mean[:, None]

    def kl(self, prior: Prior, bags: Bags, *, exact: bool = False) -> Float[Tensor, " bags"]:
        """Return the energy of μ, eq. (3): the finite part of the KL (paper, appendix A)."""
        if exact:
            raise InputError("a Dirac has no density, so its KL is infinite: use exact=False")
        return prior.energy(self.mean, bags)


@dataclass(frozen=True, slots=True)
class Diagonal:
    """Independent normal distributions of the instances: q(f | X) = N(μ(X), diag σ²(X))."""

    mean: Float[Tensor, " n"]
    variance: Float[Tensor, " n"]

    @property
    def stochastic(self) -> bool:
        return True

    def sampler(self, sizes: Sequence[int]) -> Sampler:
        means, stds = (v.split(list(sizes)) for v in (self.mean, self.variance.sqrt()))

        def sample(bag: int, noise: Tensor | None, *, out: Tensor | None = None) -> Tensor:
            assert noise is not None
            return torch.addcmul(means[bag], stds[bag], noise, out=out)

        return sample

    def rsample(
        self,
        samples: int,
        *,
        noise: Float[Tensor, "n samples"] | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "n drawn"]:
        """Return reparameterised samples f = μ + σ ⊙ ε."""
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
        """Return κ[E(μ) + ε‖μ‖² + Σ_n (L_nn + ε) σ_n²] − ½ Σ_n log σ_n² of each bag, eq. (5).

        This is the KL up to terms that do not depend on q (the paper misprints it: docs/paper.md).
        `exact=True` adds these terms. With ε = 0 the exact KL is that of the contrasts: of q
        projected off the constant vector, which softmax ignores.
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
        # The projection removes one degree of freedom, and the projected covariance is not
        # diagonal: its log-determinant on the contrasts is Σ log σ² + log(mean 1/σ²).
        contrast = (segment_sum(self.variance.reciprocal(), bags.sizes) / n).log()
        # tr(L Σ) does not change, because L maps the constant vector to 0.
        return kl - 0.5 * contrast - 0.5 * (n - 1) - 0.5 * log_det


def probability_positive(q: Posterior) -> Float[Tensor, "n *classes"]:
    """Return P(f_n > 0) = Φ(m_n / s_n) under a normal q; ½ at 0, and 0 or 1, where s_n = 0."""
    std = q.variance.sqrt()
    z = torch.where(std > 0, q.mean / std, q.mean.sign() * torch.inf)
    return torch.special.ndtr(torch.where(q.mean == 0, torch.zeros_like(z), z))
