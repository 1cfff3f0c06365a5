"""Ordered grades, such as ISUP grades: the median of the predicted distribution is called."""

import numpy as np

from ..errors import TableError
from ..statistics import (
    Draws,
    TargetMetrics,
    cohen_kappa,
    confusion,
    mean_grade,
    median_call,
    ordinal_metrics,
)
from .base import (
    HALF,
    KAPPA,
    UNSTATED,
    Measure,
    Names,
    P,
    Predicted,
    Stated,
    TargetData,
    Verdict,
    Y,
)
from .classes import OneClass, class_values
from .columns import Cells, Targets
from .words import GRADES, class_name, plus_minus, quoted


class Ordinal(OneClass):
    """Grades 0 … K in rising order."""

    name = "ordinal"
    words = GRADES
    validation_metric = "val_kappa"
    patient_has_highest = True
    measures = (
        KAPPA,
        Measure.loss("mae", "MAE of grades"),
        Measure.loss("rps", "RPS"),
        Measure.loss("nll", "NLL"),
    )

    def metrics(self, data: TargetData, draws: Draws) -> TargetMetrics:
        return ordinal_metrics(data.y[:, 0].astype(np.int64), data.predicted, draws=draws)

    def null_rivals(self, data: TargetData, draws: Draws) -> dict[str, TargetMetrics]:
        if data.training is None:
            return {}
        grades = data.predicted.shape[1]
        shares = np.bincount(data.training[:, 0].astype(int), minlength=grades)
        constant = np.tile(shares / shares.sum(), (len(data.y), 1))
        y = data.y[:, 0].astype(np.int64)
        return {"shares of the training bags": ordinal_metrics(y, constant, draws=draws)}

    def validation_score(self, y: Y, predicted: P) -> float | None:
        grades, draws = y[:, 0].astype(np.int64), Draws.of_data(len(y))
        matrix = confusion(grades, self.calls(predicted), classes=predicted.shape[1], draws=draws)
        return cohen_kappa(matrix, weighting="quadratic").value

    def unjudgeable(self, y: Y, training: np.ndarray, names: Names) -> str | None:
        del training
        only = f"all {len(y)} bags have the grade {names[int(y[0, 0])]!r}"
        return None if len(np.unique(y)) > 1 else only

    def calls(self, p: P, threshold: float | None = None) -> np.ndarray:
        del threshold
        return median_call(p)

    def margins(self, p: P, threshold: float | None = None) -> np.ndarray:
        del threshold
        return np.abs(np.cumsum(p, axis=1)[:, :-1] - HALF).min(1)

    def called_positive(self, p: P, threshold: float | None = None) -> np.ndarray:
        del threshold
        return p[:, 0] < HALF

    def verdict(self, p: Predicted, stated: Stated = UNSTATED) -> Verdict:
        probability = p.probability.astype(np.float64)
        call = self._call(p)
        value, spread = float(p.probability[call]), float(p.std[call])
        reached = np.cumsum(probability)
        near = [abs(reached[k] - HALF) for k in (call - 1, call) if 0 <= k < len(reached) - 1]
        name = class_name(stated.classes, call)
        return Verdict(
            call=name,
            value=value,
            spread=spread,
            unsure=bool(min(near) < spread),
            text=f"grade {name}, p = {value:.2f}{plus_minus(spread)}",
        )

    def response(self, p: Predicted, column: int) -> float:
        del column
        return float(mean_grade(p.probability[None].astype(np.float64))[0])

    def shown_column(self, p: Predicted, columns: int) -> int:
        steps = columns > 1 and len(p.probability) == columns + 1
        return max(self._call(p) - 1, 0) if steps else columns - 1

    def column_names(self, p: Predicted, columns: int) -> tuple[str, ...] | None:
        if columns > 1 and len(p.outputs) == columns + 1:
            return tuple(f"at least {name}" for name in p.outputs[1:])
        return super().column_names(p, columns)

    def predicts(self, names: Names, outputs: Names, target: Names) -> str:
        del outputs, target
        return f"the probability of the grade: one of {quoted(names, 'or')}, in rising order"

    def parse(self, cells: Cells) -> Targets:
        values = class_values(cells, ordinal=True)
        present = sorted({int(v[0]) for v in values if v is not None})
        count = max(2, max(present, default=1) + 1)
        names = cells.classes or tuple(str(k) for k in range(count))
        absent = [name for k, name in enumerate(names) if present and k not in present]
        if absent and cells.classes is None and count > 2:
            raise TableError(
                f"{cells.path}: the grades are {', '.join(map(str, present))}, and no bag has "
                f"grade {', '.join(absent)}: if the scale has it, list all grades with --classes "
                f"{' '.join(names)}; otherwise number the grades from 0 without gaps"
            )
        note = (
            f"no bag of {cells.path} has grade {', '.join(absent)}, so the threshold of that grade "
            "is not identified"
        )
        return Targets(
            task=self.name,
            target=cells.columns,
            labels=self.bag_strata(values),
            values=values,
            classes=names,
            notes=(note,) if absent else (),
        )

    def _call(self, p: Predicted) -> int:
        return int(self.calls(p.probability[None].astype(np.float64))[0])
