"""A posterior that is smooth by itself: a Gaussian Markov random field on the bag's graph.

The network states for each instance a value ν_n and a precision τ_n; the graph does the rest. q is
the exact posterior of the prior p(f | A) = N(0, P⁻¹), P = 2κ(L + εI), given pseudo-observations
ν_n ~ N(f_n, 1/τ_n) (conjugate-computation variational inference, Khan & Lin 2017):
q(f | X) = N(m, S) with S = Q⁻¹, Q = P + diag τ and m = S(τ ⊙ ν).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..core import Bags, repeat_bags, segment_sum
from ..errors import InputError
from .gmrf import GMRF
from .posteriors import Posterior, Streams
from .priors import Dirichlet, full_dtype


class _Known(torch.autograd.Function):
    """A value whose differential is known: `pull` maps its gradient to that of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Tensor, pull: Callable[[Tensor], Tensor]) -> Tensor:
        del x
        ctx.pull = pull
        return value.view_as(value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        return ctx.pull(grad), None, None


class Field(Posterior):
    """q(f | X) = N(m, S) of every bag of a batch; see the module's docstring.

    As κ → 0 it becomes `Diagonal` with mean ν and variance 1/τ; as τ → 0 it becomes the prior. An
    instance without neighbours has Q_nn = 2κε + τ_n. The linear algebra is in float64 where the
    device has it, and results have the dtype of ν.

    Moments, samples and KL are exact. Where gradients are recorded, the KL of bags of more than
    `gmrf.DENSE` instances has Σ_n τ_n S_nn and its gradient from random probes of PyTorch's own
    generator, without bias.

    Several classes have independent fields with the same prior.

    Args:
        nu: What the network says of each instance, of each class.
        tau: The precision of that statement, above 0.
        prior: The prior, with ε > 0. Its κ may be a tensor with one value per bag.
        bags: The bags, for their graphs.
        level: What is subtracted from f, one number or one per class: f + level has the prior.

    Raises:
        InputError: The prior has no ridge.
    """

    block_samples = 128  # many products with a factor cost as much as a few

    def __init__(
        self,
        nu: Float[Tensor, "n *classes"],
        tau: Float[Tensor, "n *classes"],
        *,
        prior: Dirichlet,
        bags: Bags,
        level: float | Tensor = 0.0,
    ) -> None:
        if not prior.ridge:
            raise InputError("ridge is 0: a field posterior needs ridge > 0, as 0.01")
        self.nu, self.prior, full = nu, prior, full_dtype(nu.device)
        # the classes are more bags, class after class; m of them have N instances together
        self._classes = nu.shape[1:].numel()
        self._bags = bags if self._classes == 1 else repeat_bags(bags, self._classes)
        self._kappa = prior.kappa_of(bags, dtype=full).repeat(self._classes)
        self._prior = replace(prior, kappa=self._kappa)
        # P and τ, and dτ: 0, with the derivative 1 by τ
        self._own, self._pairs = self._prior.precision(self._bags, dtype=full)
        self._nu, self._tau = (v.movedim(0, -1).flatten().to(full) for v in (nu, tau))
        self._change = self._tau - self._tau.detach()
        levels = torch.as_tensor(level, dtype=full, device=nu.device).reshape(-1)
        self._level = levels.expand(self._classes).repeat_interleave(len(nu))

    def _shown(self, value: Float[Tensor, " N"]) -> Float[Tensor, "n *classes"]:
        """Return values of all instances in the shape and the dtype of ν."""
        return value.view(self.nu.movedim(0, -1).shape).movedim(-1, 0).to(self.nu.dtype)

    @cached_property
    def _gmrf(self) -> GMRF:
        return GMRF(self._own + self._tau.detach(), self._pairs, bags=self._bags)

    @cached_property
    def full_mean(self) -> Float[Tensor, " n"]:
        """The mean m less the level, in the precision of the linear algebra.

        dm = S(d(τ ⊙ ν) − dτ ⊙ m).
        """
        b = (self._tau * self._nu)[None]
        m = self._gmrf.solve(b.detach())
        m = _Known.apply(b - self._change * m, m, self._gmrf.solve)[0]  # pyright: ignore
        return m - self._level

    @cached_property
    def full_variance(self) -> Float[Tensor, " n"]:
        """The marginal variances, in the same precision: d diag S = −diag(S diag(dτ) S)."""
        gmrf = self._gmrf
        return _Known.apply(self._tau, gmrf.marginals(), lambda grad: -gmrf.probed(grad)[1])  # pyright: ignore

    @property
    def mean(self) -> Float[Tensor, "n *classes"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The mean m."""
        return self._shown(self.full_mean)

    @property
    def variance(self) -> Float[Tensor, "n *classes"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The marginal variances diag S."""
        return self._shown(self.full_variance)

    @property
    def neighbour_share(self) -> Float[Tensor, " n"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The share of the prior in an instance's mean given its neighbours, P_nn / Q_nn.

        The mean over several classes.
        """
        share = self._own / (self._own + self._tau)
        return share.view(self._classes, -1).mean(0).to(self.nu.dtype)

    def sample(self, count: int, streams: Streams) -> Float[Tensor, "*classes drawn n"]:
        """Return samples m + L⁻ᵀε, with a number ε for each instance."""
        noise = streams.repeated(self._classes).normal(count, like=self.nu.detach())
        f = self._samples(torch.cat(noise, 1))
        return f if self.nu.ndim == 1 else f.view(len(f), self._classes, -1).movedim(1, 0)

    def _samples(self, noise: Float[Tensor, "s n"]) -> Float[Tensor, "s n"]:
        """Return m + x with x ~ N(0, S), and dx = −½ S(dτ ⊙ x).

        This motion changes the covariance of x by −½(S diag(dτ) S + S diag(dτ) S) = dS, so moved
        samples are samples of the moved distribution, and gradients of expectations are unbiased,
        however the samples were made.
        """
        x = self._gmrf.deviations(noise)
        if torch.is_grad_enabled():
            b = -self._change / 2 * x
            moved: Tensor = _Known.apply(b, b.detach(), self._gmrf.solve)  # pyright: ignore
            x = x + moved.to(x.dtype)
        return self.full_mean.to(x.dtype) + x

    @cached_property
    def _mean_energy(self) -> Float[Tensor, " bags"]:
        """½ mᵀPm of each bag."""
        return self._prior.energy(self.full_mean + self._level, self._bags)

    @property
    def expected_energy(self) -> Float[Tensor, " bags"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """E_q[fᵀ(L + εI) f] of each bag, summed over classes, for κ (`LearnedPrior`)."""
        each = (self._mean_energy + self._trace) / self._kappa
        return each.view(self._classes, -1).sum(0)

    @cached_property
    def _probed(self) -> Float[Tensor, "two n"]:
        """diag S and, where gradients are recorded, diag(S diag(τ) S)."""
        tau = self._tau.detach()
        if torch.is_grad_enabled() and self._tau.requires_grad:
            return self._gmrf.probed(tau)
        return torch.stack([self.full_variance.detach(), torch.zeros_like(tau)])

    @cached_property
    def _trace(self) -> Float[Tensor, " bags"]:
        """½ tr(PS) of each bag: tr(PS) = N − Σ_n τ_n S_nn."""
        variance, squares = self._probed
        each = 1 - self._tau.detach() * variance + (squares - variance) * self._change
        return segment_sum(each, self._bags.sizes) / 2

    def kl(self, prior: Dirichlet, bags: Bags, *, exact: bool = False) -> Float[Tensor, " bags"]:
        """Return ½[mᵀPm − Σ_n τ_n S_nn + log|Q| − log|P|] of each bag, summed over classes.

        `exact=False` leaves out ½ log|L + εI|, which depends on the graph alone.

        Raises:
            InputError: the prior is not the one that the field was made with.
        """
        own, form = self._kappa[: len(bags)], (self.prior.ridge, self.prior.laplacian)
        given = prior.kappa_of(bags, dtype=own.dtype)
        if (prior.ridge, prior.laplacian) != form or not torch.equal(given, own):
            raise InputError("a field's KL is known only from the prior that the field was made of")
        sizes = self._bags.offsets.diff()
        moved = segment_sum(self._probed[0] * self._change, self._bags.sizes)
        log_det = self._gmrf.log_determinants() + moved
        rest = log_det - sizes * (1 + (2 * self._kappa).log())
        kl = self._mean_energy + self._trace + rest / 2
        if exact:
            kl = kl - replace(prior, kappa=0.5).log_determinant(self._bags).to(kl.dtype) / 2
        return kl.view(self._classes, -1).sum(0).to(self.nu.dtype)
