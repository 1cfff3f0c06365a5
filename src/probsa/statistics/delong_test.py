"""DeLong's covariance of AUROCs on the same bags, and the test of a difference, in O(n log n).

DeLong, DeLong and Clarke-Pearson, Biometrics 1988; midranks after Sun and Xu, IEEE SPL 2014. Bags
are treated as independent: for patients with several bags, use comparison.py. Ties count half.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.special import log_ndtr
from scipy.stats import norm, rankdata

from ..errors import InputError

ROUNDING = 1e-20
"""A variance below this is a rounding error: true standard errors are far above 1e-10."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AurocTest:
    """The test of one AUROC against another."""

    difference: float
    se: float
    """Standard error of the difference."""
    z: float | None
    """difference / se; None if the standard error is 0 and the scores differ."""
    p: float | None
    """Two-sided, from the normal distribution; None without z."""
    log10_p: float | None
    """The logarithm of p, which does not underflow."""
    reason: str | None = None
    """The reason why there is no p, or why it is not informative."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeLong:
    """AUROCs of k scores of the same bags, with their covariance."""

    auc: Float[np.ndarray, " k"]
    covariance: Float[np.ndarray, "k k"]
    """cov(V10) / m + cov(V01) / n for m positive and n negative bags; nan if m or n is 1."""
    v10: Float[np.ndarray, "k m"]
    """For each positive bag, the fraction of negative bags below it."""
    v01: Float[np.ndarray, "k n"]
    """For each negative bag, the fraction of positive bags above it."""

    @property
    def se(self) -> Float[np.ndarray, " k"]:
        """Standard errors; 0 for a perfect score, which does not mean certainty."""
        return np.sqrt(np.diag(self.covariance))

    def compare(self, i: int, j: int) -> AurocTest:
        """Test AUROC i against AUROC j: z = (A_i - A_j) / standard error of the difference."""
        difference = float(self.auc[i] - self.auc[j])
        over, under = self.v10[i] - self.v10[j], self.v01[i] - self.v01[j]
        if len(over) < 2 or len(under) < 2:
            single = "positive" if len(over) < 2 else "negative"
            return _no_test(difference, f"one {single} bag: the variance is unknown")
        # Computed from the differences, not the covariance, so that a variance of 0 is exact.
        variance = over.var(ddof=1) / len(over) + under.var(ddof=1) / len(under)
        if variance < ROUNDING:
            if not over.any() and not under.any():
                return AurocTest(
                    difference=0.0,
                    se=0.0,
                    z=0.0,
                    p=1.0,
                    log10_p=0.0,
                    reason="both order positive against negative bags in the same way",
                )
            return _no_test(
                difference,
                "the difference has zero variance on these bags, so DeLong's test is undefined",
                se=0.0,
            )
        se = float(np.sqrt(variance))
        z = difference / se
        return AurocTest(
            difference=difference,
            se=se,
            z=z,
            p=float(2 * norm.sf(abs(z))),
            log10_p=float((np.log(2) + log_ndtr(-abs(z))) / np.log(10)),
        )


def delong(y: ArrayLike, scores: ArrayLike) -> DeLong:
    """Return the AUROCs of several scores and their covariance.

    Args:
        y: labels 0 or 1, (bags,).
        scores: (k, bags), or (bags,) for a single score.

    Raises:
        InputError: the shapes do not fit, a label is not 0 or 1, there is one class only, or a
            score is nan.
    """
    labels = np.asarray(y)
    s = np.atleast_2d(np.asarray(scores, dtype=np.float64))
    if labels.ndim != 1 or s.ndim != 2 or s.shape[1] != len(labels):
        raise InputError(
            f"labels of shape {labels.shape} and scores of shape {s.shape}: "
            "expected one label per bag and one row of scores per method"
        )
    if not np.isin(labels, (0, 1)).all():
        raise InputError(f"labels are {np.unique(labels).tolist()}: AUROC needs 0 and 1")
    if np.isnan(s).any():
        raise InputError(
            "some scores are nan: predict those bags again, or leave them out for all methods"
        )
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


def _no_test(difference: float, reason: str, *, se: float = float("nan")) -> AurocTest:
    return AurocTest(difference=difference, se=se, z=None, p=None, log10_p=None, reason=reason)
