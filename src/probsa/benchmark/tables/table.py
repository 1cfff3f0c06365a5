"""A table as data, its numbers and what they mean, and how it is written.

Standard deviations are written `±`, intervals `[lo, hi]`. Markdown and LaTeX round for readers; CSV
has the plain numbers, in the same units, in one column each. LaTeX needs only the package booktabs.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Literal

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
PARTS = {"": "value", "_sd": "sd", "_low": "low", "_high": "high", "_winner": "bold"}
"""The fields of a cell in CSV, by the end of their column's name."""
NONE = "-"
"""Text of undefined numbers."""
MANY = 7
NARROW = r"\centering\scriptsize\setlength{\tabcolsep}{2.5pt}"
"""LaTeX settings of a table with more columns than `MANY`."""
LETTERS = {"λ": "lambda", "σ": "sigma", "Σ": "Sigma", "μ": "mu", "κ": "kappa", "Δ": "Delta"}
SIGNS = {"±": "pm", "×": "times", "≥": "geq", "≤": "leq", "·": "cdot", "→": "to"}
LATEX = {
    **{c: rf"\{c}" for c in "&%$#_{}"},
    **{c: rf"${c}$" for c in "<>|"},
    **{c: rf"$\{name}$" for c, name in (LETTERS | SIGNS).items()},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "²": r"$^{2}$",
    "−": r"$-$",
    "–": "--",
    "…": r"\ldots{}",
}


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
    """Write NAME.md and NAME.tex with the following tables, and a CSV file of each."""
    texts = {folder / f"{table.name}.md": to_markdown(table)}
    texts[folder / f"{table.name}.tex"] = to_latex(table)
    for each in _all(table):
        texts[folder / f"{each.name}.csv"] = to_csv(each)
    for path, text in texts.items():
        write_text(path, text)
    return list(texts)


def _all(table: ResultTable) -> list[ResultTable]:
    return [table, *(t for follow in table.follow for t in _all(follow))]


def to_csv(table: ResultTable) -> str:
    """Return the numbers of the table in its units (percent), with its text columns."""
    columns: dict[str, list[str | float]] = {}
    for i, c in enumerate(table.columns):
        cells = [row[i] for row in table.rows]
        if c.unit == "text":
            columns[c.key] = [cell.text for cell in cells]
            continue
        for end, part in PARTS.items():
            values = [getattr(cell, part) for cell in cells]
            if not end or any(v is not None and v is not False for v in values):
                columns[c.key + end] = [_plain(v, c) for v in values]
    rows = zip(*columns.values(), strict=True)
    return csv_text(list(columns), [dict(zip(columns, row, strict=True)) for row in rows])


def _plain(value: float | None, column: Column) -> str | float:
    if value is None or not math.isfinite(value):
        return ""
    if isinstance(value, bool) or column.unit == "count":
        return int(value)
    digits = max(EXACT, (column.digits or 0) + 3)
    return round(value * SCALE.get(column.unit, 1.0), digits) + 0.0  # no -0.0


def to_markdown(table: ResultTable, *, level: int = 2) -> str:
    """Return a heading, a table and its footnotes, followed by the next tables."""
    lines = [
        [_markdown(f"{c.group} {c.title}".strip()) for c in table.columns],
        [":---" if c.unit == "text" else "---:" for c in table.columns],
    ]
    for row in table.rows:
        texts = [_markdown(shown(e, c)) for e, c in zip(row, table.columns, strict=True)]
        lines.append([f"**{t}**" if e.bold else t for t, e in zip(texts, row, strict=True)])
    notes = [f"- {_markdown(note)}" for note in table.footnotes]
    parts = [f"{'#' * level} {_markdown(table.title)}"]
    parts.append("\n".join(f"| {' | '.join(cells)} |" for cells in lines))
    parts += ["\n".join(notes)] if notes else []
    parts += [to_markdown(t, level=level + 1).rstrip("\n") for t in table.follow]
    return "\n\n".join(parts) + "\n"


def _markdown(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


def shown(entry: TableCell, column: Column) -> str:
    """Return a cell as text, without emphasis.

    >>> shown(TableCell(value=0.9012, sd=0.0048), Column(key="a", title="AUROC", unit="percent"))
    '90.1 ± 0.5'
    """
    if entry.value is None or not math.isfinite(entry.value):
        return entry.text or NONE
    text = _number(entry.value, column)
    if entry.sd is not None:
        text += f" ± {_number(entry.sd, column, signed=False)}"
    if entry.low is not None and entry.high is not None:
        text += f" [{_number(entry.low, column)}, {_number(entry.high, column)}]"
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
    """Return floats with booktabs rules, one after another."""
    return "% \\usepackage{booktabs}\n" + "\n".join(_float(t) for t in _all(table))


def _float(table: ResultTable) -> str:
    align = "".join("l" if c.unit == "text" else "r" for c in table.columns)
    lines = [
        r"\begin{table}[tbp]",
        r"\centering\small" if len(table.columns) <= MANY else NARROW,
        rf"\caption{{{_latex(table.title)}}}",
        rf"\label{{tab:{table.name.replace('_', '-')}}}",
        rf"\begin{{tabular}}{{@{{}}{align}@{{}}}}",
        r"\toprule",
        *_latex_groups(table.columns),
        " & ".join(_latex(c.title) for c in table.columns) + r" \\",
        r"\midrule",
    ]
    for i, row in enumerate(table.rows):
        if i and i in table.rules:
            lines.append(r"\midrule")
        cells = [_latex_cell(e, c) for e, c in zip(row, table.columns, strict=True)]
        # LaTeX would read a leading bracket as an argument of the previous line
        cells[0] = f"{{}}{cells[0]}" if cells[0].startswith("[") else cells[0]
        lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    if table.footnotes:
        lines += ["", r"\smallskip", r"\begin{minipage}{\linewidth}\footnotesize\raggedright"]
        lines += [_latex(note) + r"\par" for note in table.footnotes]
        lines.append(r"\end{minipage}")
    return "\n".join([*lines, r"\end{table}", ""])


def _latex(text: str) -> str:
    return "".join(LATEX.get(c, c) for c in text)


def _latex_cell(entry: TableCell, column: Column) -> str:
    text = _latex(shown(entry, column))
    if entry.value is not None:  # a hyphen before a number is a minus sign
        text = text.replace("[-", "[$-$").replace(" -", " $-$")
        text = f"$-${text[1:]}" if text.startswith("-") and len(text) > 1 else text
    return rf"\textbf{{{text}}}" if entry.bold else text


def _latex_groups(columns: Sequence[Column]) -> list[str]:
    """Return the headings above groups of columns, with a rule below each."""
    if not any(c.group for c in columns):
        return []
    spans, rules, column = [], [], 1
    for group, members in groupby(columns, key=lambda c: c.group):
        n = len(list(members))
        spans.append(rf"\multicolumn{{{n}}}{{c}}{{{_latex(group)}}}" if group else "&" * (n - 1))
        rules += [rf"\cmidrule(lr){{{column}-{column + n - 1}}}"] if group else []
        column += n
    return [" & ".join(spans) + r" \\", "".join(rules)]
