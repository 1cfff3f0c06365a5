"""The six tasks: binary, multiclass, ordinal, multilabel, regression and survival."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from ..core import Outputs, TaskName
from ..errors import InputError
from ..statistics import (
    CensoringCurve,
    Draws,
    TargetMetrics,
    binary_metrics,
    cohen_kappa,
    concordance,
    confusion,
    kaplan_meier,
    median_call,
    multiclass_metrics,
    multilabel_metrics,
    ordinal_metrics,
    regression_metrics,
    survival_metrics,
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
from .labels import Names, Row, Y
from .words import PageWords, class_name, of_chance, plus_minus, span_of

F1_AT_HALF = "f1_at_0.5"
"""F1 of the calls at p ≥ 0.5, as in the paper; `f1` is of those at the threshold of the run."""
CENTRAL_90 = (0.05, 0.95)
"""The levels of the quantiles at the ends of an interval of 90 %."""
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
        row, shown = as_written(p.probability[None]), self.column(p, called=True)
        (call,), (margin,) = self.call(row, stated.threshold)
        said = int(np.argmax(row)) if self.unordered_classes else int(call)
        return Verdict(
            call=class_name(stated.classes, int(call)),
            value=float(p.probability[shown]),
            spread=float(p.std[shown]),
            span=span_of(p),
            unsure=bool(margin < float(p.std[shown])),
            text=f"{self._named(stated, said)}: p {of_chance(row[0, said])}"
            f"{plus_minus(float(p.std[said]), span=span_of(p))}",
        )

    def _named(self, stated: Stated, k: int) -> str:
        """Return the name of a class for texts; numbers and grades say what they are."""
        name = class_name(stated.classes, k)
        plain = self.unordered_classes and not name.isdecimal()
        return name if plain else self.words.called.format(name)

    def calls(self, data: TargetData) -> str:
        off = np.abs(self.call(data.predicted)[0] - data.y[:, 0])
        said = f"{(off > 0).sum()} of {len(off)} wrong"
        return said if self.unordered_classes else f"{said}, {(off > 1).sum()} by 2 grades or more"

    def called_positive(self, p: P, stated: Stated = UNSTATED) -> np.ndarray:
        return self.call(p, stated.threshold)[0] > 0


class Unordered(OneClass):
    """Classes without an order; a single column of probabilities is that of the last of two."""

    unordered_classes = by_probability = True
    validation_metric = "val_auroc"

    def call(self, p: P, threshold: float | None = None) -> tuple[np.ndarray, np.ndarray]:
        if p.shape[1] > 2:
            ascending = np.sort(p, axis=1)
            return p.argmax(1), ascending[:, -1] - ascending[:, -2]
        above = as_written(p[:, -1]) - _limit(threshold)
        return (above >= 0).astype(np.int64), np.abs(above)

    def column_names(self, p: Predicted, columns: int) -> tuple[str, ...] | None:
        return None

    def validation_score(self, y: Y, p: P) -> float | None:
        labels = y[:, 0].astype(np.int64)
        p = np.hstack([1 - p, p]) if p.shape[1] == 1 else p
        if len(set(labels.tolist())) != p.shape[1]:
            return None
        from sklearn.metrics import roc_auc_score  # its import takes longer than a refusal may

        scores = p[:, 1] if p.shape[1] == 2 else p / p.sum(1, keepdims=True)
        return float(roc_auc_score(labels, scores, multi_class="ovr"))


class Binary(Unordered):
    """Two classes."""

    name = "binary"
    two_classes = patient_has_highest = True
    headline = ("auroc", "balanced_accuracy")
    overview = 2
    measures = (
        Measure("auroc", "AUROC", by_fold=True, exchanged="auroc"),
        Measure("f1", "F1 at chosen threshold", exchanged="f1"),
        Measure(F1_AT_HALF, "F1 at 0.5", exchanged="f1"),
    )

    def metrics(self, data: TargetData, draws: Draws) -> TargetMetrics:
        y, p = data.y[:, 0].astype(np.int64), data.predicted[:, -1]
        low, high = (class_name(data.names, k) for k in (0, 1))
        names = (f"of class {low}", f"of class {high}")
        return binary_metrics(y, p, threshold=data.threshold, names=names, draws=draws)

    def verdict(self, p: Predicted, stated: Stated = UNSTATED) -> Verdict:
        t = _limit(stated.threshold)
        value = float(as_written(p.probability)[-1])
        call = int(value >= t)
        # p is that of the second class, whatever is called
        of = "" if call else f"({self._named(stated, 1)})"
        text = (
            f"{self._named(stated, call)}: p{of} {of_chance(value, t)}"
            f"{plus_minus(float(p.std[-1]), span=span_of(p))}, threshold {of_chance(t, value)}"
        )
        return replace(super().verdict(p, stated), text=text)

    def calls(self, data: TargetData) -> str:
        y, called = data.y[:, 0] > 0, data.predicted[:, -1] >= _limit(data.threshold)
        low, high = (class_name(data.names, k) for k in (0, 1))
        return (
            f"{(y & ~called).sum()} of {y.sum()} bags of class {high} missed, "
            f"{(called & ~y).sum()} of {(~y).sum()} of class {low} called {high}"
        )


class Multiclass(Unordered):
    """Three classes or more."""

    name = "multiclass"
    headline = ("auroc", "balanced_accuracy")
    measures = (
        Measure("auroc", "macro AUROC", by_fold=True),
        Measure("accuracy", "accuracy"),
        Measure("f1", "macro F1"),
        KAPPA,
    )

    def metrics(self, data: TargetData, draws: Draws) -> TargetMetrics:
        y = data.y[:, 0].astype(np.int64)
        return multiclass_metrics(y, data.predicted, names=data.names, draws=draws)

    def rivals(self, data: TargetData, draws: Draws) -> dict[str, TargetMetrics]:
        return {
            name: replace(r, overall={**r.overall, **{k: r.overall[v] for k, v in MACRO.items()}})
            for name, r in super().rivals(data, draws).items()
        }


class Ordinal(OneClass):
    """Grades 0 … K in rising order; the median of the predicted distribution is called."""

    name = "ordinal"
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
        return {"shares of the training bags": np.tile(counts / counts.sum(), (len(data.y), 1))}

    def validation_score(self, y: Y, p: P) -> float | None:
        grades, draws = y[:, 0].astype(np.int64), Draws.of_data(len(y))
        matrix = confusion(grades, median_call(p), classes=p.shape[1], draws=draws)
        return cohen_kappa(matrix, support=draws.support(), weighting="quadratic").value

    def call(self, p: P, threshold: float | None = None) -> tuple[np.ndarray, np.ndarray]:
        return median_call(p), np.abs(np.cumsum(p, axis=1)[:, :-1] - HALF).min(1)

    def response(self, p: Predicted, column: int) -> float:
        return float(p.probability.astype(np.float64) @ np.arange(len(p.probability)))

    def column_names(self, p: Predicted, columns: int) -> tuple[str, ...] | None:
        if 1 < columns == len(p.outputs) - 1:
            return tuple(f"at least {name}" for name in p.outputs.names[1:])
        return super().column_names(p, columns)

    def column(self, p: Predicted, columns: int | None = None, *, called: bool = False) -> int:
        call = int(median_call(p.probability[None].astype(np.float64))[0])
        steps = columns is not None and 1 < columns == len(p.probability) - 1
        return max(call - 1, 0) if steps else call if columns is None else columns - 1


class Multilabel(Task):
    """Findings with independent probabilities."""

    name = "multilabel"
    headline = ("macro_auroc", "macro_average_precision")
    validation_metric = "val_auroc"
    by_probability = has_findings = True
    value_prefix = "p_"
    measures = (
        Measure("macro_auroc", "macro AUROC", by_fold=True),
        Measure("macro_average_precision", "macro AP", by_fold=True),
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
            known = np.isfinite(finding)
            if len(np.unique(finding[known])) == 2:
                aurocs.append(roc_auc_score(finding[known], score[known]))
        return float(np.mean(aurocs)) if aurocs else None

    def calls(self, data: TargetData) -> str:
        limits = Stated(thresholds=data.thresholds).of_findings(data.y.shape[1])
        known = np.isfinite(data.y)
        wrong = ((data.predicted >= limits) != (data.y == 1)) & known
        return f"{wrong.sum()} of {known.sum()} known findings wrong"

    def called_positive(self, p: P, stated: Stated = UNSTATED) -> np.ndarray:
        return np.any(as_written(p) >= stated.of_findings(p.shape[1]), axis=1)

    def verdict(self, p: Predicted, stated: Stated = UNSTATED) -> Verdict:
        chances = as_written(p.probability)
        n = len(chances)
        t = stated.of_findings(n)
        order = np.argsort(-chances, kind="stable")
        named = []
        for i in order[:3]:
            chance, limit = float(chances[i]), float(t[i])
            spread = plus_minus(float(p.std[i]), span=span_of(p))
            at = f"{of_chance(chance, limit)}{spread}, threshold {of_chance(limit, chance)}"
            named.append(f"p({p.outputs.names[i]}) {at}")
        more = f"; … ({n} findings)" if n > 3 else ""
        call = ", ".join(p.outputs.names[i] for i in np.flatnonzero(chances >= t)) or "none"
        return Verdict(
            call=call,
            value=float(chances[order[0]]),
            spread=float(p.std[order[0]]),
            span=span_of(p),
            unsure=bool((np.abs(chances - t) < p.std).any()),
            text=f"{call}: " + "; ".join(named) + more,
        )

    def contradicts(self, p: Predicted, y: Row, stated: Stated = UNSTATED) -> bool | None:
        true = np.asarray(y)
        known = ~np.isnan(true)
        limits = stated.of_findings(len(p.probability))
        differs = (as_written(p.probability) >= limits) != (true == 1)
        return bool(differs[known].any()) if known.any() else None


class Regression(Task):
    """A number, predicted with its distribution: mean, sd and quantiles."""

    name = "regression"
    headline = ("r_squared", "mae")
    chance = 0.0
    averages = None
    coverage_by = "intervals"
    measures = (
        LOSS("mae", "MAE", of_target=True),
        LOSS("rmse", "RMSE", of_target=True),
        Measure("r_squared", "R²", unit="number", low=-np.inf),
        LOSS("crps", "CRPS", of_target=True),
    )

    def metrics(self, data: TargetData, draws: Draws) -> TargetMetrics:
        columns = data.predicted[:, data.outputs.of_quantiles].T
        quantiles = dict(zip(data.outputs.quantiles, columns, strict=True))
        return regression_metrics(
            data.y[:, 0], data.column("mean"), scores=data.scores, quantiles=quantiles, draws=draws
        )

    def calls(self, data: TargetData) -> str:
        y = data.y[:, 0]
        low, high = (data.predicted[:, data.outputs.quantile(level)] for level in CENTRAL_90)
        inside = (low <= y) & (y <= high)
        return f"{inside.sum()} of {len(y)} values lie in the predicted 90 % intervals"

    def constants(self, data: TargetData, training: np.ndarray) -> dict[str, P]:
        values = {"mean": training.mean(), "median": np.median(training)}
        shape = (len(data.y), 1)
        return {f"{name} of the training bags": np.full(shape, v) for name, v in values.items()}

    def verdict(self, p: Predicted, stated: Stated = UNSTATED) -> Verdict:
        mean, sd = (float(p.probability[p.outputs.index(name)]) for name in ("mean", "sd"))
        low, high = _central_interval(p)
        name = stated.target[0] if stated.target else "value"
        return Verdict(
            call=f"{low:.3g} to {high:.3g}" if low < 0 else f"{low:.3g}–{high:.3g}",
            value=mean,
            spread=sd,
            span="noise and model",
            text=f"{name} {mean:.3g} ± {sd:.2g} (noise and model)",
        )

    def contradicts(self, p: Predicted, y: Row, stated: Stated = UNSTATED) -> bool | None:
        if np.isnan(y[0]):
            return None
        low, high = _central_interval(p)
        return not low <= y[0] <= high

    def column(self, p: Predicted, columns: int | None = None, *, called: bool = False) -> int:
        return 0

    def column_names(self, p: Predicted, columns: int) -> tuple[str, ...] | None:
        return ("mean", "variance")[:columns] if columns > 1 else None

    def page_words(self, outputs: Outputs, target: Names) -> PageWords:
        words = super().page_words(outputs, target)
        if not target:
            return words
        return replace(words, measure=target[0], number_hint=f"Predicted mean of {target[0]}")


class Survival(Task):
    """The time to an event; outputs are `risk`, higher is worse, and `s_<time>`."""

    name = "survival"
    headline = ("uno_c", "integrated_brier")
    validation_metric = "val_c_index"
    averages = "members"
    compares_across_folds = False
    measures = (
        Measure("uno_c", "Uno's c", by_fold=True),
        LOSS("integrated_brier", "integrated Brier", by_fold=True),
        Measure("mean_auroc", "mean AUROC(t)", by_fold=True),
    )

    def metrics(self, data: TargetData, draws: Draws) -> TargetMetrics:
        if data.training is None:
            raise InputError(
                "survival metrics need the times of the training bags, which these predictions do "
                "not contain: predict again with a run folder"
            )
        return survival_metrics(
            data.y[:, 0],
            data.y[:, 1] > 0,
            risk=data.column("risk"),
            censoring=CensoringCurve.fit(data.training[:, 0], data.training[:, 1] > 0),
            survival=data.predicted[:, data.outputs.of_times],
            times=np.array(data.outputs.times),
            draws=draws,
        )

    def constants(self, data: TargetData, training: np.ndarray) -> dict[str, P]:
        draws = Draws.of_data(len(training))
        times = np.array(data.outputs.times)
        curve = kaplan_meier(training[:, 0], training[:, 1] > 0, times, draws=draws)
        row = [0.0, *curve[0]]
        return {"Kaplan–Meier of the training bags": np.tile(row, (len(data.y), 1))}

    def validation_score(self, y: Y, p: P) -> float | None:
        return concordance(y[:, 0], y[:, 1] > 0, risk=p[:, 0]).value

    def verdict(self, p: Predicted, stated: Stated = UNSTATED) -> Verdict:
        risk, spread = float(p.probability[0]), float(p.std[0])
        middle = _middle(p.outputs)
        k = p.outputs.of_times.start + middle
        chance = of_chance(float(p.probability[k]))
        time = p.outputs.times[middle]
        at_time = f"S({time:.3g}) {chance}{plus_minus(float(p.std[k]), span=span_of(p))}"
        return Verdict(
            call=chance,
            value=risk,
            spread=spread,
            span=span_of(p),
            text=f"risk {risk:.3g}{plus_minus(spread, span=span_of(p))} · {at_time}",
        )

    def column(self, p: Predicted, columns: int | None = None, *, called: bool = False) -> int:
        """Return the interval k with the largest change of the risk by its logit.

        A unit of the logit lowers log S by h_k from the end of the interval on, so the risk changes
        by about h_k times the area below S from the middle of the interval on.
        """
        if columns is None or not 1 < columns == len(p.probability) - 1:
            return super().column(p, columns)
        times = np.append([0.0], p.outputs.times)
        survival = np.append([1.0], p.probability[1:].astype(np.float64))
        areas = np.diff(times) * (survival[:-1] + survival[1:]) / 2
        hazards = 1 - survival[1:] / np.maximum(survival[:-1], np.finfo(np.float64).tiny)
        after = areas[::-1].cumsum()[::-1] - areas / 2
        return int(np.argmax(hazards * after))

    def column_names(self, p: Predicted, columns: int) -> tuple[str, ...] | None:
        if 1 < columns == len(p.outputs.times):
            return tuple(f"until {time:.4g}" for time in p.outputs.times)
        return super().column_names(p, columns)

    def page_words(self, outputs: Outputs, target: Names) -> PageWords:
        time = f"S({outputs.times[_middle(outputs)]:.3g})"
        return replace(super().page_words(outputs, target), said=time, call=time)


TASKS: Mapping[TaskName, Task] = {
    task.name: task
    for task in (Binary(), Multiclass(), Ordinal(), Multilabel(), Regression(), Survival())
}
"""The tasks by name."""


def _limit(threshold: T | None) -> T | float:
    """Return from which p(Y = 1) a bag of two classes is called positive."""
    return HALF if threshold is None else threshold


def _central_interval(p: Predicted) -> tuple[float, float]:
    """Return the predicted interval of 90 % of a number."""
    low, high = (float(p.probability[p.outputs.quantile(level)]) for level in CENTRAL_90)
    return low, high


def _middle(outputs: Outputs) -> int:
    """Return which of the times of survival is in their middle, the earlier of two."""
    return (len(outputs.times) - 1) // 2
