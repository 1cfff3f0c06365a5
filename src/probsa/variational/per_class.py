"""Posteriors of several classes, each with a value for every instance, as one posterior."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import Bags
from ..errors import InputError
from .posteriors import Posterior, Sampler
from .priors import Prior


@dataclass(frozen=True, slots=True)
class PerClass:
    """Independent posteriors of c classes: `joint` holds all instances of class 0 first.

    Means and variances have the shape (n, classes). Samples are those of `joint`, whose bags are
    those of class 0, then those of class 1, and so on.
    """

    joint: Posterior
    classes: int

    @property
    def mean(self) -> Float[Tensor, "n classes"]:
        return self.joint.mean.view(self.classes, -1).T

    @property
    def variance(self) -> Float[Tensor, "n classes"]:
        return self.joint.variance.view(self.classes, -1).T

    @property
    def stochastic(self) -> bool:
        return self.joint.stochastic

    def sampler(self, sizes: Sequence[int]) -> Sampler:
        raise InputError("the samples of several classes are those of `joint`, class by class")

    def rsample(
        self,
        samples: int,
        *,
        noise: Float[Tensor, "n samples"] | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "n drawn classes"]:
        """Return samples; `noise`, if given, is that of `joint`."""
        f = self.joint.rsample(samples, noise=noise, generator=generator)
        return f.view(self.classes, -1, f.shape[1]).permute(1, 2, 0)

    def kl(self, prior: Prior, bags: Bags, *, exact: bool = False) -> Float[Tensor, " bags"]:
        """Return the sum of the classes' KL.

        Args:
            prior: the prior of `joint`.
            bags: the bags of `joint`.
            exact: whether to include the terms that do not depend on q.
        """
        return self.joint.kl(prior, bags, exact=exact).view(self.classes, -1).sum(0)
