"""Instance-level metrics, where instance labels exist (they are never trained on).

The score of an instance is what its model calls attention (μ). Whether the variance finds wrong
calls is judged beside two scores that cost nothing: how near the call was, and 1/degree.
`authors_*` is the protocol of the paper's code, for comparison with its tables.
"""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float
from sklearn.metrics import accuracy_score, f1_score, roc_curve

from ..statistics import Draws, Metric, measured, undefined
from .dice import DICE, dice_metrics, dice_threshold, no_threshold
from .metrics import NO_SPREAD, finds_errors, rank_metrics
from .pools import Pool, held_out, kind_of, labelled
from .prediction import Prediction

ONE_DEGREE = "every instance has the same number of neighbours"

NAMES = (
    "auroc",
    "average_precision",
    "auroc_positive_bags",
    "average_precision_positive_bags",
    "error_rate",
    "error_auroc_variance",
    "error_auroc_margin",
    "error_auroc_degree",
    *DICE,
    "authors_auroc",
    "authors_average_precision",
    "authors_f1",
    "authors_accuracy",
)


def instance_metrics(
    predictions: Sequence[Prediction],
    *,
    positive: Mapping[str, bool],
    validation: Sequence[Prediction] | None = None,
    groups: Mapping[str, Hashable] | None = None,
    bootstrap: int = 500,
    seed: int = 0,
) -> dict[str, Metric]:
    """Every instance metric by name; bags without instance labels are left out.

    Labels above 0 are positive, below 0 unlabelled (dropped from the metrics, kept in a bag's N).
    `*_positive_bags` and `error_*` pool the instances of positive bags. Attention with one column a
    class: the column of the bag's most probable class above 0. Intervals resample bags (or `groups`
    of bags), positive and negative ones apart.

    Args:
        predictions: of the bags to judge.
        positive: whether a bag is positive (Y > 0); a bag that is missing here is not.
        validation: where thresholds are chosen (`dice*`, `authors_f1`, `authors_accuracy`).
        groups: patient of each bag; a bag that is missing here is its own.
        bootstrap: resamples; 0 gives no intervals.
        seed: of the resamples.

    Raises:
        InputError: the predictions do not have one score kind.
        BagError: a bag's attention is not finite.
    """
    kept = labelled(predictions)
    if not kept:
        return dict.fromkeys(NAMES, undefined("no bag has instance labels"))
    kind = kind_of(kept)
    flags = [bool(positive.get(p.name, False)) for p in kept]
    names = None if groups is None else [groups.get(p.name, (p.name,)) for p in kept]
    draws = Draws.of(np.array(flags), groups=names, resamples=bootstrap, seed=seed)
    pool = Pool.of(kept)
    auroc, precision = rank_metrics(
        pool.y, pool.score, draws=draws.items(pool.bag), what="instances"
    )
    inside = pool.within(flags)
    within = draws.items(inside.bag)
    what = "instances of positive bags"
    auroc_in, precision_in = rank_metrics(inside.y, inside.score, draws=within, what=what)
    held = None
    if validation is not None:
        held = Pool.of(held_out(validation, positive=positive, kind=kind))
    return {
        "auroc": auroc,
        "average_precision": precision,
        "auroc_positive_bags": auroc_in,
        "average_precision_positive_bags": precision_in,
        **_errors(inside, kind=kind, draws=within),
        **_dice(inside, held, draws=draws),
        "authors_auroc": auroc_in,
        "authors_average_precision": precision_in,
        **_authors(inside, held, draws=within),
    }


def balanced_threshold(y: Bool[np.ndarray, " n"], score: Float[np.ndarray, " n"]) -> float:
    """The score from which calls have the largest TPR · (1 - FPR); ties: the highest."""
    false, true, thresholds = roc_curve(y, score, drop_intermediate=False)
    p, n = y.sum(), (~y).sum()
    # Counts, because products of rates that are equal differ in their last digit.
    product = np.rint(true * p) * (n - np.rint(false * n))
    return float(thresholds[np.argmax(product)])


def _errors(pool: Pool, *, kind: str, draws: Draws) -> dict[str, Metric]:
    what = "instances of positive bags"
    names = ("error_rate", "error_auroc_variance", "error_auroc_margin", "error_auroc_degree")
    if kind == "relevance":
        return dict.fromkeys(names, undefined("relevance has no point where calls change"))
    if len(pool.y) == 0:
        return dict.fromkeys(names, undefined(f"no {what}"))
    wrong = (pool.evidence > 0) != pool.y
    sums = draws.totals(np.stack([wrong, np.ones_like(wrong)], axis=1))

    def finds(score: Float[np.ndarray, " n"], *, constant: str | None) -> Metric:
        return finds_errors(wrong, score, draws=draws, constant=constant, what=what)

    with np.errstate(invalid="ignore"):  # a resample without a labelled instance
        rate = measured(float(wrong.mean()), sums[:, 0] / sums[:, 1])
    return {
        "error_rate": rate,
        "error_auroc_variance": finds(pool.variance, constant=NO_SPREAD)
        if pool.variance.any()
        else undefined(NO_SPREAD),
        "error_auroc_margin": finds(-np.abs(pool.evidence), constant=None),
        # In the order of 1/degree, finite for an isolated instance.
        "error_auroc_degree": finds(-pool.degree, constant=ONE_DEGREE),
    }


def _dice(pool: Pool, held: Pool | None, *, draws: Draws) -> dict[str, Metric]:
    reason = no_threshold(held)
    if reason or held is None:
        return dict.fromkeys(DICE, undefined(reason or ""))
    return dice_metrics(pool, pool.decision >= dice_threshold(held.y, held.decision), draws=draws)


def _authors(pool: Pool, held: Pool | None, *, draws: Draws) -> dict[str, Metric]:
    names = ("authors_f1", "authors_accuracy")
    reason = no_threshold(held)
    if reason or held is None:
        return dict.fromkeys(names, undefined(reason or ""))
    if not pool.y.any():
        reason = f"no positive instance among {len(pool.y)} of positive bags"
        return dict.fromkeys(names, undefined(reason))
    y, called = pool.y, pool.score >= balanced_threshold(held.y, held.score)
    columns = np.stack([y & called, y, called, y == called, np.ones_like(y)], axis=1)
    both, true, claimed, right, n = draws.totals(columns).T
    with np.errstate(invalid="ignore", divide="ignore"):
        f1 = np.where(true > 0, 2 * both / (true + claimed), np.nan)
        accuracy = right / n
    return {
        "authors_f1": measured(f1_score(y, called), f1),
        "authors_accuracy": measured(accuracy_score(y, called), accuracy),
    }
