"""What an estimator is given as y: classes, grades, findings, numbers, or times with events."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from sklearn.utils.multiclass import check_classification_targets

from ..core import TaskName
from ..errors import InputError
from ..tasks import TASKS, task_of_classes

TIMES = (
    "expected for each bag a time and whether the event was seen: an array (bags, 2), or a "
    "structured array with a field of booleans for the event and one of numbers for the time"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedTargets:
    """Targets as the table of labels holds them; the fields are those of `LabelTable`."""

    task: TaskName
    labels: tuple[int | None, ...]
    values: tuple[tuple[float, ...] | None, ...] = ()
    classes: np.ndarray
    """Labels of the classes, or names of the findings; empty for other tasks."""
    target: tuple[str, ...] = ("label",)

    def of_table(self) -> dict[str, Any]:
        """Return the fields of the table of labels."""
        return {
            "task": self.task,
            "labels": self.labels,
            "values": self.values,
            "classes": tuple(map(str, self.classes)),
            "target": self.target,
        }


def encoded_classes(y: Any, *, bags: int, ordinal: bool | Sequence[Any] = False) -> EncodedTargets:
    """Return the classes in sorted order, or the grades in their own, and the index of each label.

    Args:
        y: one label per bag, or one column of 0 and 1 per finding.
        bags: number of bags.
        ordinal: whether the labels are grades; a sequence names them in rising order.

    Raises:
        InputError: there is not one label for each bag, there are fewer than two classes, or the
            order of grades is not known.
    """
    if y is None:
        raise InputError("requires y to be passed, but the target y is None")
    labels = np.asarray(y)
    graded = ordinal is not False
    if labels.ndim == 2 and labels.shape[1] > 1 and not graded:
        return _findings(labels, bags=bags, names=getattr(y, "columns", None))
    if labels.ndim != 1 or len(labels) != bags:
        raise InputError(
            f"y has the shape {labels.shape}; expected one label for each of {bags} bags"
        )
    check_classification_targets(labels)
    try:
        classes, indices = np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise InputError(f"the labels cannot be sorted ({error}): give one type") from error
    if len(classes) < 2:
        raise InputError(f"y has one class, {classes[0]!r}: a classifier needs two or more")
    if graded:
        classes, indices = _graded(classes, indices, order=ordinal)
    task = "ordinal" if graded else task_of_classes(len(classes))
    return EncodedTargets(task=task, labels=tuple(map(int, indices)), classes=classes)


def _graded(
    found: np.ndarray, indices: np.ndarray, *, order: bool | Sequence[Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Return all grades in rising order, and the index of each label among them."""
    if isinstance(order, bool):
        whole = found.dtype.kind in "iuf" and bool((found == np.round(found)).all())
        if not whole or bool((np.diff(found.astype(float)) != 1).any()):
            shown = ", ".join(map(repr, found.tolist()[:8]))
            raise InputError(
                f"the grades are {shown}, whose order or number is not certain: name all grades in "
                "rising order, as in ordinal=['benign', 'low', 'high']"
            )
        return found, indices
    grades = np.asarray(list(order))
    place = {grade: k for k, grade in enumerate(grades.tolist())}
    unknown = [label for label in found.tolist() if label not in place]
    if unknown or len(place) < max(len(grades), 2):
        problem = f"y has the grade {unknown[0]!r}" if unknown else "a grade is named twice"
        raise InputError(f"ordinal names the grades {grades.tolist()}, but {problem}")
    return grades, np.array([place[label] for label in found.tolist()])[indices]


