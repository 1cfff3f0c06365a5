"""What is read of a label table: the columns of the target, their cells, and strata of bags."""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from ..core import TaskName, check_options, counted, finite_number, numbered_lines
from ..errors import OneClass, TableError, hint
from .events import (
    Direction,
    censoring_columns,
    codes_text,
    contradicts_itself,
    direction_of,
    event_columns,
    event_of,
    time_columns,
)
from .words import class_name, format_number

Rows: TypeAlias = Mapping[str, tuple[int, dict[str, str]]]
"""The line and the cells of each bag, by the name of the bag."""
Value: TypeAlias = tuple[float, ...] | None
"""The targets of a bag; None for a bag without a label."""
Y: TypeAlias = Float[np.ndarray, "bags targets"]
"""Targets of bags: the index of a class or grade, 0, 1 or nan (not known) for each finding, a
number, or a time and whether its event was seen."""
Row: TypeAlias = Sequence[float | int]
"""The targets of a bag, a row of them."""
Names: TypeAlias = Sequence[str]
Given: TypeAlias = Names | None
"""Names that the user gives, or None."""
Target = int | float | tuple[float, ...]
"""The targets of a bag for a likelihood: a class or grade, a number, or one per column."""
MOST_CLASSES = 20
"""Most whole numbers that are taken for classes unless the user says that they are."""
LARGEST = 2**53
"""Class numbers are below it, so that they are exact."""
SHOWN = 5
"""Maximum number of names that a message lists; the others are counted."""
CENSORSHIP = "censorship"
"""Name of the column that other tools write in place of `event`, with the opposite meaning."""
FINDING = {"0": 0.0, "0.0": 0.0, "1": 1.0, "1.0": 1.0, "": math.nan}


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


class Stratum(NamedTuple):
    """Bags of which each fold should have its share."""

    name: str
    members: Bool[np.ndarray, " bags"]
    needed: bool
    """Whether some of these bags must train and others be tested: of a class, not of a range."""


