"""All metrics of a target with three or more classes of equal standing.

The class with the highest probability is called. The Brier score is the sum over the classes and
lies between 0 and 2; half of it compares with the score of two classes.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int, Num

from ..errors import InputError
from .areas_by_class import (
    class_areas,
    class_weights,
    mean_over_classes,
    micro_areas,
    one_vs_one_auroc,
)
from .bootstrap import Draws
from .calibration import calibration_error, equal_width_bins
from .confusion_matrix import accuracy, class_f1s, class_recalls, cohen_kappa, confusion, matthews
from .metric import Metric
from .sampled import mean_of_items
from .target_metrics import TargetMetrics

SMALLEST = float(np.finfo(np.float32).eps)
"""Lower limit of the probabilities in the NLL, because predictions are stored as float32."""


def multiclass_metrics(
    y: Int[np.ndarray, " bags"],
    p: Float[np.ndarray, "bags classes"],
    *,
    names: Sequence[str] | None = None,
    draws: Draws | None = None,
) -> TargetMetrics:
    """Return the metrics over all bags, and those of each class against the rest.

    Args:
        y: the class of each bag, from 0.
        p: the probability of each class.
        names: the name of each class; None for its index.
        draws: resamples, with the data as row 0; None for the data alone.

    Raises:
        InputError: labels and probabilities do not fit each other.
    """
    check_classes(y, p)
    classes = p.shape[1]
    names = [str(c) for c in range(classes)] if names is None else names
    draws = Draws.of_data(len(y)) if draws is None else draws
    aurocs, precisions = class_areas(y, p, names=names, draws=draws)
    matrix = confusion(y, p.argmax(1), classes=classes, draws=draws)
    f1s, recalls = class_f1s(matrix, names=names), class_recalls(matrix, names=names)
    errors = class_calibration_errors(y, p, draws=draws)
    micro_auroc, micro_precision = micro_areas(y, p, draws=draws)
    shares = class_weights(y, classes=classes, draws=draws)
    top = p.max(1)
    overall = {
        "macro_auroc": mean_over_classes(aurocs),
        "weighted_auroc": mean_over_classes(aurocs, weights=shares),
        "micro_auroc": micro_auroc,
        "one_vs_one_auroc": one_vs_one_auroc(y, p, names=names, draws=draws),
        "macro_average_precision": mean_over_classes(precisions),
        "micro_average_precision": micro_precision,
        "macro_f1": mean_over_classes(f1s),
        "balanced_accuracy": mean_over_classes(recalls),
        "accuracy": accuracy(matrix),
        "kappa": cohen_kappa(matrix),
        "linear_kappa": cohen_kappa(matrix, weighting="linear"),
        "quadratic_kappa": cohen_kappa(matrix, weighting="quadratic"),
        "matthews": matthews(matrix),
        "nll": class_nll(y, p, draws=draws),
        "brier": class_brier(y, p, draws=draws),
        "ece": calibration_error(top, p.argmax(1) == y, bins=equal_width_bins(top), draws=draws),
        "classwise_ece": mean_over_classes(errors),
    }
    by_part: dict[str, dict[str, Metric]] = {
        name: {
            "auroc": aurocs[c],
            "average_precision": precisions[c],
            "f1": f1s[c],
            "recall": recalls[c],
            "ece": errors[c],
        }
        for c, name in enumerate(names)
    }
    return TargetMetrics(overall=overall, by_part=by_part)


def class_nll(
    y: Int[np.ndarray, " bags"], p: Float[np.ndarray, "bags classes"], *, draws: Draws
) -> Metric:
    """Return the mean of -log p_y."""
    of_label = np.take_along_axis(p, y[:, None], axis=1)[:, 0]
    return mean_of_items(-np.log(np.maximum(of_label, SMALLEST)), draws=draws)


def class_brier(
    y: Int[np.ndarray, " bags"], p: Float[np.ndarray, "bags classes"], *, draws: Draws
) -> Metric:
    """Return the mean of Σ_c (p_c - y_c)², between 0 and 2."""
    return mean_of_items(((p - np.eye(p.shape[1])[y]) ** 2).sum(1), draws=draws)


def class_calibration_errors(
    y: Int[np.ndarray, " bags"], p: Float[np.ndarray, "bags classes"], *, draws: Draws
) -> list[Metric]:
    """Return the ECE of each class, p_c against the frequency of y = c, in bins of equal width."""
    return [
        calibration_error(p[:, c], y == c, bins=equal_width_bins(p[:, c]), draws=draws)
        for c in range(p.shape[1])
    ]


def check_classes(y: Int[np.ndarray, " bags"], p: Num[np.ndarray, "bags classes"]) -> None:
    """Check that labels and probabilities fit each other.

    Raises:
        InputError: their numbers differ, or a label or a probability is out of its range.
    """
    if len(y) != len(p):
        raise InputError(f"{len(y)} labels for {len(p)} rows of probabilities: expected as many")
    if not bool(((p >= 0) & (p <= 1)).all()):
        raise InputError("probabilities must lie in [0, 1]; some are outside, or nan")
    if len(y) and not 0 <= y.min() <= y.max() < p.shape[1]:
        raise InputError(
            f"labels go from {y.min()} to {y.max()}, "
            f"but these probabilities are for classes 0 to {p.shape[1] - 1}"
        )