def _findings(labels: np.ndarray, *, bags: int, names: Any) -> EncodedTargets:
    """Return a column per finding; cells are 0, 1 or nan where it is not known."""
    if len(labels) != bags:
        raise InputError(f"y has {len(labels)} rows; expected one for each of {bags} bags")
    try:
        values = labels.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"y has a column per finding, but a cell is no number: {error}") from error
    if not bool((np.isnan(values) | (values == 0) | (values == 1)).all()):
        raise InputError(
            f"y has {labels.shape[1]} columns of findings, but a cell is neither 0, 1 nor nan (not "
            "known): for one class per bag give an array (bags,)"
        )
    classes = np.arange(labels.shape[1]) if names is None else np.asarray(list(names))
    return EncodedTargets(
        task="multilabel",
        labels=(0,) * len(values),
        values=tuple(map(tuple, values.tolist())),
        classes=classes,
        target=tuple(map(str, classes)),
    )


def encoded_numbers(y: Any, *, bags: int) -> EncodedTargets:
    """Return one number per bag.

    Raises:
        InputError: there is not one finite number for each bag.
    """
    if y is None:
        raise InputError("requires y to be passed, but the target y is None")
    values = _numbers(y, what="a number")
    if values.shape not in ((bags,), (bags, 1)):
        raise InputError(
            f"y has the shape {values.shape}; expected one number for each of {bags} bags"
        )
    rows = tuple((value,) for value in values.reshape(-1).tolist())
    return EncodedTargets(
        task="regression",
        labels=TASKS["regression"].labels.bag_strata(rows),
        values=rows,
        classes=np.array([]),
    )


def encoded_times(y: Any, *, bags: int) -> EncodedTargets:
    """Return the time of each bag, and 1 if its event was seen or 0 if it is censored.

    Raises:
        InputError: see `times_and_events`.
    """
    time, event = times_and_events(y, bags=bags)
    return EncodedTargets(
        task="survival",
        labels=tuple(map(int, event)),
        values=tuple(zip(time.tolist(), map(float, event), strict=True)),
        classes=np.array([]),
        target=("time", "event"),
    )


def times_and_events(
    y: Any, *, bags: int
) -> tuple[Float[np.ndarray, " bags"], Bool[np.ndarray, " bags"]]:
    """Return times and events from an array of pairs, a data frame or a structured array.

    Raises:
        InputError: y has another form, a time is not above 0, or an event is neither 0 nor 1.
    """
    if y is None:
        raise InputError("requires y to be passed, but the target y is None")
    columns = getattr(y, "columns", None)
    array = np.asarray(y)
    if array.dtype.names is not None:
        time, event = _fields(array)
    elif columns is not None and {"time", "event"} <= set(columns):
        time, event = np.asarray(y["time"]), np.asarray(y["event"])
    elif array.ndim == 2 and array.shape[1] == 2:
        time, event = array[:, 0], array[:, 1]
    else:
        raise InputError(f"y has the shape {array.shape}; {TIMES}")
    time, event = _numbers(time, what="a time"), _numbers(event, what="0 or 1 for the event")
    if len(time) != bags:
        raise InputError(f"y has {len(time)} rows; expected one for each of {bags} bags")
    if not bool((time > 0).all()):
        raise InputError(f"the time {time.min():g} is not above 0: give times in one unit")
    if not bool(((event == 0) | (event == 1)).all()):
        wrong = event[(event != 0) & (event != 1)][0]
        raise InputError(f"the event {wrong:g} is neither 0 (censored) nor 1 (seen); {TIMES}")
    return time, event > 0


def _fields(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the fields of the times and of the events, in any order."""
    names = list(array.dtype.names or ())
    flags = [name for name in names if array.dtype[name].kind == "b"]
    if {"time", "event"} <= set(names):
        return array["time"], array["event"]
    if len(names) != 2 or len(flags) != 1:
        raise InputError(f"y has the fields {', '.join(names)}; {TIMES}")
    (other,) = [name for name in names if name not in flags]
    return array[other], array[flags[0]]


def _numbers(values: Any, *, what: str) -> Float[np.ndarray, "..."]:
    try:
        numbers = np.asarray(values).astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"y holds something else than {what}: {error}") from error
    if not bool(np.isfinite(numbers).all()):
        raise InputError(
            "y contains NaN or infinity, but a value is needed for each bag: leave bags without "
            "one out"
        )
    return numbers
