"""Probabilistic smooth attention as one layer, for networks of your own.

It is made of the parts that the models of this package are made of (`AttentionPosterior`, the prior
and `pool_vectors`), so that the paper's method takes three lines in any PyTorch network.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core import Bags, draw_key, random_stream, without_autocast
from ..variational import (
    FieldOptions,
    Posterior,
    PosteriorOptions,
    PriorOptions,
    Streams,
    prior_of,
)
from .attention import AttentionPosterior, PosteriorKind, Trunk
from .pooling import pool_vectors, sampled_weights


@dataclass(frozen=True, kw_only=True, slots=True)
class PooledBags:
    """The vectors of a batch of bags, and the posterior that they were pooled with."""

    vectors: Float[Tensor, "bags samples d"]
    """z_s = Hᵀ softmax(f_s) of each posterior sample f_s."""
    attention: Posterior
    """q(f | X), with `mean` and `variance` of shape (n,)."""
    kl: Float[Tensor, " bags"]
    """KL(q ‖ p) of each bag, eq. (5), up to a constant; to be added to the loss."""
    weight_mean: Float[Tensor, " n"]
    """E[softmax(f)_n] over the samples; it sums to 1 in each bag."""
    weight_variance: Float[Tensor, " n"]


class ProbSAPooling(nn.Module):
    """From instance vectors to vectors of bags, by attention with a posterior and a prior.

    The mean of the class probabilities over the samples is the prediction, eq. (10), and the mean
    over samples of the negative log-likelihood, plus λ times `kl`, is the loss, eq. (2). In
    `eval()` the noise depends on `seed` and on the names of the bags alone.

    Args:
        dim: Width of the instance vectors.
        attention_dim: Width of the hidden layer of the attention.
        posterior: `dirac`, `diag` (the paper's) or `field` (smooth on the graph; κ stays fixed).
        trunk: Form of the hidden layer; see `AttentionPosterior`.
        prior: κ, ε and the Laplacian of the prior, and how the KL is reduced over instances.
        options: Number of samples in training and prediction, and range of log σ².
        seed: Seed of the noise in `eval()`.
    """

    def __init__(
        self,
        dim: int,
        *,
        attention_dim: int = 128,
        posterior: PosteriorKind = "diag",
        trunk: Trunk = "tanh",
        prior: PriorOptions | None = None,
        options: PosteriorOptions | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        prior = prior or PriorOptions()
        self.options = options or PosteriorOptions()
        self.kl_reduction = prior.kl_reduction
        self.seed = seed
        self.prior = prior_of(prior)
        self.attention = AttentionPosterior(
            dim,
            attention_dim,
            kind=posterior,
            trunk=trunk,
            sampling=self.options,
            prior=prior,
            field=FieldOptions(learn_kappa=False),
        )

    def forward(
        self, h: Float[Tensor, "n d"], bags: Bags, *, generator: torch.Generator | None = None
    ) -> PooledBags:
        """Pool the instances of each bag, whose vectors are in the order of `bags.x`.

        Noise comes from the generator; without one, from PyTorch's own in training, and from `seed`
        in `eval()`.
        """
        q = self.attention(h, bags)
        generators: list[torch.Generator] = []
        if q.stochastic:
            is_deterministic = generator is None and not self.training
            key = self.seed if is_deterministic else draw_key(generator)
            generators = [random_stream(key, name) for name in bags.names]
        count = self.options.samples if self.training else self.options.predict_samples
        with without_autocast(h):
            f = q.sample(count, Streams(bags.sizes, generators)).T
        weights = sampled_weights(f, bags.sizes)
        prior = self.prior
        if self.attention.prior is not None:  # a field's KL is known from its own prior alone
            prior = self.attention.prior.prior(bags)
        kl = q.kl(prior, bags)
        if self.kl_reduction == "mean":
            kl = kl / bags.segments.counts
        return PooledBags(
            vectors=pool_vectors(f, h.to(f.dtype), bags.sizes),
            attention=q,
            kl=kl,
            weight_mean=weights.mean,
            weight_variance=weights.variance,
        )
