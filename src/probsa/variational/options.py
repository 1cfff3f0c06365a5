"""Options of the smoothness prior and of the attention's posterior, with their defaults.

Models that take these options expose the fields as arguments of their own (`ridge=0.01`).
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from ..core import (
    ClassCount,
    Limits,
    LogVariance,
    NonNegativeFloat,
    PositiveFloat,
    SampleCount,
    check_options,
)

KLWeight = float | Literal["linear", "cyclical"]
RateSchedule = Literal["constant", "cosine", "step", "plateau"]


class _Checked:
    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, kw_only=True)
class PriorOptions(_Checked):
    """Options of the Dirichlet prior p(f | A) and of the KL divergence from it."""

    kappa: PositiveFloat = 1.0
    """Precision κ of the prior."""
    ridge: NonNegativeFloat = 0.01
    """Ridge ε of the prior."""
    laplacian: Literal["combinatorial", "normalized"] = "combinatorial"
    """Laplacian of the graph: `combinatorial` (the paper) or `normalized` (the authors' code)."""
    kl_reduction: Literal["mean", "sum"] = "mean"
    """Reduction of a bag's KL divergence over its instances: `mean` or `sum`."""


@dataclass(frozen=True, kw_only=True)
class PosteriorOptions(_Checked):
    """Options of q(f | X): the number of samples, and the range of the variances."""

    samples: SampleCount = 16
    """Number of samples S in training; a Dirac always has one."""
    predict_samples: SampleCount = 1000
    """Number of samples S in prediction; a Dirac always has one."""
    log_variance_bounds: tuple[LogVariance, LogVariance] | None = (-10.0, 4.0)
    """Smooth lower and upper bound of log σ²; None leaves it unbounded."""
    initial_log_variance: LogVariance = -2.0
    """Value of log σ² before the first optimiser step."""


@dataclass(frozen=True, kw_only=True)
class FieldOptions(_Checked):
    """Options of a field posterior: whether the precision κ of its prior is learned."""

    learn_kappa: bool = True
    """Whether κ follows its empirical Bayes estimate, from `kappa` on, or keeps this value."""
    kappa_rate: Annotated[float, Limits(above=0, at_most=1)] = 0.05
    """Fraction of the way to the estimate from a step's bags that log κ moves after the step."""


@dataclass(frozen=True, kw_only=True)
class MapOptions(_Checked):
    """Options of the term that moves the map of an attention model (`variational.localisation`)."""

    guidance: Literal["none", "normal"] = "none"
    """Whether attention is drawn towards one bell over the bag's coordinates (Normal Guidance)."""
    guidance_weight: NonNegativeFloat = 1.0
    """Weight of that term."""


@dataclass(frozen=True, kw_only=True)
class LikelihoodOptions(_Checked):
    """Options of the likelihoods of targets that are not classes."""

    noise: Literal["learned", "heteroscedastic"] | PositiveFloat = "learned"
    """Noise of a regression: `learned` (one variance), `heteroscedastic` (one for each bag), or its
    standard deviation in the unit of the target."""
    target_transform: Literal["none", "log1p"] = "none"
    """Transform of a regression's target: `log1p` for values with a heavy tail."""
    bins: ClassCount = 4
    """Number of intervals of hazards of times, between quantiles of the training events."""
    horizon: PositiveFloat | None = None
    """Time up to which the risk is counted; by default the end of the last interval."""
