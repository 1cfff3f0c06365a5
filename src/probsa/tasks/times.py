"""The task survival: the time to an event."""

from dataclasses import replace

import numpy as np

from ..core import Outputs
from ..errors import InputError
from ..statistics import (
    CensoringCurve,
    Draws,
    TargetMetrics,
    concordance,
    kaplan_meier,
    survival_metrics,
)
from .base import LOSS, UNSTATED, Measure, P, Predicted, Stated, TargetData, Task, Verdict
from .labels import Names, Y
from .words import PageWords, Words, format_number, format_probability, plus_minus, span_of


class Survival(Task):
    """The time to an event; outputs are `risk`, higher is worse, and `s_<time>`."""

    name = "survival"
    words = Words(
        predicts="the time to an event ({outputs}: the risk, where higher is worse, and the "
        "probability of no event until each time). Nothing is predicted beyond the time {last}",
        towards=("raises the risk", "lowers it"),
        aim="a higher risk",
        response="risk",
        noun="risk",
        raised="the risk",
        part="time",
        undefined_metric="the c-index",
        note="S(t) is the predicted probability of no event until the time t; the risk is the "
        "expected time lost to the event.",
        page=PageWords(
            measure="risk",
            call_hint="S(t): the predicted probability of no event until the time t",
            wrong="",
            number="Risk",
            number_hint="Expected time lost to the event, up to the last event of training; higher "
            "is worse",
            spread_hint="Standard deviation of the risk over samples: the doubt of the attention "
            "alone",
            unsure_hint="",
            column="Time",
            is_probability=False,
        ),
    )
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
        same_risk = [0.0, *curve[0]]
        return {"Kaplan–Meier of the training bags": np.tile(same_risk, (len(data.y), 1))}

    def validation_score(self, y: Y, p: P) -> float | None:
        return concordance(y[:, 0], y[:, 1] > 0, risk=p[:, 0]).value

    def verdict(self, p: Predicted, stated: Stated = UNSTATED) -> Verdict:
        risk = float(p.probability[0])
        spread = float(p.std[0])
        middle = _middle(p.outputs)
        k = p.outputs.of_times.start + middle
        chance = format_probability(float(p.probability[k]))
        time = format_number(p.outputs.times[middle], 3)
        span = span_of(p)
        at_time = f"S({time}) {chance}{plus_minus(float(p.std[k]), span=span)}"
        return Verdict(
            call=chance,
            value=risk,
            spread=spread,
            span=span,
            text=f"risk {format_number(risk, 3)}{plus_minus(spread, span=span)} · {at_time}",
        )

    def outputs_named(self, names: Names) -> Outputs:
        return Outputs.of_time_named(names)

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
        area_after = areas[::-1].cumsum()[::-1] - areas / 2
        return int(np.argmax(hazards * area_after))

    def column_names(self, p: Predicted, columns: int) -> tuple[str, ...] | None:
        if 1 < columns == len(p.outputs.times):
            return tuple(f"until {format_number(time, 4)}" for time in p.outputs.times)
        return super().column_names(p, columns)

    def page_words(self, outputs: Outputs, target: Names) -> PageWords:
        time = f"S({format_number(outputs.times[_middle(outputs)], 3)})"
        return replace(super().page_words(outputs, target), said=time, call=time)


def _middle(outputs: Outputs) -> int:
    """Return which of the times of survival is in their middle, the earlier of two."""
    return (len(outputs.times) - 1) // 2
