"""The titles of metrics, detectors and null maps in the text of reports, tables and figures."""

import re
from collections.abc import Mapping

from ..core import counted
from ..statistics import Metric, NoInterval

INTERVAL = "95 % interval"
"""The heading of intervals in tables."""
METRIC_TITLES = {
    "auroc": "AUROC",
    "macro_auroc": "AUROC, mean over classes",
    "average_precision": "average precision",
    "f1": "F1",
    "balanced_accuracy": "balanced accuracy",
    "accuracy": "accuracy",
    "brier": "Brier score",
    "ece": "ECE, 15 bins of equal width (interval biased upwards)",
    "quadratic_kappa": "kappa with quadratic weights",
    "within_one": "calls within one grade",
    "rps": "ranked probability score",
    "mae": "mean absolute error",
    "rmse": "root mean squared error",
    "r_squared": "R²",
    "spearman": "Spearman correlation",
    "crps": "CRPS",
    "uno_c": "Uno's c",
    "harrell_c": "Harrell's c",
    "mean_auroc": "AUROC, mean over times",
    "integrated_brier": "integrated Brier score",
    "nll": "negative log-likelihood",
    "f1_at_0.5": "F1 at 0.5",
    "sensitivity": "sensitivity",
    "specificity": "specificity",
    "error_auroc_spread": "wrong bags found by s, the s.d. of p (AUROC)",
    "error_auroc_margin": "… by the margin of the call (null)",
    "macro_average_precision": "average precision, mean over classes",
    "macro_f1": "F1, mean over classes",
    "recall": "recall",
    "macro_ece": "ECE, mean over findings",
    "kappa": "Cohen's kappa",
    "linear_kappa": "kappa with linear weights",
    "coverage": "coverage",
    "width": "mean width",
}
"""Metrics of bags, of every task, in the order of model cards; see `metric_titles`."""
NOT_ON_CARDS = {
    "f1_at_0.5",
    "sensitivity",
    "specificity",
    "error_auroc_spread",
    "error_auroc_margin",
    "macro_average_precision",
    "macro_f1",
    "recall",
    "macro_ece",
    "kappa",
    "linear_kappa",
    "coverage",
    "width",
}
"""Metrics that a model card leaves out."""


def metric_titles(metrics: Mapping[str, Metric]) -> dict[str, str]:
    """Return the titles of metrics of bags by their names."""
    titles = {}
    for name, m in metrics.items():
        if m.partial is None:
            titles[name] = METRIC_TITLES[name]
        else:
            findings = f"{m.partial.defined} of {m.partial.findings} findings"
            titles[name] = f"{METRIC_TITLES[m.partial.metric]} ({findings})"
    return titles


INSTANCE_TITLES = {
    "auroc": "AUROC, all bags pooled",
    "average_precision": "average precision, all bags pooled",
    "auroc_positive_bags": "AUROC, positive bags pooled",
    "average_precision_positive_bags": "average precision, positive bags pooled",
    "error_rate": "wrong calls, positive bags pooled",
    "error_auroc_variance": "wrong calls found by σ² (AUROC)",
    "error_auroc_doubt": "… by P(wrong)",
    "error_auroc_margin": "… by −|e| (null)",
    "dice": "Dice at the validation threshold, mean over positive bags",
    "dice_pooled": "Dice at the validation threshold, positive bags pooled",
}
"""Metrics of instances that a report shows, in order."""
POOLED = (
    "Pooled metrics rank the instances of all these bags together, so scores that only tell "
    "positive bags from negative ones can make them high."
)
"""The sentence below the table of instances."""

WITHIN_TITLES = {
    "auroc_within_bags": "AUROC",
    "average_precision_within_bags": "AP",
    "pointing_game": "top instance",
    "top_share": "top 1 %",
}

NULL_TITLES = {
    "centre": "the distance from the centre",
    "position": "the place within the bag",
    "norm": "the length of the features",
    "mahalanobis": "the distance from the mean instance",
    "mean_features": "the regression on mean features",
    "single_instance": "the regression on single instances",
    "darkness": "darkness",
    "brightness": "brightness",
}

BAG_DETECTORS = {
    "doubt": "P(wrong)",
    "flip": "P(the call flips)",
    "spread": "s, the standard deviation of p",
    "within": "s within members",
    "between": "s between members",
    "ood": "distance from training",
    "margin": "−|p − t|",
    "entropy": "entropy of p",
}
OF_SEVERAL_CLASSES = {"spread": "s of the called class", "margin": "margin of the call"}
"""The titles that differ with three classes or more."""
INSTANCE_DETECTORS = {
    "doubt": "P(wrong)",
    "flip": "P(the call flips)",
    "flip_within": "P(the call flips) with σ within members",
    "flip_between": "P(the call flips) with σ between members",
    "variance": "σ²",
    "ood": "distance from training",
    "margin": "−|e|",
    "entropy": "−w log w",
}
DETECTORS_IN_WORDS = {
    "doubt": "P(wrong), the probability of the other call,",
    "flip": "P(the call flips), from the standard deviation and the threshold,",
}
"""The detectors that are compared with the margin, in a sentence."""
NULL_DETECTORS = ("margin", "entropy")
"""The detectors that need no posterior, which the others have to beat."""
NULL_MARK = " (null)"


def detector_titles(titles: Mapping[str, str] = INSTANCE_DETECTORS) -> dict[str, str]:
    """Return the titles of detectors, by default of instances; null rivals have a mark."""
    return {
        name: f"{title}{NULL_MARK}" if name in NULL_DETECTORS else title
        for name, title in titles.items()
    }


def no_interval_text(missing: NoInterval, *, unit: str = "patient") -> str:
    """Say why a value has no interval; an empty string if no interval was asked for.

    unit: what is resampled, in the singular.
    """
    if missing.cause == "few patients":
        part = "" if missing.part is None else f" {missing.part}"
        return f"no interval: {counted(missing.patients or 0, unit)}{part}"
    if missing.cause == "undefined resamples":
        return "no interval: it is undefined in most resamples"
    if missing.cause == "no variation":
        return "no interval: it is the same in all resamples"
    if missing.cause == "at the limit":
        return "no interval: it is at the limit of its scale, but not in all resamples"
    return ""


LEADING_ZERO = re.compile(r"(?<!\d)0\.")
"""The zero of numbers below 1; that of 10.5 stays."""


def shortened(text: str) -> str:
    """Return shares without the zero before the point and with minus signs: `.812`, `−.05`."""
    return LEADING_ZERO.sub(".", text).replace("-", "−")


SCORE_MEANINGS = {
    "logit": "an attention logit (what the model pools; it has no level)",
    "weight": "an attention weight (what the model pools; the weights of a bag sum to 1)",
    "probability": "the probability that the instance is positive",
    "relevance": "a relevance (how much of the bag's prediction it carries)",
    "evidence": "evidence (above 0 it speaks for the class, below 0 against it)",
}
"""What the score of an instance is, by `Prediction.score_kind`, in a few words."""
