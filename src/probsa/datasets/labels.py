"""Stage 5: the label table, `bag,label[,group][,fold|split]`. All ids are strings.

Other targets than a class have columns of their own, which `TargetOptions` names.
"""

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from ..core import TaskName, counted
from ..errors import TableError, hint
from ..tasks import (
    SHOWN,
    TASKS,
    TargetOptions,
    Task,
    read_targets,
    target_columns,
    task_of_classes,
    unknown_column_advice,
)

SYNONYMS = {
    "slide_id": "bag",
    "slide": "bag",
    "FILENAME": "bag",
    "case_id": "group",
    "patient": "group",
    "PATIENT": "group",
}
"""Names of the same columns in tables of CLAM, STAMP, slideflow and PathBench."""
COLUMNS = ("bag", "label", "group", "fold", "split")
SPLIT_PARTS = ("train", "val", "test")
CLASS_LABELS = TargetOptions()
"""The target of a table with a column `label` that holds classes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelTable:
    """Labels of bags, in the order of the file; every tuple is as long as `bags`."""

    path: Path | None = None
    bags: tuple[str, ...]
    labels: tuple[int | None, ...]
    """The stratum by which splits are balanced; None if the table gives no label.

    For tasks with classes, the index into `classes`; for survival 1 if the event was seen, 0 if
    censored; for regression the quintile 0–4 of the value among the labelled rows; for multilabel
    0, as findings are not stratified.
    """
    groups: tuple[str, ...] | None = None
    """For example the patient: a split never puts bags of one group in different parts."""
    folds: tuple[int, ...] | None = None
    splits: tuple[str | None, ...] | None = None
    classes: tuple[str, ...]
    """Names of the classes, or of the findings; empty for regression and survival."""
    task: TaskName = "binary"
    """A table that is made without a task is multiclass if it has more than two classes."""
    target: tuple[str, ...] = ("label",)
    """The columns of the target."""
    values: tuple[tuple[float, ...] | None, ...] = ()
    """The target of each row; None if the table gives no label.

    For tasks with classes (index,), which follows from `labels`; for multilabel 0, 1 or NaN (not
    known) for each finding; for regression (value,); for survival (time, event).
    """
    notes: tuple[str, ...] = ()
    """What users should know about how the table was read."""
    lines: tuple[int, ...] | None = field(default=None, compare=False, repr=False)
    """The line of each row in the file, for messages."""

    def __post_init__(self) -> None:
        if self.of_task.two_classes:
            object.__setattr__(self, "task", task_of_classes(len(self.classes)))
        if self.of_task.has_classes:
            values = tuple(None if y is None else (float(y),) for y in self.labels)
            object.__setattr__(self, "values", values)
        elif len(self.values) != len(self.bags):
            raise TableError(
                f"{self.where}: {len(self.values)} targets for {len(self.bags)} bags: a table of "
                f"the task {self.task} needs `values` for each"
            )

    @property
    def where(self) -> str:
        """Name of the table in messages."""
        return "the table" if self.path is None else str(self.path)

    @property
    def of_task(self) -> Task:
        """The task that the targets are for."""
        return TASKS[self.task]

    def y(self, names: Iterable[str]) -> Float[np.ndarray, "labelled targets"]:
        """Return the targets of the bags among these that have a label, in the table's order."""
        wanted = set(names)
        rows = [v for b, v in zip(self.bags, self.values, strict=True) if b in wanted]
        found = [v for v in rows if v is not None]
        return np.array(found, np.float64).reshape(len(found), len(self.target))

    def stratum_names(self, strata: Iterable[int]) -> str:
        """Return strata in words that follow "bag", such as `of class tumour`."""
        return self.of_task.stratum_names(strata, classes=self.classes, target=self.target)

    def describe(self) -> str:
        """Say in one sentence what was taken as the target.

        It names the task and the columns; the classes with their numbers of bags, the number of
        events or the range of values; and the share of bags or cells without a label.
        """
        y, total = self.y(self.bags), len(self.bags)
        columns = ("column " if len(self.target) == 1 else "columns ") + ", ".join(
            map(repr, self.target)
        )
        content = self.of_task.content(y, self.classes) if len(y) else "no label is given"
        missing = f"{1 - len(y) / total:.0%} of them without a label"
        return (
            f"The task is {self.task}, from the {columns} of {self.where}: {content}; "
            f"{counted(total, 'bag')}, {missing if len(y) < total else 'all labelled'}."
        )

    def group(self, row: int) -> str:
        """Return the group of a row; a bag without a group forms its own."""
        return self.bags[row] if self.groups is None else self.groups[row]