class Column(NamedTuple):
    """How the cells of a column are read."""

    what: str
    """What a cell is, for messages."""
    expected: str
    number: Callable[[str], float | None]
    """Returns the target that a cell denotes, or None if it denotes none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cells:
    """The target columns of a table, as text."""

    path: Path
    rows: Rows
    columns: tuple[str, ...]
    classes: Given
    """The names that the user gives the classes, in order."""
    required: bool
    """Whether a bag without a label is an error."""
    missing: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """The words for a missing value that stand in the file in place of empty cells, by column and
    line."""

    def read(self, *columns: Column) -> list[Value]:
        """Return the targets of each bag; None if one of its cells is empty and may be.

        Raises:
            TableError: a cell denotes no target; names the line, the bag and what was expected.
        """
        if self.required:
            self._check_complete(columns)
        values: list[Value] = []
        for bag, (line, row) in self.rows.items():
            cells = [row.get(name, "") for name in self.columns]
            numbers: list[float] = []
            for name, cell, column in zip(self.columns, cells, columns, strict=True):
                number = column.number(cell)
                if number is not None:
                    numbers.append(number)
                elif cell:
                    raise TableError(
                        f"{self.path}, line {line}, bag {bag!r}: {column.what} is "
                        f"{self._shown(name, line, cell)}, expected {column.expected}"
                    )
            is_complete = len(numbers) == len(self.columns)
            values.append(tuple(numbers) if is_complete else None)
        return values

    def _check_complete(self, columns: Sequence[Column]) -> None:
        """Check that no bag lacks a target, of columns in which an empty cell is none."""
        for name, column in zip(self.columns, columns, strict=True):
            if column.number("") is not None:
                continue
            empty = [(line, bag) for bag, (line, row) in self.rows.items() if not row.get(name)]
            if not empty:
                continue
            line, bag = empty[0]
            other_lines = [n for n, _ in empty[1:]]
            more = ""
            lines = "line"
            if other_lines:
                more = f", and so it is in {numbered_lines(other_lines)}"
                lines = "lines"
            raise TableError(
                f"{self.path}, line {line}, bag {bag!r}: {column.what} is "
                f"{self._shown(name, line, '')}{more}. Give a label, delete the {lines}, or leave "
                "bags without a label out (--unlabelled leave_out)"
            )

    def _shown(self, name: str, line: int, cell: str) -> str:
        """Return a cell as it is written in the file, for messages."""
        if cell:
            return repr(cell)
        word = self.missing.get(name, {}).get(line)
        return "empty" if word is None else f"{word!r}, which stands for a missing value"


class ReadTargets(NamedTuple):
    """What the target columns of a table were read as."""

    values: list[Value]
    """The targets of each row."""
    names: Names = ()
    """The names of the classes or findings."""
    notes: Names = ()
    """What users should know about how they were read."""
    codes: Mapping[str, float] = {}
    """The event that each different cell of its column stands for; empty for other tasks."""


@dataclass(frozen=True)
class Labels(ABC):
    """The labels of a task: how a table is read, and how bags are stratified and described.

    Arguments `y` are targets of labelled bags; `names` are those of classes, grades or findings.
    """

    task: TaskName

    number: ClassVar[type[int] | type[float] | None] = None
    """What a target of a single column is for a likelihood."""
    stratum: ClassVar[int | None] = None
    """The column of the targets that is the stratum of a bag; None if there are no strata."""
    needed_stratum: ClassVar[int | None] = None
    """The only stratum that informs a model and its metrics, the event; None for all of them."""
    stratified_by: ClassVar[str] = "stratified by class"
    """By what splits are balanced, for their origin; `{}` is the column of the target."""
    columns_expected: ClassVar[tuple[int | None, str]] = (
        1,
        "one class, grade or number has one: give --task multilabel (a finding in each column) or "
        "--task survival",
    )
    """The number of columns of the target, None for any, and what to do about another number."""

    # Tables

    def columns(self, given: Given, classes: Given, header: Names, path: Path) -> tuple[str, ...]:
        """Return the columns of the target: those that the user names, or else the default.

        `classes` are the names of classes that the user gives, and `header` the table's columns.

        Raises:
            TableError: the names of columns or classes do not fit the task.
        """
        target = given or ("label",)
        count, expected = self.columns_expected
        if classes is not None:
            raise TableError(
                f"the classes are {', '.join(classes)}, but the task {self.task} has no classes: "
                "leave --classes out, or give another --task"
            )
        shown = ", ".join(target)
        if len(set(target)) < len(target):
            raise TableError(f"the target names a column twice ({shown}): leave one out")
        if count is not None and len(target) != count:
            raise TableError(
                f"the target names {counted(len(target), 'column')} ({shown}), but {expected}"
            )
        return tuple(target)

    @abstractmethod
    def read(self, cells: Cells) -> ReadTargets:
        """Return the targets of a table, the names of its classes or findings, and notes.

        Raises:
            TableError: a cell does not fit the task; names the line and the bag.
        """

    def label_columns(self, names: Names) -> tuple[str, ...]:
        """Return the columns of predictions.csv that hold what a bag is labelled with."""
        return ("label",)

    def model_target(self, value: tuple[float, ...]) -> Target:
        """Return the targets of a bag as a likelihood takes them."""
        return value if self.number is None else self.number(value[0])

    # Strata

    def strata(self, y: Y) -> Shaped[np.ndarray, " bags"]:
        """Return by what resamples of the bags are stratified."""
        return np.zeros(len(y)) if self.stratum is None else y[:, self.stratum]

    def bag_strata(self, values: Sequence[Value]) -> tuple[int | None, ...]:
        """Return the stratum by which splits balance each bag: its class or grade, 1 for an event,
        the quintile 0–4 of a number, and 0 for findings, which are not stratified."""
        strata: list[int | None] = []
        for value in values:
            if value is None:
                strata.append(None)
            elif self.stratum is None:
                strata.append(0)
            else:
                strata.append(int(value[self.stratum]))
        return tuple(strata)

    def balanced_strata(self, strata: Sequence[int | None], parts: int) -> np.ndarray:
        """Return the strata of labelled bags that are divided into `parts`."""
        return np.array(strata, np.int64)

    def needed_strata(self, present: Iterable[int]) -> frozenset[int]:
        """Return which of these strata have to occur in training: all classes, or the events."""
        if self.stratum is None:
            return frozenset()
        if self.needed_stratum is None:
            return frozenset(present)
        return frozenset(present) & {self.needed_stratum}

    def stratum_names(self, strata: Iterable[int], names: Names) -> str:
        """Return needed strata in words that follow "bag", such as `of class tumour`."""
        return f"of class {', '.join(names[k] for k in strata)}"

    @abstractmethod
    def fold_strata(self, y: Y, names: Names) -> list[Stratum]:
        """Return what is balanced among folds, without what no bag has: classes or grades, each
        finding present and absent, events and censored bags, or quintiles of a number."""

    def as_two_classes(self, y: Y, training: np.ndarray) -> Int[np.ndarray, " bags"]:
        """Return a class in place of the targets, to fit null maps on: of classes and grades
        themselves, else 1 for any finding, the event, or a number above the training median."""
        return self.strata(y).astype(np.int64)

    # Whether bags can train and test

    @abstractmethod
    def untrained(self, y: Mapping[str, np.ndarray], names: Names) -> str | None:
        """Return why a model cannot learn its outputs from the part `train` of a split, or None."""

    def untestable(self, strata: Sequence[int], names: Names) -> str | None:
        """Return why methods cannot be compared on labelled bags of these strata, or None."""
        return None

    def unjudgeable(self, y: Y, training: np.ndarray, names: Names) -> str | None:
        """Return why the primary metric is undefined on test bags, or None."""
        return None

    # Words

    @abstractmethod
    def counts(self, y: Y, names: Names) -> dict[str, int]:
        """Return how many bags have what, for the first line of a report."""

    @abstractmethod
    def content(self, y: Y, names: Names) -> str:
        """Return what bags are labelled with: classes and their bags, or a range."""

    @abstractmethod
    def truth_text(self, y: Row, names: Names) -> str:
        """Return what a bag is labelled with, in words; empty if nothing is known."""


@dataclass(frozen=True)
class ClassLabels(Labels):
    """Each bag has one of several classes or grades, whose index is its target."""

    ordered: bool = False
    any_number: bool = False
    """Whether the number of classes decides between binary and multiclass."""
    number = int
    stratum = 0

    def columns(self, given: Given, classes: Given, header: Names, path: Path) -> tuple[str, ...]:
        if classes is not None and len(set(classes)) < max(2, len(classes)):
            raise TableError(f"the classes are {', '.join(classes)}: give two or more, each once")
        return super().columns(given, None, header, path)

    def read(self, cells: Cells) -> ReadTargets:
        column = cells.columns[0]
        notes: list[str] = []
        words = self._words(cells)
        if cells.classes is None and len(words) == 1 and words[0].isalpha():
            labelled = [bag for bag, (_, row) in cells.rows.items() if row[column]]
            error = OneClass(
                f"{cells.path} has one class only: {words[0]!r} in "
                f"{counted(len(labelled), 'row')}. Add rows of another class"
            )
            error.bags = frozenset(labelled)
            raise error
        are_names = all(finite_number(word) is None for word in words)
        if len(words) == 2 and are_names and cells.classes is None and not self.ordered:
            cells = replace(cells, classes=words)
            notes.append(
                f"the classes of {cells.path} are {words[0]} and {words[1]}, in alphabetical "
                f"order, so p is the probability of {words[1]}; for the other order give "
                f"--classes {words[1]} {words[0]}"
            )
        classes = cells.classes or ()
        values = cells.read(
            Column(
                "the label" if column == "label" else f"the label (column {column!r})",
                self._expected(cells),
                lambda cell: self._index(cell, classes),
            )
        )
        noun = "grade" if self.ordered else "class"
        where = f"{cells.path}: the column {column!r}"
        present = sorted({int(v[0]) for v in values if v is not None})
        if self.any_number and cells.classes is None and len(present) > MOST_CLASSES:
            raise TableError(
                f"{where} has {len(present)} different whole numbers, from {present[0]} to "
                f"{present[-1]}: give --task regression if they are measurements, --task ordinal "
                "if they are grades, or --task multiclass if they are classes"
            )
        numbers = range(len(classes) or max([1, *present]) + 1)
        absent: list[int] = []
        if present:  # a number may be huge, so no more gaps are listed than are shown
            absent = list(islice((k for k in numbers if k not in present), SHOWN + 1))
        if absent and cells.classes is None and len(numbers) > 2:
            raise TableError(
                f"{where} has the {noun} numbers {', '.join(map(str, present))}, and no bag has "
                f"{noun} {_first(absent)}: if there is one, list all with --classes "
                f"{_first(numbers, ' ')}; otherwise number from 0 without gaps"
            )
        names = classes or tuple(map(str, numbers))
        if self.task == "binary" and not self.any_number and len(names) > 2:
            raise TableError(
                f"{where} has {len(names)} classes ({_first(names)}), but the task binary has two: "
                "give --task multiclass or --task ordinal"
            )
        if absent and self.ordered:
            notes.append(
                f"no bag of {cells.path} has grade {_first([names[k] for k in absent])}, so the "
                "threshold of that grade is not identified"
            )
        return ReadTargets(values, names, notes)

    def _index(self, cell: str, classes: Names) -> float | None:
        """Return the index of a class: the place of its name, or else its number."""
        number = cell.removesuffix(".0")  # pandas writes integers like this if a cell is empty
        for name in (cell, number):
            if name in classes:
                return float(list(classes).index(name))
        # "1" may be the name of the lowest grade, so that numbers are names and not indices
        are_names = self.ordered and any(name.isdecimal() for name in classes)
        if are_names or not number.isdecimal() or float(number) >= (len(classes) or LARGEST):
            return None
        return float(number)

    def _expected(self, cells: Cells) -> str:
        if cells.classes is not None:
            return f"one of {', '.join(cells.classes)}"
        expected = "a class number 0, 1, …; for class names give --classes in order"
        if self.ordered:
            expected = (
                "a grade 0, 1, …; for names of grades give --classes from the lowest to the "
                "highest, as an alphabetical order is never assumed"
            )
        names = self._words(cells)
        listed = f" ({', '.join(names)})" if 1 < len(names) <= 2 * SHOWN else ""
        return f"{expected}{listed}; for measurements give --task regression"

    @staticmethod
    def _words(cells: Cells) -> list[str]:
        """Return the different labels as they are written, in alphabetical order."""
        return sorted({row.get(cells.columns[0], "") for _, row in cells.rows.values()} - {""})

    def fold_strata(self, y: Y, names: Names) -> list[Stratum]:
        strata: list[Stratum] = []
        for k, name in enumerate(names):
            members = y[:, 0] == k
            if members.any():
                strata.append(Stratum(name, members, needed=True))
        return strata

    def untrained(self, y: Mapping[str, np.ndarray], names: Names) -> str | None:
        counts = {part: Counter(rows[:, 0].astype(int).tolist()) for part, rows in y.items()}
        training = counts.pop("train")
        if len(training) == 1:
            ((only, count),) = training.items()
            return (
                f"all {counted(count, 'training bag')} are of class {names[only]}, so no "
                "difference between classes can be learned. Give training bags of another class "
                f"than {names[only]!r}, or check the column of labels"
            )
        for part, of_part in counts.items():
            untrained = sorted({*of_part} - {*training})
            if untrained:
                k = untrained[0]
                return (
                    f"{counted(of_part[k], 'bag')} of class {names[k]} in {part}, but none in "
                    "training: the probability of this class would be untrained. Put some of them "
                    "into the training part, or leave them out"
                )
        return None

    def untestable(self, strata: Sequence[int], names: Names) -> str | None:
        if len(set(strata)) != 1:
            return None
        of_class = f"{counted(len(strata), 'bag')} of class {names[strata[0]]}"
        return f"has only one class: {of_class}, none of another"

    def unjudgeable(self, y: Y, training: np.ndarray, names: Names) -> str | None:
        for name, count in self.counts(y, names).items():
            if self.ordered and count == len(y):
                return f"all {len(y)} bags have the grade {name!r}"
            if not self.ordered and not count:
                return f"no bag has the class {name!r}"
        return None

    def counts(self, y: Y, names: Names) -> dict[str, int]:
        return {name: int((y[:, 0] == k).sum()) for k, name in enumerate(names)}

    def content(self, y: Y, names: Names) -> str:
        classes = ", ".join(f"{name} ({n:,})" for name, n in self.counts(y, names).items())
        return f"the {'grades in order' if self.ordered else 'classes'} {classes}"

    def truth_text(self, y: Row, names: Names) -> str:
        return "" if math.isnan(y[0]) else class_name(names, int(y[0]))


@dataclass(frozen=True)
class FindingLabels(Labels):
    """Several findings for each bag, each present, absent or not known."""

    stratified_by = "not stratified by findings"
    columns_expected = (None, "")

    def columns(self, given: Given, classes: Given, header: Names, path: Path) -> tuple[str, ...]:
        names = given or classes or ()
        if not names:
            raise TableError(
                f"{path}: the task multilabel needs the columns of the findings: name them with "
                f"--target. The table has {', '.join(header)}"
            )
        if given and classes is not None and tuple(given) != tuple(classes):
            raise TableError(
                f"the classes are {', '.join(classes)}, but the target names the findings "
                f"{', '.join(given)}: for multilabel leave --classes out"
            )
        if len(names) == 1 and names[0] in header:
            raise TableError(
                f"the target names one finding, {names[0]!r}, but the task multilabel has several: "
                "name more columns, or give --task binary"
            )
        return super().columns(names, None, header, path)

    def read(self, cells: Cells) -> ReadTargets:
        expected = "0 or 1, or an empty cell if it is not known"
        columns = [Column(f"the finding {c!r}", expected, FINDING.get) for c in cells.columns]
        values: list[Value] = []
        unlabelled: list[str] = []
        for bag, findings in zip(cells.rows, cells.read(*columns), strict=True):
            if findings is None or all(map(math.isnan, findings)):
                values.append(None)
                unlabelled.append(bag)
            else:
                values.append(findings)
        notes: list[str] = []
        if 0 < len(unlabelled) < len(values):
            verb = "has" if len(unlabelled) == 1 else "have"
            notes.append(
                f"{counted(len(unlabelled), 'bag')} of {cells.path} {verb} no finding that is "
                f"known ({_first(unlabelled)})"
            )
        return ReadTargets(values, cells.columns, notes)

    def label_columns(self, names: Names) -> tuple[str, ...]:
        return tuple(f"label_{name}" for name in names)

    def fold_strata(self, y: Y, names: Names) -> list[Stratum]:
        strata: list[Stratum] = []
        for name, finding in zip(names, y.T, strict=True):
            strata.append(Stratum(f"with {name}", finding == 1, needed=True))
            strata.append(Stratum(f"without {name}", finding == 0, needed=False))
        return [stratum for stratum in strata if stratum.members.any()]

    def as_two_classes(self, y: Y, training: np.ndarray) -> np.ndarray:
        return (y == 1).any(1).astype(np.int64)

    def untrained(self, y: Mapping[str, np.ndarray], names: Names) -> str | None:
        for name, train, test in zip(names, y["train"].T, y["test"].T, strict=True):
            labels = train[np.isfinite(train)]
            if len(np.unique(labels)) < 2:
                count = "known in no bag"
                if len(labels):
                    count = f"{len(labels)} bags, all {labels[0]:g}"
                return (
                    f"the finding {name!r} has only one class in training ({count}). Give bags "
                    "with and without it, or leave it out of the target"
                )
            if len(test) and not (test == 1).any():
                return (
                    f"no bag of the test part has the finding {name!r}, so it cannot be judged. "
                    "Test on bags with it, or leave it out of the target"
                )
        return None

    def unjudgeable(self, y: Y, training: np.ndarray, names: Names) -> str | None:
        for name, finding in zip(names, y.T, strict=True):
            classes = np.unique(finding[np.isfinite(finding)])
            if len(classes) == 0:
                return f"the finding {name!r} is known in no bag"
            if len(classes) == 1:
                return f"the finding {name!r} is {classes[0]:g} in all bags"
        return None

    def counts(self, y: Y, names: Names) -> dict[str, int]:
        return {f"with {name}": int(n) for name, n in zip(names, (y == 1).sum(0), strict=True)}

    def content(self, y: Y, names: Names) -> str:
        positive = zip(names, (y == 1).sum(0), strict=True)
        findings = ", ".join(f"{name} ({n:,} positive)" for name, n in positive)
        return f"the findings {findings}, {np.isnan(y).mean():.0%} of their cells not known"

    def truth_text(self, y: Row, names: Names) -> str:
        if all(map(math.isnan, y)):
            return ""
        present = [name for name, v in zip(names, y, strict=True) if v == 1]
        unknown = [name for name, v in zip(names, y, strict=True) if math.isnan(v)]
        text = ", ".join(present) or "none"
        return f"{text} ({', '.join(unknown)} not known)" if unknown else text


@dataclass(frozen=True)
class NumberLabels(Labels):
    """A number in the user's unit; splits are balanced by its quintiles."""

    number = float
    stratified_by = "stratified by quintiles of {!r}"

    def read(self, cells: Cells) -> ReadTargets:
        expected = (
            "a finite number such as 1.5, which the task regression predicts. For classes give "
            "--task multiclass"
        )
        what = f"the value of {cells.columns[0]!r}"
        return ReadTargets(cells.read(Column(what, expected, finite_number)))

    def bag_strata(self, values: Sequence[Value]) -> tuple[int | None, ...]:
        numbers = [v[0] for v in values if v is not None]
        if not numbers:
            return (None,) * len(values)
        cuts = np.quantile(numbers, [0.2, 0.4, 0.6, 0.8])
        quintiles = iter(np.searchsorted(cuts, numbers, side="right").tolist())
        return tuple(None if v is None else next(quintiles) for v in values)

    def balanced_strata(self, strata: Sequence[int | None], parts: int) -> np.ndarray:
        """Return quintiles merged until the largest stratum has a bag for each part, which a
        splitter needs."""
        quintiles = np.array(strata, np.int64)
        for count in (5, 4, 3, 2):
            merged = quintiles * count // 5
            if np.bincount(merged).max() >= parts or not merged.any():
                return merged
        return np.zeros_like(quintiles)

    def fold_strata(self, y: Y, names: Names) -> list[Stratum]:
        quintiles = np.array(self.bag_strata([(value,) for value in y[:, 0]]))
        strata: list[Stratum] = []
        for k in sorted(set(quintiles.tolist())):
            members = quintiles == k
            low = y[members, 0].min()
            high = y[members, 0].max()
            strata.append(Stratum(f"{k + 1}: {low:g} to {high:g}", members, needed=False))
        return strata

    def as_two_classes(self, y: Y, training: np.ndarray) -> np.ndarray:
        return (y[:, 0] > np.median(training)).astype(np.int64)

    def untrained(self, y: Mapping[str, np.ndarray], names: Names) -> str | None:
        values = np.unique(y["train"])
        if len(values) > 1:
            return None
        value = f"{values[0]:g}" if len(values) else "missing"
        return (
            f"all {len(y['train'])} training targets are {value}: nothing can be learned from a "
            "constant. Give bags with other values, or another target"
        )

    def counts(self, y: Y, names: Names) -> dict[str, int]:
        return {self.content(y, names): len(y)}

    def content(self, y: Y, names: Names) -> str:
        return f"values from {y.min():g} to {y.max():g}"

    def truth_text(self, y: Row, names: Names) -> str:
        return "" if math.isnan(y[0]) else format_number(y[0], 4)


