"""The task regression: a number, predicted with its distribution."""

from dataclasses import replace

import numpy as np

from ..core import Outputs
from ..statistics import Draws, TargetMetrics, regression_metrics
from .base import LOSS, UNSTATED, Measure, P, Predicted, Stated, TargetData, Task, Verdict
from .labels import Names, Row
from .words import PageWords, Words, format_number

CENTRAL_90 = (0.05, 0.95)
"""The levels of the quantiles at the ends of an interval of 90 %."""


class Regression(Task):
    """A number, predicted with its distribution: mean, sd and quantiles."""

    name = "regression"
    words = Words(
        predicts="a number{of}, with its distribution ({outputs}: mean, standard deviation and "
        "quantiles)",
        towards=("raises the value", "lowers it"),
        aim="a higher value",
        response="predicted value",
        noun="value",
        raised="the value",
        evidence_unit="sd of the target",
        part="interval",
        page=PageWords(
            said="90 % interval",
            measure="mean",
            call="90 %",
            call_hint="The predicted 90 % interval, in the unit of the target",
            number="Mean",
            number_hint="The predicted mean, in the unit of the target",
            spread_hint="The whole standard deviation, of noise and attention, in the same unit",
            wrong="outside",
            wrong_hint="The true value is outside the predicted 90 % interval.",
            unsure_hint="",
            column="Part",
            is_probability=False,
        ),
    )
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
        is_inside = (low <= y) & (y <= high)
        return f"{is_inside.sum()} of {len(y)} values lie in the predicted 90 % intervals"

    def constants(self, data: TargetData, training: np.ndarray) -> dict[str, P]:
        shape = (len(data.y), 1)
        return {
            "mean of the training bags": np.full(shape, training.mean()),
            "median of the training bags": np.full(shape, np.median(training)),
        }

    def verdict(self, p: Predicted, stated: Stated = UNSTATED) -> Verdict:
        mean, sd = (float(p.probability[p.outputs.index(name)]) for name in ("mean", "sd"))
        low, high = _central_interval(p)
        name = stated.target[0] if stated.target else "value"
        dash = " to " if low < 0 else "–"  # a dash beside a minus sign is misread
        return Verdict(
            call=f"{format_number(low, 3)}{dash}{format_number(high, 3)}",
            value=mean,
            spread=sd,
            span="noise and model",
            text=f"{name} {format_number(mean, 3)} ± {format_number(sd, 2)} (noise and model)",
        )

    def contradicts(self, p: Predicted, y: Row, stated: Stated = UNSTATED) -> bool | None:
        if np.isnan(y[0]):
            return None
        low, high = _central_interval(p)
        return not low <= y[0] <= high

    def outputs_named(self, names: Names) -> Outputs:
        return Outputs.of_number_named(names)

    def column(self, p: Predicted, columns: int | None = None, *, called: bool = False) -> int:
        return 0

    def column_names(self, p: Predicted, columns: int) -> tuple[str, ...] | None:
        return ("mean", "variance")[:columns] if columns > 1 else None

    def page_words(self, outputs: Outputs, target: Names) -> PageWords:
        words = super().page_words(outputs, target)
        if not target:
            return words
        return replace(words, measure=target[0], number_hint=f"Predicted mean of {target[0]}")


def _central_interval(p: Predicted) -> tuple[float, float]:
    """Return the predicted interval of 90 % of a number."""
    low, high = (float(p.probability[p.outputs.quantile(level)]) for level in CENTRAL_90)
    return low, high