def read_table(
    path: Path,
    *,
    classes: Sequence[str] | None = None,
    labels_required: bool = True,
    target: TargetOptions = CLASS_LABELS,
    covariates: Sequence[str] = (),
) -> LabelTable:
    """Read a label table; `SYNONYMS` lists other names that are accepted for `bag` and `group`.

    Args:
        path: A CSV or TSV file with a header.
        classes: Names of the classes in order of their index, so that labels may be names. Without
            them, labels are 0 … C − 1. For multilabel, the columns of the findings.
        labels_required: Whether a bag without a label is an error. For multilabel, bags without any
            finding that is known are noted instead.
        target: The task and the columns that hold its target.
        covariates: Names of further columns that the file may have, which are not read here.

    Raises:
        TableError: the table is invalid; names the file, the line, the bag and what was expected.
    """
    header, rows = _rows(path)
    columns = target_columns(target, header=header, classes=classes, path=path)
    _check_extra(columns, covariates, path)
    _check_header(header, path, target=target, extra=(*columns, *covariates))
    _check_needed(header, path, columns=columns, labels_required=labels_required)
    rows_by_bag = _by_bag(path, rows)
    read = read_targets(
        path, rows_by_bag, options=target, columns=columns, classes=classes,
        required=labels_required,
    )  # fmt: skip

    return LabelTable(
        path=path,
        bags=tuple(rows_by_bag),
        labels=read.labels,
        **_assignments(path, header, rows_by_bag),
        classes=read.classes,
        task=read.task,
        target=read.target,
        values=read.values,
        notes=read.notes,
        lines=tuple(line for line, _ in rows_by_bag.values()),
    )


def _by_bag(
    path: Path, rows: Sequence[tuple[int, dict[str, str]]]
) -> dict[str, tuple[int, dict[str, str]]]:
    """Return the line and the cells of each bag.

    Raises:
        TableError: a bag has no name or two lines, or there are no bags.
    """
    rows_by_bag: dict[str, tuple[int, dict[str, str]]] = {}
    for line, row in rows:
        bag = row["bag"]
        if not bag:
            raise TableError(f"{path}, line {line}: the column 'bag' is empty")
        if bag in rows_by_bag:
            raise TableError(
                f"{path}, line {line}: bag {bag!r} is already in line {rows_by_bag[bag][0]}. "
                "Give each bag one line"
            )
        rows_by_bag[bag] = (line, row)
    if not rows_by_bag:
        raise TableError(f"{path} has a header but no bags")
    return rows_by_bag


def _assignments(
    path: Path, header: Sequence[str], rows_by_bag: dict[str, tuple[int, dict[str, str]]]
) -> dict[str, Any]:
    """Return the groups, folds and parts of the bags, None for columns that the table lacks."""

    def column(name: str, read: Callable[[str, str], object]) -> tuple[Any, ...] | None:
        if name not in header:
            return None
        return tuple(
            read(cells[name], f"{path}, line {line}, bag {bag!r}")
            for bag, (line, cells) in rows_by_bag.items()
        )

    groups = tuple(cells.get("group") or bag for bag, (_, cells) in rows_by_bag.items())
    return {
        "groups": groups if "group" in header else None,
        "folds": column("fold", _fold),
        "splits": column("split", _part),
    }


def drop_bags(table: LabelTable, bags: Sequence[str]) -> LabelTable:
    """Return the table without these bags; the classes are kept."""
    excluded = set(bags)
    rows = [row for row, b in enumerate(table.bags) if b not in excluded]
    return replace(
        table,
        bags=tuple(table.bags[r] for r in rows),
        labels=tuple(table.labels[r] for r in rows),
        groups=None if table.groups is None else tuple(table.groups[r] for r in rows),
        folds=None if table.folds is None else tuple(table.folds[r] for r in rows),
        splits=None if table.splits is None else tuple(table.splits[r] for r in rows),
        values=tuple(table.values[r] for r in rows),
        lines=None if table.lines is None else tuple(table.lines[r] for r in rows),
    )


def check_labels_match(table: LabelTable, names: Sequence[str], *, allow_unlabelled: bool) -> None:
    """Check that every label has a bag and, unless `allow_unlabelled`, that every bag has a label.

    Raises:
        TableError: they do not match; lists and counts the names, with the likely cause.
    """
    labelled = {b for b, y in zip(table.bags, table.labels, strict=True) if y is not None}
    stored_names = set(names)
    without_bag = [b for b in table.bags if b not in stored_names]
    without_label = [] if allow_unlabelled else [n for n in names if n not in labelled]
    if not without_bag and not without_label:
        return
    problems = []
    if without_bag:
        problems.append(f"{_listed(without_bag, 'label')} without a bag")
    if without_label:
        problems.append(f"{_listed(without_label, 'bag')} without a label")
    suggestion = (
        nearest(without_bag[0], names) if without_bag else nearest(without_label[0], table.bags)
    )
    raise TableError(
        f"{table.where} and the bags do not match: {' and '.join(problems)}.{suggestion} "
        "Add or remove lines, or give a folder with just the bags that are labelled"
    )


