"""A posterior that is smooth by itself: a Gaussian Markov random field on the bag's graph.

The network states for each instance a value ν_n and a precision τ_n; the graph does the rest. q is
the exact posterior of the prior p(f | A) = N(0, P⁻¹), P = 2κ(L + εI), given pseudo-observations
ν_n ~ N(f_n, 1/τ_n) (conjugate-computation variational inference, Khan & Lin 2017):

    q(f | X) = N(m, Q⁻¹),   Q = P + diag τ,   m = Q⁻¹(τ ⊙ ν)
"""

from collections.abc import Callable
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import Bags, segment_sum
from ..errors import InputError
from .field_gradients import deviations, log_determinant, marginals, solution
from .field_solvers import Solver, solvers_of
from .posteriors import Posterior, Streams
from .priors import Dirichlet, Prior, full_dtype


class Field(Posterior):
    """q(f | X) = N(m, Q⁻¹) of every bag of a batch; see the module's docstring.

    As κ → 0 it becomes `Diagonal` with mean ν and variance 1/τ; as τ → 0 it becomes the prior. An
    instance without neighbours has Q_nn = 2κε + τ_n. The linear algebra is in float64 where the
    device has it, and results have the dtype of ν.

    Args:
        nu: What the network says of each instance.
        tau: The precision of that statement, above 0.
        prior: The prior, with ε > 0. Its κ may be a tensor with one value per bag.
        bags: The bags, for their graphs.

    Raises:
        InputError: The prior has no ridge.
    """

    block_samples = 128  # products with blocks of the factor cost as much as with a few samples

    def __init__(
        self, nu: Float[Tensor, " n"], tau: Float[Tensor, " n"], *, prior: Dirichlet, bags: Bags
    ) -> None:
        if not prior.proper:
            raise InputError("ridge is 0: a field posterior needs ridge > 0, as 0.01")
        self.nu, self.tau, self.prior, self.sizes = nu, tau, prior, bags.sizes
        self._full = full_dtype(nu.device)
        self._bags = bags

    @cached_property
    def _tau(self) -> Tensor:
        return self.tau.to(self._full)

    @cached_property
    def _solvers(self) -> list[Solver]:
        kappa = self.prior.kappa_of(self._bags, dtype=self._full)
        with self._without_autocast():
            return solvers_of(
                self._tau,
                entries=self.prior.entries(self._bags, dtype=self._full),
                kappa=kappa,
                bags=self._bags,
            )

    def _without_autocast(self) -> torch.autocast:
        """Autocast leaves float64 alone, but not the float32 of a device without float64."""
        return torch.autocast(self.nu.device.type, enabled=False)

    @cached_property
    def _place(self) -> Tensor:
        """The place of each instance in the concatenated rows of the solvers."""
        rows = torch.cat([s.rows.flatten() for s in self._solvers])
        return torch.empty_like(rows).index_copy_(
            0, rows, torch.arange(len(rows), device=rows.device)
        )

    def _packed(self, compute: Callable[[Solver], Tensor]) -> Tensor:
        """Return what `compute` gives for the rows (g, n, …) of each solver, in packed order."""
        with self._without_autocast():
            parts = [compute(solver).flatten(0, 1) for solver in self._solvers]
        return torch.cat(parts).index_select(0, self._place)

    @cached_property
    def full_mean(self) -> Float[Tensor, " n"]:
        """The mean m, in the precision of the linear algebra."""
        b = (self._tau * self.nu.to(self._full))[:, None]
        return self._packed(lambda s: solution(self._tau[s.rows], b[s.rows], solver=s))[:, 0]

    @cached_property
    def full_variance(self) -> Float[Tensor, " n"]:
        """The marginal variances, in the precision of the linear algebra."""
        return self._packed(lambda s: marginals(self._tau[s.rows], solver=s))

    @property
    def mean(self) -> Float[Tensor, " n"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The mean m."""
        return self.full_mean.to(self.nu.dtype)

    @property
    def variance(self) -> Float[Tensor, " n"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The marginal variances diag Q⁻¹."""
        return self.full_variance.to(self.nu.dtype)

    @property
    def neighbour_share(self) -> Float[Tensor, " n"]:
        """The share of the prior in an instance's mean given its neighbours, P_nn / Q_nn."""
        own = self.prior.entries(self._bags, dtype=self._full)[0]
        kappa = self.prior.kappa_of(self._bags, dtype=self._full)
        prior = 2 * kappa.repeat_interleave(self._bags.offsets.diff()) * own
        return (prior / (prior + self._tau)).to(self.nu.dtype)

    def sample(self, count: int, streams: Streams) -> Float[Tensor, "drawn n"]:
        """Return m + L⁻ᵀε; a sample of a bag solved by conjugate gradients takes n + e numbers."""
        widths = [0] * len(self.sizes)
        for solver in self._solvers:
            for bag in solver.bags:
                widths[bag] = solver.noise_size
        noise = streams.normal(count, like=self.nu.detach(), widths=widths)

        def drawn_by(solver: Solver) -> Tensor:
            eps = torch.stack([noise[b].T for b in solver.bags])
            return deviations(self._tau[solver.rows], eps, solver=solver)

        return self.mean + self._packed(drawn_by).T

    @property
    def expected_energy(self) -> Float[Tensor, " bags"]:
        """E_q[fᵀ(L + εI) f] of each bag, from which κ is estimated (`LearnedPrior`)."""
        kappa = self.prior.kappa_of(self._bags, dtype=self._full)
        return (self._mean_energy + 2 * self._trace) / (2 * kappa)

    @cached_property
    def _mean_energy(self) -> Float[Tensor, " bags"]:
        """mᵀPm of each bag."""
        return 2 * self.prior.energy(self.full_mean, self._bags)

    @cached_property
    def _trace(self) -> Float[Tensor, " bags"]:
        """½ tr(P Q⁻¹) of each bag: tr(P Q⁻¹) = N − Σ_n τ_n S_nn."""
        sizes = torch.tensor(self.sizes, dtype=self._full, device=self.nu.device)
        observed = self._tau * self.full_variance
        return (sizes - segment_sum(observed, self.sizes)) / 2

    def _is_own(self, prior: Prior) -> bool:
        if not isinstance(prior, Dirichlet):
            return False
        kappas = [p.kappa_of(self._bags, dtype=self._full) for p in (prior, self.prior)]
        return prior is self.prior or (
            (prior.ridge, prior.laplacian) == (self.prior.ridge, self.prior.laplacian)
            and torch.equal(*kappas)
        )

    def kl(self, prior: Prior, bags: Bags, *, exact: bool = False) -> Float[Tensor, " bags"]:
        """Return ½[mᵀPm − Σ_n τ_n S_nn + log|Q| − log|P|] of each bag.

        `exact=False` leaves out ½ log|L + εI|, which depends on the graph alone.

        Raises:
            InputError: the prior is not the one that the field was made with.
        """
        if not self._is_own(prior):
            raise InputError("a field's KL is known only from the prior that the field was made of")
        sizes = torch.tensor(self.sizes, dtype=self._full, device=self.nu.device)
        with self._without_autocast():
            log_dets = torch.cat(
                [log_determinant(self._tau[s.rows], solver=s) for s in self._solvers]
            )
        log_det = log_dets[torch.argsort(torch.tensor([b for s in self._solvers for b in s.bags]))]
        kappa = self.prior.kappa_of(bags, dtype=self._full)
        kl = self._mean_energy / 2 + self._trace + (log_det - sizes * (2 * kappa).log() - sizes) / 2
        if exact:
            unit = Dirichlet(kappa=0.5, ridge=self.prior.ridge, laplacian=self.prior.laplacian)
            kl = kl - unit.log_determinant(bags).to(kl.dtype) / 2
        return kl.to(self.nu.dtype)
