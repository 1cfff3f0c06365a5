"""Check before training that models can learn the task of a data set, and that it can be judged."""

from collections.abc import Sequence

import numpy as np

from ...datasets import LabelTable, Split
from ...errors import InputError, TableError
from ...models import check_task
from ...statistics import CensoringCurve, uno_c
from ...training import fit_likelihood
from ..results.task_metrics import primary_of
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
            f"{data.name} has other targets for {other.method.name} than for "
            f"{rows[0].method.name}: give one task and target for each data set"
        )
    refused: dict[str, InputError] = {}
    for row in rows:
        try:
            check_task(row.config.model, data.table.task)
        except InputError as error:
            refused.setdefault(row.config.model, error)
    if refused:
        first, *more = refused
        also = f" Neither can {', '.join(more)}." if more else ""
        raise InputError(
            f"{data.name}: {refused[first]}.{also} Leave out of models what cannot learn it"
        )


def check_parts(data: DataSet, rows: Sequence[Row], splits: Sequence[Split]) -> None:
    """Refuse training parts that do not determine the likelihood, and test parts that cannot be
    judged by the primary metric. Data sets of two classes are checked by the splits alone.

    Raises:
        InputError, TableError: names the fold or split, and what to do.
    """
    if data.table.task == "binary":
        return
    numbers = sorted(set(data.table.folds)) if data.table.folds is not None else range(len(splits))
    for k, split in zip(numbers, splits, strict=True):
        if k not in data.splits:
            continue
        part = f"fold {k}" if data.folds else "the test part"
        if (why := _undefined(data.table, split)) is not None:
            metric = primary_of(data.table.task).title
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
    y = _targets(table, split.test)
    if not len(y):
        return "no bag has a label"
    if table.task == "multiclass":
        absent = [c for k, c in enumerate(table.classes) if k not in y[:, 0]]
        return f"no bag has the class {absent[0]!r}" if absent else None
    if table.task == "ordinal":
        grade = table.classes[int(y[0, 0])]
        return None if len(np.unique(y)) > 1 else f"all {len(y)} bags have the grade {grade!r}"
    if table.task == "multilabel":
        for name, column in zip(table.classes, y.T, strict=True):
            known = np.unique(column[np.isfinite(column)])
            if len(known) < 2:
                value = "is known in no bag" if not len(known) else f"is {known[0]:g} in all bags"
                return f"the finding {name!r} {value}"
    if table.task == "survival":
        train = _targets(table, split.train)
        censoring = CensoringCurve.fit(train[:, 0], train[:, 1] > 0)
        c = uno_c(y[:, 0], y[:, 1] > 0, risk=np.zeros(len(y)), censoring=censoring)
        return None if c.reason is None else f"there is {c.reason.partition(':')[0]}"
    return None


def _targets(table: LabelTable, bags: Sequence[str]) -> np.ndarray:
    wanted = set(bags)
    rows = [v for b, v in zip(table.bags, table.values, strict=True) if b in wanted]
    return np.array([v for v in rows if v is not None], dtype=np.float64)


def _remedy(data: DataSet) -> str:
    others = {
        "multiclass": ", or merge the class with another",
        "ordinal": "",
        "multilabel": ", or leave the finding out of the target",
    }
    where = (
        "Assign bags to the folds so that each can be judged, or make fewer folds"
        if data.folds
        else "Put other bags into it (column split)"
    )
    return where + others.get(data.table.task, "")