def nearest(name: str, known: Sequence[str]) -> str:
    """Suggest why a name is not among the known ones; an empty string if no cause is likely."""
    if name in known:  # the name is in the table, but without a label
        return ""
    equal_numbers = [k for k in known if k.isdigit() and name.isdigit() and int(k) == int(name)]
    if equal_numbers:
        return (
            f" There is {equal_numbers[0]!r}, not {name!r}: ids are text, so leading zeros matter "
            "(spreadsheets remove them)."
        )
    prefix_matches = [k for k in known if name.startswith(f"{k}.") or k.startswith(f"{name}.")]
    return f" Did you mean {prefix_matches[0]!r}?" if prefix_matches else hint(name, known)


def _listed(names: Sequence[str], what: str) -> str:
    shown = ", ".join(repr(n) for n in names[:SHOWN])
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{len(names)} {what}{'s' if len(names) > 1 else ''} ({shown}{more})"


def read_rows(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Read the header and the rows of a CSV or TSV file, with line numbers, without blank lines.

    Raises:
        TableError: the file is missing, empty or not text, or a row is longer than the header.
    """
    if not path.is_file():
        raise TableError(f"there is no table {path}")
    try:
        with path.open(newline="", encoding="utf-8-sig") as f:
            delimiter = max(",;\t", key=f.readline().count)
            f.seek(0)
            reader = csv.reader(f, delimiter=delimiter)
            lines = [(reader.line_num, [c.strip() for c in row]) for row in reader if any(row)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise TableError(f"{path} is not UTF-8 text ({error}): save it as CSV") from error
    if not lines:
        raise TableError(f"{path} is empty: expected a header bag,label[,group][,fold|split]")
    header = lines[0][1]
    for line, row in lines:
        if any("\0" in cell for cell in row):
            raise TableError(f"{path}, line {line}: zero bytes instead of text: copy it again")
        if len(row) > len(header):
            raise TableError(
                f"{path}, line {line}: {len(row)} cells, but the header has {len(header)}"
            )
    return header, lines[1:]


def _rows(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    header, rows = read_rows(path)
    columns = [SYNONYMS.get(c, c) for c in header]
    padded = [(line, row + [""] * (len(columns) - len(row))) for line, row in rows]
    # Columns without a name are dropped if they are empty, as spreadsheets write them, or come
    # first: the index that pandas writes.
    for k, column in enumerate(columns[1:], start=1):
        line = next((line for line, row in padded if row[k]), None)
        if not column and line is not None:
            raise TableError(
                f"{path}, line {line}: column {k + 1} has a value but no name: give it one of "
                f"{', '.join(COLUMNS)}, or leave it out"
            )
    return [c for c in columns if c], [
        (line, dict(zip(columns, row, strict=True))) for line, row in padded
    ]


def _check_extra(columns: Sequence[str], covariates: Sequence[str], path: Path) -> None:
    """Check the columns that the user names for the target and for covariates."""
    for column in (*columns, *covariates):
        role = SYNONYMS.get(column, column)
        if role in COLUMNS and not (role == "label" and column in columns):
            raise TableError(
                f"{path}: the column {column!r} holds the {role} of the bags, so it can be neither "
                "a target nor a covariate: name another column"
            )
    both = sorted(set(columns) & set(covariates))
    if both:
        raise TableError(
            f"{path}: the column {both[0]!r} is the target, so it cannot be a covariate: leave it "
            "out of the covariates"
        )


def _check_header(
    header: list[str], path: Path, *, target: TargetOptions, extra: Sequence[str]
) -> None:
    known = (*COLUMNS, *SYNONYMS)
    for column in header:
        if column not in (*COLUMNS, *extra):
            raise TableError(
                f"{path}: unknown column {column!r}.{hint(column, known)}"
                f"{unknown_column_advice(header, target)} Known: {', '.join(COLUMNS)}"
            )
        if header.count(column) > 1:
            raise TableError(f"{path}: two columns are named {column!r}: leave one out")
    if "fold" in header and "split" in header:
        raise TableError(f"{path} has both 'fold' and 'split': leave one out")


def _check_needed(
    header: list[str], path: Path, *, columns: Sequence[str], labels_required: bool
) -> None:
    some = any(column in header for column in columns)
    for column in ("bag", *(columns if labels_required or some else ())):
        if column not in header:
            raise TableError(
                f"{path} has no column {column!r}: it has {', '.join(header)}"
                + (f".{hint(column, header)}" if column not in COLUMNS else "")
            )


def _fold(text: str, where: str) -> int:
    number = text.removesuffix(".0")
    if number.isdecimal():
        return int(number)
    raise TableError(f"{where}: the fold is {text!r}, expected a number 0, 1, …")


def _part(text: str, where: str) -> str | None:
    if text in SPLIT_PARTS or not text:
        return text or None
    raise TableError(
        f"{where}: the split is {text!r}, expected train, val or test.{hint(text, SPLIT_PARTS)}"
    )
