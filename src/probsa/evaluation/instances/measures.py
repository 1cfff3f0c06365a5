"""Every measure of instances: a function of a column of the table, its labels and the resamples.

Pooled measures rank the instances of many bags together. Measures within bags ask where in a bag
the evidence lies: they cannot be raised by telling positive bags from negative ones. A model's map
and a null map, one run and the mean over replicates go through the same functions.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float, Num
from scipy.stats import rankdata
from sklearn.metrics import roc_curve

from ...core import counted
from ...statistics import (
    Draws,
    Metric,
    areas,
    augrc,
    auroc,
    f1_and_accuracy,
)
from .table import NO_CALLS, NO_INSTANCE_LABELS, NO_VARIANCE, InstanceTable

POSITIVE_BAGS = "instances of positive bags"
WITHIN = "auroc_within_bags"
WITHIN_BAGS = (WITHIN, "average_precision_within_bags", "pointing_game", "top_share")
"""AUROC; average precision; whether the top instance is positive; the positive share of the top
1 % of instances (at least one). Instances with equal scores count as in a random order."""
TOP = 0.01
NO_MIXED_BAG = "no positive bag has instances of both labels"
NO_VALIDATION = "no validation predictions to choose a threshold on"
NO_LABELS = "no positive validation bag has instance labels to choose a threshold on"
DETECTORS = (
    "variance", "doubt", "doubt_within", "doubt_between", "margin", "entropy",
)  # fmt: skip
"""Scores that are high where a call may be wrong; `margin` and `entropy` are the null rivals."""
WRONG_CALLS = (
    "error_rate", *(f"{metric}_{d}" for d in DETECTORS for metric in ("error_auroc", "augrc")),
)  # fmt: skip


def pooled(
    table: InstanceTable, column: str, *, draws: Draws, what: str = "instances"
) -> dict[str, Metric]:
    """Return `auroc` and `average_precision` of a column over all rows of the table.

    Args:
        table: the instances.
        column: what ranks them.
        draws: resamples of the table's bags.
        what: the instances in the plural, for reasons.
    """
    return areas(table.y, table[column], draws=draws.for_items(table.bag), what=what)


def within_bags(table: InstanceTable, column: str, *, draws: Draws) -> dict[str, Metric]:
    """Return the means of `WITHIN_BAGS` over the positive bags with instances of both labels."""
    mixed = table.mixed
    if not mixed.any():
        reason = NO_MIXED_BAG if table.names else NO_INSTANCE_LABELS
        return dict.fromkeys(WITHIN_BAGS, Metric.undefined(reason))
    values = np.zeros((len(table.names), len(WITHIN_BAGS)))
    for b, rows in enumerate(bag_rows(table)):
        if mixed[b]:
            values[b] = within_bag(table.y[rows], table[column][rows])
    return {name: Metric.of(draws.ratio(values[:, k], mixed)) for k, name in enumerate(WITHIN_BAGS)}


def bag_rows(table: InstanceTable) -> list[slice]:
    """Return the rows of each bag, which follow one another."""
    ends = np.cumsum(np.bincount(table.bag, minlength=len(table.names)))
    return [slice(a, b) for a, b in zip([0, *ends.tolist()], ends.tolist(), strict=False)]


def within_bag(
    y: Bool[np.ndarray, " n"], score: Num[np.ndarray, " n"]
) -> Float[np.ndarray, " measures"]:
    """Return the measures of `WITHIN_BAGS` of a bag that has instances of both labels."""
    one = Draws.of_data(len(y))
    areas = one.ranks(y, score.astype(np.float64))[:, 0].tolist()
    return np.array([*areas, *(precision_of_top(y, score, count=c) for c in (1, _top(len(y))))])


def _top(n: int) -> int:
    return max(1, round(TOP * n))


def precision_of_top(
    y: Bool[np.ndarray, " n"], score: Num[np.ndarray, " n"], *, count: int
) -> float:
    """Return the expected share of positives among the `count` highest scores, ties broken at
    random."""
    limit = np.partition(score, len(score) - count)[len(score) - count]
    above, tied = score > limit, score == limit
    return float((y[above].sum() + y[tied].mean() * (count - above.sum())) / count)


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
    """Return the Dice of calls: `dice`, the mean over bags, and `dice_pooled`.

    Args:
        table: the instances of positive bags; a bag counts if one of its instances is positive.
        called: whether each instance is called positive.
        draws: resamples of the table's bags.
    """
    if not table.y.any():
        reason = f"no positive instance among {len(table.y)} of positive bags"
        return dict.fromkeys(("dice", "dice_pooled"), Metric.undefined(reason))
    hit = 2 * table.share(table.y & called)
    size = table.share(table.y) + table.share(called)
    defined = table.share(table.y) > 0
    of_bag = np.divide(hit, size, out=np.zeros(len(size)), where=defined)
    count = draws.totals(defined[:, None])[:, 0]
    whole = Metric.of(draws.ratio(hit, size)).rows
    assert whole is not None, "a positive instance has a size"
    return {
        "dice": Metric.of(draws.ratio(of_bag, defined)),
        "dice_pooled": Metric.of(np.where(count > 0, whole, np.nan)),
    }


def dice_threshold(y: Bool[np.ndarray, " n"], score: Float[np.ndarray, " n"]) -> float:
    """Return the score threshold with the best pooled Dice, 2 TP / (called + positive).

    Ties are resolved towards the highest threshold. At least one instance must be positive.
    """
    order = np.argsort(-score, kind="stable")
    ranked, true_positives = score[order], np.cumsum(y[order])
    ends = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)
    found = 2 * true_positives[ends] / (ends + 1 + true_positives[-1])
    return float(ranked[ends[np.argmax(found)]])


def balanced_threshold(y: Bool[np.ndarray, " n"], score: Float[np.ndarray, " n"]) -> float:
    """Return the score threshold with the largest TPR · (1 - FPR); the highest one if tied."""
    false, true, thresholds = roc_curve(y, score, drop_intermediate=False)
    p, n = y.sum(), (~y).sum()
    # In counts, because equal products of rates may differ in their last digit.
    product = np.rint(true * p) * (n - np.rint(false * n))
    return float(thresholds[np.argmax(product)])


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


def calls_of_authors(
    table: InstanceTable, called: Bool[np.ndarray, " n"], *, draws: Draws
) -> dict[str, Metric]:
    """Return F1 and accuracy by the protocol of the paper's code, of instances of positive bags."""
    if not table.y.any():
        reason = f"no positive instance among {len(table.y)} of positive bags"
        return dict.fromkeys(("authors_f1", "authors_accuracy"), Metric.undefined(reason))
    f1, accuracy = f1_and_accuracy(table.y, called, draws=draws.for_items(table.bag))
    return {"authors_f1": Metric.of(f1), "authors_accuracy": Metric.of(accuracy)}


