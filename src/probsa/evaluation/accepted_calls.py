"""Selective prediction: accept only confident calls, so that their error rate is bounded."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import expit, logit

from ..errors import UnmetGuarantee
from ..statistics import Metric, SelectiveRule, certified_threshold, least_accepted
from .evaluated import Evaluated
from .group_means import group_mean, rate_among

DELTA = 0.1
"""Probability that the error rate is larger than promised."""
START = 1.75
"""The strictest threshold accepts about this multiple of the least number of groups, so that one
wrong call among them is allowed."""
STEP = 0.05
"""Difference of the shares of accepted bags between thresholds."""
SMALLEST = 1e-12


def calls(evaluated: Evaluated, rows: Sequence[int]) -> np.ndarray:
    """Return the class that is called for each bag."""
    return evaluated.predictions.of_task.calls(evaluated.p(rows), evaluated.threshold)


def confidence(evaluated: Evaluated, rows: Sequence[int]) -> Float[np.ndarray, " bags"]:
    """Return how far each call is from the other side, in log odds of the probability.

    With two classes, this is the distance |logit p - logit t| from the threshold t.
    """
    p = np.clip(evaluated.p(rows), SMALLEST, 1 - SMALLEST)
    if evaluated.threshold is None or p.shape[1] > 2:
        called = calls(evaluated, rows)[:, None]
        return logit(np.take_along_axis(p, called, axis=1)[:, 0])
    return np.abs(logit(p[:, 1]) - _middle(evaluated.threshold))


def _middle(threshold: float) -> float:
    return float(logit(np.clip(threshold, SMALLEST, 1 - SMALLEST)))


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptedReport:
    """Accepted calls of the evaluated bags: what is promised, and what happened."""

    rule: SelectiveRule
    groups: int
    """Number of calibration groups."""
    undecided: tuple[float, float] | None
    """With two classes, calls with p(Y = 1) strictly between these are not accepted."""
    metrics: dict[str, Metric]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        threshold = self.rule.threshold
        return {
            "max_error": self.rule.max_error,
            "delta": self.rule.delta,
            "certified": threshold is not None,
            "threshold_log_odds": None if threshold in (None, -np.inf) else threshold,
            "undecided": self.undecided and list(self.undecided),
            "calibration_groups": self.groups,
            "calibration_accepted": self.rule.accepted,
            "calibration_error": self.rule.error,
            "p_value": self.rule.p_value,
            "metrics": {k: m.to_dict() for k, m in self.metrics.items()},
        }

    def lines(self) -> list[str]:
        """Return the report as sentences."""
        rule = self.rule
        promise = (
            f"accepted calls: an error rate of at most {rule.max_error:.3g}, with a probability "
            f"of {1 - rule.delta:.3g}"
        )
        if rule.threshold is None:
            accepts = "all" if rule.accepted == 1 else f"{rule.accepted:.1%}"
            seen = "" if rule.error is None else f", of which {rule.error:.1%} are wrong"
            return [
                f"{promise}: cannot be certified with {self.groups} calibration groups",
                f"  the strictest threshold that was tried accepts {accepts} of their calls{seen} "
                f"(p-value {rule.p_value:.3g})",
            ]
        if rule.threshold == -np.inf:
            which = "every call is accepted"
        elif self.undecided is None:
            which = f"calls with log odds of at least {rule.threshold:.3f} are accepted"
        else:
            low, high = self.undecided
            which = f"calls with p ≤ {low:.4g} or p ≥ {high:.4g} are accepted"
        return [
            f"{promise}: {which}",
            f"  {self.groups} calibration groups: {rule.accepted:.1%} of their calls are accepted, "
            f"of which {rule.error:.1%} are wrong (p-value {rule.p_value:.2g})",
        ]


def selective_rule(
    calibration: Evaluated, others: Float[np.ndarray, " bags"], *, max_error: float
) -> SelectiveRule:
    """Return the rule that the calibration bags certify.

    The candidates are thresholds that accept stated shares of other bags, whose labels are not
    used; the calibration bags only decide between them.

    Args:
        calibration: the calibration bags.
        others: the confidences of the bags that the rule is for.
        max_error: the largest error rate of accepted calls.

    Raises:
        UnmetGuarantee: there are too few groups even if all are accepted without an error.
    """
    rows = calibration.rows
    groups = calibration.groups(rows)
    count, least = len(set(groups)), least_accepted(max_error=max_error, delta=DELTA)
    if count < least:
        raise UnmetGuarantee(
            f"--max-error {max_error:g} needs at least {least} calibration groups (patients), all "
            f"accepted without an error, but there are {count}: add calibration bags or allow a "
            "larger error rate"
        )
    shares = np.append(np.arange(min(1.0, START * least / count), 1 - STEP / 2, STEP), 1.0)
    thresholds = np.quantile(others, 1 - shares, method="lower")
    thresholds[-1] = -np.inf
    return certified_threshold(
        thresholds,
        confidence=confidence(calibration, rows),
        wrong=calls(calibration, rows) != calibration.y(rows),
        groups=groups,
        max_error=max_error,
        delta=DELTA,
    )


def undecided_range(evaluated: Evaluated, rule: SelectiveRule) -> tuple[float, float] | None:
    """Return the open interval of p(Y = 1) that is not accepted, with two classes."""
    if evaluated.threshold is None or rule.threshold is None or rule.threshold == -np.inf:
        return None
    middle = _middle(evaluated.threshold)
    return float(expit(middle - rule.threshold)), float(expit(middle + rule.threshold))


def accepted_report(
    evaluated: Evaluated, calibration: Evaluated, *, max_error: float
) -> AcceptedReport:
    """Choose the rule on the calibration bags, and apply it to the evaluated bags.

    Raises:
        UnmetGuarantee: there are too few calibration groups; says how many are needed.
    """
    rows = evaluated.rows
    confidences = confidence(evaluated, rows)
    rule = selective_rule(calibration, confidences, max_error=max_error)
    wrong = calls(evaluated, rows) != evaluated.y(rows)
    accepted = rule.accepts(confidences)
    return AcceptedReport(
        rule=rule,
        groups=len(set(calibration.groups(calibration.rows))),
        undecided=undecided_range(evaluated, rule),
        metrics={
            "accepted": group_mean(evaluated, accepted),
            "error_of_accepted": rate_among(evaluated, wrong, accepted),
            "error_of_all": group_mean(evaluated, wrong),
        },
    )
