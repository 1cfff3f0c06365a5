"""The likelihood of a number: a Gaussian per posterior sample, so that the prediction is a mixture.

Targets are standardised with the mean and standard deviation of the training bags, after log1p if
asked for; predictions are in the user's unit.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import LogNormal, Normal

from ...errors import InputError
from ..options import LikelihoodOptions
from .classes import (
    Columns,
    Likelihood,
    LikelihoodSpec,
    Logits,
    PerBag,
    PerSample,
    Predictive,
    in_float32,
)

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""The quantiles that are predicted."""
LEAST_VARIANCE = 1e-4
"""Smallest variance that a second logit can give, in standardised units."""
UNIT = math.log(math.expm1(1 - LEAST_VARIANCE))
"""The second logit is relative to this value, so that 0 means a variance of 1."""
BISECTIONS = 60


class Gaussian(Likelihood):
    """p(y | ℓ) = N(μ, v) in standardised units: μ is the first logit, v as `spec.noise` says."""

    task = "regression"
    fixed_log_variance: Tensor

    def __init__(self, spec: LikelihoodSpec) -> None:
        super().__init__()
        self.shift, self.scale, self.log = spec.shift, spec.scale, spec.transform == "log1p"
        self.two_logits = spec.noise == "heteroscedastic"
        self.log_variance: Tensor | None = None
        if spec.noise == "learned":
            self.log_variance = nn.Parameter(torch.zeros(1))
        elif not isinstance(spec.noise, str):
            fixed = torch.tensor([2 * math.log(spec.noise / spec.scale)])
            self.register_buffer("fixed_log_variance", fixed)

    @classmethod
    def fit(cls, spec: LikelihoodSpec, y: Tensor, options: LikelihoodOptions) -> LikelihoodSpec:
        y = y.double()
        if options.target_transform == "log1p":
            if bool((y <= -1).any()):
                raise InputError(
                    f"target_transform is log1p, but the smallest training target is "
                    f"{float(y.min()):g}: expected values above -1"
                )
            y = torch.log1p(y)
        scale = float(y.std(correction=0))
        if scale == 0 or len(y) < 2:
            raise InputError(
                f"all {len(y)} training targets are {float(y[0]):g}, but a regression needs values "
                "that differ: choose another column"
            )
        return replace(
            spec,
            noise=options.noise,
            transform=options.target_transform,
            shift=float(y.mean()),
            scale=scale,
        )

    @staticmethod
    def n_logits(spec: LikelihoodSpec) -> int:
        return 2 if spec.noise == "heteroscedastic" else 1

    def outputs(self, classes: Sequence[str]) -> tuple[str, ...]:
        return ("mean", "sd", *(f"q{round(100 * level):02d}" for level in LEVELS))

    def sampled_nll(self, logits: Logits, y: PerBag) -> PerSample:
        """Return −log N(y; μ, v) of each sample, in standardised units."""
        mu, v = self._moments(logits)
        z = self._standardised(y.to(mu.dtype))[:, None]
        return 0.5 * (math.log(2 * math.pi) + v.log() + (z - mu).square() / v)

    def predictive_nll(self, logits: Logits, y: PerBag) -> PerBag:
        """Return −log of the density of the mixture, in the user's unit."""
        change = math.log(self.scale) + (torch.log1p(y.double()) if self.log else 0.0)
        return change + super().predictive_nll(logits, y.double())

    def score(self, logits: Logits, y: PerBag) -> dict[str, PerBag]:
        """Return `nll` of the mixture in the user's unit and, without a transform, its `crps`."""
        scores = super().score(logits, y)
        if not self.log:
            mu, v = self._moments(logits.double())
            scores["crps"] = self.scale * _mixture_crps(mu, v, self._standardised(y.double()))
        return scores

    def predict(self, logits: Logits) -> Predictive:
        """Return mean, total standard deviation and quantiles of the mixture, in the user's unit.

        Its variance is that of the noise plus that of the means over samples. Its quantiles are
        bisected, between the smallest and the largest of the samples.
        """
        mu, v = self._moments(logits.double())
        loc, sd = (self.shift + self.scale * mu)[..., None], (self.scale * v.sqrt())[..., None]
        normal = Normal(loc, sd, validate_args=False)
        of_sample = LogNormal(loc, sd, validate_args=False) if self.log else normal  # of y + 1 or y
        mean, noise = of_sample.mean - (1 if self.log else 0), of_sample.variance
        total = noise.mean(1) + mean.var(1, correction=0)
        levels = torch.tensor(LEVELS, dtype=loc.dtype, device=loc.device)
        quantiles = normal.icdf(levels)
        low, high = quantiles.amin(1), quantiles.amax(1)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            below = normal.cdf(middle[:, None]).mean(1) < levels
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        values = torch.cat([mean.mean(1), total.sqrt(), self._in_unit((low + high) / 2)], 1)
        each = torch.cat([mean, noise.sqrt(), self._in_unit(quantiles)], 2)
        return Predictive(values.to(logits.dtype), each.std(1, correction=0).to(logits.dtype))

    def probability(self, logits: Columns) -> Columns:
        """Return μ in the user's unit and, of two logits, v, which explanations differ."""
        mu, v = self._moments(logits)
        parts = [self._in_unit(self.shift + self.scale * mu)]
        if self.two_logits:
            parts.append(self.scale**2 * v)
        return torch.stack(parts, -1).to(logits.dtype)

    def _moments(self, logits: Columns) -> tuple[Tensor, Tensor]:
        """Return μ and v of each sample, in standardised units: two tensors (*batch)."""
        ell = in_float32(logits)
        mu = ell[..., 0]
        if self.two_logits:
            return mu, F.softplus(ell[..., 1] + UNIT) + LEAST_VARIANCE
        log_v = self.fixed_log_variance if self.log_variance is None else self.log_variance
        return mu, log_v.to(mu.dtype).exp().expand_as(mu)

    def _standardised(self, y: Tensor) -> Tensor:
        return ((torch.log1p(y) if self.log else y) - self.shift) / self.scale

    def _in_unit(self, value: Tensor) -> Tensor:
        return torch.expm1(value) if self.log else value


def _mixture_crps(mu: PerSample, v: PerSample, z: PerBag) -> PerBag:
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
