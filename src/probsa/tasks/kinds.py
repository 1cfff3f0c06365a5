"""The six tasks by name, and how the target of a table is read for one of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..core import TaskName
from ..errors import TableError, hint
from .base import Task
from .classes import Binary, Multiclass, auto_classes
from .columns import Cells, Rows, TargetOptions, Targets
from .multilabel import Multilabel
from .ordinal import Ordinal
from .regression import Regression
from .survival import Survival

TASKS: Mapping[TaskName, Task] = {
    task.name: task
    for task in (Binary(), Multiclass(), Ordinal(), Multilabel(), Regression(), Survival())
}
"""The tasks by name."""


def target_columns(
    options: TargetOptions, *, header: Sequence[str], classes: Sequence[str] | None, path: Path
) -> tuple[str, ...]:
    """Return the columns that hold the target, after checking the names of classes.

    Raises:
        TableError: the names or their number do not fit the task, or one is given twice.
    """
    task, given = _task(options), options.columns
    if classes is not None:
        task.check_names(classes, given)
    if given is None:
        return task.default_columns(header, classes, where=path)
    if len(set(given)) < len(given):
        raise TableError(f"the target names a column twice ({', '.join(given)}): leave one out")
    task.check_columns(given)
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
    names = None if classes is None else tuple(classes)
    cells = Cells(path=path, rows=rows, columns=columns, classes=names, required=required)
    return auto_classes(cells) if options.task == "auto" else TASKS[options.task].parse(cells)


def unknown_column_advice(header: Sequence[str], options: TargetOptions) -> str:
    """Suggest the task or target that would make a column of the table known."""
    if options.task != Survival.name and {"time", "event"} <= set(header):
        return " For survival give --task survival."
    missing = [c for c in options.columns or () if c not in header]
    if not missing:
        return ""
    parts = [part.strip() for part in missing[0].split(",")]
    if len(parts) > 1 and set(parts) <= set(header):
        return f" Write several columns as a list: --target '[{', '.join(parts)}]'."
    return f" The target {missing[0]!r} is no column.{hint(missing[0], header)}"


def _task(options: TargetOptions) -> Task:
    """Return the task of the options; classes without an order until they have been read."""
    return TASKS[Multiclass.name if options.task == "auto" else options.task]
