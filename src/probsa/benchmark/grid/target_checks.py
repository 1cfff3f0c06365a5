"""Check before training that models can learn the task of a data set, and that it can be judged."""

from collections.abc import Sequence

from ...datasets import LabelTable, Split
from ...errors import InputError, TableError
from ...models import check_task
from ...training import fit_likelihood
from .data_sets import DataSet
from .grid import Row


def check_tasks(data: DataSet, rows: Sequence[Row]) -> None:
    """Refuse models that cannot learn the task, and rows of several tasks.

    Raises:
        InputError: a model cannot learn the task, or an exception gives some models another one.
    """
    targets = rows[0].config.data.targets
    if other := next((r for r in rows if r.config.data.targets != targets), None):
        raise InputError(
            f"the targets of {data.name} differ between {rows[0].method.name} and "
            f"{other.method.name}: give each data set one task and one target"
        )
    refused: dict[str, InputError] = {}
    for row in rows:
        try:
            check_task(row.config.model, data.table.task)
        except InputError as error:
            refused.setdefault(row.config.model, error)
    if refused:
        first, *more = refused
        also = f" The same holds for {', '.join(more)}." if more else ""
        raise InputError(f"{data.name}: {refused[first]}.{also} Remove them from `models`")


def check_parts(data: DataSet, rows: Sequence[Row], splits: Sequence[Split]) -> None:
    """Refuse training parts that do not determine the likelihood, and test parts that cannot be
    judged by the primary metric. Data sets of two classes are checked by the splits alone.

    Raises:
        InputError, TableError: names the fold or split, and what to do.
    """
    if data.table.of_task.two_classes:
        return
    numbers = sorted(set(data.table.folds)) if data.table.folds is not None else range(len(splits))
    for k, split in zip(numbers, splits, strict=True):
        if k not in data.splits:
            continue
        part = f"fold {k}" if data.folds else "the test part"
        if (why := _undefined(data.table, split)) is not None:
            metric = data.table.of_task.primary.title
            raise TableError(
                f"{data.name}: {why} in {part} of {data.table.where}, so {metric} is undefined "
                f"there. {_remedy(data)}"
            )
        try:
            for config in {id(r.config): r.config for r in rows}.values():
                fit_likelihood(config, data.table, split)
        except (InputError, TableError) as error:
            what = f"fold {k}" if data.folds else f"split {k}"
            raise type(error)(f"{data.name}, {what}: {error}") from error


def _undefined(table: LabelTable, split: Split) -> str | None:
    """Return why the primary metric is undefined on a test part, or None."""
    y = table.y(split.test)
    if not len(y):
        return "no bag has a label"
    return table.of_task.labels.unjudgeable(y, table.y(split.train), table.classes)


def _remedy(data: DataSet) -> str:
    where = (
        "Assign bags to the folds so that each can be judged, or make fewer folds"
        if data.folds
        else "Put other bags into it (column split)"
    )
    return where + data.table.of_task.words.remedy
