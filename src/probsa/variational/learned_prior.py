"""The prior of a field posterior, with a precision κ that is estimated by empirical Bayes."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core import Bags
from ..errors import InputError
from .options import FieldOptions, PriorOptions
from .priors import Dirichlet, full_dtype


class LearnedPrior(nn.Module):
    """p(f | A) with a running estimate of κ, in a buffer like the statistics of a batch norm.

    With E_b = E_q[fᵀ(L + εI) f], the KL of a bag is κE_b − (N_b / 2) log κ + const. Its mean over
    the bags, each divided by N_b, is smallest at κ* = B / (2 Σ_b E_b / N_b), and their sum at
    Σ_b N_b / (2 Σ_b E_b). After every training step log κ moves towards log κ* of the step's bags,
    by `kappa_rate` of the way.

    Args:
        prior: Start value of κ, ε, and the Laplacian.
        field: Whether κ is learned, and how fast.

    Raises:
        InputError: The ridge is 0, so that the prior is improper.
    """

    log_kappa: Tensor

    def __init__(self, prior: PriorOptions, field: FieldOptions) -> None:
        super().__init__()
        if prior.ridge == 0:
            raise InputError(
                "ridge is 0: the prior of a field must be proper, so give ridge > 0, as 0.01"
            )
        self.options, self.field = prior, field
        self.register_buffer("log_kappa", torch.tensor(math.log(prior.kappa)))

    @property
    def kappa(self) -> Float[Tensor, ""]:
        """The precision κ, in full precision."""
        return self.log_kappa.to(full_dtype(self.log_kappa.device)).exp()

    def prior(self, bags: Bags) -> Dirichlet:
        """Return the prior of a batch."""
        kappa, options = self.kappa.expand(len(bags)), self.options
        return Dirichlet(kappa=kappa, ridge=options.ridge, laplacian=options.laplacian)

    def update(self, total: Float[Tensor, "2"]) -> None:
        """Move κ towards its estimate; `total` is Σ N_b and Σ E_b, each reduced like the KL."""
        if not self.field.learn_kappa:
            return
        estimate = (total[0] / (2 * total[1])).log().to(self.log_kappa)
        step = (estimate - self.log_kappa) * self.field.kappa_rate
        # a diverged model is reported by the training loop; its κ stays as it was
        self.log_kappa += step.where(step.isfinite(), 0.0)
