"""A table as data, its numbers and what they mean, and how it is written.

Standard deviations are written `±`, intervals `[lo, hi]`. Markdown and LaTeX round for readers; CSV
has the plain numbers, in the same units, in one column each. LaTeX is written by pandas and needs
only the package booktabs.
"""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from ...core import csv_text, write_text
from ...statistics import Metric

Unit = Literal["text", "percent", "points", "rank", "p", "number", "count", "difference"]
"""`percent`: a fraction, shown times 100; `points`: a signed difference of fractions, times 100;
`difference`: one of numbers."""

SCALE: dict[Unit, float] = {"percent": 100.0, "points": 100.0}
DIGITS: dict[Unit, int] = {"percent": 1, "points": 1, "count": 0}
"""Decimals for readers; 3 for other units."""
EXACT = 6
"""Decimals in CSV; further digits would differ between machines."""
CSV_FIELDS = {"": "value", "_sd": "sd", "_low": "low", "_high": "high", "_winner": "bold"}
"""The fields of a cell in CSV, by the end of their column's name."""
NONE = "-"
"""Text of undefined numbers."""
BOLD = "textbf:--rwrap"
"""What makes pandas write a cell in bold."""
LETTERS = {"λ": "lambda", "σ": "sigma", "Σ": "Sigma", "μ": "mu", "κ": "kappa", "Δ": "Delta"}
SIGNS = {"±": "pm", "×": "times", "≥": "geq", "≤": "leq"}
LATEX = {
    **{character: rf"$\{name}$" for character, name in (LETTERS | SIGNS).items()},
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "²": "$^{2}$",
    "−": "$-$",
    "[": "{[}",
}
"""Characters that pandas leaves as they are; a bracket after a line break would be its argument."""


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


METHOD = Column(key="method", title="method")


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


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultTable:
    """A table with its footnotes."""

    name: str
    """Name of its files."""
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    footnotes: tuple[str, ...] = ()
    follow: tuple["ResultTable", ...] = field(default=())
    """Tables below it, such as intervals."""

    def __post_init__(self) -> None:
        for i, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"row {i} of table {self.name} has {len(row)} entries for "
                    f"{len(self.columns)} columns"
                )


def text_cell(text: str) -> TableCell:
    """Return a cell without a number."""
    return TableCell(text=text)


def metric_cell(m: Metric | None, *, bold: bool = False) -> TableCell:
    """Return the cell of a metric with its interval; an undefined one without a metric."""
    if m is None:
        return TableCell()
    return TableCell(value=m.value, low=m.low, high=m.high, bold=bold)


def key(*parts: str) -> str:
    """Return a name for CSV columns and table files: words joined with _."""
    return "_".join(re.sub(r"\W+", "_", p.lower()).strip("_") for p in parts if p)


def write_table(table: ResultTable, folder: Path) -> list[Path]:
    """Write NAME.md with the following tables, and a LaTeX and a CSV file of each."""
    texts = {folder / f"{table.name}.md": to_markdown(table)}
    for each in _all(table):
        texts[folder / f"{each.name}.tex"] = to_latex(each)
        texts[folder / f"{each.name}.csv"] = to_csv(each)
    for path, text in texts.items():
        write_text(path, text)
    return list(texts)


def _all(table: ResultTable) -> list[ResultTable]:
    """Return the table and those below it, and those below them."""
    tables = [table]
    for follow in table.follow:
        tables += _all(follow)
    return tables


def to_csv(table: ResultTable) -> str:
    """Return the numbers of the table in its units (percent), with its text columns."""
    columns: dict[str, list[str | float]] = {}
    for i, column in enumerate(table.columns):
        cells = [row[i] for row in table.rows]
        if column.unit == "text":
            columns[column.key] = [cell.text for cell in cells]
            continue
        for end, name in CSV_FIELDS.items():
            values = [getattr(cell, name) for cell in cells]
            is_stated = any(v is not None and v is not False for v in values)
            if name == "value" or is_stated:
                columns[column.key + end] = [_csv_value(v, column) for v in values]
    rows = []
    for i in range(len(table.rows)):
        rows.append({key: values[i] for key, values in columns.items()})
    return csv_text(list(columns), rows)


