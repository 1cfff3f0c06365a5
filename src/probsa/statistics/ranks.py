"""Average ranks of methods over several columns (data sets, metrics), as in the paper's tables.

They have no test here: AUROC and F1 of one data set are not independent, nor are splits that share
a test part, and the tests of ranks take columns as independent. The package aeon has these tests.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.stats import rankdata


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """The rank of each method in each column: 1 is best, and ties share their mean rank."""

    methods: tuple[str, ...]
    ranks: Float[np.ndarray, "methods columns"]

    @property
    def mean(self) -> dict[str, float]:
        """The average rank of each method."""
        return dict(zip(self.methods, self.ranks.mean(1).tolist(), strict=True))

    @property
    def sd(self) -> dict[str, float]:
        """The standard deviation over the columns (ddof = 1; nan with a single column)."""
        some = self.ranks.shape[1] > 1
        sd = self.ranks.std(1, ddof=1) if some else np.full(len(self.methods), np.nan)
        return dict(zip(self.methods, sd.tolist(), strict=True))


def average_ranks(values: Mapping[str, ArrayLike]) -> Ranks:
    """Rank the methods in each column, highest value first, with ties averaged.

    In the paper's tables 2 and 3, the columns are the six (data set, metric) pairs of a family.
    """
    table = np.array([*values.values()], dtype=np.float64)
    return Ranks(methods=tuple(values), ranks=rankdata(-table, axis=0))
