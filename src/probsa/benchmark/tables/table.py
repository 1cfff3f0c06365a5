"""A table as data: its numbers and what they mean; formats.py writes it."""

import io
import re
from dataclasses import dataclass, field
from typing import Literal

from ...core import DataFrame

Unit = Literal[
    "text", "percent", "points", "rank", "p", "number", "count", "difference"
]  # fmt: skip
"""`percent`: a fraction, shown times 100; `points`: a signed difference of fractions, times 100;
`difference`: one of numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A column of a table."""

    key: str
    """Name in CSV: letters, digits and underscores."""
    title: str
    group: str = ""
    """Heading above it that neighbouring columns share, such as a data set."""
    unit: Unit = "text"
    digits: int | None = None
    """Decimals; None for those of the unit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableCell:
    """A text, or a number with its std or interval; undefined if it has neither."""

    text: str = ""
    value: float | None = None
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    bold: bool = False
    """Whether it is a winner."""
    mark: bool = False
    """Whether a footnote refers to it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultTable:
    """A table with its footnotes."""

    name: str
    """Name of its files."""
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    footnotes: tuple[str, ...] = ()
    rules: frozenset[int] = frozenset()
    """Rows above which a line starts a new group."""
    follow: tuple["ResultTable", ...] = field(default=())
    """Tables below it, such as intervals."""

    def __post_init__(self) -> None:
        wrong = [i for i, row in enumerate(self.rows) if len(row) != len(self.columns)]
        if wrong:
            raise ValueError(
                f"row {wrong[0]} of table {self.name} has {len(self.rows[wrong[0]])} entries for "
                f"{len(self.columns)} columns"
            )

    def to_frame(self) -> DataFrame:
        """Return a data frame with the columns and numbers of the table's CSV file."""
        import pandas as pd

        from .formats import to_csv

        return pd.read_csv(io.StringIO(to_csv(self)))


def text_cell(text: str) -> TableCell:
    """Return a cell without a number."""
    return TableCell(text=text)


def key(*parts: str) -> str:
    """Return a name for CSV columns and table files: words joined with _."""
    return "_".join(re.sub(r"\W+", "_", p.lower()).strip("_") for p in parts if p)
