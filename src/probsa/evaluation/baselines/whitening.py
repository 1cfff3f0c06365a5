"""The whitening of features, for Mahalanobis distances with a shrunk covariance."""

import numpy as np
from jaxtyping import Float
from sklearn.covariance import ledoit_wolf

FLOOR = 1e-10
"""Smallest eigenvalue of the covariance, relative to the largest one."""


def whitening(x: Float[np.ndarray, "n d"]) -> tuple[Float[np.ndarray, "d d"], float]:
    """Return W with W Wᵀ = Σ⁻¹, and the shrinkage of Σ.

    Σ is the covariance of the standardised features x, shrunk towards a multiple of the identity
    (Ledoit and Wolf, Journal of Multivariate Analysis 2004). The Mahalanobis distance of an item
    from a mean is ‖(x - mean) W‖.
    """
    covariance, shrinkage = ledoit_wolf(x)
    values, vectors = np.linalg.eigh(covariance)
    floor = max(float(values.max()), 1e-12) * FLOOR
    return vectors / np.sqrt(np.maximum(values, floor)), float(shrinkage)
