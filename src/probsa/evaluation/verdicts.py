"""What is predicted of a bag, in a few words: for titles of maps, lists of bags, and columns."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..core import CLASS_TASKS, Task
from ..statistics import median_call
from .prediction import Prediction
from .storage import Predictions

HALF = 0.5
"""From which probability a finding is called, unless thresholds are stored."""
TOWARDS: Mapping[Task, tuple[str, str]] = {
    "binary": ("speaks for the class", "against it"),
    "multiclass": ("speaks for the class", "against it"),
    "ordinal": ("speaks for a higher grade", "for a lower one"),
    "multilabel": ("speaks for the finding", "against it"),
    "regression": ("raises the value", "lowers it"),
    "survival": ("raises the risk", "lowers it"),
}
"""What positive and negative evidence of an instance does, by task."""
AIMS: Mapping[Task, str] = {
    "binary": "the class",
    "multiclass": "the class",
    "ordinal": "a higher grade",
    "multilabel": "the finding",
    "regression": "a higher value",
    "survival": "a higher risk",
}
"""What positive evidence speaks for."""


RESPONSES: Mapping[Task, str] = {
    "binary": "probability",
    "multiclass": "probability",
    "ordinal": "mean grade",
    "multilabel": "probability",
    "regression": "predicted value",
    "survival": "risk",
}
"""What `response` returns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What is predicted of a bag."""

    call: str
    """The called class, grade or findings; of numbers the 90 % interval, of times survival at one
    time."""
    value: float
    """The probability of what is called; of other tasks, the predicted mean or the risk."""
    spread: float
    """Its standard deviation: over posterior samples, of a number the whole one."""
    unsure: bool = False
    """Whether the call changes within one standard deviation."""
    text: str = ""
    """The prediction with its standard deviation, as `grade 2, p = 0.61 ± 0.08`."""


def verdict(
    p: Prediction,
    *,
    threshold: float | None = None,
    classes: Sequence[str] = (),
    thresholds: Sequence[float] | None = None,
    target: Sequence[str] = (),
) -> Verdict:
    """Return what is predicted of a bag.

    Args:
        p: its prediction.
        threshold: p(Y = 1) from which a bag of two classes is called positive.
        classes: names of the classes, grades or findings.
        thresholds: from which probability each finding is called; None for 0.5.
        target: names of the columns that the model was trained on.
    """
    if p.task == "ordinal":
        return _grade(p, classes)
    if p.task == "multilabel":
        return _findings(p, thresholds)
    if p.task == "regression":
        return _number(p, target[0] if target else "value")
    if p.task == "survival":
        return _risk(p)
    return _class(p, threshold, classes)


def verdict_of(table: Predictions, p: Prediction) -> Verdict:
    """Return what is predicted of a bag of a table, with its names and thresholds."""
    return verdict(
        p,
        threshold=table.threshold,
        classes=table.classes,
        thresholds=table.metadata.get("thresholds"),
        target=table.metadata.get("target") or (),
    )


def truth_of(table: Predictions, row: int) -> str:
    """Return what a bag of a table is labelled with, in words; empty if it is not known."""
    if table.targets is not None:
        return truth_text(table.task, table.targets[row].tolist(), classes=table.classes)
    label = table.labels[row]
    return "" if label is None else class_name(table.classes, label)


def _class(p: Prediction, threshold: float | None, classes: Sequence[str]) -> Verdict:
    probability, std = p.probability, p.std
    shown = len(probability) - 1 if len(probability) <= 2 else int(probability.argmax())
    if len(probability) == 1 or (len(probability) == 2 and threshold is not None):
        margin = float(probability[-1]) - (HALF if threshold is None else threshold)
        call = int(margin >= 0)
    else:
        call = int(probability.argmax())
        two = np.sort(probability)[-2:]
        margin = float(two[1] - two[0])
    k = int(np.argmax(probability))
    which = f"p(class {class_name(classes, k)})" if len(probability) > 1 else "p"
    return Verdict(
        call=class_name(classes, call),
        value=float(probability[shown]),
        spread=float(std[shown]),
        unsure=abs(margin) < float(std[shown]),
        text=f"{which} = {probability[k]:.2f}{_plus_minus(float(std[k]))}",
    )


def _grade(p: Prediction, classes: Sequence[str]) -> Verdict:
    call = int(median_call(p.probability[None].astype(np.float64))[0])
    value, spread = float(p.probability[call]), float(p.std[call])
    reached = np.cumsum(p.probability.astype(np.float64))
    near = [abs(reached[k] - HALF) for k in (call - 1, call) if 0 <= k < len(reached) - 1]
    name = class_name(classes, call)
    return Verdict(
        call=name,
        value=value,
        spread=spread,
        unsure=min(near) < spread,
        text=f"grade {name}, p = {value:.2f}{_plus_minus(spread)}",
    )


def _findings(p: Prediction, thresholds: Sequence[float] | None) -> Verdict:
    t = np.full(len(p.probability), HALF) if thresholds is None else np.asarray(thresholds)
    called = p.probability >= t
    k = int(np.argmax(p.probability))
    order = np.argsort(-p.probability, kind="stable")
    named = [
        f"{p.outputs[i]} {p.probability[i]:.2f}{_plus_minus(float(p.std[i]))}" for i in order[:3]
    ]
    more = f", … ({len(order)} findings)" if len(order) > 3 else ""
    return Verdict(
        call=", ".join(n for n, c in zip(p.outputs, called, strict=True) if c) or "none",
        value=float(p.probability[k]),
        spread=float(p.std[k]),
        unsure=bool((np.abs(p.probability - t) < p.std).any()),
        text="p: " + ", ".join(named) + more,
    )


def _number(p: Prediction, name: str) -> Verdict:
    mean = float(p.probability[p.outputs.index("mean")])
    sd = float(p.probability[p.outputs.index("sd")])
    low, high = (float(p.probability[p.outputs.index(q)]) for q in ("q05", "q95"))
    return Verdict(
        call=f"{low:.3g} to {high:.3g}" if low < 0 else f"{low:.3g}–{high:.3g}",
        value=mean,
        spread=sd,
        text=f"{name} = {mean:.4g} ± {sd:.2g}",
    )


def middle_time(outputs: Sequence[str]) -> int:
    """Return which of the times of survival is in their middle, the earlier of two."""
    return (len(outputs) - 2) // 2


def _risk(p: Prediction) -> Verdict:
    risk, spread = float(p.probability[0]), float(p.std[0])
    k = middle_time(p.outputs)
    time = p.outputs[1 + k].removeprefix("s_")
    chance = f"{p.probability[1 + k]:.2f}"
    with_spread = f"S({time}) = {chance}{_plus_minus(float(p.std[1 + k]))}"
    plus = f" ± {spread:.2g}" if spread > 0 else ""
    return Verdict(
        call=chance, value=risk, spread=spread, text=f"risk = {risk:.4g}{plus} · {with_spread}"
    )


def truth_text(task: Task, target: Sequence[float], *, classes: Sequence[str] = ()) -> str:
    """Return what a bag is labelled with, in words; empty if nothing is known.

    Args:
        task: the task.
        target: the index of its class or grade, or its value of each target; nan is not known.
        classes: names of the classes, grades or findings.
    """
    known = [v for v in target if not math.isnan(v)]
    if not known:
        return ""
    if task == "survival":
        return f"{target[0]:.4g}, {'event' if target[1] > 0 else 'censored'}"
    if task == "regression":
        return f"{target[0]:.4g}"
    if task == "multilabel":
        pairs = list(zip(classes, target, strict=True))
        present = ", ".join(name for name, v in pairs if v == 1) or "none"
        unknown = [name for name, v in pairs if math.isnan(v)]
        return f"{present} ({', '.join(unknown)} not known)" if unknown else present
    return class_name(classes, int(target[0]))


def contradicts(p: Prediction, call: str, target: Sequence[float]) -> bool | None:
    """Return whether what a bag is labelled with contradicts its prediction; None if not known.

    A class or grade does if it is not the called one, a finding if it is called although absent or
    the reverse, and a number outside the predicted 90 % interval. A time does not.
    """
    if p.task == "multilabel":
        called = call.split(", ")
        known = [(n, v) for n, v in zip(p.outputs, target, strict=True) if not math.isnan(v)]
        return any((name in called) != (v == 1) for name, v in known) if known else None
    if p.task == "regression" and not math.isnan(target[0]):
        low, high = (p.probability[p.outputs.index(q)] for q in ("q05", "q95"))
        return not low <= target[0] <= high
    return None


def class_name(classes: Sequence[str], k: int) -> str:
    """Return the name of a class; its number, if there are no names."""
    return classes[k] if k < len(classes) and len(classes) > 1 else str(k)


def shown_column(p: Prediction, columns: int) -> int:
    """Return which column of per-instance values is shown first.

    Of classes, it is that of the most probable class except class 0; of findings, that of the most
    probable one; of a number, that of its mean; of the steps between grades, that below the called
    grade; of intervals of time, the one whose hazard changes the risk most.
    """
    if columns == 1 or p.task == "regression":
        return 0
    if p.task == "multilabel" and len(p.probability) == columns:
        return int(np.argmax(p.probability))
    if p.task == "ordinal" and len(p.probability) == columns + 1:
        return max(int(median_call(p.probability[None].astype(np.float64))[0]) - 1, 0)
    if p.task == "survival" and len(p.probability) == columns + 1:
        return _interval_of_risk(p)
    if p.task not in CLASS_TASKS or len(p.probability) != columns:
        return columns - 1
    return 1 + int(np.argmax(p.probability[1:]))


def _interval_of_risk(p: Prediction) -> int:
    """Return the interval k with the largest change of the risk by its logit.

    A unit of the logit lowers log S by h_k from the end of the interval on, so the risk changes by
    about h_k times the area below S from the middle of the interval on.
    """
    times = np.array([0.0, *(float(name.removeprefix("s_")) for name in p.outputs[1:])])
    survival = np.concatenate([[1.0], p.probability[1:].astype(np.float64)])
    areas = np.diff(times) * (survival[:-1] + survival[1:]) / 2
    hazards = 1 - survival[1:] / np.maximum(survival[:-1], np.finfo(np.float64).tiny)
    after = areas[::-1].cumsum()[::-1] - areas / 2
    return int(np.argmax(hazards * after))


def response(p: Prediction, *, column: int) -> float:
    """Return the number that the maps of a bag explain.

    It is the probability of a class or finding, the mean grade, the mean, or the risk.

    Args:
        p: the prediction.
        column: the class or finding; other tasks have one response.
    """
    if p.task == "ordinal":
        return float(p.probability.astype(np.float64) @ np.arange(len(p.probability)))
    if p.task in ("regression", "survival"):
        return float(p.probability[0])
    return float(p.probability[column])


def _plus_minus(spread: float) -> str:
    return f" ± {spread:.2f}" if spread > 0 else ""
