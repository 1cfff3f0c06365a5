"""Measures of instances: functions of a column of the table, its labels and the resamples.

Pooled measures rank the instances of many bags together. Measures within bags ask where in a bag
the evidence lies: they cannot be raised by telling positive bags from negative ones. A model's map
and a null map, one run and the mean over replicates go through the same functions.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Num
from scipy.stats import rankdata
from sklearn.metrics import roc_curve

from ...core import counted
from ...statistics import (
    MEAN_SHARE,
    SHARE,
    Draws,
    Metric,
    Scale,
    areas,
    class_support,
    mean_of_items,
)
from ..claims import Claim
from ..scores import NO_VARIANCE
from ..words import INSTANCE_DETECTORS, NULL_DETECTORS
from .table import NO_CALLS, Column, InstanceTable, Values


class Items(NamedTuple):
    """What is counted in a sentence, in the singular and in the plural."""

    one: str
    many: str

    def counted(self, number: int) -> str:
        """Return a number of them, as “1 bag”."""
        return counted(number, self.one, self.many)


BAGS = Items("bag", "bags")
INSTANCES_OF_POSITIVE_BAGS = Items("instance of positive bags", "instances of positive bags")
POSITIVE_BAGS = INSTANCES_OF_POSITIVE_BAGS.many
WITHIN = "auroc_within_bags"
POINTING_GAME = "pointing_game"
WITHIN_BAGS = (WITHIN, "average_precision_within_bags", POINTING_GAME, "top_share")
"""AUROC; average precision; whether the top instance is positive; the positive share of the top
1 % of instances (at least one). Instances with equal scores count as in a random order."""
TOP = 0.01
POSITIVE_INSTANCES = "with positive instances"
CALLED_INSTANCES = "with called instances"
INSTANCE_PARTS = ("with negative instances", POSITIVE_INSTANCES)
CALL_PARTS = ("with right calls", "with wrong calls")
MIXED = "with instances of both labels"
"""The parts of instances on which metrics rest, see `NoInterval.part`."""
NO_MIXED_BAG = "no positive bag has instances of both labels"
NO_VALIDATION = "no validation predictions to choose a threshold on"
NO_LABELS = "no positive validation bag has instance labels to choose a threshold on"
NEED_VARIANCE = ("variance", "flip", "flip_within", "flip_between")
"""The detectors that a posterior without a variance does not have."""
DETECTORS = (*NEED_VARIANCE, "doubt", "margin", "entropy")
"""Scores that are high where a call may be wrong; `margin` and `entropy` are the null rivals."""
DETECTOR_AREAS = tuple(f"error_auroc_{name}" for name in DETECTORS)
"""The keys of the metrics that say how well a detector finds wrong calls."""
WRONG_CALLS = ("error_rate", *DETECTOR_AREAS)
GAINS = ("error_auroc_gain", "error_auroc_doubt_gain")
AGAINST_MARGIN = {"doubt": "P(wrong)", "flip": "The probability that the call flips"}
"""The detectors that are compared with the margin alone, in sentences."""


def pooled(
    table: InstanceTable, column: Column, *, draws: Draws, what: str = "instances"
) -> dict[str, Metric]:
    """Return `auroc` and `average_precision` of a column over all rows of the table.

    draws: resamples of the table's bags; what: the instances in the plural, for reasons.
    """
    return areas(
        table.y,
        table[column],
        draws=draws.for_items(table.bag),
        what=what,
        names=INSTANCE_PARTS,
        scale=MEAN_SHARE,
    )


def within_bags(table: InstanceTable, column: Column, *, draws: Draws) -> dict[str, Metric]:
    """Return the means of `WITHIN_BAGS` over the positive bags with instances of both labels."""
    mixed = table.mixed
    if not mixed.any():
        return dict.fromkeys(WITHIN_BAGS, Metric.undefined(NO_MIXED_BAG))
    values = np.zeros((len(table.names), len(WITHIN_BAGS)))
    for b, rows in enumerate(bag_rows(table)):
        if mixed[b]:
            values[b] = within_bag(table.y[rows], table[column][rows])
    support = draws.support({MIXED: mixed})
    metrics = {}
    for k, name in enumerate(WITHIN_BAGS):
        scale = SHARE if name == POINTING_GAME else MEAN_SHARE
        rows = draws.ratio(values[:, k], mixed)
        metrics[name] = Metric.of(rows, support=support, scale=scale)
    return metrics


def bag_rows(table: InstanceTable) -> list[slice]:
    """Return the rows of each bag, which follow one another."""
    ends = np.cumsum(np.bincount(table.bag, minlength=len(table.names))).tolist()
    return [slice(start, end) for start, end in pairwise([0, *ends])]


def within_bag(
    y: Bool[np.ndarray, " n"], score: Num[np.ndarray, " n"]
) -> Float[np.ndarray, " measures"]:
    """Return the measures of `WITHIN_BAGS` of a bag that has instances of both labels."""
    auroc_and_precision = Draws.of_data(len(y)).ranks(y, score.astype(np.float64))[:, 0]
    top_instance = precision_of_top(y, score, count=1)
    top_share = precision_of_top(y, score, count=max(1, round(TOP * len(y))))
    return np.array([*auroc_and_precision, top_instance, top_share])


def precision_of_top(
    y: Bool[np.ndarray, " n"], score: Num[np.ndarray, " n"], *, count: int
) -> float:
    """Return the expected share of positives among the `count` highest scores, ties broken at
    random."""
    limit = np.partition(score, len(score) - count)[len(score) - count]
    above = score > limit
    tied = score == limit
    # the places that are left go to tied instances, each of which is positive with equal chance
    places_left = count - above.sum()
    return float((y[above].sum() + y[tied].mean() * places_left) / count)


def rank_correlation(
    score: Float[np.ndarray, " n"], change: Float[np.ndarray, " n"]
) -> float | None:
    """Return Spearman's correlation; None if all values of one of them are equal."""
    if np.ptp(change) == 0 or np.ptp(score) == 0:
        return None
    return float(np.corrcoef(rankdata(score), rankdata(change))[0, 1])