@dataclass(frozen=True)
class EventLabels(Labels):
    """The time to an event, and whether it was seen or the bag is censored."""

    stratum = needed_stratum = 1
    stratified_by = "stratified by event"
    columns_expected = (2, "survival has two: the time and the event")

    def columns(self, given: Given, classes: Given, header: Names, path: Path) -> tuple[str, ...]:
        return super().columns(given or self._default(header, path), classes, header, path)

    @staticmethod
    def _default(header: Names, path: Path) -> tuple[str, str]:
        """Return `time`, and `event` or else the column that speaks of censoring."""
        censoring = censoring_columns(header)
        if "event" in header or not censoring:
            return "time", "event"
        if len(censoring) > 1 and CENSORSHIP not in censoring:
            raise TableError(
                f"{path} has no column 'event', but {', '.join(map(repr, censoring))} may hold it: "
                f"name the time and one of them, as in --target '[time, {censoring[0]}]'"
            )
        return "time", CENSORSHIP if CENSORSHIP in censoring else censoring[0]

    def read(self, cells: Cells) -> ReadTargets:
        time, event = cells.columns
        direction = direction_of(event)
        columns = (
            Column(
                f"the time ({time!r})",
                "a number more than 0, in one unit for all bags. Correct it, or leave the bag out",
                _positive_number,
            ),
            Column(
                f"the column {event!r}",
                self._expected(cells, event, direction),
                lambda cell: event_of(cell, direction),
            ),
        )
        values = cells.read(*columns)
        codes: dict[str, float] = {}
        for (_, row), value in zip(cells.rows.values(), values, strict=True):
            if value is not None:
                codes[row[event]] = value[1]
        half_empty: list[int] = []
        for (line, row), value in zip(cells.rows.values(), values, strict=True):
            if value is None and (row.get(time) or row.get(event)):
                half_empty.append(line)
        notes: list[str] = []
        if half_empty:
            notes.append(
                f"{cells.path} has either no time or no event in {numbered_lines(half_empty)}: "
                "these bags count as bags without a label"
            )
        if direction is Direction.CENSORED and codes:
            events = sum(value is not None and value[1] > 0 for value in values)
            censored = sum(value is not None and value[1] == 0 for value in values)
            notes.append(
                f"{codes_text(event, codes)}, by its name: {counted(events, 'event')} and "
                f"{censored:,} censored in {cells.path}"
            )
        return ReadTargets(values, notes=notes, codes=codes)

    @staticmethod
    def _expected(cells: Cells, event: str, direction: Direction) -> str:
        """Say which cells a column of events may have."""
        for cell in sorted({row.get(event, "") for _, row in cells.rows.values()}):
            if contradicts_itself(cell, direction):
                return (
                    f"a code and a word that agree: in a column of this name, {cell!r} says both "
                    "that the event was seen and that the time is censored. Leave the code or the "
                    "word out"
                )
        if direction is Direction.UNCLEAR:
            return (
                "a word such as event, dead, censored or alive, as the name of the column does "
                "not say which way 1 and 0 are meant. Rename it to 'event' if 1 means that the "
                "event was seen, or to 'censored' if 1 means that it was not"
            )
        codes = "0 (event seen) or 1 (censored)"
        if direction is Direction.EVENT:
            codes = "1 (event seen) or 0 (censored)"
        return (
            f"{codes}, also true, false, yes or no, or a word such as dead, deceased, alive, "
            "living or censored. Other words are not guessed"
        )

    def label_columns(self, names: Names) -> tuple[str, ...]:
        return ("label_time", "label_event")

    def fold_strata(self, y: Y, names: Names) -> list[Stratum]:
        event = Stratum("event", y[:, 1] > 0, needed=True)
        censored = Stratum("censored", y[:, 1] == 0, needed=False)
        return [stratum for stratum in (event, censored) if stratum.members.any()]

    def stratum_names(self, strata: Iterable[int], names: Names) -> str:
        return "with an event"

    def untrained(self, y: Mapping[str, np.ndarray], names: Names) -> str | None:
        if (y["train"][:, 1] > 0).any():
            return None
        return (
            f"all {counted(len(y['train']), 'training bag')} are censored, so no hazard can be "
            "learned. Give bags with an event, or check its column"
        )

    def untestable(self, strata: Sequence[int], names: Names) -> str | None:
        if 1 in strata or not len(strata):
            return None
        return f"has no event: all {counted(len(strata), 'bag')} are censored"

    def unjudgeable(self, y: Y, training: np.ndarray, names: Names) -> str | None:
        from ..statistics import CensoringCurve, concordance  # needs SciPy, and `--help` does not

        censoring = CensoringCurve.fit(training[:, 0], training[:, 1] > 0)
        c = concordance(y[:, 0], y[:, 1] > 0, risk=np.zeros(len(y)), censoring=censoring)
        if c.value is not None:
            return None
        events = int((y[:, 1] > 0).sum())
        if not events:
            return f"there is no event among {len(y)} bags"
        return f"there is no comparable pair among {len(y)} bags with {events} events"

    def counts(self, y: Y, names: Names) -> dict[str, int]:
        events = int((y[:, 1] > 0).sum())
        return {"with the event": events, "censored": len(y) - events}

    def content(self, y: Y, names: Names) -> str:
        events, censored = self.counts(y, names).values()
        first, last = y[:, 0].min(), y[:, 0].max()
        counts = f"{counted(events, 'event')} and {censored:,} censored"
        return f"{counts}, times from {first:g} to {last:g}"

    def truth_text(self, y: Row, names: Names) -> str:
        if math.isnan(y[0]):
            return ""
        status = "event" if y[1] > 0 else "censored"
        return f"{format_number(y[0], 4)}, {status}"


