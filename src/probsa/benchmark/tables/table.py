"""A table as data: what its numbers are and what they mean; formats.py writes it."""

import re
from dataclasses import dataclass, field
from typing import Literal

Unit = Literal[
    "text", "percent", "points", "printed", "rank", "milliseconds", "ratio", "p", "number", "count"
]
"""`percent`: a share, shown times 100; `points`: a signed difference of shares, times 100;
`printed`: a figure of the paper as it stands there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """What stands below a heading."""

    key: str
    """In CSV: letters, digits and underscores."""
    title: str
    group: str = ""
    """The heading above it that it shares with its neighbours: a data set."""
    unit: Unit = "text"


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A cell of a table: words, or a number with what is known of it; neither: it is undefined."""

    text: str = ""
    value: float | None = None
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    bold: bool = False
    """It is a winner."""
    mark: bool = False
    """A footnote speaks of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultTable:
    """A table with all that has to be said of it."""

    name: str
    """Of its files."""
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Entry, ...], ...]
    footnotes: tuple[str, ...] = ()
    rules: frozenset[int] = frozenset()
    """Rows above which there is a line: a new group of rows."""
    follow: tuple["ResultTable", ...] = field(default=())
    """Tables that stand below it: the paper's own, intervals."""

    def __post_init__(self) -> None:
        wrong = [i for i, row in enumerate(self.rows) if len(row) != len(self.columns)]
        if wrong:
            raise ValueError(
                f"row {wrong[0]} of table {self.name} has {len(self.rows[wrong[0]])} entries for "
                f"{len(self.columns)} columns"
            )


def words(text: str) -> Entry:
    """An entry without a number."""
    return Entry(text=text)


def key(*parts: str) -> str:
    """A name as CSV columns and files of tables have it: words, with _ between."""
    return "_".join(re.sub(r"\W+", "_", p.lower()).strip("_") for p in parts if p)