def dice(
    table: InstanceTable, called: Bool[np.ndarray, " n"], *, draws: Draws
) -> dict[str, Metric]:
    """Return `dice`, the mean over the bags with a positive instance, and `dice_pooled`.

    table: the instances of positive bags; called: whether each instance is called positive.
    """
    if not table.y.any():
        reason = f"no positive instance among {len(table.y)} of positive bags"
        return dict.fromkeys(("dice", "dice_pooled"), Metric.undefined(reason))
    # Dice of a bag: 2 TP / (positive + called), in numbers of its instances
    twice_hits = 2 * table.bag_sums(table.y & called)
    positive = table.bag_sums(table.y)
    sizes = positive + table.bag_sums(called)
    defined = positive > 0
    dice_of_bags = np.divide(twice_hits, sizes, out=np.zeros(len(sizes)), where=defined)
    # a resample without a positive instance has no value, even if it has called ones
    defined_bags = draws.totals(defined[:, None])[:, 0]
    pooled_rows = np.where(defined_bags > 0, draws.ratio(twice_hits, sizes), np.nan)
    support = draws.support({POSITIVE_INSTANCES: defined})
    return {
        "dice": Metric.of(draws.ratio(dice_of_bags, defined), support=support, scale=MEAN_SHARE),
        "dice_pooled": Metric.of(pooled_rows, support=support, scale=MEAN_SHARE),
    }


def recall_and_precision(
    table: InstanceTable, called: Bool[np.ndarray, " n"], *, draws: Draws
) -> dict[str, Metric]:
    """Return the share of positive instances that are called, and of called ones that are positive.

    table: the instances of positive bags; called: whether each instance is called positive.
    """
    hits = table.bag_sums(table.y & called)
    parts = {
        "recall": (table.bag_sums(table.y), POSITIVE_INSTANCES, "no positive instance"),
        "precision": (table.bag_sums(called), CALLED_INSTANCES, "no called instance"),
    }
    metrics = {}
    for name, (among, part, reason) in parts.items():
        metrics[name] = Metric.of(
            draws.ratio(hits, among),
            support=draws.support({part: among > 0}),
            scale=MEAN_SHARE,
            reason=reason,
        )
    return metrics


def dice_threshold(y: Bool[np.ndarray, " n"], score: Float[np.ndarray, " n"]) -> float:
    """Return the score threshold with the best pooled Dice, 2 TP / (called + positive).

    Ties are resolved towards the highest threshold. There must be instances of both labels.
    """
    true, false, thresholds = _called(y, score)
    pooled_dice = 2 * true / (true + false + y.sum())
    return float(thresholds[np.argmax(pooled_dice)])