def wrong_calls(table: InstanceTable, *, draws: Draws) -> dict[str, Metric]:
    """Return `error_rate`, and for each detector `error_auroc_<detector>` and `augrc_<detector>`.

    table: the instances of positive bags.
    """
    reason = NO_CALLS if table.called is None else None if len(table.y) else f"no {POSITIVE_BAGS}"
    if reason is not None or table.called is None:
        return dict.fromkeys(WRONG_CALLS, Metric.undefined(reason or NO_CALLS))
    wrong, items = table.called != table.y, draws.for_items(table.bag)
    rate = Metric.of(items.ratio(wrong, np.ones_like(wrong)))
    metrics = {"error_rate": rate}
    for name in DETECTORS:
        score = detector(table, name)
        area = detection(wrong, score, draws=items, what=POSITIVE_BAGS)
        metrics |= {f"error_auroc_{name}": area, f"augrc_{name}": generalised_risk(rate, area)}
    return metrics


def detector(table: InstanceTable, name: str) -> Float[np.ndarray, " n"] | str:
    """Return a score that should be high where calls are wrong, or why it says nothing."""
    if name in table.missing:
        return table.missing[name]
    needs_variance = name == "variance" or name.startswith("doubt")
    if needs_variance and not (table["variance"].any() and np.ptp(table[name]) > 0):
        return NO_VARIANCE
    return table[name]


def detection(
    wrong: Bool[np.ndarray, " n"],
    score: Float[np.ndarray, " n"] | str,
    *,
    draws: Draws,
    what: str,
) -> Metric:
    """Return the AUROC with which a score finds wrong calls, or why it is undefined."""
    if not len(wrong):
        return Metric.undefined(f"no {what}")
    if wrong.all() or not wrong.any():
        absent = "right" if wrong.any() else "wrong"
        calls = counted(len(wrong), what.removesuffix("s"))
        return Metric.undefined(f"no {absent} call among {calls}: errors cannot be ranked")
    if isinstance(score, str):
        return Metric.undefined(score)
    return auroc(wrong, score, draws=draws, what=what)


def generalised_risk(rate: Metric, area: Metric) -> Metric:
    """Return the AUGRC that follows from the error rate and the AUROC of a detector."""
    if area.rows is None or rate.rows is None:
        return area
    return Metric.of(augrc(rate.rows, area.rows))


def gains(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """Return how much better σ² finds wrong calls than the better null, and P(wrong) than −|e|."""
    best = best_rival(metrics)
    variance = metrics["error_auroc_variance"]
    over_best = Metric.undefined(variance.reason or "no rival is defined")
    if variance.rows is not None and best is not None:
        over_best = variance - metrics[f"error_auroc_{best}"]
    return {
        "error_auroc_gain": over_best,
        "error_auroc_doubt_gain": metrics["error_auroc_doubt"] - metrics["error_auroc_margin"],
    }


def best_rival(metrics: Mapping[str, Metric]) -> str | None:
    """Return the null rival with the highest AUROC in the data; None if none has one."""
    values = {d: metrics[f"error_auroc_{d}"].value for d in ("margin", "entropy")}
    known = {d: v for d, v in values.items() if v is not None}
    return max(known, key=lambda d: known[d]) if known else None
