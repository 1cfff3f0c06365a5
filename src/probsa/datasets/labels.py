"""Stage 5: the label table, `bag,label[,group][,fold|split]`. All ids are strings.

Other targets than a class have columns of their own, which `TargetOptions` names.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from ..core import TaskName, TextTable, counted, group_keys, numbered_lines, read_number, write_csv
from ..errors import TableError, hint
from ..tasks import (
    LABELS,
    SHOWN,
    TASKS,
    Cells,
    TargetOptions,
    Task,
    codes_text,
    task_of_classes,
    unknown_column_advice,
)
from .barcodes import Barcodes
from .names import (
    COLUMNS,
    HEADER,
    SPLIT_PARTS,
    SYNONYMS,
    last_part,
    listed,
    nearest,
    without_suffix,
)

FEWEST_MATCHES = 0.1
"""Share of the labels, or of the bags if there are fewer, that must have the same names."""
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
    codes: Mapping[str, float] = field(default_factory=dict, compare=False, repr=False)
    """For survival, the event (1 or 0) that each different cell of its column stands for."""
    misspelt: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Ignored columns that are probably a misspelt group, fold or split, with that."""
    ignored: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """The columns of the file that were not read."""
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
        chosen = set(names)
        targets = []
        for bag, value in zip(self.bags, self.values, strict=True):
            if bag in chosen and value is not None:
                targets.append(value)
        return np.array(targets, np.float64).reshape(len(targets), len(self.target))

    def strata(self, names: Iterable[str]) -> list[int]:
        """Return the strata of the bags among these that have a label, in the table's order."""
        chosen = set(names)
        rows = zip(self.bags, self.labels, strict=True)
        return [y for bag, y in rows if bag in chosen and y is not None]

    def stratum_names(self, strata: Iterable[int]) -> str:
        """Return strata in words that follow "bag", such as `of class tumour`."""
        return self.of_task.labels.stratum_names(strata, self.classes)

    def describe(self) -> str:
        """Say in one sentence what was taken as the target.

        It names the task and the columns; the classes with their numbers of bags, the number of
        events or the range of values; and the share of bags or cells without a label.
        """
        y = self.y(self.bags)
        total = len(self.bags)
        noun = "column" if len(self.target) == 1 else "columns"
        columns = f"{noun} {', '.join(map(repr, self.target))}"
        content = self.of_task.labels.content(y, self.classes) if len(y) else "no label is given"
        labelled = "all labelled"
        if len(y) < total:
            labelled = f"{1 - len(y) / total:.0%} of them without a label"
        patients = ""
        if self.groups is not None and len(set(self.groups)) < total:
            patients = f" of {counted(len(set(self.groups)), 'patient')}, which no split divides"
        return (
            f"The task is {self.task}, from the {columns} of {self.where}: {content}; "
            f"{counted(total, 'bag')}{patients}, {labelled}.{self._direction()}"
        )

    def _direction(self) -> str:
        """Say in a sentence which way the column of events was read; empty for other tasks."""
        text = codes_text(self.target[-1], self.codes)
        return f" {text[:1].upper()}{text[1:]}." if text else ""

    @property
    def group_of(self) -> dict[str, str]:
        """The group of each bag by its name; empty if the table has no groups."""
        return {} if self.groups is None else dict(zip(self.bags, self.groups, strict=True))

    @property
    def patients_in_names(self) -> Barcodes | None:
        """What the names of the bags say if several are of one patient, but the table has no
        groups; otherwise None."""
        if self.groups is not None:
            return None
        barcodes = Barcodes.read(self.bags)
        return barcodes if barcodes.shares_patients else None

    def place(self, row: int) -> str:
        """Return the line of a row, if it is known, and its bag, for messages."""
        line = "" if self.lines is None else f"line {self.lines[row]}, "
        return f"{line}bag {self.bags[row]!r}"

    def similar_column(self, role: str) -> str:
        """Ask for the ignored column that is most like a missing one; empty if none is."""
        question = hint(role, self.ignored)
        for column, intended_role in self.misspelt.items():
            if intended_role == role:
                question = f" Did you mean {column!r}?"
                break
        return f".{question} Rename it to {role!r}" if question else ""

    def group(self, row: int) -> str:
        """Return the group of a row; a bag without a group forms its own."""
        return self.bags[row] if self.groups is None else self.groups[row]


