"""Metrics of several findings per bag, of which some may be missing (nan).

Each finding is judged on the bags in which it was observed. A mean over findings is only called a
mean over all if all have a value; otherwise the mean of the others has another name, which gives
their number. Metrics of whole rows use the bags in which every finding was observed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from ..errors import InputError
from .areas_by_class import binary_areas
from .bootstrap import Draws
from .calibration import calibration_error, equal_width_bins
from .metric import Metric, one_class_reason
from .multiclass import SMALLEST
from .replicates import f1_and_accuracy
from .sampled import mean_of_items
from .target_metrics import TargetMetrics

NO_THRESHOLDS = "no thresholds were given: choose them on validation bags"


@dataclass(frozen=True, kw_only=True, slots=True)
class FindingMean:
    """The mean of a metric over findings, and which findings it leaves out."""

    of_all: Metric
    """Undefined as soon as one finding is left out."""
    of_defined: Metric
    """The mean over the findings that have a value."""
    findings: int
    left_out: tuple[str, ...]
    """Names of the findings without a value."""

    def by_name(self, name: str) -> dict[str, Metric]:
        """Return the mean over all, and if it is undefined also that over fewer, as `x_3_of_5`."""
        metrics = {name: self.of_all}
        if self.left_out:
            defined = self.findings - len(self.left_out)
            metrics[f"{name}_{defined}_of_{self.findings}"] = self.of_defined
        return metrics


def mean_over_findings(per_finding: Mapping[str, Metric]) -> FindingMean:
    """Return the mean over findings; a resample in which one of them has no value is nan."""
    rows = [m.rows for m in per_finding.values() if m.rows is not None]
    reasons = {name: m.reason for name, m in per_finding.items() if m.rows is None}
    detail = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    left_out = Metric.undefined(f"{len(reasons)} of {len(per_finding)} findings ({detail})")
    defined = Metric.of(np.mean(rows, axis=0)) if rows else left_out
    return FindingMean(
        of_all=left_out if reasons else defined,
        of_defined=defined,
        findings=len(per_finding),
        left_out=tuple(reasons),
    )


def label_ranking_precisions(
    y: Bool[np.ndarray, "bags findings"], p: Float[np.ndarray, "bags findings"]
) -> Float[np.ndarray, " bags"]:
    """Return for each bag the mean over its findings of their precision at their own rank.

    It is 1 for a bag with no finding or with all of them, as in scikit-learn.
    """
    at_least = p[:, None, :] >= p[:, :, None]
    precision = (at_least & y[:, None, :]).sum(2) / at_least.sum(2)
    count = y.sum(1)
    mean = (precision * y).sum(1) / np.maximum(count, 1)
    return np.where(count == 0, 1.0, mean)


def mean_cross_entropies(
    y: Float[np.ndarray, "bags findings"], p: Float[np.ndarray, "bags findings"]
) -> Float[np.ndarray, " bags"]:
    """Return the mean binary cross-entropy over the observed findings of each bag, or nan."""
    observed = ~np.isnan(y)
    of_label = np.where(y == 1, p, 1 - p)
    loss = np.where(observed, -np.log(np.maximum(of_label, SMALLEST)), 0.0).sum(1)
    count = observed.sum(1)
    return np.divide(loss, count, out=np.full(len(y), np.nan), where=count > 0)


def multilabel_metrics(
    y: Float[np.ndarray, "bags findings"],
    p: Float[np.ndarray, "bags findings"],
    *,
    names: Sequence[str],
    thresholds: Sequence[float] | None = None,
    draws: Draws | None = None,
) -> TargetMetrics:
    """Return the metrics over all findings, and those of each finding on its observed bags.

    Args:
        y: 1 if a bag has the finding, 0 if not, nan if this was not observed.
        p: the probability of each finding.
        names: the name of each finding.
        thresholds: the smallest probability of a positive call of each finding; None for no
            metrics of calls.
        draws: resamples, with the data as row 0; None for the data alone.

    Raises:
        InputError: labels and probabilities do not fit each other.
    """
    _check(y, p, names=names, thresholds=thresholds)
    draws = Draws.of_data(len(y)) if draws is None else draws
    called = None if thresholds is None else p >= np.asarray(thresholds, dtype=np.float64)
    by_part = {
        name: _finding(y[:, c], p[:, c], None if called is None else called[:, c], draws=draws)
        for c, name in enumerate(names)
    }
    overall: dict[str, Metric] = {}
    notes = []
    for key in ("auroc", "average_precision", "f1", "ece"):
        mean = mean_over_findings({name: metrics[key] for name, metrics in by_part.items()})
        # Without thresholds, no finding has F1: that is no matter of fewer findings.
        no_calls = key == "f1" and called is None
        named = {"f1": Metric.undefined(NO_THRESHOLDS)} if no_calls else mean.by_name(key)
        overall |= {f"macro_{k}": metric for k, metric in named.items()}
        if mean.left_out and not no_calls:
            notes.append(f"macro {key} over all findings leaves out {', '.join(mean.left_out)}")
    overall |= _micro(y, p, called, draws=draws)
    overall |= _whole_rows(y, p, called, draws=draws)
    losses = mean_cross_entropies(y, p)
    some = np.flatnonzero(~np.isnan(losses))
    overall["nll"] = mean_of_items(losses[some], draws=draws.for_items(some))
    return TargetMetrics(overall=overall, by_part=by_part, notes=tuple(notes))


def _finding(
    y: Float[np.ndarray, " bags"],
    p: Float[np.ndarray, " bags"],
    called: Bool[np.ndarray, " bags"] | None,
    *,
    draws: Draws,
) -> dict[str, Metric]:
    rows = np.flatnonzero(~np.isnan(y))
    of_finding, present, score = draws.for_items(rows), y[rows] == 1, p[rows]
    reason = one_class_reason(present, what="observed bags")
    auroc, precision = binary_areas(present, score, draws=of_finding, reason=reason)
    bins = equal_width_bins(score)
    return {
        "auroc": auroc,
        "average_precision": precision,
        "f1": _f1(present, None if called is None else called[rows], draws=of_finding),
        "ece": calibration_error(score, present, bins=bins, draws=of_finding),
    }


def _f1(
    y: Bool[np.ndarray, " cells"], called: Bool[np.ndarray, " cells"] | None, *, draws: Draws
) -> Metric:
    if called is None:
        return Metric.undefined(NO_THRESHOLDS)
    if not y.any():
        return Metric.undefined(f"no positive among {len(y)}: F1 is undefined")
    return Metric.of(f1_and_accuracy(y, called, draws=draws)[0])


def _micro(
    y: Float[np.ndarray, "bags findings"],
    p: Float[np.ndarray, "bags findings"],
    called: Bool[np.ndarray, "bags findings"] | None,
    *,
    draws: Draws,
) -> dict[str, Metric]:
    """Return the metrics of all observed pairs of a bag and a finding, pooled."""
    bag, finding = np.nonzero(~np.isnan(y))
    cells, present = draws.for_items(bag), y[bag, finding] == 1
    reason = one_class_reason(present, what="observed findings")
    auroc, precision = binary_areas(present, p[bag, finding], draws=cells, reason=reason)
    f1 = _f1(present, None if called is None else called[bag, finding], draws=cells)
    return {"micro_auroc": auroc, "micro_average_precision": precision, "micro_f1": f1}


def _whole_rows(
    y: Float[np.ndarray, "bags findings"],
    p: Float[np.ndarray, "bags findings"],
    called: Bool[np.ndarray, "bags findings"] | None,
    *,
    draws: Draws,
) -> dict[str, Metric]:
    """Return the metrics of bags in which every finding was observed."""
    rows = np.flatnonzero(~np.isnan(y).any(1))
    keys: tuple[str, ...] = ("subset_accuracy", "hamming_loss", "label_ranking_precision")
    if len(rows) == 0:
        reason = f"no bag among {len(y)} has all {y.shape[1]} findings observed"
        return {key: Metric.undefined(reason) for key in keys}
    complete, present = draws.for_items(rows), y[rows] == 1
    metrics = {key: Metric.undefined(NO_THRESHOLDS) for key in keys}
    if called is not None:
        wrong = called[rows] != present
        right = (~wrong.any(1)).astype(np.float64)
        metrics["subset_accuracy"] = mean_of_items(right, draws=complete)
        metrics["hamming_loss"] = mean_of_items(wrong.mean(1), draws=complete)
    ranked = label_ranking_precisions(present, p[rows])
    metrics["label_ranking_precision"] = mean_of_items(ranked, draws=complete)
    return metrics


def _check(
    y: Float[np.ndarray, "bags findings"],
    p: Float[np.ndarray, "bags findings"],
    *,
    names: Sequence[str],
    thresholds: Sequence[float] | None,
) -> None:
    if not bool(np.isin(y[~np.isnan(y)], (0, 1)).all()):
        raise InputError("labels of findings must be 0, 1 or nan (not observed); some are not")
    if not bool(((p >= 0) & (p <= 1)).all()):
        raise InputError("probabilities must lie in [0, 1]; some are outside, or nan")
    if len(names) != y.shape[1]:
        raise InputError(f"{len(names)} names for {y.shape[1]} findings: expected one each")
    if thresholds is not None and len(thresholds) != y.shape[1]:
        raise InputError(
            f"{len(thresholds)} thresholds for {y.shape[1]} findings: expected as many"
        )
