"""The likelihood of a number: a Gaussian per posterior sample, so that the prediction is a mixture.

Targets are standardised with the mean and standard deviation of the training bags, after log1p if
asked for; predictions are in the user's unit.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from .likelihoods import Likelihood, Predictive, in_float32, mean_of_logs

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""The quantiles that are predicted."""
LEAST_VARIANCE = 1e-4
"""Smallest variance that a second logit can give, in standardised units."""
UNIT = math.log(math.expm1(1 - LEAST_VARIANCE))
"""The second logit is relative to this value, so that 0 means a variance of 1."""
BISECTIONS = 60

Samples = Float[Tensor, "bags samples"]


class Gaussian(Likelihood):
    """p(y | ℓ) = N(μ, v) in standardised units.

    Args:
        noise: `learned` (one v for all bags), `heteroscedastic` (v of each bag, from a second
            logit), or a standard deviation in the user's unit (after the transform, if any).
        shift: mean of the training targets, after the transform.
        scale: their standard deviation.
        transform: `log1p` for targets with heavy tails, else `none`.
    """

    task = "regression"
    fixed_log_variance: Tensor

    def __init__(
        self,
        *,
        noise: Literal["learned", "heteroscedastic"] | float = "learned",
        shift: float = 0.0,
        scale: float = 1.0,
        transform: Literal["none", "log1p"] = "none",
    ) -> None:
        super().__init__()
        self.shift, self.scale, self.transform = shift, scale, transform
        self.two_logits = noise == "heteroscedastic"
        self.log_variance: Tensor | None = None
        if noise == "learned":
            self.log_variance = nn.Parameter(torch.zeros(1))
        elif not isinstance(noise, str):
            fixed = torch.tensor([2 * math.log(noise / scale)])
            self.register_buffer("fixed_log_variance", fixed)

    def moments(self, logits: Float[Tensor, "*batch columns"]) -> tuple[Tensor, Tensor]:
        """Return μ and v of each sample, in standardised units: two tensors (*batch)."""
        ell = in_float32(logits)
        mu = ell[..., 0]
        if self.two_logits:
            return mu, F.softplus(ell[..., 1] + UNIT) + LEAST_VARIANCE
        log_v = self.fixed_log_variance if self.log_variance is None else self.log_variance
        return mu, log_v.to(mu.dtype).exp().expand_as(mu)

    def standardised(self, y: Tensor) -> Tensor:
        """Return targets of the user's unit in standardised units."""
        return ((torch.log1p(y) if self.transform == "log1p" else y) - self.shift) / self.scale

    def in_unit(self, z: Tensor) -> Tensor:
        """Return standardised values in the user's unit."""
        value = self.shift + self.scale * z
        return torch.expm1(value) if self.transform == "log1p" else value

    def nll(
        self, logits: Float[Tensor, "bags samples columns"], y: Float[Tensor, " bags"]
    ) -> Float[Tensor, " bags"]:
        """Return the mean over samples of −log N(y; μ, v), in standardised units."""
        return self._losses(*self.moments(logits), y).mean(1)

    def outputs(self, classes: Sequence[str]) -> tuple[str, ...]:
        del classes
        return ("mean", "sd", *(f"q{round(100 * level):02d}" for level in LEVELS))

    def predict(self, logits: Float[Tensor, "bags samples columns"]) -> Predictive:
        """Return mean, total standard deviation and quantiles of the mixture, in the user's unit.

        Its variance is that of the noise plus that of the means over samples (`variance_parts`).
        """
        dtype = logits.dtype
        mu, v = self.moments(logits.double())
        mean, variance = self._sample_moments(mu, v)
        total = variance.mean(1) + mean.var(1, correction=0)
        quantiles = [self.in_unit(_mixture_quantile(mu, v, level)) for level in LEVELS]
        values = torch.stack([mean.mean(1), total.sqrt(), *quantiles], 1)
        of_samples = [self.in_unit(mu + _normal_quantile(level) * v.sqrt()) for level in LEVELS]
        sampled = torch.stack([mean, variance.sqrt(), *of_samples], 2)
        return Predictive(values.to(dtype), sampled.std(1, correction=0).to(dtype))

    def variance_parts(
        self, logits: Float[Tensor, "bags samples columns"]
    ) -> tuple[Float[Tensor, " bags"], Float[Tensor, " bags"]]:
        """Return the variance of the noise and that of the attention, in the user's unit."""
        mean, variance = self._sample_moments(*self.moments(logits.double()))
        return variance.mean(1), mean.var(1, correction=0)

    def score(
        self, logits: Float[Tensor, "bags samples columns"], y: Float[Tensor, " bags"]
    ) -> dict[str, Float[Tensor, " bags"]]:
        """Return `nll` of the mixture in the user's unit and, without a transform, its `crps`."""
        scores = {"nll": self.predictive_nll(logits, y)}
        if self.transform == "none":
            mu, v = self.moments(logits.double())
            scores["crps"] = self.scale * _mixture_crps(mu, v, self.standardised(y.double()))
        return scores

    def predictive_nll(
        self, logits: Float[Tensor, "bags samples columns"], y: Float[Tensor, " bags"]
    ) -> Float[Tensor, " bags"]:
        """Return −log of the density of the mixture, in the user's unit."""
        y = y.double()
        change = math.log(self.scale) + (torch.log1p(y) if self.transform == "log1p" else 0.0)
        return change - mean_of_logs(-self._losses(*self.moments(logits.double()), y))

    def probability(
        self, logits: Float[Tensor, "*batch columns"]
    ) -> Float[Tensor, "*batch columns"]:
        """Return μ in the user's unit and, of two logits, v, which explanations differ."""
        mu, v = self.moments(logits)
        parts = [self.in_unit(mu)] + ([self.scale**2 * v] if self.two_logits else [])
        return torch.stack(parts, -1).to(logits.dtype)

    def _losses(self, mu: Samples, v: Samples, y: Float[Tensor, " bags"]) -> Samples:
        z = self.standardised(y.to(mu.dtype))[:, None]
        return 0.5 * (math.log(2 * math.pi) + v.log() + (z - mu).square() / v)

    def _sample_moments(self, mu: Samples, v: Samples) -> tuple[Samples, Samples]:
        """Return mean and variance of each sample's distribution, in the user's unit."""
        m, s = self.shift + self.scale * mu, self.scale**2 * v
        if self.transform == "none":
            return m, s
        mean = (m + s / 2).exp()  # of the log-normal distribution of 1 + y
        return mean - 1, mean.square() * torch.expm1(s)


