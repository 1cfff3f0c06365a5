"""A posterior that is smooth by itself: a Gaussian Markov random field on the bag's graph.

The network states for each instance a value ν_n and a precision τ_n; the graph does the rest. q is
the exact posterior of the prior p(f | A) = N(0, P⁻¹), P = 2κ(L + εI), given pseudo-observations
ν_n ~ N(f_n, 1/τ_n) (conjugate-computation variational inference, Khan & Lin 2017):
q(f | X) = N(m, S) with S = Q⁻¹, Q = P + diag τ and m = S(τ ⊙ ν).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..core import Bags, repeat_bags, segment_sum
from ..errors import InputError
from .gmrf import GMRF
from .posteriors import ExpectedEnergy, Posterior, Streams
from .priors import Prior, full_dtype

T = TypeVar("T")


@contextmanager
def _constants() -> Iterator[None]:
    """Compute without gradients, and outside inference mode.

    A tensor that is made in inference mode could not be used for gradients later.
    """
    # leaving inference mode turns gradients on, so they are turned off inside
    with torch.inference_mode(mode=False), torch.no_grad():
        yield


class _ByGradMode(Generic[T]):
    """A property of a field that is computed once with gradients and once without.

    So it does not matter who looks first: what is computed without gradients is never given to
    somebody who needs them.
    """

    def __init__(self, compute: "Callable[[Field], T]") -> None:
        self.compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, field: "Field", owner: type) -> T:
        has_gradients = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        key = (self.name, has_gradients)
        if key not in field.computed:
            with nullcontext() if has_gradients else _constants():
                field.computed[key] = self.compute(field)
        return field.computed[key]


class _WithGradient(torch.autograd.Function):
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
        prior: Prior,
        bags: Bags,
        level: float | Tensor = 0.0,
    ) -> None:
        if not prior.is_proper:
            raise InputError("ridge is 0: a field posterior needs ridge > 0, as 0.01")
        self.nu = nu
        self.tau = tau
        self.prior = prior
        self.computed: dict[tuple[str, bool], Any] = {}
        """Values by name and grad mode, see `_ByGradMode`."""
        # the classes are more bags, class after class; m of them have N instances together
        self._classes = nu.shape[1:].numel()
        self._full = full_dtype(nu.device)
        with _constants():
            self._bags = bags if self._classes == 1 else repeat_bags(bags, self._classes)
            self._kappa = prior.kappa_of(bags, dtype=self._full).repeat(self._classes)
            self._prior = prior.with_kappa(self._kappa)
            self._diagonal, self._pairs = self._prior.precision(self._bags, dtype=self._full)
            levels = torch.as_tensor(level, dtype=self._full, device=nu.device).reshape(-1)
            self._level = levels.expand(self._classes).repeat_interleave(len(nu))

    def _joined(self, value: Float[Tensor, "n *classes"]) -> Float[Tensor, " N"]:
        """Return values of the classes one after another, in the precision of linear algebra."""
        if not torch.is_grad_enabled():
            value = value.detach()  # otherwise the result may be `value` itself
        return value.movedim(0, -1).flatten().to(self._full)

    def _shown(self, value: Float[Tensor, " N"]) -> Float[Tensor, "n *classes"]:
        """Return values of all instances in the shape and the dtype of ν."""
        return value.view(self.nu.movedim(0, -1).shape).movedim(-1, 0).to(self.nu.dtype)

    @_ByGradMode
    def _nu(self) -> Float[Tensor, " N"]:
        return self._joined(self.nu)

    @_ByGradMode
    def _tau(self) -> Float[Tensor, " N"]:
        return self._joined(self.tau)

    @_ByGradMode
    def _change(self) -> Float[Tensor, " N"]:
        """dτ: 0, with the derivative 1 by τ."""
        return self._tau - self._tau.detach()

    @cached_property
    def _gmrf(self) -> GMRF:
        with _constants():
            return GMRF(self._diagonal + self._tau, self._pairs, bags=self._bags)

    @cached_property
    def _solution(self) -> Float[Tensor, "one N"]:
        """S(τ ⊙ ν), a constant."""
        needs_probes = torch.is_grad_enabled() and self.tau.requires_grad
        with _constants():
            b = (self._tau * self._nu)[None]
            if not needs_probes:
                return self._gmrf.solve(b)
            # the KL will need them: one sweep for both
            solution, self.computed["_probed", True] = self._gmrf.solve_and_probe(b, self._tau)
            return solution

    @cached_property
    def _marginals(self) -> Float[Tensor, " N"]:
        """The diagonal of S, a constant."""
        with _constants():
            return self._gmrf.marginals()

    @_ByGradMode
    def full_mean(self) -> Float[Tensor, " N"]:
        """The mean m less the level, in the precision of the linear algebra.

        dm = S(d(τ ⊙ ν) − dτ ⊙ m).
        """
        return self._with_motion(self._solution)[0] - self._level

    def _with_motion(self, rows: Float[Tensor, "one_plus_s N"]) -> Float[Tensor, "one_plus_s N"]:
        """Return S(τ ⊙ ν) and samples x ~ N(0, S), constants, with their gradients.

        They are S applied to rows that depend on ν and τ, so one sweep gives all gradients.
        """
        b = (self._tau * self._nu)[None] - self._change * rows[:1]
        if len(rows) > 1:
            b = torch.cat([b, -self._change / 2 * rows[1:]])
        return _WithGradient.apply(b, rows, self._gmrf.solve)  # pyright: ignore

    @_ByGradMode
    def full_variance(self) -> Float[Tensor, " N"]:
        """The marginal variances, in the same precision: d diag S = −diag(S diag(dτ) S)."""
        gmrf = self._gmrf

        def pull(grad: Tensor) -> Tensor:
            return -gmrf.probed(grad)[1]

        return _WithGradient.apply(self._tau, self._marginals, pull)  # pyright: ignore

    @property
    def like(self) -> Tensor:
        return self.nu

    @property
    def mean(self) -> Float[Tensor, "n *classes"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The mean m."""
        return self._shown(self.full_mean)

    @property
    def variance(self) -> Float[Tensor, "n *classes"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The marginal variances diag S."""
        return self._shown(self.full_variance)

    @property
    def neighbour_weight(self) -> Float[Tensor, " n"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The weight of all other instances in m_n, 1 − S_nn τ_n / Σ_j S_nj τ_j.

        m_n = Σ_j S_nj τ_j ν_j, so S_nn τ_n is the weight of what the network says of n itself. The
        mean over several classes.
        """
        with _constants():
            own_weight = self._marginals * self._tau
            total = self._gmrf.solve(self._tau[None])[0]
            weight = (1 - own_weight / total).clamp_min(0) * self._tied
        return weight.view(self._classes, -1).mean(0).to(self.nu.dtype)

    @cached_property
    def _tied(self) -> Bool[Tensor, " N"]:
        """Whether an instance has neighbours."""
        return self._bags.degrees > 0

    def sample(self, count: int, streams: Streams) -> Float[Tensor, "*classes drawn n"]:
        """Return samples m + L⁻ᵀε, with a number ε for each instance."""
        noise = streams.repeated(self._classes).normal(count, like=self.nu.detach())
        f = self._samples(noise)
        return f if self.nu.ndim == 1 else f.view(len(f), self._classes, -1).movedim(1, 0)

    def _samples(self, noise: Float[Tensor, "s n"]) -> Float[Tensor, "s n"]:
        """Return m + x with x ~ N(0, S), and dx = −½ S(dτ ⊙ x).

        This motion changes the covariance of x by −½(S diag(dτ) S + S diag(dτ) S) = dS, so moved
        samples are samples of the moved distribution, and gradients of expectations are unbiased,
        however the samples were made.
        """
        x = self._gmrf.deviations(noise)
        if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            return self.full_mean.to(x.dtype) + x
        moved = self._with_motion(torch.cat([self._solution, x.to(self._full)]))
        # the mean of this sweep, unless somebody has asked for it before
        self.computed.setdefault(("full_mean", True), moved[0] - self._level)
        return self.full_mean.to(x.dtype) + moved[1:].to(x.dtype)

    @_ByGradMode
    def _mean_energies(self) -> Float[Tensor, " N"]:
        """The share of each instance in ½ mᵀPm."""
        return self._prior.energies(self.full_mean + self._level, self._bags)

    @property
    def expected_energy(self) -> ExpectedEnergy:  # pyright: ignore[reportIncompatibleVariableOverride]
        tied = self._tied.to(self._full)
        sizes = self._bags.sizes
        # E_q[½ fᵀPf] = ½ mᵀPm + ½ tr(PS), and P = 2κ(L + εI)
        energy = segment_sum(self._mean_energies * tied, sizes)
        energy = (energy + segment_sum(self._traces * tied, sizes) / 2) / self._kappa
        instances = segment_sum(tied, sizes)
        return ExpectedEnergy(
            energy=energy.view(self._classes, -1).sum(0),
            instances=instances.view(self._classes, -1).sum(0),
        )

    @_ByGradMode
    def _probed(self) -> Float[Tensor, "two N"]:
        """diag S and, where gradients are recorded, diag(S diag(τ) S)."""
        if self._tau.requires_grad:
            if "_solution" not in self.__dict__:
                self._solution  # noqa: B018 - it probes as well
                return self.computed["_probed", True]
            return self._gmrf.probed(self._tau.detach())
        return torch.stack([self._marginals, torch.zeros_like(self._tau)])

    @_ByGradMode
    def _traces(self) -> Float[Tensor, " N"]:
        """The diagonal of PS, 1 − τ_n S_nn."""
        variance, squares = self._probed
        return 1 - self._tau.detach() * variance + (squares - variance) * self._change

    def _is_made_of(self, prior: Prior, bags: Bags) -> bool:
        """Return whether another object is the same prior."""
        kappa = self._kappa[: len(bags)]  # of the first class; the others have the same
        has_same_kappa = torch.equal(prior.kappa_of(bags, dtype=kappa.dtype), kappa)
        return has_same_kappa and self.prior.has_form_of(prior)

    def kl(self, prior: Prior, bags: Bags, *, exact: bool = False) -> Float[Tensor, " bags"]:
        """Return ½[mᵀPm − Σ_n τ_n S_nn + log|Q| − log|P|] of each bag, summed over classes.

        `exact=False` leaves out ½ log|L + εI|, which depends on the graph alone.

        Raises:
            InputError: the prior is not the one that the field was made with.
        """
        # a device is not asked about the prior of a step, which is the same object
        if prior is not self.prior and not self._is_made_of(prior, bags):
            raise InputError("a field's KL is known only from the prior that the field was made of")
        sizes = self._bags.segments.counts
        # d log|Q| = tr(S diag(dτ)), with the value 0 here
        change = segment_sum(self._probed[0] * self._change, self._bags.sizes)
        log_det = self._gmrf.log_determinants() + change
        # log|Q| − N − N log 2κ, without log|L + εI|
        rest = log_det - sizes * (1 + (2 * self._kappa).log())
        energy = segment_sum(self._mean_energies, self._bags.sizes)
        trace = segment_sum(self._traces, self._bags.sizes) / 2
        kl = energy + trace + rest / 2
        if exact:
            kl = kl - prior.with_kappa(0.5).log_determinant(self._bags).to(kl.dtype) / 2
        return kl.view(self._classes, -1).sum(0).to(self.nu.dtype)
