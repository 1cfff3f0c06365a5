"""Tasks whose bags have one of several classes or grades: binary, multiclass and ordinal."""

from dataclasses import replace
from typing import TypeVar

import numpy as np

from ..statistics import (
    Draws,
    TargetMetrics,
    binary_metrics,
    cohen_kappa,
    confusion,
    median_call,
    multiclass_metrics,
    ordinal_metrics,
)
from .base import (
    HALF,
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
from .labels import Y
from .words import PageWords, Words, class_name, format_probability, plus_minus, span_of

F1_AT_HALF = "f1_at_0.5"
"""F1 of the calls at p ≥ 0.5, as in the paper; `f1` is of those at the threshold of the run."""
T = TypeVar("T")
KAPPA = Measure("quadratic_kappa", "quadratic κ", unit="number", low=-1.0)
MACRO = {"macro_auroc": "auroc", "macro_average_precision": "average_precision", "macro_f1": "f1"}
"""Earlier names of means over classes, which the JSON of rivals keeps."""


class OneClass(Task):
    """Each bag has exactly one of several classes or grades."""

    has_classes = True
    coverage_by = "sets"
    value_prefix = "p_"

    def verdict(self, p: Predicted, stated: Stated = UNSTATED) -> Verdict:
        rows = as_written(p.probability[None])
        (call,), (margin,) = self.call(rows, stated.threshold)
        column = self.column(p, called=True)
        spread = float(p.std[column])
        # the class in the text: the most probable one, or the called grade
        k = int(np.argmax(rows)) if self.unordered_classes else int(call)
        chance = f"{format_probability(rows[0, k])}{plus_minus(float(p.std[k]), span=span_of(p))}"
        return Verdict(
            call=class_name(stated.classes, int(call)),
            value=float(p.probability[column]),
            spread=spread,
            span=span_of(p),
            unsure=bool(margin < spread),
            text=f"{self._class_text(stated, k)}: p {chance}",
        )

    def _class_text(self, stated: Stated, k: int) -> str:
        """Return the name of a class for texts; numbers and grades say what they are."""
        name = class_name(stated.classes, k)
        if self.unordered_classes and not name.isdecimal():
            return name
        return self.words.called.format(name)

    def calls(self, data: TargetData) -> str:
        steps_off = np.abs(self.call(data.predicted)[0] - data.y[:, 0])
        text = f"{(steps_off > 0).sum()} of {len(steps_off)} wrong"
        if self.unordered_classes:
            return text
        return f"{text}, {(steps_off > 1).sum()} by 2 grades or more"

    def called_positive(self, p: P, stated: Stated = UNSTATED) -> np.ndarray:
        return self.call(p, stated.threshold)[0] > 0


class Unordered(OneClass):
    """Classes without an order; a single column of probabilities is that of the last of two."""

    unordered_classes = True
    by_probability = True
    validation_metric = "val_auroc"

    def call(self, p: P, threshold: float | None = None) -> tuple[np.ndarray, np.ndarray]:
        if p.shape[1] > 2:
            ascending = np.sort(p, axis=1)
            return p.argmax(1), ascending[:, -1] - ascending[:, -2]
        excess = as_written(p[:, -1]) - _limit(threshold)
        return (excess >= 0).astype(np.int64), np.abs(excess)

    def column_names(self, p: Predicted, columns: int) -> tuple[str, ...] | None:
        return None

    def validation_score(self, y: Y, p: P) -> float | None:
        labels = y[:, 0].astype(np.int64)
        if p.shape[1] == 1:
            p = np.hstack([1 - p, p])
        if len(set(labels.tolist())) != p.shape[1]:
            return None
        from sklearn.metrics import roc_auc_score  # its import takes longer than a refusal may

        # rounding may leave sums beside 1, which scikit-learn refuses
        scores = p[:, 1] if p.shape[1] == 2 else p / p.sum(1, keepdims=True)
        return float(roc_auc_score(labels, scores, multi_class="ovr"))


class Binary(Unordered):
    """Two classes."""

    name = "binary"
    words = Words(predicts="the probability of {either}")
    two_classes = True
    patient_has_highest = True
    headline = ("auroc", "balanced_accuracy")
    overview = 2
    measures = (
        Measure("auroc", "AUROC", by_fold=True, exchanged="auroc"),
        Measure("f1", "F1 at chosen threshold", short="F1", exchanged="f1", of_rarest_class=True),
        Measure(F1_AT_HALF, "F1 at 0.5", exchanged="f1", of_rarest_class=True),
    )

    def metrics(self, data: TargetData, draws: Draws) -> TargetMetrics:
        low = class_name(data.names, 0)
        high = class_name(data.names, 1)
        return binary_metrics(
            data.y[:, 0].astype(np.int64),
            data.predicted[:, -1],
            threshold=data.threshold,
            names=(f"of class {low}", f"of class {high}"),
            draws=draws,
        )

    def verdict(self, p: Predicted, stated: Stated = UNSTATED) -> Verdict:
        threshold = _limit(stated.threshold)
        chance = float(as_written(p.probability)[-1])
        call = int(chance >= threshold)
        # p is that of the second class, whatever is called
        symbol = "p" if call else f"p({self._class_text(stated, 1)})"
        spread = plus_minus(float(p.std[-1]), span=span_of(p))
        chance_text = format_probability(chance, threshold)
        threshold_text = format_probability(threshold, chance)
        text = (
            f"{self._class_text(stated, call)}: {symbol} {chance_text}{spread}, "
            f"threshold {threshold_text}"
        )
        return replace(super().verdict(p, stated), text=text)

    def calls(self, data: TargetData) -> str:
        positive = data.y[:, 0] > 0
        called = data.predicted[:, -1] >= _limit(data.threshold)
        low = class_name(data.names, 0)
        high = class_name(data.names, 1)
        return (
            f"{(positive & ~called).sum()} of {positive.sum()} bags of class {high} missed, "
            f"{(called & ~positive).sum()} of {(~positive).sum()} of class {low} called {high}"
        )


class Multiclass(Unordered):
    """Three classes or more."""

    name = "multiclass"
    words = Words(
        predicts="the probability of {either}",
        call_rule="the most probable class is called",
        remedy=", or merge the class with another",
    )
    headline = ("auroc", "balanced_accuracy")
    measures = (
        Measure("auroc", "macro AUROC", by_fold=True),
        Measure("accuracy", "accuracy"),
        Measure("f1", "macro F1", of_rarest_class=True),
        KAPPA,
    )

    def metrics(self, data: TargetData, draws: Draws) -> TargetMetrics:
        y = data.y[:, 0].astype(np.int64)
        return multiclass_metrics(y, data.predicted, names=data.names, draws=draws)

    def rivals(self, data: TargetData, draws: Draws) -> dict[str, TargetMetrics]:
        rivals = super().rivals(data, draws)
        for name, rival in rivals.items():
            macro = {earlier: rival.overall[metric] for earlier, metric in MACRO.items()}
            rivals[name] = replace(rival, overall={**rival.overall, **macro})
        return rivals


class Ordinal(OneClass):
    """Grades 0 … K in rising order; the median of the predicted distribution is called."""

    name = "ordinal"
    words = Words(
        predicts="the probability of the grade: one of {either}, in rising order",
        called="grade {}",
        call_rule="the median grade is called",
        towards=("speaks for a higher grade", "for a lower one"),
        aim="a higher grade",
        response="mean grade",
        noun="grade",
        raised="the grade",
        part="grade and above, against those below",
        page=PageWords(
            said="grade",
            call="Grade",
            call_hint="The predicted grade: the median of its distribution",
            number_hint="Probability of the predicted grade",
            column="Grade",
            unsure_hint="The grade changes within one standard deviation of its probability.",
        ),
    )
    headline = ("quadratic_kappa", "mae")
    chance = 0.0
    validation_metric = "val_kappa"
    patient_has_highest = True
    measures = (
        KAPPA,
        LOSS("mae", "MAE of grades"),
        LOSS("rps", "RPS"),
        LOSS("nll", "NLL"),
    )

    def metrics(self, data: TargetData, draws: Draws) -> TargetMetrics:
        names = [class_name(data.names, k) for k in range(data.predicted.shape[1])]
        return ordinal_metrics(
            data.y[:, 0].astype(np.int64), data.predicted, names=names, draws=draws
        )

    def constants(self, data: TargetData, training: np.ndarray) -> dict[str, P]:
        counts = np.bincount(training[:, 0].astype(int), minlength=data.predicted.shape[1])
        shares = counts / counts.sum()
        return {"shares of the training bags": np.tile(shares, (len(data.y), 1))}

    def validation_score(self, y: Y, p: P) -> float | None:
        grades = y[:, 0].astype(np.int64)
        draws = Draws.of_data(len(y))
        matrix = confusion(grades, median_call(p), classes=p.shape[1], draws=draws)
        return cohen_kappa(matrix, support=draws.support(), weighting="quadratic").value

    def call(self, p: P, threshold: float | None = None) -> tuple[np.ndarray, np.ndarray]:
        # the median moves to another grade where a cumulative probability crosses 0.5
        at_most = np.cumsum(p, axis=1)[:, :-1]
        return median_call(p), np.abs(at_most - HALF).min(1)

    def response(self, p: Predicted, column: int) -> float:
        return float(p.probability.astype(np.float64) @ np.arange(len(p.probability)))

    def column_names(self, p: Predicted, columns: int) -> tuple[str, ...] | None:
        if 1 < columns == len(p.outputs) - 1:
            return tuple(f"at least {name}" for name in p.outputs.names[1:])
        return super().column_names(p, columns)

    def column(self, p: Predicted, columns: int | None = None, *, called: bool = False) -> int:
        call = int(median_call(p.probability[None].astype(np.float64))[0])
        if columns is None:
            return call
        of_steps = 1 < columns == len(p.probability) - 1
        return max(call - 1, 0) if of_steps else columns - 1


def _limit(threshold: T | None) -> T | float:
    """Return from which p(Y = 1) a bag of two classes is called positive."""
    return HALF if threshold is None else threshold
