"""Stage 6: q(f | X), the posterior of the attention logits f of each instance, and its samples.

Samples have their instances last, (*classes, samples, n): products with them then have a contiguous
dimension of n, which makes them 5 to 8 times as fast as the other way round.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import (
    Bags,
    Segments,
    Sizes,
    as_segments,
    counted_normal,
    draw_key,
    is_on_cpu,
    random_stream,
    segment_sum,
)
from ..errors import InputError
from .priors import Prior

BLOCK = 1 << 17
"""Largest number of elements of a block that prediction computes with, so that it stays in the
cache of a CPU; 16 times as many are drawn at once."""
DEVICE_BLOCK = 1 << 22
"""The same for other devices, where few large operations are faster: 256 MB are drawn at once."""


class Streams:
    """Standard normal numbers for each bag of a batch.

    Args:
        sizes: Number of instances of each bag.
        generators: One generator per bag.
        noise: Numbers that are given, a row for each instance, the same for every class.

    Raises:
        InputError: There is another number of rows.
    """

    def __init__(
        self,
        sizes: Sizes,
        generators: Sequence[torch.Generator] = (),
        *,
        noise: Float[Tensor, "n samples"] | None = None,
    ) -> None:
        self.sizes = as_segments(sizes)
        self.generators = list(generators)
        self.noise = noise
        self._drawn = 0
        if noise is not None and len(noise) != sum(sizes):
            raise InputError(
                f"noise has {len(noise)} rows, but these bags have {sum(sizes)} instances: give a "
                "row for each, or a generator instead"
            )
        self._repeated: dict[int, Streams] = {1: self}

    def normal(self, count: int, *, like: Tensor) -> Float[Tensor, "samples n"]:
        """Return the next `count` numbers of each instance, or all of the noise that is given.

        They have the dtype and device of `like`. Rows that are drawn in multiples of 16, the last
        at least 16, are those of one large draw. On a CPU, each bag's generator draws; elsewhere,
        the numbers follow from its seed.
        """
        if self.noise is not None:
            return self.noise.to(like).T.contiguous()
        if not is_on_cpu(like):
            seeds = [generator.initial_seed() for generator in self.generators]
            first = self._drawn
            self._drawn += count
            return counted_normal(seeds, self.sizes, count, first=first, like=like)
        parts: list[Tensor] = []
        for n, generator in zip(self.sizes, self.generators, strict=True):
            parts.append(like.new_empty(count, n).normal_(generator=generator))
        return torch.cat(parts, 1)

    def repeated(self, classes: int) -> "Streams":
        """Return the streams of all bags of each class in turn; the first has the bags' own."""
        if classes not in self._repeated:
            generators = list(self.generators)
            for _ in range(1, classes):
                for generator in self.generators:
                    key = draw_key(generator)
                    generators.append(random_stream(key, "class"))
            noise = None if self.noise is None else self.noise.repeat(classes, 1)
            self._repeated[classes] = Streams(self.sizes.repeated(classes), generators, noise=noise)
        return self._repeated[classes]


class ExpectedEnergy(NamedTuple):
    """The energy of the instances that have neighbours, of each bag, summed over classes.

    An instance without neighbours has the prior N(0, 1/(2κε)) and does not say how strongly
    neighbours are tied, so it is left out.
    """

    energy: Float[Tensor, " bags"]
    """E_q[fᵀ(L + εI) f] over these instances."""
    instances: Float[Tensor, " bags"]
    """Their number."""


class Posterior(ABC):
    """q(f | X) of all bags of a batch. It draws its own samples; pooling only reads them.

    Autocast is off while samples are drawn: noise and samples have the dtype of `mean`.
    """

    stochastic: ClassVar[bool] = True
    """False if all samples are equal: one sample is then drawn, without noise."""
    block_samples: ClassVar[int] = 16
    """Smallest number of samples that prediction draws at a time, a multiple of 16."""

    mean: Float[Tensor, "n *classes"]
    """E[f_n]; (n, classes) where a method has one attention map per class."""
    variance: Float[Tensor, "n *classes"]
    """Var[f_n] of each instance, of the shape of `mean`."""
    neighbour_weight: Float[Tensor, " n"] | None = None
    """The weight of the other instances in the mean of an instance, 0 without neighbours; None if
    no mean depends on other instances."""
    expected_energy: ExpectedEnergy | None = None
    """For a posterior that is made of its prior, what says how large κ is (`LearnedPrior`)."""

    @property
    def like(self) -> Tensor:
        """A tensor with the dtype and the device of the mean, which need not be computed for it."""
        return self.mean

    @abstractmethod
    def sample(self, count: int, streams: Streams) -> Float[Tensor, "*classes drawn n"]:
        """Return reparameterised samples of all bags, of which each depends on its own alone.

        Args:
            count: Number of samples.
            streams: The noise of each bag.
        """

    @abstractmethod
    def kl(self, prior: Prior, bags: Bags, *, exact: bool = False) -> Float[Tensor, " bags"]:
        """Return KL(q ‖ p) of each bag, summed over classes, up to a constant unless `exact`."""

    def rsample(
        self,
        samples: int,
        *,
        noise: Float[Tensor, "n samples"] | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "n drawn *classes"]:
        """Return samples of all instances from one generator, or from noise that is given."""
        generators: list[torch.Generator] = []
        if noise is None:
            if generator is None or not is_on_cpu(self.mean):
                # elsewhere, numbers follow from a seed, which must be another in every call
                generator = random_stream(draw_key(generator))
            generators = [generator]
        streams = Streams(Segments.of([len(self.mean)], self.mean.device), generators, noise=noise)
        return self.sample(samples, streams).movedim(-1, 0).movedim(-1, 1)


