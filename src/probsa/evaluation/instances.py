"""Instance-level metrics of one run, where instance labels exist (training never uses them).

The score of an instance is the attention of its model (μ). The variance as a detector of wrong
calls is compared with how close the score is to the threshold.
The doubt P(wrong) = Φ(−|e|/σ) combines σ with that closeness.
`authors_*` follows the protocol of the paper's code, for comparison with its tables.
"""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float
from sklearn.metrics import roc_curve

from ..statistics import Draws, Metric, f1_and_accuracy, ratio_of_sums
from .dice import DICE, dice_samples, dice_threshold, no_positive_reason, no_threshold_reason
from .metrics import NO_VARIANCE, error_auroc, rank_metrics
from .pools import (
    NO_CALLS,
    NO_INSTANCE_LABELS,
    Pool,
    bag_draws,
    labelled,
    score_kind_of,
    threshold_bags,
)
from .prediction import Prediction

NAMES = (
    "auroc",
    "average_precision",
    "auroc_positive_bags",
    "average_precision_positive_bags",
    "error_rate",
    "error_auroc_variance",
    "error_auroc_doubt",
    "error_auroc_margin",
    *DICE,
    "authors_auroc",
    "authors_average_precision",
    "authors_f1",
    "authors_accuracy",
)

POSITIVE_BAGS = "instances of positive bags"


def instance_metrics(
    predictions: Sequence[Prediction],
    *,
    positive: Mapping[str, bool],
    validation: Sequence[Prediction] | None = None,
    groups: Mapping[str, Hashable] | None = None,
    bootstrap: int = 500,
    seed: int = 0,
) -> dict[str, Metric]:
    """Return every instance metric by name; bags without instance labels are left out.

    Labels above 0 are positive and labels below 0 are unknown: those instances are left out of the
    metrics, but count in their bag's N. `*_positive_bags` and `error_*` pool the instances of
    positive bags. If the attention has one column per class, that of the bag's most probable class
    except class 0 is used. Intervals resample bags (or groups of bags), stratified by class.

    Args:
        predictions: predictions of the bags to evaluate.
        positive: whether each bag is positive (Y > 0); a bag that is missing here is negative.
        validation: validation bags on which the thresholds of `dice*`, `authors_f1` and
            `authors_accuracy` are chosen.
        groups: the patient of each bag; a bag that is missing here is its own patient.
        bootstrap: number of resamples; 0 for no intervals.
        seed: seed of the resamples.

    Raises:
        InputError: the predictions have several score kinds.
        BagError: the attention of a bag is not finite.
    """
    bags = labelled(predictions)
    if not bags:
        return dict.fromkeys(NAMES, Metric.undefined(NO_INSTANCE_LABELS))
    kind = score_kind_of(bags)
    flags = np.array([bool(positive.get(p.name, False)) for p in bags])
    draws = bag_draws([p.name for p in bags], flags, groups=groups, resamples=bootstrap, seed=seed)
    pool = Pool.of(bags)
    auroc, average_precision = rank_metrics(
        pool.y, pool.score, draws=draws.for_items(pool.bag), what="instances"
    )
    inside = pool.within(flags.tolist())
    within = draws.for_items(inside.bag)
    auroc_inside, average_precision_inside = rank_metrics(
        inside.y, inside.score, draws=within, what=POSITIVE_BAGS
    )
    validation_pool = None
    if validation is not None:
        validation_pool = Pool.of(threshold_bags(validation, positive=positive, kind=kind))
    return {
        "auroc": auroc,
        "average_precision": average_precision,
        "auroc_positive_bags": auroc_inside,
        "average_precision_positive_bags": average_precision_inside,
        **_error_metrics(inside, kind=kind, draws=within),
        **_dice_metrics(inside, validation_pool, draws=draws),
        "authors_auroc": auroc_inside,
        "authors_average_precision": average_precision_inside,
        **_authors_metrics(inside, validation_pool, draws=within),
    }


def balanced_threshold(y: Bool[np.ndarray, " n"], score: Float[np.ndarray, " n"]) -> float:
    """Return the score threshold with the largest TPR · (1 - FPR); the highest one if tied."""
    false, true, thresholds = roc_curve(y, score, drop_intermediate=False)
    p, n = y.sum(), (~y).sum()
    # In counts, because equal products of rates may differ in their last digit.
    product = np.rint(true * p) * (n - np.rint(false * n))
    return float(thresholds[np.argmax(product)])


def _error_metrics(pool: Pool, *, kind: str, draws: Draws) -> dict[str, Metric]:
    names = [name for name in NAMES if name.startswith("error_")]
    if kind == "relevance":
        return dict.fromkeys(names, Metric.undefined(NO_CALLS))
    if len(pool.y) == 0:
        return dict.fromkeys(names, Metric.undefined(f"no {POSITIVE_BAGS}"))
    wrong = (pool.evidence > 0) != pool.y

    def auroc(score: Float[np.ndarray, " n"], *, constant: str | None) -> Metric:
        return error_auroc(wrong, score, draws=draws, constant=constant, what=POSITIVE_BAGS)

    no_variance = Metric.undefined(NO_VARIANCE)
    has_variance = pool.variance.any()
    return {
        "error_rate": ratio_of_sums(wrong, np.ones_like(wrong), draws=draws),
        "error_auroc_variance": auroc(pool.variance, constant=NO_VARIANCE)
        if has_variance
        else no_variance,
        "error_auroc_doubt": auroc(pool.doubt, constant=None) if has_variance else no_variance,
        "error_auroc_margin": auroc(-np.abs(pool.evidence), constant=None),
    }


def _dice_metrics(pool: Pool, validation: Pool | None, *, draws: Draws) -> dict[str, Metric]:
    reason = no_threshold_reason(validation)
    if reason or validation is None:
        return dict.fromkeys(DICE, Metric.undefined(reason or ""))
    called = pool.decision >= dice_threshold(validation.y, validation.decision)
    samples = dice_samples(pool, called, draws=draws)
    return dict(samples)


def _authors_metrics(pool: Pool, validation: Pool | None, *, draws: Draws) -> dict[str, Metric]:
    reason = no_threshold_reason(validation) or no_positive_reason(pool)
    if reason or validation is None:
        undefined = Metric.undefined(reason or "")
        return {"authors_f1": undefined, "authors_accuracy": undefined}
    y, called = pool.y, pool.score >= balanced_threshold(validation.y, validation.score)
    f1, accuracy = f1_and_accuracy(y, called, draws=draws)
    return {
        "authors_f1": Metric.of(f1),
        "authors_accuracy": Metric.of(accuracy),
    }