def _normal_quantile(level: float) -> float:
    return float(torch.special.ndtri(torch.tensor(level, dtype=torch.float64)))


def _mixture_quantile(mu: Samples, v: Samples, level: float) -> Float[Tensor, " bags"]:
    """Return x with ⟨Φ((x − μ)/√v)⟩ = level, by bisection between the samples' own quantiles."""
    sd = v.sqrt()
    own = mu + _normal_quantile(level) * sd
    low, high = own.min(1).values, own.max(1).values
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        below = torch.special.ndtr((middle[:, None] - mu) / sd).mean(1) < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2


def _mixture_crps(mu: Samples, v: Samples, z: Float[Tensor, " bags"]) -> Float[Tensor, " bags"]:
    """Return ⟨A(z − μ_s, v_s)⟩ − ½ ⟨⟨A(μ_s − μ_t, v_s + v_t)⟩⟩ (Grimit et al. 2006)."""
    first = _expected_distance(z[:, None] - mu, v).mean(1)
    pairs = [
        _expected_distance(m[:, None] - m, w[:, None] + w).mean()
        for m, w in zip(mu, v, strict=True)
    ]
    return first - 0.5 * torch.stack(pairs)


def _expected_distance(m: Tensor, v: Tensor) -> Tensor:
    """Return A(m, v) = E|N(m, v)| = m (2Φ(m/√v) − 1) + 2√v φ(m/√v)."""
    sd = v.sqrt()
    x = m / sd
    density = torch.exp(-0.5 * x.square()) / math.sqrt(2 * math.pi)
    return m * torch.erf(x / math.sqrt(2)) + 2 * sd * density