def read_table(
    path: Path | str,
    *,
    classes: Sequence[str] | None = None,
    labels_required: bool = True,
    columns_required: bool = False,
    target: TargetOptions = CLASS_LABELS,
    covariates: Sequence[str] = (),
) -> LabelTable:
    """Read a label table; `SYNONYMS` lists other names that are accepted for `bag` and `group`.

    Further columns are ignored. If one is named almost like `group`, `fold` or `split`, a note of
    the table says so.

    Args:
        path: A CSV or TSV file with a header.
        classes: Names of the classes in order of their index, so that labels may be names. Without
            them, labels are 0 … C − 1. For multilabel, the columns of the findings.
        labels_required: Whether a bag without a label is an error. For multilabel, bags without any
            finding that is known are noted instead.
        columns_required: Whether a table without the columns of the target is an error, as it
            always is if labels are required.
        target: The task and the columns that hold its target.
        covariates: Names of the columns that are used as covariates, which are not read here.

    Raises:
        TableError: the table is invalid; names the file, the line, the bag and what was expected.
    """
    path = Path(path)
    table = TextTable.read(path, expected=HEADER)
    labels = LABELS[target.task]
    columns = labels.columns(target.columns, classes, table.columns, path)
    _check_extra(columns, covariates, path)
    # A misspelt target is refused even if no label is required, since labels would be lost.
    needed = labels_required or columns_required or table.misspelt(columns)
    needed = needed or any(column in table.columns for column in columns)
    chosen = table.select(
        "bag",
        *(columns if needed else ()),
        optional=("group", "fold", "split"),
        synonyms=SYNONYMS,
        advice=unknown_column_advice(table.columns, target),
        extra_advice={"label": " Or name the column to learn with --target COLUMN"},
    )
    if {"fold", "split"} <= set(chosen.columns):
        raise TableError(f"{path} has both 'fold' and 'split': leave one out")
    chosen = chosen.blank_missing(columns, values=classes or ())
    chosen = chosen.blank_missing(("group", "fold", "split"))
    by_bag = chosen.by_name("bag")
    cells = Cells(
        path=path,
        rows=by_bag,
        columns=columns,
        classes=classes,
        required=labels_required,
        missing=chosen.blanked,
    )
    targets = labels.read(cells)
    misspelt = _misspelt_columns(table, used=chosen.columns, named=columns)
    misspelt_notes = [
        f"the column {column!r} of {path} is ignored: if it holds the {role} of the bags, rename "
        f"it to {role!r}"
        for column, role in misspelt.items()
    ]
    return LabelTable(
        path=path,
        bags=tuple(by_bag),
        labels=labels.bag_strata(targets.values),
        groups=_read_groups(chosen, by_bag),
        folds=_read_folds(chosen, by_bag, path),
        splits=_read_splits(chosen, by_bag, path),
        classes=tuple(targets.names),
        task=labels.task,
        target=columns,
        values=tuple(targets.values),
        codes=targets.codes,
        notes=(*targets.notes, *chosen.missing_notes(), *misspelt_notes),
        misspelt=misspelt,
        ignored=tuple(c for c in table.columns if c not in chosen.names_in_file.values()),
        lines=tuple(line for line, _ in by_bag.values()),
    )


Rows = Mapping[str, tuple[int, Mapping[str, str]]]
"""The line and the cells of each bag."""


def _read_groups(table: TextTable, rows: Rows) -> tuple[str, ...] | None:
    """Return the group of each bag; a bag without one is a group of its own."""
    if "group" not in table.columns:
        return None
    group_of = {bag: cells["group"] for bag, (_, cells) in rows.items()}
    return tuple(group_keys(tuple(rows), group_of))


def _read_folds(table: TextTable, rows: Rows, path: Path) -> tuple[int, ...] | None:
    """Return the fold of each bag."""
    if "fold" not in table.columns:
        return None
    folds = []
    for bag, (line, cells) in rows.items():
        text = table.as_written("fold", line, cells["fold"])
        where = f"{path}, line {line}, bag {bag!r}"
        folds.append(int(read_number(text, "the fold", where=where, low=0.0, whole=True)))
    return tuple(folds)


def _read_splits(table: TextTable, rows: Rows, path: Path) -> tuple[str | None, ...] | None:
    """Return the part of each bag, None if its cell is empty."""
    if "split" not in table.columns:
        return None
    for bag, (line, cells) in rows.items():
        part = cells["split"]
        if part and part not in SPLIT_PARTS:
            raise TableError(
                f"{path}, line {line}, bag {bag!r}: the split is {part!r}, expected train, val or "
                f"test.{hint(part, SPLIT_PARTS)}"
            )
    return tuple(cells["split"] or None for _, cells in rows.values())


def check_bag_table(path: Path | str) -> None:
    """Refuse what is no table, or has no column of bags; labels are read where they are used.

    Raises:
        TableError: as `read_table`.
    """
    TextTable.read(path, expected=HEADER).select("bag", synonyms=SYNONYMS)


def write_table(path: Path, table: LabelTable, bags: Iterable[str]) -> None:
    """Write the rows of these bags, with the names of their classes."""
    columns: dict[str, Sequence[object] | None] = {
        "bag": table.bags,
        "label": [None if y is None else table.classes[y] for y in table.labels],
        "group": table.groups,
        "fold": table.folds,
        "split": table.splits,
    }
    present = {name: values for name, values in columns.items() if values is not None}
    chosen = set(bags)
    rows = []
    for k, bag in enumerate(table.bags):
        if bag in chosen:
            rows.append({name: values[k] for name, values in present.items()})
    write_csv(path, list(present), rows)


def drop_bags(table: LabelTable, bags: Sequence[str]) -> LabelTable:
    """Return the table without these bags; the classes are kept."""
    excluded = set(bags)
    return select_rows(table, [row for row, b in enumerate(table.bags) if b not in excluded])


