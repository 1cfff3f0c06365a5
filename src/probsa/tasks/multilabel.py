"""Several findings for each bag, each present, absent or not known."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Float
from sklearn.metrics import roc_auc_score

from ..core import counted
from ..errors import TableError
from ..statistics import Draws, TargetMetrics, multilabel_metrics
from .base import HALF, UNSTATED, Measure, Names, P, Predicted, Stated, TargetData, Task, Verdict, Y
from .columns import SHOWN, Cells, Targets, Value
from .words import FINDINGS, plus_minus, quoted

CELLS = {"0": 0.0, "0.0": 0.0, "1": 1.0, "1.0": 1.0, "": math.nan}


class Multilabel(Task):
    """Findings with independent probabilities."""

    name = "multilabel"
    words = FINDINGS
    validation_metric = "val_auroc"
    by_probability = has_findings = True
    measures = (
        Measure("macro_auroc", "macro AUROC", by_fold=True),
        Measure("macro_average_precision", "macro AP", by_fold=True),
        Measure.loss("nll", "NLL"),
    )

    def metrics(self, data: TargetData, draws: Draws) -> TargetMetrics:
        return multilabel_metrics(
            data.y, data.predicted, names=data.names, thresholds=data.thresholds, draws=draws
        )

    def counts(self, y: Y, names: Names) -> dict[str, int]:
        return {f"with {name}": int((y[:, k] == 1).sum()) for k, name in enumerate(names)}

    def validation_score(self, y: Y, predicted: P) -> float | None:
        aurocs = []
        for finding, p in zip(y.T, predicted.T, strict=True):
            known = np.isfinite(finding)
            if len(np.unique(finding[known])) == 2:
                aurocs.append(roc_auc_score(finding[known], p[known]))
        return float(np.mean(aurocs)) if aurocs else None

    def unjudgeable(self, y: Y, training: np.ndarray, names: Names) -> str | None:
        del training
        for name, finding in zip(names, y.T, strict=True):
            known = np.unique(finding[np.isfinite(finding)])
            if len(known) < 2:
                value = f"is {known[0]:g} in all bags" if len(known) else "is known in no bag"
                return f"the finding {name!r} {value}"
        return None

    def called_positive(self, p: P, threshold: float | None = None) -> np.ndarray:
        del threshold
        return np.any(p >= HALF, axis=1)

    def verdict(self, p: Predicted, stated: Stated = UNSTATED) -> Verdict:
        n, t = len(p.probability), _thresholds(p, stated)
        k, order = self.top_column(p), np.argsort(-p.probability, kind="stable")
        named = [
            f"{p.outputs[i]} {p.probability[i]:.2f}{plus_minus(float(p.std[i]))}" for i in order[:3]
        ]
        more = f", … ({n} findings)" if n > 3 else ""
        return Verdict(
            call=", ".join(p.outputs[i] for i in np.flatnonzero(p.probability >= t)) or "none",
            value=float(p.probability[k]),
            spread=float(p.std[k]),
            unsure=bool((np.abs(p.probability - t) < p.std).any()),
            text="p: " + ", ".join(named) + more,
        )

    def truth_text(self, y: Sequence[float], *, classes: Names = ()) -> str:
        if all(map(math.isnan, y)):
            return ""
        present = ", ".join(name for name, v in zip(classes, y, strict=True) if v == 1) or "none"
        unknown = [name for name, v in zip(classes, y, strict=True) if math.isnan(v)]
        return f"{present} ({', '.join(unknown)} not known)" if unknown else present

    def contradicts(
        self, p: Predicted, y: Sequence[float], stated: Stated = UNSTATED
    ) -> bool | None:
        true = np.asarray(y)
        known = ~np.isnan(true)
        differs = (p.probability >= _thresholds(p, stated)) != (true == 1)
        return bool(differs[known].any()) if known.any() else None

    def response(self, p: Predicted, column: int) -> float:
        return float(p.probability[column])

    def top_column(self, p: Predicted) -> int:
        return int(np.argmax(p.probability))

    def shown_column(self, p: Predicted, columns: int) -> int:
        return self.top_column(p) if len(p.probability) == columns else columns - 1

    def label_columns(self, classes: Names) -> tuple[str, ...]:
        return tuple(f"label_{name}" for name in classes)

    def value_columns(self, outputs: Names) -> tuple[str, ...]:
        return tuple(f"p_{name}" for name in outputs)

    def predicts(self, names: Names, outputs: Names, target: Names) -> str:
        del outputs, target
        return f"the probability of each of the findings {quoted(names, 'and')}"

    def default_columns(
        self, header: Names, classes: Names | None, *, where: object
    ) -> tuple[str, ...]:
        if not classes:
            raise TableError(
                f"{where}: the task multilabel needs the columns of the findings: name them with "
                f"--target. The table has {', '.join(header)}"
            )
        return tuple(classes)

    def check_columns(self, columns: Names) -> None:
        del columns

    def check_names(self, classes: Names, columns: Names | None) -> None:
        if len(set(classes)) < max(1, len(classes)):
            raise TableError(f"the findings are {', '.join(classes)}: name each once")
        if columns not in (None, tuple(classes)):
            raise TableError(
                f"the classes are {', '.join(classes)}, but the target names the findings "
                f"{', '.join(columns or ())}: for multilabel leave --classes out"
            )

    def parse(self, cells: Cells) -> Targets:
        values: list[Value] = []
        for place, row in cells:
            for column, cell in zip(cells.columns, row, strict=True):
                if cell not in CELLS:
                    raise TableError(
                        f"{place}: the finding {column!r} is {cell!r}, expected 0 or 1, or an "
                        "empty cell if it is not known"
                    )
            values.append(tuple(CELLS[cell] for cell in row) if any(row) else None)
        without = [bag for bag, v in zip(cells.rows, values, strict=True) if v is None]
        shown = ", ".join(without[:SHOWN]) + (", …" if len(without) > SHOWN else "")
        has = "has" if len(without) == 1 else "have"
        note = (
            f"{counted(len(without), 'bag')} of {cells.path} {has} no finding that is known "
            f"({shown})"
        )
        return Targets(
            task=self.name,
            target=cells.columns,
            labels=self.bag_strata(values),
            values=tuple(values),
            classes=cells.columns,
            notes=(note,) if 0 < len(without) < len(values) else (),
        )

    def bag_strata(self, values: Sequence[Value]) -> tuple[int | None, ...]:
        return tuple(None if v is None else 0 for v in values)

    def stratum_names(self, strata: Iterable[int], *, classes: Names, target: Names) -> str:
        del strata, classes, target
        return "with known findings"

    def stratified_by(self, target: Names) -> str:
        del target
        return "not stratified by findings"

    def untrained(self, y: Mapping[str, np.ndarray], names: Names) -> str | None:
        for k, finding in enumerate(names):
            known = y["train"][:, k][np.isfinite(y["train"][:, k])]
            if len(np.unique(known)) < 2:
                what = f"{len(known)} bags, all {known[0]:g}" if len(known) else "known in no bag"
                return (
                    f"the finding {finding!r} has only one class in training ({what}). Give bags "
                    "with and without it, or leave it out of the target"
                )
            if len(y["test"]) and not (y["test"][:, k] == 1).any():
                return (
                    f"no bag of the test part has the finding {finding!r}, so it cannot be judged. "
                    "Test on bags with it, or leave it out of the target"
                )
        return None

    def content(self, y: Y, names: Names) -> str:
        positive = (y == 1).sum(0)
        findings = ", ".join(
            f"{name} ({n:,} positive)" for name, n in zip(names, positive, strict=True)
        )
        return f"the findings {findings}, {np.isnan(y).mean():.0%} of their cells not known"


def _thresholds(p: Predicted, stated: Stated) -> Float[np.ndarray, " findings"]:
    """Return from which probability each finding is called."""
    return np.asarray(stated.thresholds or [HALF] * len(p.probability), dtype=np.float64)
