"""Resamples in which each group counts a whole number of times, to compare with repeated rows."""

from collections.abc import Hashable, Sequence

import numpy as np

from probsa.statistics import Draws


def repeated_draws(groups: Sequence[Hashable], *, resamples: int, seed: int) -> Draws:
    """Return draws of k of the k groups; row 0 is the data."""
    names = list(dict.fromkeys(groups))
    member = np.array([names.index(group) for group in groups])
    k = len(names)
    counts = np.random.default_rng(seed).multinomial(k, np.full(k, 1 / k), size=resamples)
    return Draws(counts=np.vstack([np.ones(k), counts]).astype(np.float64), member=member)