def block_size(like: Tensor) -> int:
    """Return the largest number of elements of a block on the device of a tensor."""
    return BLOCK if is_on_cpu(like) else DEVICE_BLOCK


def sample_blocks(
    q: Posterior, samples: int, streams: Streams
) -> Iterator[Float[Tensor, "*classes s n"]]:
    """Yield samples some at a time, so that nothing of size n x samples is stored."""
    step = max(q.block_samples, 16 * (block_size(q.mean) // len(q.mean)))
    if not q.stochastic or streams.noise is not None:
        step = samples
    # the last block has 16 samples or more, so that its numbers are those of one large draw
    starts = range(0, max(samples - 15, 1), step)
    for start, stop in pairwise([*starts, samples]):
        yield q.sample(stop - start, streams)


@dataclass(frozen=True, slots=True)
class Dirac(Posterior):
    """A point mass at the mean (Σ = 0): q(f | X) = δ(f − μ(X))."""

    mean: Float[Tensor, "n *classes"]
    level: float | Tensor = 0.0
    """What was subtracted from f, one number or one per class: f + level has the prior."""
    stochastic = False

    @property
    def variance(self) -> Float[Tensor, "n *classes"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return torch.zeros_like(self.mean)

    def sample(self, count: int, streams: Streams) -> Float[Tensor, "*classes 1 n"]:
        del count, streams  # all samples are equal
        return self.mean.movedim(0, -1).unsqueeze(-2)

    def kl(self, prior: Prior, bags: Bags, *, exact: bool = False) -> Float[Tensor, " bags"]:
        """Return the energy of μ, eq. (3): the finite part of the KL (paper, appendix A)."""
        if exact:
            raise InputError("a Dirac has no density, so its KL is infinite: use exact=False")
        return prior.energy(self.mean + self.level, bags)


@dataclass(frozen=True, slots=True)
class Diagonal(Posterior):
    """Independent normal distributions of the instances: q(f | X) = N(μ(X), diag σ²(X))."""

    mean: Float[Tensor, "n *classes"]
    variance: Float[Tensor, "n *classes"]
    level: float | Tensor = 0.0
    """As of `Dirac`."""

    def sample(self, count: int, streams: Streams) -> Float[Tensor, "*classes drawn n"]:
        """Return f = μ + σ ⊙ ε."""
        if self.mean.ndim == 2:
            streams = streams.repeated(self.mean.shape[1])
        noise = streams.normal(count, like=self.mean.detach())
        if self.mean.ndim == 2:
            noise = noise.view(len(noise), self.mean.shape[1], -1).movedim(1, 0)
        # (*classes, 1, n)
        mean = self.mean.movedim(0, -1).unsqueeze(-2)
        std = self.variance.sqrt().movedim(0, -1).unsqueeze(-2)
        return torch.addcmul(mean, std, noise)

    def kl(self, prior: Prior, bags: Bags, *, exact: bool = False) -> Float[Tensor, " bags"]:
        """Return κ[E(μ) + ε‖μ‖² + Σ_n (L_nn + ε) σ_n²] − ½ Σ_n log σ_n² of each bag, eq. (5).

        This is the KL up to terms that do not depend on q (the paper misprints it: docs/paper.md).
        `exact=True` adds these terms, for a single class. With ε = 0 the exact KL is that of the
        contrasts: of q projected off the constant vector, which softmax ignores.
        """
        variance = self.variance
        log_variance = self.variance.log()
        if self.mean.ndim == 2:
            variance = variance.sum(1)
            log_variance = log_variance.sum(1)
        precision, _ = prior.precision(bags, dtype=self.mean.dtype)  # 2κ (L_nn + ε)
        spread = precision * variance - log_variance
        kl = segment_sum(prior.energies(self.mean + self.level, bags) + 0.5 * spread, bags.sizes)
        if not exact:
            return kl
        n = bags.segments.counts.to(kl.dtype)
        log_det = prior.log_determinant(bags).to(kl.dtype)
        if prior.is_proper:
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
