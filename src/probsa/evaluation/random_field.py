"""A random map with the same spectrum as a given one: as smooth, as rough, and right nowhere.

The null of a map that only looks structured: phases of its Fourier transform are drawn anew
(Theiler et al., Physica D 1992), over the bounding box; outside the tissue the map is at its mean.
"""

import numpy as np
from jaxtyping import Float, Int


def random_field(
    image: Float[np.ndarray, "rows columns"], *, rng: np.random.Generator
) -> Float[np.ndarray, "rows columns"]:
    """Another image with the amplitudes and the mean of this one; nan counts as the mean."""
    mean = float(np.nanmean(image))
    amplitude = np.abs(np.fft.rfft2(np.where(np.isnan(image), 0.0, image - mean)))
    # Phases of white noise: uniform, and those of a real image.
    noise = np.fft.rfft2(rng.standard_normal(image.shape))
    return np.fft.irfft2(amplitude * noise / np.abs(noise), s=image.shape) + mean


def field_on(
    cells: Int[np.ndarray, "n 2"], value: Float[np.ndarray, " n"], *, seed: int
) -> Float[np.ndarray, " n"]:
    """`random_field` of values that lie on a lattice, read where they lie.

    Values of one cell (lattices of several contours) count as their mean.
    """
    shape = tuple((cells.max(0) + 1).tolist())
    at = np.ravel_multi_index((cells[:, 0], cells[:, 1]), shape)
    size = shape[0] * shape[1]
    with np.errstate(invalid="ignore"):
        mean = np.bincount(at, weights=value, minlength=size) / np.bincount(at, minlength=size)
    field = random_field(mean.reshape(shape), rng=np.random.default_rng(seed))
    return field.ravel()[at]
