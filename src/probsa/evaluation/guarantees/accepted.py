"""Selective prediction: accept only confident calls, so that their error rate is bounded."""

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import expit, logit

from ...errors import UnmetGuarantee
from ...statistics import certified_threshold, least_accepted
from ...tasks import HALF
from ..context import Context
from .base import Guarantee, GuaranteeOptions, Means, shares

DELTA = 0.1
"""Probability that the error rate is larger than promised."""
START = 1.75
"""The strictest threshold accepts about this multiple of the least number of groups, so that one
wrong call among them is allowed."""
STEP = 0.05
"""Difference of the shares of accepted bags between thresholds."""
SMALLEST = 1e-12


def accepted_calls(calibration: Context, bags: Context, options: GuaranteeOptions) -> Guarantee:
    """Accept calls from the lowest confidence on that the calibration bags certify.

    The candidates are thresholds that accept stated shares of `bags`, so that the calibration bags
    only decide between them.

    Raises:
        UnmetGuarantee: there are too few groups even if all are accepted without an error.
    """
    assert options.max_error is not None
    groups = len(set(calibration.groups))
    least = least_accepted(max_error=options.max_error, delta=DELTA)
    if groups < least:
        raise UnmetGuarantee(
            f"--max-error {options.max_error:g} needs at least {least} calibration groups "
            f"(patients), all accepted without an error, but there are {groups}: add calibration "
            "bags or allow a larger error rate"
        )
    strictness = np.append(np.arange(min(1.0, START * least / groups), 1 - STEP / 2, STEP), 1.0)
    thresholds = np.quantile(confidence(bags), 1 - strictness, method="lower")
    thresholds[-1] = -np.inf
    rule = certified_threshold(
        thresholds,
        confidence=confidence(calibration),
        wrong=_wrong(calibration),
        groups=calibration.groups,
        max_error=options.max_error,
        delta=DELTA,
    )
    accepted = rule.accepts(confidence(bags))
    threshold, tried, undecided = rule.threshold, "this threshold", None
    if threshold is None:
        which, tried = "none can be certified", "the strictest threshold that was tried"
    elif threshold == -np.inf:
        which = "every call is accepted"
    elif bags.task.two_classes:
        low, high = undecided = expit(_middle(bags) + np.array([-threshold, threshold])).tolist()
        which = f"calls with p ≤ {low:.4g} or p ≥ {high:.4g} are accepted"
    else:
        which = f"calls with log odds of at least {threshold:.3f} are accepted"
    seen = "" if rule.error is None else f", of which {rule.error:.1%} are wrong"

    def means() -> Means:
        wrong, share = _wrong(bags), shares(bags)
        return {
            "accepted": (accepted, share),
            "error_of_accepted": (wrong, share * accepted),
            "error_of_all": (wrong, share),
        }

    return Guarantee(
        key="accepted",
        values={
            "max_error": options.max_error,
            "delta": DELTA,
            "certified": threshold is not None,
            "threshold_log_odds": None if threshold == -np.inf else threshold,
            "undecided": undecided,
            "calibration_groups": groups,
            "calibration_accepted": rule.accepted,
            "calibration_error": rule.error,
            "p_value": rule.p_value,
        },
        lines=[
            f"accepted calls: an error rate of at most {options.max_error:.3g}, with a probability "
            f"of {1 - DELTA:.3g}: {which}",
            f"  {groups} calibration groups: {tried} accepts {rule.accepted:.1%} of their calls"
            f"{seen} (p-value {rule.p_value:.2g})",
            f"  {accepted.sum()} of these {len(accepted)} calls are accepted",
        ],
        columns={"accepted": np.where(accepted, "yes", "no").tolist()},
        summary={"accepted": int(accepted.sum())},
        means=means,
    )


def confidence(bags: Context) -> Float[np.ndarray, " bags"]:
    """Return how far each call is from the other side, in log odds of the probability.

    With two classes, this is the distance |logit p - logit t| from the threshold t.
    """
    p = np.clip(bags.p, SMALLEST, 1 - SMALLEST)
    if bags.task.two_classes:
        return np.abs(logit(p[:, 1]) - _middle(bags))
    called = bags.task.calls(bags.p, bags.threshold)
    return logit(np.take_along_axis(p, called[:, None], axis=1)[:, 0])


def _middle(bags: Context) -> float:
    """Return the threshold of two classes in log odds."""
    threshold = HALF if bags.threshold is None else bags.threshold
    return float(logit(np.clip(threshold, SMALLEST, 1 - SMALLEST)))


def _wrong(bags: Context) -> Bool[np.ndarray, " bags"]:
    return bags.task.calls(bags.p, bags.threshold) != bags.y
