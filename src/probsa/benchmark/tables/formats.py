"""Write tables as markdown, LaTeX and CSV.

Standard deviations are written `±`, intervals `[lo, hi]`. Markdown and LaTeX round for readers; CSV
has the plain numbers, in the same units, in one column each. LaTeX needs only the package booktabs.
"""

import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from ...core import write_text
from .table import EXACT, SCALE, Column, ResultTable, TableCell, Unit, to_csv

DIGITS: dict[Unit, int] = {
    "percent": 1,
    "points": 1,
    "rank": 3,
    "p": 3,
    "number": 3,
    "count": 0,
    "difference": 3,
}
NONE = "-"
"""Text of undefined numbers."""
MANY = 7
NARROW = r"\centering\scriptsize\setlength{\tabcolsep}{2.5pt}"
"""LaTeX settings of a table with more columns than `MANY`."""
LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
    "±": r"$\pm$",
    "λ": r"$\lambda$",
    "σ": r"$\sigma$",
    "Σ": r"$\Sigma$",
    "μ": r"$\mu$",
    "κ": r"$\kappa$",
    "Δ": r"$\Delta$",
    "²": r"$^{2}$",
    "×": r"$\times$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "−": r"$-$",
    "–": "--",
    "…": r"\ldots{}",
    "·": r"$\cdot$",
    "→": r"$\to$",
}


def write_table(table: ResultTable, folder: Path) -> list[Path]:
    """Write NAME.md and NAME.tex with the following tables, and a CSV file of each."""
    texts = {folder / f"{table.name}.md": to_markdown(table)}
    texts[folder / f"{table.name}.tex"] = to_latex(table)
    for each in _all(table):
        texts[folder / f"{each.name}.csv"] = to_csv(each)
    for path, text in texts.items():
        write_text(path, text)
    return list(texts)


def to_markdown(table: ResultTable, *, level: int = 2) -> str:
    """Return a heading, a table and its footnotes, followed by the next tables."""
    head = [_markdown(f"{c.group} {c.title}".strip()) for c in table.columns]
    lines = [_markdown_row(head)]
    lines.append(_markdown_row([":---" if c.unit == "text" else "---:" for c in table.columns]))
    for row in table.rows:
        shown = [_bold_markdown(e, c) for e, c in zip(row, table.columns, strict=True)]
        lines.append(_markdown_row(shown))
    notes = [f"- {_markdown(note)}" for note in table.footnotes]
    parts = [f"{'#' * level} {_markdown(table.title)}", "\n".join(lines)]
    parts += ["\n".join(notes)] if notes else []
    parts += [to_markdown(t, level=level + 1).rstrip("\n") for t in table.follow]
    return "\n\n".join(parts) + "\n"


def to_latex(table: ResultTable) -> str:
    """Return floats with booktabs rules, one after another."""
    return "% \\usepackage{booktabs}\n" + "\n".join(_float(t) for t in _all(table))


def shown(entry: TableCell, column: Column) -> str:
    """Return a cell as text, without emphasis.

    >>> shown(TableCell(value=0.9012, sd=0.0048), Column(key="a", title="AUROC", unit="percent"))
    '90.1 ± 0.5'
    """
    if entry.value is None or not math.isfinite(entry.value):
        text = entry.text or NONE
    else:
        text = _number(entry.value, column)
        if entry.sd is not None:
            text += f" ± {_number(entry.sd, column, signed=False)}"
        if entry.low is not None and entry.high is not None:
            low, high = (_number(v, column) for v in (entry.low, entry.high))
            text += f" [{low}, {high}]"
    return text + "*" * entry.mark


def _number(value: float, column: Column, *, signed: bool = True) -> str:
    unit = column.unit
    digits = DIGITS.get(unit, EXACT) if column.digits is None else column.digits
    if unit == "p" and value < 10**-digits:
        return f"<{10**-digits:.{digits}f}"
    sign = "+" if unit in ("points", "difference") and signed else ""
    text = f"{value * SCALE.get(unit, 1.0):{sign}.{digits}f}"
    # drop the sign of zero
    return text.lstrip("+-") if not text.strip("+-0.") else text


def _all(table: ResultTable) -> list[ResultTable]:
    return [table, *(t for follow in table.follow for t in _all(follow))]


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _bold_markdown(entry: TableCell, column: Column) -> str:
    text = _markdown(shown(entry, column))
    return f"**{text}**" if entry.bold else text


def _markdown(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


def _latex(text: str) -> str:
    return "".join(LATEX.get(c, c) for c in text)


def _bold_latex(entry: TableCell, column: Column) -> str:
    text = shown(entry, column)
    mark = "$^{*}$" if entry.mark else ""
    text = _latex(text.removesuffix("*") if entry.mark else text)
    if entry.value is not None:  # a hyphen before a number is a minus sign
        text = text.replace("[-", "[$-$").replace(" -", " $-$")
        text = f"$-${text[1:]}" if text.startswith("-") and len(text) > 1 else text
    return (rf"\textbf{{{text}}}" if entry.bold else text) + mark


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
        cells = [_bold_latex(e, c) for e, c in zip(row, table.columns, strict=True)]
        # LaTeX would read a leading bracket as an argument of the previous line
        cells[0] = f"{{}}{cells[0]}" if cells[0].startswith("[") else cells[0]
        lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    if table.footnotes:
        lines += ["", r"\smallskip", r"\begin{minipage}{\linewidth}\footnotesize\raggedright"]
        lines += [_latex(note) + r"\par" for note in table.footnotes]
        lines.append(r"\end{minipage}")
    return "\n".join([*lines, r"\end{table}", ""])


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
