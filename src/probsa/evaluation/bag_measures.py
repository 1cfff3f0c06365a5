"""Measures of the prediction of one bag: localisation, doubt and faithfulness.

All values rank instances within the bag, so models whose scores have no common scale across bags
or runs can be compared.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from .instances.measures import rank_correlation, within_bag
from .map_scores import MapScore, drawn_values
from .prediction import Prediction
from .scores import class_column, doubt, instance_evidence, instance_scores


@dataclass(frozen=True, kw_only=True, slots=True)
class BagMeasures:
    """Measures within a bag; None where one is undefined."""

    auroc: float | None = None
    """Of the score, for the labelled instances; None unless there are both labels."""
    average_precision: float | None = None
    doubt_gain: float | None = None
    """AUROC of P(wrong) for finding wrong calls, minus that of the margin; None without P(wrong),
    or if all calls are right or all are wrong."""
    faithfulness: float | None = None
    """Spearman's correlation of the score with the exact change of the bag's probability when the
    instance is left out; None where the model has no closed form (see `deletion_curves`)."""


def bag_measures(p: Prediction) -> BagMeasures:
    """Return the measures of one bag by the model's own score of its instances.

    Raises:
        BagError: the scores are not finite.
    """
    score = instance_scores(p)
    auroc, average_precision = _within(p, score)
    faithfulness = None
    if p.leave_one_out is not None:
        faithfulness = rank_correlation(score, class_column(p, p.leave_one_out))
    return BagMeasures(
        auroc=auroc,
        average_precision=average_precision,
        doubt_gain=_doubt_gain(p),
        faithfulness=faithfulness,
    )


def _doubt_gain(p: Prediction) -> float | None:
    """Return `BagMeasures.doubt_gain`."""
    p_wrong = doubt(p)
    if p.instance_labels is None or p_wrong is None:
        return None
    labelled = p.instance_labels >= 0
    evidence = instance_evidence(p)
    wrong = ((evidence > 0) != (p.instance_labels > 0))[labelled]
    if wrong.all() or not wrong.any():
        return None
    from sklearn.metrics import roc_auc_score

    margin = -np.abs(evidence)
    area = roc_auc_score(wrong, p_wrong[labelled])
    return float(area - roc_auc_score(wrong, margin[labelled]))


def shown_precision(p: Prediction, shown: MapScore | None) -> float | None:
    """Return the AP of a score of the instances; None without one, or unless both labels occur.

    Args:
        p: the prediction of a bag with instance labels.
        shown: the score, for example that of the run's maps.
    """
    return None if shown is None else _within(p, class_column(p, drawn_values(p, shown)))[1]


def _within(
    p: Prediction, score: Float[np.ndarray, " n"]
) -> tuple[float, float] | tuple[None, None]:
    """Return the AUROC and the AP of the labelled instances; None unless both labels occur."""
    if p.instance_labels is None:
        return None, None
    labelled = p.instance_labels >= 0
    y = (p.instance_labels > 0)[labelled]
    if len(set(y.tolist())) != 2:
        return None, None
    auroc, average_precision = within_bag(y, score[labelled])[:2].tolist()
    return auroc, average_precision
