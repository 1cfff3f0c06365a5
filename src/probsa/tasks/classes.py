"""Binary and multiclass targets: each bag has one of several classes without an order."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from sklearn.metrics import roc_auc_score

from ..core import TaskName, counted, finite_number
from ..errors import TableError
from ..statistics import Draws, TargetMetrics, binary_metrics, multiclass_metrics
from .base import (
    HALF,
    KAPPA,
    UNSTATED,
    Measure,
    Names,
    P,
    Predicted,
    Stated,
    Target,
    TargetData,
    Task,
    Verdict,
    Y,
)
from .columns import MOST_CLASSES, SHOWN, Cells, Targets, Value, Values
from .words import CLASSES, SEVERAL_CLASSES, PageWords, class_name, plus_minus, quoted

MACRO = {"macro_auroc": "auroc", "macro_average_precision": "average_precision", "macro_f1": "f1"}
"""Earlier names of means over classes, which the JSON of rivals keeps."""


def task_of_classes(count: int) -> TaskName:
    """Return the task of a target with so many classes without an order."""
    return Binary.name if count <= 2 else Multiclass.name


class OneClass(Task):
    """Each bag has exactly one of several classes or grades, the index of which is its target."""

    has_classes = True
    coverage_by = "sets"

    def strata(self, y: Y) -> np.ndarray:
        return y[:, 0]

    def counts(self, y: Y, names: Names) -> dict[str, int]:
        return {name: int((y[:, 0] == k).sum()) for k, name in enumerate(names)}

    def truth_text(self, y: Sequence[float], *, classes: Names = ()) -> str:
        return "" if np.isnan(y[0]) else class_name(classes, int(y[0]))

    def value_columns(self, outputs: Names) -> tuple[str, ...]:
        return tuple(f"p_{name}" for name in outputs)

    def check_names(self, classes: Names, columns: Names | None) -> None:
        del columns
        if len(set(classes)) < max(2, len(classes)):
            raise TableError(f"the classes are {', '.join(classes)}: give two or more, each once")

    def bag_strata(self, values: Sequence[Value]) -> tuple[int | None, ...]:
        return tuple(None if v is None else int(v[0]) for v in values)

    def needed_strata(self, present: Iterable[int]) -> frozenset[int]:
        return frozenset(present)

    def stratum_names(self, strata: Iterable[int], *, classes: Names, target: Names) -> str:
        del target
        return f"of class {', '.join(classes[k] for k in strata)}"

    def untrained(self, y: Mapping[str, np.ndarray], names: Names) -> str | None:
        found = {part: Counter(values[:, 0].astype(int).tolist()) for part, values in y.items()}
        trained = found.pop("train")
        if len(trained) == 1:
            (only,) = trained
            return (
                f"all {counted(trained[only], 'training bag')} are of class {names[only]}, so no "
                "difference between classes can be learned. Give training bags of another class "
                f"than {names[only]!r}, or check the column of labels"
            )
        for part, counts in found.items():
            for k in sorted({*counts} - {*trained}):
                return (
                    f"{counted(counts[k], 'bag')} of class {names[k]} in {part}, but none in "
                    "training: the probability of this class would be untrained. Put some of them "
                    "into the training part, or leave them out"
                )
        return None

    def untestable(self, strata: Sequence[int], classes: Names) -> str | None:
        if len(set(strata)) != 1:
            return None
        of_class = f"{counted(len(strata), 'bag')} of class {classes[strata[0]]}"
        return f"has only one class: {of_class}, none of another"

    def content(self, y: Y, names: Names) -> str:
        classes = ", ".join(f"{name} ({n:,})" for name, n in self.counts(y, names).items())
        return f"the {'classes' if self.unordered_classes else 'grades in order'} {classes}"

    def model_target(self, value: tuple[float, ...]) -> Target:
        return int(value[0])

    def as_two_classes(self, y: Y, training: np.ndarray) -> np.ndarray:
        del training
        return y[:, 0].astype(np.int64)


class Unordered(OneClass):
    """Classes without an order; a single column of probabilities is that of the last of two."""

    unordered_classes = by_probability = True
    validation_metric = "val_auroc"
    words = CLASSES

    def calls(self, p: P, threshold: float | None = None) -> np.ndarray:
        if p.shape[1] > 2:
            return p.argmax(1)
        return (p[:, -1] >= (HALF if threshold is None else threshold)).astype(np.int64)

    def margins(self, p: P, threshold: float | None = None) -> np.ndarray:
        if p.shape[1] > 2:
            ascending = np.sort(p, axis=1)
            return ascending[:, -1] - ascending[:, -2]
        return np.abs(p[:, -1] - (HALF if threshold is None else threshold))

    def called_positive(self, p: P, threshold: float | None = None) -> np.ndarray:
        return self.calls(p, threshold) > 0

    def verdict(self, p: Predicted, stated: Stated = UNSTATED) -> Verdict:
        classes, threshold = stated.classes, stated.threshold
        row = p.probability[None].astype(np.float64)
        shown, k = self.top_column(p), int(np.argmax(p.probability))
        which = f"p(class {class_name(classes, k)})" if row.shape[1] > 1 else "p"
        return Verdict(
            call=class_name(classes, int(self.calls(row, threshold)[0])),
            value=float(p.probability[shown]),
            spread=float(p.std[shown]),
            unsure=float(self.margins(row, threshold)[0]) < float(p.std[shown]),
            text=f"{which} = {p.probability[k]:.2f}{plus_minus(float(p.std[k]))}",
        )

    def response(self, p: Predicted, column: int) -> float:
        return float(p.probability[column])

    def top_column(self, p: Predicted) -> int:
        columns = len(p.probability)
        return int(p.probability.argmax()) if columns > 2 else columns - 1

    def explained_column(self, p: Predicted) -> int:
        return 0 if len(p.probability) == 1 else 1 + int(np.argmax(p.probability[1:]))

    def shown_column(self, p: Predicted, columns: int) -> int:
        return self.explained_column(p) if columns == len(p.probability) else columns - 1

    def column_names(self, p: Predicted, columns: int) -> tuple[str, ...] | None:
        del p, columns
        return None

    def predicts(self, names: Names, outputs: Names, target: Names) -> str:
        del outputs, target
        return f"the probability of {quoted(names, 'or')}"

    def page_words(self, outputs: Names, target: Names) -> PageWords:
        del outputs, target
        return self.words.page

    def validation_score(self, y: Y, predicted: P) -> float | None:
        labels = y[:, 0].astype(np.int64)
        p = np.hstack([1 - predicted, predicted]) if predicted.shape[1] == 1 else predicted
        if len(set(labels.tolist())) != p.shape[1]:
            return None
        scores = p[:, 1] if p.shape[1] == 2 else p / p.sum(1, keepdims=True)
        return float(roc_auc_score(labels, scores, multi_class="ovr"))

    def parse(self, cells: Cells) -> Targets:
        values = class_values(cells)
        present = sorted({int(v[0]) for v in values if v is not None})
        names = cells.classes
        if names is None:
            if not set(present) <= {0, 1} and present != list(range(len(present))):
                raise TableError(
                    f"{cells.path}: the labels are {', '.join(map(str, present))}, expected 0 to "
                    f"{len(present) - 1}: number the classes from 0 without gaps, or give --classes"
                )
            names = tuple(str(c) for c in range(max(2, len(present))))
        return Targets(
            task=self.name,
            target=cells.columns,
            labels=self.bag_strata(values),
            values=values,
            classes=names,
        )


class Binary(Unordered):
    """Two classes."""

    name = "binary"
    two_classes = True
    patient_has_highest = True
    measures = (Measure("auroc", "AUROC", by_fold=True),)

    def metrics(self, data: TargetData, draws: Draws) -> TargetMetrics:
        y, p = data.y[:, 0].astype(np.int64), data.predicted[:, -1]
        return binary_metrics(y, p, threshold=data.threshold, draws=draws)

    def unjudgeable(self, y: Y, training: np.ndarray, names: Names) -> str | None:
        del training
        return self.untestable(y[:, 0].astype(int).tolist(), names)

    def parse(self, cells: Cells) -> Targets:
        found = super().parse(cells)
        if len(found.classes) > 2:
            raise TableError(
                f"{cells.path}: the column {cells.columns[0]!r} has {len(found.classes)} classes "
                f"({', '.join(found.classes)}), but the task binary has two: give --task "
                "multiclass or --task ordinal"
            )
        return found

    def check_names(self, classes: Names, columns: Names | None) -> None:
        super().check_names(classes, columns)
        if len(classes) > 2:
            raise TableError(
                f"the classes are {', '.join(classes)}, but the task binary has two: give "
                "--task multiclass"
            )


class Multiclass(Unordered):
    """Three classes or more."""

    name = "multiclass"
    words = SEVERAL_CLASSES
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
        """Return the rivals, with their means over classes also under the names of `MACRO`."""
        found = super().rivals(data, draws)
        of_macro = {name: {k: r.overall[v] for k, v in MACRO.items()} for name, r in found.items()}
        return {n: replace(r, overall={**r.overall, **of_macro[n]}) for n, r in found.items()}

    def unjudgeable(self, y: Y, training: np.ndarray, names: Names) -> str | None:
        del training
        absent = [name for name, n in self.counts(y, names).items() if not n]
        return f"no bag has the class {absent[0]!r}" if absent else None

    def opened_column(self, p: Predicted, columns: int) -> int:
        if 1 < columns == len(p.probability):
            return int(np.argmax(p.probability))
        return self.shown_column(p, columns)


def auto_classes(cells: Cells) -> Targets:
    """Read a column of classes whose task follows from their number.

    Raises:
        TableError: as `Task.parse`, or there are so many numbers that they may be no classes.
    """
    numbers = {int(v[0]) for v in class_values(cells) if v is not None}
    if cells.classes is None and len(numbers) > MOST_CLASSES:
        raise TableError(
            f"{cells.path}: the column {cells.columns[0]!r} has {len(numbers)} different whole "
            f"numbers, from {min(numbers)} to {max(numbers)}: give --task regression if they are "
            "measurements, --task ordinal if they are grades, or --task multiclass if they are "
            "classes"
        )
    found = Multiclass().parse(cells)
    return replace(found, task=task_of_classes(len(found.classes)))


def class_values(cells: Cells, *, ordinal: bool = False) -> Values:
    """Return the index of the class of each bag: its number, or the place of its name.

    Raises:
        TableError: a cell is no class, or is empty where a label is required.
    """
    values: list[Value] = []
    column = "" if cells.columns[0] == "label" else f" (column {cells.columns[0]!r})"
    for place, (text,) in cells:
        label = _class_index(text, cells.classes, ordinal=ordinal)
        if label is None and (text or cells.required):
            what = f"the label {text!r}{column} is neither a number nor a class"
            raise TableError(
                f"{place}: {what if text else f'the label is empty{column}'}. Expected "
                f"{_expected_class(text, cells, ordinal=ordinal)}"
            )
        values.append(None if label is None else (float(label),))
    return tuple(values)


def _class_index(text: str, classes: Names | None, *, ordinal: bool) -> int | None:
    """Return the class index, or None if the text does not denote a class."""
    if classes is not None and text in classes:
        return list(classes).index(text)
    number = text.removesuffix(".0")  # pandas writes integers like this if a cell is empty
    if ordinal and classes is not None and any(c.isdecimal() for c in classes):
        # "1" may be the name of the lowest grade, so that numbers are names and not indices
        return list(classes).index(number) if number in classes else None
    if not number.isdecimal() or (classes is not None and int(number) >= len(classes)):
        return None
    return int(number)


def _expected_class(text: str, cells: Cells, *, ordinal: bool) -> str:
    if cells.classes is not None:
        return f"one of {', '.join(cells.classes)}"
    expected = "a class number 0, 1, …; for class names give --classes in order"
    if ordinal:
        expected = (
            "a grade 0, 1, …; for names of grades give --classes from the lowest to the highest, "
            "as an alphabetical order is never assumed"
        )
    names = sorted({cell for _, (cell,) in cells} - {""})
    if 1 < len(names) <= 2 * SHOWN:
        expected += f" ({', '.join(names)})"
    if finite_number(text) is not None:
        expected += "; for measurements give --task regression"
    return expected
