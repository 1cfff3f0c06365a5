"""A number for each bag, predicted with its distribution: mean, sd and quantiles."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..statistics import Draws, TargetMetrics, regression_metrics
from .base import UNSTATED, Measure, Names, Predicted, Stated, Target, TargetData, Task, Verdict, Y
from .columns import Cells, Targets, Value
from .words import NUMBERS, PageWords, quoted


class Regression(Task):
    """A number in the user's unit; splits are balanced by its quintiles."""

    name = "regression"
    words = NUMBERS
    members_average = runs_average = False
    coverage_by = "intervals"
    measures = (
        Measure.loss("mae", "MAE", of_target=True),
        Measure.loss("rmse", "RMSE", of_target=True),
        Measure("r_squared", "R²", unit="number", low=-np.inf),
        Measure.loss("crps", "CRPS", of_target=True),
    )

    def metrics(self, data: TargetData, draws: Draws) -> TargetMetrics:
        quantiles = {float(n[1:]) / 100: data.column(n) for n in data.outputs if n[0] == "q"}
        return regression_metrics(
            data.y[:, 0], data.column("mean"), scores=data.scores, quantiles=quantiles, draws=draws
        )

    def null_rivals(self, data: TargetData, draws: Draws) -> dict[str, TargetMetrics]:
        if data.training is None:
            return {}
        y, known = data.y[:, 0], data.training
        return {
            f"{name} of the training bags": regression_metrics(
                y, np.full(len(y), value), draws=draws
            )
            for name, value in (("mean", known.mean()), ("median", np.median(known)))
        }

    def counts(self, y: Y, names: Names) -> dict[str, int]:
        return {self.content(y, names): len(y)}

    def unjudgeable(self, y: Y, training: np.ndarray, names: Names) -> str | None:
        del y, training, names
        return None

    def verdict(self, p: Predicted, stated: Stated = UNSTATED) -> Verdict:
        mean, sd, low, high = (_output(p, name) for name in ("mean", "sd", "q05", "q95"))
        name = stated.target[0] if stated.target else "value"
        return Verdict(
            call=f"{low:.3g} to {high:.3g}" if low < 0 else f"{low:.3g}–{high:.3g}",
            value=mean,
            spread=sd,
            text=f"{name} = {mean:.4g} ± {sd:.2g}",
        )

    def truth_text(self, y: Sequence[float], *, classes: Names = ()) -> str:
        del classes
        return "" if math.isnan(y[0]) else f"{y[0]:.4g}"

    def contradicts(
        self, p: Predicted, y: Sequence[float], stated: Stated = UNSTATED
    ) -> bool | None:
        del stated
        return None if math.isnan(y[0]) else not _output(p, "q05") <= y[0] <= _output(p, "q95")

    def shown_column(self, p: Predicted, columns: int) -> int:
        del p, columns
        return 0

    def column_names(self, p: Predicted, columns: int) -> tuple[str, ...] | None:
        del p
        return ("mean", "variance")[:columns] if columns > 1 else None

    def watched(self, outputs: Names) -> tuple[str, ...]:
        del outputs
        return ("mean", "sd")

    def predicts(self, names: Names, outputs: Names, target: Names) -> str:
        of = f", `{target[0]}`" if target else ""
        return (
            f"a number{of}, with its distribution ({quoted(outputs, 'and')}: mean, standard "
            "deviation and quantiles)"
        )

    def page_words(self, outputs: Names, target: Names) -> PageWords:
        words = super().page_words(outputs, target)
        if not target:
            return words
        return replace(words, measure=target[0], number_hint=f"Predicted mean of {target[0]}")

    def parse(self, cells: Cells) -> Targets:
        values = cells.numbers(
            accepted="a finite number such as 1.5, which the task regression predicts. For classes "
            "give --task multiclass"
        )
        return Targets(
            task=self.name,
            target=cells.columns,
            labels=self.bag_strata(values),
            values=values,
            classes=(),
        )

    def bag_strata(self, values: Sequence[Value]) -> tuple[int | None, ...]:
        known = [v[0] for v in values if v is not None]
        cuts = np.quantile(known, [0.2, 0.4, 0.6, 0.8]) if known else np.empty(0)
        return tuple(
            None if v is None else int(np.searchsorted(cuts, v[0], side="right")) for v in values
        )

    def balanced_strata(self, strata: np.ndarray, parts: int) -> np.ndarray:
        """Return quintiles merged until the largest stratum has a bag for each part, which a
        splitter needs."""
        for count in (5, 4, 3, 2):
            merged = strata * count // 5
            if np.bincount(merged).max() >= parts:
                return merged
        return np.zeros_like(strata)

    def stratum_names(self, strata: Iterable[int], *, classes: Names, target: Names) -> str:
        del classes
        return f"in quintile {', '.join(str(k + 1) for k in strata)} of {target[0]!r}"

    def stratified_by(self, target: Names) -> str:
        return f"stratified by quintiles of {target[0]!r}"

    def untrained(self, y: Mapping[str, np.ndarray], names: Names) -> str | None:
        del names
        values = np.unique(y["train"])
        if len(values) > 1:
            return None
        shown = f"{values[0]:g}" if len(values) else "missing"
        return (
            f"all {len(y['train'])} training targets are {shown}: nothing can be learned from a "
            "constant. Give bags with other values, or another target"
        )

    def content(self, y: Y, names: Names) -> str:
        del names
        return f"values from {y.min():g} to {y.max():g}"

    def model_target(self, value: tuple[float, ...]) -> Target:
        return value[0]

    def as_two_classes(self, y: Y, training: np.ndarray) -> np.ndarray:
        return (y[:, 0] > np.median(training)).astype(np.int64)


def _output(p: Predicted, name: str) -> float:
    return float(p.probability[p.outputs.index(name)])
