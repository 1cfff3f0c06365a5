"""What null maps and distances share: whitened features, and the check of stored arrays."""

from collections.abc import Mapping

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


def problem_of(
    arrays: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int | None, ...]]
) -> str | None:
    """Say which array of a file is not of finite numbers of its shape, in which None is any size.

    None if all are.
    """
    for name, shape in shapes.items():
        if name not in arrays:
            return f"it has no array {name!r}"
        found = arrays[name]
        fits = len(found.shape) == len(shape) and all(
            n > 0 and n == (size or n) for n, size in zip(found.shape, shape, strict=True)
        )
        if not fits or found.dtype.kind != "f" or not np.isfinite(found).all():
            expected = ", ".join("any" if size is None else str(size) for size in shape)
            return (
                f"{name} is {found.dtype} of shape {found.shape}, expected finite numbers of shape "
                f"({expected})"
            )
    return None
