"""DeLong's covariance of AUROCs on the same bags, and the test of a difference, in O(n log n).

DeLong, DeLong and Clarke-Pearson, Biometrics 1988; midranks after Sun and Xu, IEEE SPL 2014. Bags
are taken as independent: with several bags a patient use comparison.py. Ties count half.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.special import log_ndtr
from scipy.stats import norm, rankdata

from ..errors import InputError

ROUNDING = 1e-20
"""A variance below this is that of rounding: placements are shares of bags, their s.d. ≫ 1e-10."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Of one AUROC against another."""

    difference: float
    se: float
    """Standard error of the difference."""
    z: float | None
    """difference / se; None where the s.e. is 0 and the scores are not the same."""
    p: float | None
    """Two-sided, of the normal distribution; None where there is no z."""
    log10_p: float | None
    """The logarithm of p, which does not underflow."""
    reason: str | None = None
    """Why there is no p, or why it says nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeLong:
    """AUROCs of k scores of the same bags, with their covariance."""

    auc: Float[np.ndarray, " k"]
    covariance: Float[np.ndarray, "k k"]
    """cov(V10) / m + cov(V01) / n, m positive and n negative bags; nan where m or n is 1."""
    v10: Float[np.ndarray, "k m"]
    """Of each positive bag: the share of negative bags below it."""
    v01: Float[np.ndarray, "k n"]
    """Of each negative bag: the share of positive bags above it."""

    @property
    def se(self) -> Float[np.ndarray, " k"]:
        """Standard errors; 0 of a perfect score says that no bag was misplaced, not certainty."""
        return np.sqrt(np.diag(self.covariance))

    def compare(self, i: int, j: int) -> Outcome:
        """Whether AUROC i differs from AUROC j: z = (A_i - A_j) / s.e. of the difference."""
        difference = float(self.auc[i] - self.auc[j])
        over, under = self.v10[i] - self.v10[j], self.v01[i] - self.v01[j]
        if len(over) < 2 or len(under) < 2:
            few = "positive" if len(over) < 2 else "negative"
            return _no_test(difference, f"one {few} bag: the variance is not known")
        # Of the differences themselves: the same number as from the covariance, but 0 where it is.
        variance = over.var(ddof=1) / len(over) + under.var(ddof=1) / len(under)
        if variance < ROUNDING:
            if not over.any() and not under.any():
                return Outcome(
                    difference=0.0,
                    se=0.0,
                    z=0.0,
                    p=1.0,
                    log10_p=0.0,
                    reason="both order positive against negative bags in the same way",
                )
            return _no_test(
                difference,
                "every bag is placed differently by the same amount: the difference has no "
                "variance on these bags, and DeLong's test says nothing",
                se=0.0,
            )
        se = float(np.sqrt(variance))
        z = difference / se
        return Outcome(
            difference=difference,
            se=se,
            z=z,
            p=float(2 * norm.sf(abs(z))),
            log10_p=float((np.log(2) + log_ndtr(-abs(z))) / np.log(10)),
        )


def delong(y: ArrayLike, scores: ArrayLike) -> DeLong:
    """AUROCs of several scores and their covariance (numbers equal to all pairs, to rounding).

    Args:
        y: (bags,) 0 or 1.
        scores: (k, bags), or (bags,) for one.

    Raises:
        InputError: shapes that do not fit, labels other than 0 and 1, one class only, a score that
            is nan.
    """
    labels = np.asarray(y)
    s = np.atleast_2d(np.asarray(scores, dtype=np.float64))
    if labels.ndim != 1 or s.ndim != 2 or s.shape[1] != len(labels):
        raise InputError(
            f"labels of shape {labels.shape} and scores of shape {s.shape}: "
            "one label a bag and one row of scores a method are expected"
        )
    if not np.isin(labels, (0, 1)).all():
        raise InputError(f"labels are {np.unique(labels).tolist()}: AUROC needs 0 and 1")
    if np.isnan(s).any():
        raise InputError("some scores are nan: predict those bags again, or leave them out of all")
    positive = labels == 1
    m, n = int(positive.sum()), int((~positive).sum())
    if m == 0 or n == 0:
        raise InputError(f"only one class among {len(labels)} bags: AUROC is undefined")
    ranks = rankdata(s, axis=1)
    above = ranks[:, positive] - rankdata(s[:, positive], axis=1)
    below = ranks[:, ~positive] - rankdata(s[:, ~positive], axis=1)
    v10, v01 = above / n, 1 - below / m
    covariance = np.full((len(s), len(s)), np.nan)
    if m > 1 and n > 1:
        covariance = np.atleast_2d(np.cov(v10)) / m + np.atleast_2d(np.cov(v01)) / n
    return DeLong(auc=above.sum(1) / (m * n), covariance=covariance, v10=v10, v01=v01)


def _no_test(difference: float, reason: str, *, se: float = float("nan")) -> Outcome:
    return Outcome(difference=difference, se=se, z=None, p=None, log10_p=None, reason=reason)