def _called(
    y: Bool[np.ndarray, " n"], score: Float[np.ndarray, " n"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return true and false positives at each threshold, from the highest one on.

    In counts, because equal products of rates may differ in their last digit.
    """
    false, true, thresholds = roc_curve(y, score, drop_intermediate=False)
    return np.rint(true * y.sum()), np.rint(false * (~y).sum()), thresholds


def no_threshold_reason(validation: InstanceTable | None) -> str | None:
    """Return the reason why no threshold can be chosen on validation bags, or None.

    validation: the instances of positive validation bags; None without validation predictions.
    """
    if validation is None:
        return NO_VALIDATION
    if len(validation.y) == 0:
        return NO_LABELS
    if validation.y.all() or not validation.y.any():
        return f"only one class among {len(validation.y)} instances of positive validation bags"
    return None


def wrong_calls(table: InstanceTable, *, draws: Draws) -> dict[str, Metric]:
    """Return the `detections` of the instances of positive bags by every score of `DETECTORS`."""
    if table.called is None:
        return dict.fromkeys(WRONG_CALLS, Metric.undefined(NO_CALLS))
    scores = {name: detector(table, name) for name in DETECTORS}
    wrong = table.called != table.y
    draws_of_items = draws.for_items(table.bag)
    return detections(
        wrong, scores, draws=draws_of_items, items=INSTANCES_OF_POSITIVE_BAGS, scale=MEAN_SHARE
    )


def detector(table: InstanceTable, name: str) -> Values | str:
    """Return a score that should be high where calls are wrong, or why it says nothing."""
    if name in table.missing:
        return table.missing[name]
    if name in NEED_VARIANCE and not (table["variance"].any() and np.ptp(table[name]) > 0):
        return NO_VARIANCE
    return table[name]


def detections(
    wrong: Bool[np.ndarray, " n"],
    scores: Mapping[str, Values | str],
    *,
    draws: Draws,
    items: Items,
    scale: Scale = SHARE,
) -> dict[str, Metric]:
    """Return `error_rate`, and for each score `error_auroc_<name>`.

    Args:
        wrong: whether the call of each item is wrong.
        scores: scores that are high where a call is doubtful, or the reasons why there are none.
        draws: resamples of the items.
        items: what the items are.
        scale: `MEAN_SHARE` for items that are many in each patient.
    """
    undefined = None
    if not len(wrong):
        undefined = f"no {items.many}"
    elif wrong.all() or not wrong.any():
        missing = "right" if wrong.any() else "wrong"
        undefined = f"no {missing} call among {items.counted(len(wrong))}: errors cannot be ranked"
    rate = Metric.undefined(undefined or "")
    if len(wrong):
        rate = mean_of_items(wrong, draws=draws, scale=scale)
    metrics = {"error_rate": rate}
    for name, score in scores.items():
        area = Metric.undefined(undefined or str(score))
        if undefined is None and not isinstance(score, str):
            area = Metric.of(
                draws.auroc(wrong, score),
                support=class_support(wrong, draws=draws, names=CALL_PARTS),
                scale=scale,
            )
        metrics[f"error_auroc_{name}"] = area
    return metrics


def gains(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """Return how much better σ² finds wrong calls than the better null, and P(wrong) than −|e|."""
    doubt_gain = metrics["error_auroc_doubt"] - metrics["error_auroc_margin"]
    best_rival = metrics[f"error_auroc_{_best_rival(metrics)}"]
    variance_gain = metrics["error_auroc_variance"] - best_rival
    return {"error_auroc_gain": variance_gain, "error_auroc_doubt_gain": doubt_gain}


def _best_rival(metrics: Mapping[str, Metric]) -> str:
    """Return the null rival with the highest AUROC in the data."""
    values = {d: metrics[f"error_auroc_{d}"].value for d in NULL_DETECTORS}
    return max(values, key=lambda d: values[d] or 0.0)


def detector_claim(gain: Metric) -> Claim | None:
    """Return what the interval of an AUROC's gain shows; None if it shows nothing."""
    if gain.is_above(0.0):
        return Claim.DOUBT_IS_BETTER
    return Claim.DOUBT_IS_WORSE if gain.is_below(0.0) else None


def detector_verdict(
    metrics: Mapping[str, Metric],
    score: Literal["variance", "doubt", "flip"],
    *,
    what: str = POSITIVE_BAGS,
) -> str:
    """Say whether σ² finds wrong calls better than its null rivals, or another than the margin.

    metrics: those of `instance_metrics`, or `detections` with `error_auroc_<score>_gain`.
    """
    if score != "variance":
        name = AGAINST_MARGIN[score]
        rival = "margin"
        gain = metrics[f"error_auroc_{score}_gain"]
        rivals = best = "the margin"
        title = ""
    else:
        name = "σ²"
        rival = _best_rival(metrics)
        gain = metrics["error_auroc_gain"]
        rivals = "all null rivals"
        best = "the best null rival"
        title = f" of {INSTANCE_DETECTORS[rival]}, its best null rival,"
    area = metrics[f"error_auroc_{score}"]
    rival_area = metrics[f"error_auroc_{rival}"]
    if area.value is None or rival_area.value is None or gain.value is None:
        reason = gain.reason or area.reason or rival_area.reason
        return f"{name} cannot be evaluated on {what}: {reason}."
    values = f"AUROC {area.value:.3f} against {rival_area.value:.3f}{title} on {what}"
    if gain.low is None or gain.high is None:
        return f"No interval shows whether {name} finds wrong calls better than {best}: {values}."
    finds = {
        None: f"does not find wrong calls significantly better than {rivals}",
        Claim.DOUBT_IS_BETTER: f"finds wrong calls better than {rivals}",
        Claim.DOUBT_IS_WORSE: f"finds wrong calls worse than {best}",
    }[detector_claim(gain)]
    return f"{name} {finds}: {values}; difference {gain.text(sign=True)}."
