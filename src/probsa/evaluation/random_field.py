"""Random maps with the spectrum of a given map: equally smooth, but unrelated to the tissue.

They are a null model for maps that merely look structured. The phases of the map's Fourier
transform over its bounding box are replaced (Theiler et al., Physica D 1992). Outside the tissue,
the map is set to its mean.
"""

import numpy as np
from jaxtyping import Float, Int


def random_field(
    image: Float[np.ndarray, "rows columns"], *, rng: np.random.Generator
) -> Float[np.ndarray, "rows columns"]:
    """Return an image with the amplitudes and the mean of this one; nan is set to the mean."""
    mean = float(np.nanmean(image))
    amplitude = np.abs(np.fft.rfft2(np.where(np.isnan(image), 0.0, image - mean)))
    # The phases of white noise are uniform and have the symmetry of a real image.
    noise = np.fft.rfft2(rng.standard_normal(image.shape))
    return np.fft.irfft2(amplitude * noise / np.abs(noise), s=image.shape) + mean


def field_on(
    cells: Int[np.ndarray, "n 2"], value: Float[np.ndarray, " n"], *, seed: int
) -> Float[np.ndarray, " n"]:
    """Return the `random_field` of values on a lattice, at the same cells.

    Values that share a cell (of the lattices of several contours) are averaged.
    """
    shape = tuple((cells.max(0) + 1).tolist())
    index = np.ravel_multi_index((cells[:, 0], cells[:, 1]), shape)
    size = shape[0] * shape[1]
    with np.errstate(invalid="ignore"):
        mean = np.bincount(index, weights=value, minlength=size)
        mean /= np.bincount(index, minlength=size)
    field = random_field(mean.reshape(shape), rng=np.random.default_rng(seed))
    return field.ravel()[index]