LABELS: Mapping[str, Labels] = {
    "auto": ClassLabels("binary", any_number=True),
    "binary": ClassLabels("binary"),
    "multiclass": ClassLabels("multiclass"),
    "ordinal": ClassLabels("ordinal", ordered=True),
    "multilabel": FindingLabels("multilabel"),
    "regression": NumberLabels("regression"),
    "survival": EventLabels("survival"),
}
"""The labels of each task; those of `auto` are classes whose number decides the task."""


def task_of_classes(count: int) -> TaskName:
    """Return the task of a target with so many classes without an order."""
    return "binary" if count <= 2 else "multiclass"


def unknown_column_advice(header: Names, options: TargetOptions) -> str:
    """Suggest the task or target that would make a column of the table known."""
    if options.task != "survival" and {"time", "event"} <= set(header):
        return " For survival give --task survival."
    missing = [c for c in options.columns or () if c not in header]
    if not missing and options.task == "survival" and options.columns is None:
        return _survival_advice(header)
    if not missing:
        return ""
    parts = [part.strip() for part in missing[0].split(",")]
    if len(parts) > 1 and set(parts) <= set(header):
        return f" Write several columns as a list: --target '[{', '.join(parts)}]'."
    similar = hint(missing[0], header)
    if options.task == "survival" and not similar:
        return _survival_advice(header)
    return f" The target {missing[0]!r} is no column.{similar}"


def _survival_advice(header: Names) -> str:
    """Name the columns that, by their names, hold times and events."""
    times = time_columns(header)
    events = event_columns(header)
    if not times and not events:
        return " Name the columns of the time and of the event with --target '[TIME, EVENT]'."
    places: list[str] = []
    if times:
        places.append(f"the time may be in {' or '.join(map(repr, times))}")
    if events:
        places.append(f"the event may be in {' or '.join(map(repr, events))}")
    time = times[0] if times else "TIME"
    event = events[0] if events else "EVENT"
    advice = f"{' and '.join(places)}: give --target '[{time}, {event}]'"
    return f" {advice[:1].upper()}{advice[1:]}"


def _positive_number(cell: str) -> float | None:
    """Return the number of a cell if it is above 0."""
    number = finite_number(cell)
    return number if number is not None and number > 0 else None


def _first(names: Sequence[object], between: str = ", ") -> str:
    """Return the first names, and an ellipsis if there are more."""
    shown = [str(name) for name in names[:SHOWN]]
    if len(names) > SHOWN:
        shown.append("…")
    return between.join(shown)