def _csv_value(value: float | None, column: Column) -> str | float:
    if value is None or not math.isfinite(value):
        return ""
    if isinstance(value, bool) or column.unit == "count":
        return int(value)
    digits = max(EXACT, (column.digits or 0) + 3)
    return round(value * SCALE.get(column.unit, 1.0), digits) + 0.0  # no -0.0


def to_markdown(table: ResultTable, *, level: int = 2) -> str:
    """Return a heading, a table and its footnotes, followed by the next tables."""
    heads = [_markdown(f"{c.group} {c.title}".strip()) for c in table.columns]
    rules = [":---" if c.unit == "text" else "---:" for c in table.columns]
    lines = [heads, rules]
    for row in table.rows:
        texts = []
        for cell, column in zip(row, table.columns, strict=True):
            text = _markdown(shown(cell, column))
            texts.append(f"**{text}**" if cell.bold else text)
        lines.append(texts)
    parts = [f"{'#' * level} {_markdown(table.title)}"]
    parts.append("\n".join(f"| {' | '.join(texts)} |" for texts in lines))
    if table.footnotes:
        parts.append("\n".join(f"- {_markdown(note)}" for note in table.footnotes))
    for follow in table.follow:
        parts.append(to_markdown(follow, level=level + 1).rstrip("\n"))
    return "\n\n".join(parts) + "\n"


def _markdown(text: str) -> str:
    """Return a text with the characters escaped that Markdown would interpret."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


def shown(cell: TableCell, column: Column) -> str:
    """Return a cell as text, without emphasis.

    >>> shown(TableCell(value=0.9012, sd=0.0048), Column(key="a", title="AUROC", unit="percent"))
    '90.1 ± 0.5'
    """
    if cell.value is None or not math.isfinite(cell.value):
        return cell.text or NONE
    text = _number(cell.value, column)
    if cell.sd is not None:
        text += f" ± {_number(cell.sd, column, signed=False)}"
    if cell.low is not None and cell.high is not None:
        text += f" [{_number(cell.low, column)}, {_number(cell.high, column)}]"
    return text


def _number(value: float, column: Column, *, signed: bool = True) -> str:
    unit = column.unit
    digits = DIGITS.get(unit, 3) if column.digits is None else column.digits
    if unit == "p" and value < 10**-digits:
        return f"<{10**-digits:.{digits}f}"
    sign = "+" if unit in ("points", "difference") and signed else ""
    text = f"{value * SCALE.get(unit, 1.0):{sign}.{digits}f}"
    # drop the sign of zero
    return text.lstrip("+-") if not text.strip("+-0.") else text


def to_latex(table: ResultTable) -> str:
    """Return a tabular with booktabs rules; the title and the footnotes are comments above it."""
    if any(c.group for c in table.columns):
        heads = pd.MultiIndex.from_tuples([(c.group, c.title) for c in table.columns])
    else:
        heads = pd.Index([c.title for c in table.columns])
    texts = []
    emphasis = []
    for row in table.rows:
        texts.append([shown(cell, c) for cell, c in zip(row, table.columns, strict=True)])
        emphasis.append([BOLD if cell.bold else "" for cell in row])
    frame = pd.DataFrame(texts, columns=heads)
    styler = frame.style.hide(axis="index")
    styler.format(_latex, escape="latex")
    styler.format_index(_latex, escape="latex", axis="columns")
    styler.apply(lambda _: np.array(emphasis).reshape(frame.shape), axis=None)
    align = "".join("l" if c.unit == "text" else "r" for c in table.columns)
    tabular = styler.to_latex(hrules=True, multicol_align="c", column_format=f"@{{}}{align}@{{}}")
    comments = [r"\usepackage{booktabs}", table.title, *table.footnotes]
    return "".join(f"% {line}\n" for line in comments) + tabular


def _latex(text: str) -> str:
    """Return an escaped text with signs as formulas, and minus signs before its numbers."""
    for character, formula in LATEX.items():
        text = text.replace(character, formula)
    return re.sub(r"(?<![\w)])-(?=\d)", "$-$", text)
