"""All metrics of a target with two classes, by the probability of the positive one."""

import numpy as np
from jaxtyping import Bool, Float, Int

from .areas_by_class import binary_areas
from .bootstrap import Draws
from .calibration import calibration_error, equal_width_bins
from .metric import one_class_reason
from .multiclass import SMALLEST, check_classes
from .replicates import f1_and_accuracy
from .sampled import SampledMetric, mean_of_items, ratio_of_sums
from .target_metrics import TargetMetrics

NO_THRESHOLD = "no threshold was given: choose one on validation bags"


def binary_metrics(
    labels: Int[np.ndarray, " bags"],
    p: Float[np.ndarray, " bags"],
    *,
    threshold: float | None,
    draws: Draws | None = None,
) -> TargetMetrics:
    """Return the metrics over all bags.

    Args:
        labels: 1 for each positive bag, else 0.
        p: the probability that it is.
        threshold: the probability from which a bag is called positive, chosen on validation bags;
            without one, metrics of calls are undefined, except for F1 at 0.5.
        draws: resamples, with the data as row 0; None for the data alone.

    Raises:
        InputError: labels and probabilities do not fit each other.
    """
    check_classes(labels, np.stack([1 - p, p], axis=1))
    y = labels == 1
    draws = Draws.of_data(len(y)) if draws is None else draws
    reason = one_class_reason(y, what="bags")
    auroc, average_precision = binary_areas(y, p, draws=draws, reason=reason)
    if reason is not None:
        auroc = SampledMetric.undefined(f"{reason}: AUROC is undefined")
        average_precision = SampledMetric.undefined(f"{reason}: average precision is undefined")
    calls = dict.fromkeys(
        ("f1", "balanced_accuracy", "accuracy"), SampledMetric.undefined(NO_THRESHOLD)
    )
    if threshold is not None:
        calls = call_metrics(y, p >= threshold, draws=draws)
    of_label = np.where(y, p, 1 - p)
    overall = {
        "auroc": auroc,
        "average_precision": average_precision,
        "f1": calls["f1"],
        "f1_at_0.5": call_metrics(y, p >= 0.5, draws=draws)["f1"],
        "balanced_accuracy": calls["balanced_accuracy"],
        "accuracy": calls["accuracy"],
        "brier": mean_of_items((p - y) ** 2, draws=draws),
        "ece": calibration_error(p, y, bins=equal_width_bins(p), draws=draws),
        "nll": mean_of_items(-np.log(np.maximum(of_label, SMALLEST)), draws=draws),
    }
    return TargetMetrics(overall=overall, by_part={})


def call_metrics(
    y: Bool[np.ndarray, " bags"], called: Bool[np.ndarray, " bags"], *, draws: Draws
) -> dict[str, SampledMetric]:
    """Return F1, accuracy and balanced accuracy (the mean of both recalls) of positive calls."""
    metrics = {
        "f1": SampledMetric.undefined(f"no positive bag among {len(y)}: F1 is undefined"),
        "accuracy": mean_of_items((y == called).astype(np.float64), draws=draws),
    }
    if y.any():
        metrics["f1"] = SampledMetric(rows=f1_and_accuracy(y, called, draws=draws)[0])
    if reason := one_class_reason(y, what="bags"):
        reason = f"{reason}: balanced accuracy is undefined"
        return metrics | {"balanced_accuracy": SampledMetric.undefined(reason)}
    sensitivity = ratio_of_sums(y & called, y, draws=draws).rows
    specificity = ratio_of_sums(~y & ~called, ~y, draws=draws).rows
    assert sensitivity is not None and specificity is not None
    return metrics | {"balanced_accuracy": SampledMetric(rows=(sensitivity + specificity) / 2)}
