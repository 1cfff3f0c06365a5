"""The task multilabel: findings with independent probabilities."""

import numpy as np

from ..statistics import Draws, TargetMetrics, multilabel_metrics
from .base import (
    LOSS,
    UNSTATED,
    Measure,
    P,
    Predicted,
    Stated,
    TargetData,
    Task,
    Verdict,
    as_written,
)
from .labels import Row, Y
from .words import PageWords, Words, format_probability, plus_minus, span_of

TEXTS = 3
"""How many findings the text of a verdict names, the most probable ones."""


class Multilabel(Task):
    """Findings with independent probabilities."""

    name = "multilabel"
    words = Words(
        predicts="the probability of each of the findings {names}",
        towards=("speaks for the finding", "against it"),
        aim="the finding",
        noun="finding",
        raised="the logit of the finding",
        part="finding",
        remedy=", or leave the finding out of the target",
        page=PageWords(
            said="findings",
            measure="largest p",
            call="Found",
            call_hint="The findings that are predicted to be present",
            number_hint="Probability of the most probable finding",
            spread_hint="Standard deviation of this probability over posterior samples and members",
            column="Finding",
            wrong_hint="A known finding is called although it is absent, or the reverse.",
            unsure_hint="The call of a finding changes within one standard deviation.",
        ),
    )
    headline = ("macro_auroc", "macro_average_precision")
    validation_metric = "val_auroc"
    by_probability = True
    has_findings = True
    value_prefix = "p_"
    measures = (
        Measure("macro_auroc", "macro AUROC", by_fold=True),
        Measure("macro_average_precision", "macro AP", by_fold=True, of_rarest_class=True),
        LOSS("nll", "NLL"),
    )

    def metrics(self, data: TargetData, draws: Draws) -> TargetMetrics:
        return multilabel_metrics(
            data.y, data.predicted, names=data.names, thresholds=data.thresholds, draws=draws
        )

    def validation_score(self, y: Y, p: P) -> float | None:
        from sklearn.metrics import roc_auc_score

        aurocs = []
        for finding, score in zip(y.T, p.T, strict=True):
            is_known = np.isfinite(finding)
            if len(np.unique(finding[is_known])) == 2:
                aurocs.append(roc_auc_score(finding[is_known], score[is_known]))
        return float(np.mean(aurocs)) if aurocs else None

    def calls(self, data: TargetData) -> str:
        limits = Stated(thresholds=data.thresholds).of_findings(data.y.shape[1])
        is_known = np.isfinite(data.y)
        is_wrong = ((data.predicted >= limits) != (data.y == 1)) & is_known
        return f"{is_wrong.sum()} of {is_known.sum()} known findings wrong"

    def called_positive(self, p: P, stated: Stated = UNSTATED) -> np.ndarray:
        return np.any(as_written(p) >= stated.of_findings(p.shape[1]), axis=1)

    def verdict(self, p: Predicted, stated: Stated = UNSTATED) -> Verdict:
        chances = as_written(p.probability)
        count = len(chances)
        thresholds = stated.of_findings(count)
        order = np.argsort(-chances, kind="stable")
        most_probable: list[str] = []
        for i in order[:TEXTS]:
            chance = float(chances[i])
            threshold = float(thresholds[i])
            spread = plus_minus(float(p.std[i]), span=span_of(p))
            most_probable.append(
                f"p({p.outputs.names[i]}) {format_probability(chance, threshold)}{spread}, "
                f"threshold {format_probability(threshold, chance)}"
            )
        more = f"; … ({count} findings)" if count > TEXTS else ""
        called = [p.outputs.names[i] for i in np.flatnonzero(chances >= thresholds)]
        call = ", ".join(called) or "none"
        return Verdict(
            call=call,
            value=float(chances[order[0]]),
            spread=float(p.std[order[0]]),
            span=span_of(p),
            unsure=bool((np.abs(chances - thresholds) < p.std).any()),
            text=f"{call}: {'; '.join(most_probable)}{more}",
        )

    def contradicts(self, p: Predicted, y: Row, stated: Stated = UNSTATED) -> bool | None:
        labels = np.asarray(y)
        is_known = ~np.isnan(labels)
        if not is_known.any():
            return None
        thresholds = stated.of_findings(len(p.probability))
        differs = (as_written(p.probability) >= thresholds) != (labels == 1)
        return bool(differs[is_known].any())
