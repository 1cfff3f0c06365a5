"""A table as data: its numbers and what they mean; formats.py writes it for readers."""

import io
import math
import re
from dataclasses import dataclass, field
from typing import Literal

from ...core import DataFrame, csv_text, restore_cell

Unit = Literal[
    "text", "percent", "points", "rank", "p", "number", "count", "difference"
]  # fmt: skip
"""`percent`: a fraction, shown times 100; `points`: a signed difference of fractions, times 100;
`difference`: one of numbers."""


SCALE: dict[Unit, float] = {"percent": 100.0, "points": 100.0}
EXACT = 6
"""Decimals in CSV; further digits would differ between machines."""


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

        frame = pd.read_csv(io.StringIO(to_csv(self)))
        for name in frame:
            frame[name] = frame[name].map(lambda v: restore_cell(v) if isinstance(v, str) else v)
        return frame


def text_cell(text: str) -> TableCell:
    """Return a cell without a number."""
    return TableCell(text=text)


def key(*parts: str) -> str:
    """Return a name for CSV columns and table files: words joined with _."""
    return "_".join(re.sub(r"\W+", "_", p.lower()).strip("_") for p in parts if p)


def to_csv(table: ResultTable) -> str:
    """Return the numbers of the table in its units (percent), with its text columns."""
    parts = [_csv_parts(table, i) for i in range(len(table.columns))]
    header = [f"{c.key}{p}" for c, ps in zip(table.columns, parts, strict=True) for p in ps]
    rows = []
    for row in table.rows:
        cells = zip(row, table.columns, parts, strict=True)
        values = [_csv_cell(e, c, part) for e, c, ps in cells for part in ps]
        rows.append(dict(zip(header, values, strict=True)))
    return csv_text(header, rows)


def _csv_parts(table: ResultTable, i: int) -> list[str]:
    """Return the suffixes of the CSV columns that one column needs."""
    if table.columns[i].unit == "text":
        return [""]
    entries = [row[i] for row in table.rows]
    parts = [""]
    parts += ["_sd"] if any(e.sd is not None for e in entries) else []
    parts += ["_low", "_high"] if any(e.low is not None for e in entries) else []
    parts += ["_winner"] if any(e.bold for e in entries) else []
    parts += ["_mark"] if any(e.mark for e in entries) else []
    return parts


def _csv_cell(entry: TableCell, column: Column, part: str) -> str | int | float:
    if column.unit == "text":
        return entry.text
    if part in ("_winner", "_mark"):
        return int(entry.bold if part == "_winner" else entry.mark)
    value = {"": entry.value, "_sd": entry.sd, "_low": entry.low, "_high": entry.high}[part]
    if value is None or not math.isfinite(value):
        return ""
    if column.unit == "count":
        return int(value)
    return (
        round(value * SCALE.get(column.unit, 1.0), max(EXACT, (column.digits or 0) + 3)) + 0.0
    )  # no -0.0
