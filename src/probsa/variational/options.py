"""Options of the smoothness prior and of the attention's posterior, with their defaults.

Models that take these options expose the fields as arguments of their own (`ridge=0.01`); see
`probsa.models.option_groups`.
"""

from dataclasses import dataclass
from typing import Literal

from ..core import NonNegativeFloat, PositiveFloat, PositiveInt, check_options


@dataclass(frozen=True, kw_only=True)
class PriorOptions:
    """Options of the Dirichlet prior p(f | A) and of the KL divergence from it."""

    kappa: PositiveFloat = 1.0
    """Precision κ of the prior."""
    ridge: NonNegativeFloat = 0.01
    """Ridge ε of the prior."""
    laplacian: Literal["combinatorial", "normalized"] = "combinatorial"
    """Laplacian of the graph: `combinatorial` (the paper) or `normalized` (the authors' code)."""
    kl_reduction: Literal["mean", "sum"] = "mean"
    """Reduction of a bag's KL divergence over its instances: `mean` or `sum`."""

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, kw_only=True)
class PosteriorOptions:
    """Options of q(f | X): the number of samples, and the range of the variances."""

    samples: PositiveInt = 16
    """Number of samples S in training; a Dirac always has one."""
    predict_samples: PositiveInt = 1000
    """Number of samples S in prediction; a Dirac always has one."""
    log_variance_bounds: tuple[float, float] | None = (-10.0, 4.0)
    """Smooth lower and upper bound of log σ²; None leaves it unbounded."""
    initial_log_variance: float = -2.0
    """Value of log σ² before the first optimiser step."""

    def __post_init__(self) -> None:
        check_options(self)
