"""What a leaderboard asks of the prediction of one bag: localisation, doubt and faithfulness.

All values rank instances within the bag, so models whose scores have no common scale across bags
or runs can be compared.
"""

from dataclasses import asdict, dataclass

import numpy as np
from jaxtyping import Bool
from sklearn.metrics import average_precision_score, roc_auc_score

from .instances.measures import rank_correlation, within_bag
from .map_scores import MapScore, drawn_values
from .prediction import Prediction
from .scores import class_column, doubt, instance_evidence, instance_scores, instance_variances


@dataclass(frozen=True, kw_only=True, slots=True)
class BagMeasures:
    """Measures within a bag; None where one is undefined."""

    auroc: float | None = None
    """Of the score, for the labelled instances; None unless there are both labels."""
    average_precision: float | None = None
    doubt_gain: float | None = None
    """AUROC of P(wrong) for finding wrong calls, minus that of the margin; None without a variance,
    or if all calls are right or all are wrong."""
    faithfulness: float | None = None
    """Spearman's correlation of the score with the exact change of the bag's probability when the
    instance is left out; None where the model has no closed form (see `deletion_curves`)."""

    def to_dict(self) -> dict[str, float | None]:
        """Return plain values for JSON."""
        return asdict(self)


def bag_measures(p: Prediction) -> BagMeasures:
    """Return the measures of one bag by the model's own score of its instances.

    Raises:
        BagError: the scores are not finite.
    """
    score = instance_scores(p)
    labels = np.full(len(score), -1) if p.instance_labels is None else p.instance_labels
    known, y = labels >= 0, labels > 0
    auroc, average_precision = None, None
    if len(set(y[known].tolist())) == 2:
        auroc, average_precision = within_bag(y[known], score[known])[:2].tolist()
    return BagMeasures(
        auroc=auroc,
        average_precision=average_precision,
        doubt_gain=_doubt_gain(p, y, known),
        faithfulness=None
        if p.leave_one_out is None
        else rank_correlation(score, class_column(p, p.leave_one_out)),
    )


def shown_precision(p: Prediction, shown: MapScore | None) -> float | None:
    """Return the AP of a score of the instances; None without one, or unless both labels occur.

    Args:
        p: the prediction of a bag with instance labels.
        shown: the score, for example that of the run's maps.
    """
    if shown is None or p.instance_labels is None:
        return None
    known, y = p.instance_labels >= 0, p.instance_labels > 0
    if len(set(y[known].tolist())) != 2:
        return None
    score = class_column(p, drawn_values(p, shown))
    return float(average_precision_score(y[known], score[known]))


def _doubt_gain(
    p: Prediction, y: Bool[np.ndarray, " n"], known: Bool[np.ndarray, " n"]
) -> float | None:
    if p.score_kind == "relevance" or not instance_variances(p).any():
        return None
    e = instance_evidence(p)
    wrong = ((e > 0) != y)[known]
    if not wrong.any() or wrong.all():
        return None
    by_doubt = roc_auc_score(wrong, doubt(p)[known])
    return float(by_doubt - roc_auc_score(wrong, -np.abs(e)[known]))
