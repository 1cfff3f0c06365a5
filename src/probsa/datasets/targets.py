"""Stage 5: what a label table is read for: the task, the columns of the target, and its unit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from ..core import TaskName, check_options
from ..errors import TableError, hint
from .target_cells import (
    MOST_CLASSES,
    class_indices,
    finding_values,
    measured_values,
    numbered_classes,
    ordered_grades,
    quintiles,
    survival_values,
)

Rows: TypeAlias = Mapping[str, tuple[int, dict[str, str]]]
"""The line and the cells of each bag, by the name of the bag."""
CLASS_TASKS = ("binary", "multiclass", "ordinal")
"""The tasks whose target is one class, so that a label is an index of `classes`."""
CENSORSHIP = "censorship"
"""Name of the column that other tools write in place of `event`, with the opposite meaning."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetOptions:
    """What is predicted, and of what.

    Args:
        task: The kind of target. `auto` is binary for two classes and multiclass for more.
        target: The column or columns of the target. By default `label`; for survival `time` and
            `event`; for multilabel the findings that are given as classes.
        unit: Whether a label belongs to a bag or to a patient, all of whose slides form one bag;
            `slide` is a synonym of `bag`.
        missing: What training does about slides of a patient that have a line but no bag.

    Raises:
        InputError: an option has another value.
    """

    task: Literal["auto"] | TaskName = "auto"
    target: str | tuple[str, ...] | None = None
    unit: Literal["bag", "slide", "patient"] = "bag"
    missing: Literal["refuse", "leave_out"] = "refuse"

    def __post_init__(self) -> None:
        check_options(self)
        if self.unit == "slide":
            object.__setattr__(self, "unit", "bag")
        if isinstance(self.target, list):
            object.__setattr__(self, "target", tuple(self.target))

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns that the user named, or None."""
        return (self.target,) if isinstance(self.target, str) else self.target


@dataclass(frozen=True, kw_only=True, slots=True)
class Targets:
    """The targets of a table, in the order of its rows; the fields are those of `LabelTable`."""

    task: TaskName
    target: tuple[str, ...]
    labels: tuple[int | None, ...]
    values: tuple[tuple[float, ...] | None, ...]
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()


def check_classes_option(options: TargetOptions, classes: Sequence[str] | None) -> None:
    """Check the names of classes (or findings) that the user gives.

    Raises:
        TableError: a name occurs twice, there are too few or too many, or the task has none.
    """
    if classes is None:
        return
    task = options.task
    if task in ("regression", "survival"):
        raise TableError(
            f"the classes are {', '.join(classes)}, but the task {task} has no classes: leave "
            "--classes out, or give another --task"
        )
    if len(set(classes)) < max(1 if task == "multilabel" else 2, len(classes)):
        raise TableError(f"the classes are {', '.join(classes)}: give two or more, each once")
    if task == "binary" and len(classes) > 2:
        raise TableError(
            f"the classes are {', '.join(classes)}, but the task binary has two: give "
            "--task multiclass"
        )
    if task == "multilabel" and options.columns not in (None, tuple(classes)):
        raise TableError(
            f"the classes are {', '.join(classes)}, but the target names the findings "
            f"{', '.join(options.columns or ())}: for multilabel leave --classes out"
        )


def target_columns(
    options: TargetOptions, *, header: Sequence[str], classes: Sequence[str] | None, path: Path
) -> tuple[str, ...]:
    """Return the columns that hold the target.

    Raises:
        TableError: the number of columns does not fit the task, one is named twice, or the findings
            are not named.
    """
    task, given = options.task, options.columns
    if given is None:
        if task == "survival":
            censorship = next((c for c in header if c.lower() == CENSORSHIP), None)
            inverted = censorship is not None and "event" not in header
            return ("time", censorship if inverted and censorship else "event")
        if task == "multilabel" and not classes:
            raise TableError(
                f"{path}: the task multilabel needs the columns of the findings: name them with "
                f"--target. The table has {', '.join(header)}"
            )
        return tuple(classes or ()) if task == "multilabel" else ("label",)
    if len(set(given)) < len(given):
        raise TableError(f"the target names a column twice ({', '.join(given)}): leave one out")
    if task == "survival" and len(given) != 2:
        raise TableError(
            f"the target is {', '.join(given)}: for survival give two columns, the time and the "
            "event"
        )
    if task not in ("survival", "multilabel") and len(given) != 1:
        raise TableError(
            f"the target names {len(given)} columns ({', '.join(given)}), but the task {task} has "
            "one: give --task multilabel (a finding in each column) or --task survival"
        )
    return given


def read_targets(
    path: Path,
    rows: Rows,
    *,
    options: TargetOptions,
    columns: tuple[str, ...],
    classes: Sequence[str] | None,
    required: bool,
) -> Targets:
    """Read the target columns of a table.

    Args:
        path: The table, for messages.
        rows: Its lines.
        options: The task; see `TargetOptions`.
        columns: The columns of the target.
        classes: Names of the classes in order, or None.
        required: Whether a bag without a label is an error.

    Raises:
        TableError: a cell does not fit the task; names the line and the bag.
    """
    if options.task == "multilabel":
        values, notes = finding_values(path, rows, columns)
        labels = tuple(None if v is None else 0 for v in values)
        return Targets(
            task="multilabel", target=columns, labels=labels, values=values, classes=columns,
            notes=notes,
        )  # fmt: skip
    if options.task == "regression":
        values = measured_values(path, rows, columns[0], required=required)
        return Targets(
            task="regression", target=columns, labels=quintiles(values), values=values, classes=()
        )
    if options.task == "survival":
        inverted = columns[1].lower() == CENSORSHIP
        values, notes = survival_values(path, rows, columns, required=required, inverted=inverted)
        labels = tuple(None if v is None else int(v[1]) for v in values)
        return Targets(
            task="survival", target=columns, labels=labels, values=values, classes=(), notes=notes
        )
    return _read_classes(
        path, rows, options=options, column=columns[0], classes=classes, required=required
    )


def _read_classes(
    path: Path,
    rows: Rows,
    *,
    options: TargetOptions,
    column: str,
    classes: Sequence[str] | None,
    required: bool,
) -> Targets:
    """Read one class for each bag: a number, or a name of `classes`."""
    ordinal = options.task == "ordinal"
    labels = class_indices(path, rows, column, classes=classes, required=required, ordinal=ordinal)
    notes: tuple[str, ...] = ()
    distinct = {y for y in labels if y is not None}
    if options.task == "auto" and classes is None and len(distinct) > MOST_CLASSES:
        raise TableError(
            f"{path}: the column {column!r} has {len(distinct)} different whole numbers, from "
            f"{min(distinct)} to {max(distinct)}: give --task regression if they are measurements, "
            "--task ordinal if they are grades, or --task multiclass if they are classes"
        )
    if ordinal:
        names, notes = ordered_grades(path, labels, classes)
    else:
        names = tuple(classes) if classes is not None else numbered_classes(path, labels)
    if options.task == "binary" and len(names) > 2:
        raise TableError(
            f"{path}: the column {column!r} has {len(names)} classes ({', '.join(names)}), but "
            "the task binary has two: give --task multiclass or --task ordinal"
        )
    task = ("binary" if len(names) <= 2 else "multiclass") if options.task == "auto" else (
        options.task
    )  # fmt: skip
    values = tuple(None if y is None else (float(y),) for y in labels)
    return Targets(
        task=task, target=(column,), labels=labels, values=values, classes=names, notes=notes
    )


def unknown_column_advice(header: Sequence[str], options: TargetOptions) -> str:
    """Suggest the task or target that would make a column of the table known."""
    if options.task != "survival" and {"time", "event"} <= set(header):
        return " For survival give --task survival."
    missing = [c for c in options.columns or () if c not in header]
    if not missing:
        return ""
    parts = [part.strip() for part in missing[0].split(",")]
    if len(parts) > 1 and set(parts) <= set(header):
        return f" Write several columns as a list: --target '[{', '.join(parts)}]'."
    return f" The target {missing[0]!r} is no column.{hint(missing[0], header)}"
