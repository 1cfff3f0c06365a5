"""How small a difference a comparison could have seen: what a null result is worth.

A true difference of (1.960 + 0.842) = 2.80 standard errors is found with probability 0.8 by a
two-sided test at 0.05. With few replicates Student's quantiles take the place of the normal ones.
"""

from collections.abc import Collection
from statistics import median

import numpy as np

from ..errors import InputError
from .comparison import Comparison
from .paired_difference import ALPHA, Spread

POWER = 0.80

NAMES = {
    "auroc": "AUROC",
    "average_precision": "average precision",
    "f1": "F1",
    "accuracy": "accuracy",
}


def detectable(spread: Spread) -> float:
    """The true difference that a test with this spread finds in 80 % of all cohorts."""
    return spread.half_width(ALPHA) + spread.half_width(2 * (1 - POWER))


def smallest_detectable(comparison: Comparison) -> float | None:
    """Of a pair of methods as variable as the median pair, before Holm's correction.

    None where no pair varies over the resamples: then nothing was measured.
    """
    found = [d.spread for d in comparison.differences.values() if d.spread is not None]
    return median(map(detectable, found)) if found else None


def detectable_sentence(
    comparison: Comparison, *, within: bool = False, replicates: Collection[int] = ()
) -> str:
    """What stands under a table.

    Args:
        comparison: whose differences are meant.
        within: whether they are within folds.
        replicates: of each pair, where pairs have other numbers of them.
    """
    least = smallest_detectable(comparison)
    what = NAMES[comparison.metric] + (" within folds" if within else "")
    if least is None:
        return f"Smallest detectable difference in {what}: unknown, no pair of methods varies."
    if least > 1:
        return (
            f"Smallest detectable difference in {what}: none that there can be (all are below 1)."
        )
    cohort = f"{comparison.groups} patients, {_times(replicates or (comparison.replicates,))}"
    pairs = len(comparison.differences)
    of = "" if pairs == 1 else f"; median of {pairs} pairs, each before Holm's correction"
    return (
        f"Smallest detectable difference in {what}: {least:.3f} (80 % power, two-sided 0.05, "
        f"{cohort}{of})."
    )


def auroc_se(auroc: float, *, positives: int, negatives: int) -> float:
    """Standard error of one AUROC from its value and the numbers of bags: for planning.

    √[(A (1 - A) + (m - 1)(Q1 - A²) + (n - 1)(Q2 - A²)) / mn], Q1 = A / (2 - A),
    Q2 = 2A² / (1 + A). Hanley and McNeil, Radiology 1982. With scores at hand: `delong`.

    Raises:
        InputError: an AUROC outside [0, 1], no bag of a class.
    """
    if not 0 <= auroc <= 1 or min(positives, negatives) < 1:
        raise InputError(
            f"AUROC {auroc} of {positives} positive and {negatives} negative bags: a value in "
            "[0, 1] and a bag of each are expected"
        )
    above = auroc / (2 - auroc) - auroc**2
    below = 2 * auroc**2 / (1 + auroc) - auroc**2
    total = auroc * (1 - auroc) + (positives - 1) * above + (negatives - 1) * below
    return float(np.sqrt(total / (positives * negatives)))


def _times(replicates: Collection[int]) -> str:
    least, most = min(replicates), max(replicates)
    if least < most:
        return f"{least} to {most} replicates"
    return "one replicate" if most == 1 else f"{most} replicates"
