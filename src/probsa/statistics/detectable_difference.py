"""The smallest difference that a comparison can detect: how informative a null result is.

A two-sided test at 0.05 finds a true difference of (1.960 + 0.842) = 2.80 standard errors with
probability 0.8. With few replicates, Student's quantiles replace the normal ones.
"""

from collections.abc import Collection, Sequence
from statistics import NormalDist, median

from .comparison import Comparison
from .paired_difference import ALPHA, StandardError

POWER = 0.80
NORMAL = NormalDist()

NAMES = {
    "auroc": "AUROC",
    "average_precision": "average precision",
    "f1": "F1",
    "accuracy": "accuracy",
}


def minimum_detectable(error: StandardError) -> float:
    """Return the true difference that a test with this error finds in 80 % of all cohorts."""
    return error.half_width(ALPHA) + error.half_width(2 * (1 - POWER))


def smallest_detectable(comparison: Comparison) -> float | None:
    """Return the median over the pairs of methods, before Holm's correction.

    The result is None if no pair varies over the resamples: then nothing was measured.
    """
    errors = [d.spread for d in comparison.differences.values() if d.spread is not None]
    return median(map(minimum_detectable, errors)) if errors else None


def detectable_sentence(
    comparison: Comparison,
    *,
    within: bool = False,
    replicates: Collection[int] = (),
    title: str | None = None,
) -> str:
    """Return the sentence on the smallest detectable difference for the foot of a table.

    Args:
        comparison: the comparison of the table.
        within: whether its differences are computed within folds.
        replicates: the number of replicates of each pair, if it differs between pairs.
        title: the metric in words; None for one of `NAMES`.
    """
    least = smallest_detectable(comparison)
    other = comparison.metric == "other"
    metric = (title or NAMES[comparison.metric]) + (" within folds" if within else "")
    if least is None:
        return f"Smallest detectable difference in {metric}: unknown, no pair of methods varies."
    if least > 1 and not other:
        return f"Smallest detectable difference in {metric}: none (every difference is below 1)."
    counts = replicates or (comparison.replicates,)
    cohort = f"{comparison.groups} patients, {_replicates_text(counts)}"
    pairs = len(comparison.differences)
    over_pairs = "" if pairs == 1 else f"; median of {pairs} pairs, each before Holm's correction"
    shown = f"{least:.3g}" if other else f"{least:.3f}"
    return (
        f"Smallest detectable difference in {metric}: {shown} (80 % power, two-sided 0.05, "
        f"{cohort}{over_pairs})."
    )


def detectable_from_intervals(
    intervals: Sequence[tuple[float | None, float | None]], *, what: str
) -> str:
    """Return the sentence for differences of which only 95 % intervals are known.

    The half width of an interval is taken as 1.960 standard errors.

    Args:
        intervals: the 95 % interval of each difference; unknown ends are left out.
        what: the difference in words, in the unit of the intervals.
    """
    widths = [(high - low) / 2 for low, high in intervals if low is not None and high is not None]
    if not widths:
        return f"Smallest detectable difference in {what}: unknown, no difference has an interval."
    least = median(widths) * (1 + NORMAL.inv_cdf(POWER) / NORMAL.inv_cdf(1 - ALPHA / 2))
    over = "" if len(widths) == 1 else f"; median of {len(widths)} differences"
    return (
        f"Smallest detectable difference in {what}: {least:.3f} (80 % power, two-sided 0.05, from "
        f"95 % intervals{over})."
    )


def _replicates_text(counts: Collection[int]) -> str:
    least, most = min(counts), max(counts)
    if least < most:
        return f"{least} to {most} replicates"
    return "one replicate" if most == 1 else f"{most} replicates"
