"""What is read of a label table: the task, the columns of the target, and their cells."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from ..core import TaskName, check_options, finite_number
from ..errors import TableError

Rows: TypeAlias = Mapping[str, tuple[int, dict[str, str]]]
"""The line and the cells of each bag, by the name of the bag."""
Value: TypeAlias = tuple[float, ...] | None
"""The targets of a bag; None for a bag without a label."""
Values: TypeAlias = tuple[Value, ...]
MOST_CLASSES = 20
"""Most whole numbers that are taken for classes unless the user says that they are."""
SHOWN = 5
"""Maximum number of names that a message lists; the others are counted."""


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
class Cells:
    """The target columns of a table, as text."""

    path: Path
    rows: Rows
    columns: tuple[str, ...]
    classes: tuple[str, ...] | None
    """The names that the user gives the classes, in order."""
    required: bool
    """Whether a bag without a label is an error."""

    def __iter__(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the place of each bag, for messages, and its cells."""
        for bag, (line, row) in self.rows.items():
            yield f"{self.path}, line {line}, bag {bag!r}", [row.get(c, "") for c in self.columns]

    def numbers(self, *, accepted: str) -> Values:
        """Return the finite number in the only column; None for an empty cell.

        Raises:
            TableError: a cell is no finite number, or empty although a label is required.
        """
        values: list[Value] = []
        for place, (text,) in self:
            number = finite_number(text)
            if number is None and (text or self.required):
                found = repr(text) if text else "empty"
                raise TableError(
                    f"{place}: the value of {self.columns[0]!r} is {found}, expected {accepted}"
                )
            values.append(None if number is None else (number,))
        return tuple(values)


@dataclass(frozen=True, kw_only=True, slots=True)
class Targets:
    """The targets of a table, in the order of its rows; the fields are those of `LabelTable`."""

    task: TaskName
    target: tuple[str, ...]
    labels: tuple[int | None, ...]
    values: Values
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()