def select_rows(table: LabelTable, rows: Sequence[int]) -> LabelTable:
    """Return the table with these rows only."""
    columns: dict[str, Any] = {}
    for name in ("bags", "labels", "groups", "folds", "splits", "values", "lines"):
        column = getattr(table, name)
        columns[name] = None if column is None else tuple(column[row] for row in rows)
    return replace(table, **columns)


def match_bags(table: LabelTable, names: Collection[str]) -> LabelTable:
    """Return the table with `case00` for the id `case00.tiff` or `/data/case00.tiff` if that is a
    bag, which a note says.

    Raises:
        TableError: two lines would be of the same bag; names both ids.
    """
    lines = None if table.lines is None else dict(zip(table.bags, table.lines, strict=True))
    bag_of = without_suffix(table.bags, names, where=table.where, lines=lines)
    if not bag_of:
        return table
    paths = any(last_part(name) != name for name in bag_of)
    note = (
        f"{counted(len(bag_of), 'id')} of {table.where} matched a bag without the "
        f"{'folder and the suffix' if paths else 'suffix'} "
        f"({next(iter(bag_of))!r} is {next(iter(bag_of.values()))!r})"
    )
    bags = tuple(bag_of.get(bag, bag) for bag in table.bags)
    return replace(table, bags=bags, notes=(*table.notes, note))


def check_labels_match(table: LabelTable, names: Sequence[str], *, allow_unlabelled: bool) -> None:
    """Check that every label has a bag and, unless `allow_unlabelled`, that every bag has a label.

    Raises:
        TableError: they do not match; lists and counts the names, with the likely cause.
    """
    labelled = {b for b, y in zip(table.bags, table.labels, strict=True) if y is not None}
    stored_names = set(names)
    without_bag = [b for b in table.bags if b not in stored_names]
    without_label = [] if allow_unlabelled else [n for n in names if n not in labelled]
    problems: list[str] = []
    if without_bag:
        lines = _lines_of(table, without_bag)
        problems.append(
            f"{counted(len(without_bag), 'label')} ({listed(without_bag)}{lines}) without a bag"
        )
    if without_label:
        problems.append(
            f"{counted(len(without_label), 'bag')} ({listed(without_label)}) without a label"
        )
    if not problems:
        return
    if without_bag:
        suggestion = nearest(without_bag[0], names)
    else:
        suggestion = nearest(without_label[0], table.bags)
    raise TableError(
        f"{table.where} and the bags do not match: {' and '.join(problems)}.{suggestion} "
        "Add or remove lines, or give a folder with just the bags that are labelled"
    )


def check_enough_match(table: LabelTable, names: Collection[str]) -> None:
    """Check that a table and bags belong together, where labels without a bag are left out.

    Raises:
        TableError: less than a tenth of the labels have a bag, and of the bags a label.
    """
    matching = set(table.bags) & set(names)
    if len(matching) >= FEWEST_MATCHES * min(len(table.bags), len(names)) and matching:
        return
    without_bag = [bag for bag in table.bags if bag not in matching]
    raise TableError(
        f"only {len(matching)} of {counted(len(table.bags), 'label')} of {table.where} and of "
        f"{counted(len(names), 'bag')} have the same name ({listed(without_bag)} have no bag"
        f"{_lines_of(table, without_bag)}): this table is probably of other bags."
        f"{nearest(without_bag[0], tuple(names))}"
    )


def bags_without_label(table: LabelTable, names: Iterable[str]) -> tuple[str, ...]:
    """Return the bags among these that have no line in the table, or one without a label."""
    rows = zip(table.bags, table.values, strict=True)
    labelled = {bag for bag, value in rows if value is not None}
    return tuple(name for name in names if name not in labelled)


def _lines_of(table: LabelTable, bags: Sequence[str]) -> str:
    """Return the lines of some bags, after a semicolon; empty if they are not known."""
    if table.lines is None:
        return ""
    line_of = dict(zip(table.bags, table.lines, strict=True))
    return f"; {numbered_lines([line_of[bag] for bag in bags], most=SHOWN)}"


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


def _misspelt_columns(
    table: TextTable, *, used: Sequence[str], named: Sequence[str]
) -> dict[str, str]:
    """Return the ignored columns that are probably a misspelt group, fold or split, with that."""
    absent = {"group"}.difference(used)
    if not {"fold", "split"}.intersection(used):
        absent |= {"fold", "split"}
    roles: dict[str, str] = {}
    for name in (*COLUMNS, *SYNONYMS):
        role = SYNONYMS.get(name, name)
        if role in absent:
            roles[name] = role
    similar = {column: roles[name] for column, name in table.misspelt(roles).items()}
    if "fold" in absent:
        # `cv_fold` and `kfolds` are not similar enough
        folds = [column for column in table.columns if re.search("folds?$", column.lower())]
        similar |= dict.fromkeys(folds, "fold")
    return {column: role for column, role in similar.items() if column not in named}
