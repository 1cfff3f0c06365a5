"""Correlated posteriors of several classes, each with a value for every instance, as one."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from ..core import Bags, repeat_bags
from .field import Field
from .posteriors import Posterior, Streams
from .priors import Prior


@dataclass(frozen=True, slots=True)
class PerClass(Posterior):
    """Independent fields of c classes: `joint` has the bags of class 0, then those of class 1, …"""

    joint: Field
    classes: int
    block_samples = Field.block_samples

    @property
    def mean(self) -> Float[Tensor, "n classes"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.joint.mean.view(self.classes, -1).T

    @property
    def variance(self) -> Float[Tensor, "n classes"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.joint.variance.view(self.classes, -1).T

    @property
    def neighbour_share(self) -> Float[Tensor, " n"]:
        """The mean over the classes."""
        return self.joint.neighbour_share.view(self.classes, -1).mean(0)

    @property
    def expected_energy(self) -> Float[Tensor, " bags"]:
        """E_q[fᵀ(L + εI) f] of each bag, summed over the classes."""
        return self.joint.expected_energy.view(self.classes, -1).sum(0)

    def sample(self, count: int, streams: Streams) -> Float[Tensor, "classes drawn n"]:
        f = self.joint.sample(count, streams.repeated(self.classes))
        return f.view(len(f), self.classes, -1).movedim(1, 0)

    def kl(self, prior: Prior, bags: Bags, *, exact: bool = False) -> Float[Tensor, " bags"]:
        many = repeat_bags(bags, self.classes)
        return self.joint.kl(self.joint.prior, many, exact=exact).view(self.classes, -1).sum(0)
