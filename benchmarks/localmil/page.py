"""Write the leaderboard of LocalMIL as one HTML page (a click on a heading sorts), or as Markdown.

    python benchmarks/localmil/page.py benchmarks/localmil/*.csv [mine/*.csv] [--out FILE.html|.md]

A table is `SET.csv` of `leaderboard.py`, or a file of `submit.py` named after the set. Files of one
set (of the same name in other folders) are one table.
The page computes means over the sets, average ranks, and gains over the best null map for rows that
have none; all other values, intervals and winners are those of the tables.
"""

import argparse
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np

from probsa.core import TextTable, write_text
from probsa.statistics import average_ranks

MEASURES = {
    "auroc": ("bag AUROC", ".1f"),
    "nll": ("NLL", ".3f"),
    "ap": ("AP within bags", ".1f"),
    "gain": ("gain over the best null", "+.1f"),
    "ap_shown": ("AP of the shown score", ".1f"),
    "doubt_gain": ("P(wrong) minus margin", "+.1f"),
    "flip_gain": ("the call flips (0.2) minus margin", "+.1f"),
    "area": ("area of deletion", ".3f"),
    "faithfulness": ("rank correlation", ".3f"),
    "seconds": ("seconds", ".0f"),
}
"""Columns of the tables: their titles and how their values are written."""
RANKED = {"auroc": 1.0, "nll": -1.0, "ap": 1.0}
"""The measures that methods are ranked by, with −1 where less is better."""
NULL = "(null)"
TITLE = "LocalMIL leaderboard"
STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1200px;
  padding: 0 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: .3rem .6rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid color-mix(in srgb, currentColor 18%, transparent); }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0;
  background: Canvas; }
th { cursor: pointer; white-space: normal; vertical-align: bottom; }
th:focus-visible { outline: 2px solid Highlight; }
th[aria-sort=ascending]::after { content: " ▲"; }
th[aria-sort=descending]::after { content: " ▼"; }
tr.null td { font-style: italic; opacity: .8; }
td small { opacity: .7; }
.scroll { overflow-x: auto; }
"""
SCRIPT = """
for (const table of document.querySelectorAll("table")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const sort = () => {
      const up = head.getAttribute("aria-sort") === "descending";
      heads.forEach((h) => h.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = (row) => row.cells[column].dataset.value ?? "";
      const compare = (a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        const order = column === 0 ? x.localeCompare(y) : Number(x) - Number(y);
        return up ? order : -order;
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (e) => { if (e.key === "Enter") sort(); });
  });
}
"""

ABOUT = (
    "Means over the sets that a method has, of measures that it has on all of them. [lo, hi] are "
    "95 % intervals over groups. Bold: differences that are shown to be above 0, after Holm's "
    "adjustment over the methods that were run together (README.md)."
)
Row = dict[str, str]
Board = dict[str, Row]
"""The rows of one set by method."""


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=TITLE)
    parser.add_argument("tables", type=Path, nargs="+", help="CSV files of the sets")
    parser.add_argument(
        "--out", type=Path, default=Path("leaderboard.html"), help="HTML or Markdown file"
    )
    arguments = parser.parse_args()
    boards: dict[str, Board] = {}
    for path in arguments.tables:
        board = boards.setdefault(path.stem, {})
        board |= {row["method"]: row for row in TextTable.read(path).rows}
    for name, board in boards.items():
        _add_gains(name, board)
    page_sections = sections(boards)
    if arguments.out.suffix == ".md":
        write_text(arguments.out, markdown(page_sections))
    else:
        write_text(arguments.out, page(page_sections))
    print(arguments.out)


def _add_gains(name: str, board: Board) -> None:
    """Compute the gain over the best null map for rows that have none, such as those of others."""
    null_precisions = []
    for method, row in board.items():
        ap = number(row, "ap")
        if NULL in method and ap is not None:
            null_precisions.append(ap)
    if not null_precisions:
        raise SystemExit(f"no table of {name} has a null map: give the leaderboard's too")
    for row in board.values():
        ap = number(row, "ap")
        if row.get("gain") is None and ap is not None:
            row["gain"] = str(ap - max(null_precisions))


def number(row: Row, column: str) -> float | None:
    """Return a value of a row, or None."""
    text = row.get(column)
    return float(text) if text else None


class Cell(NamedTuple):
    """A value of a table."""

    value: float | None
    text: str = "-"
    interval: str = ""
    bold: bool = False


class Section(NamedTuple):
    """A table with its heading; a row is a method and its cells."""

    title: str
    heads: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]


def sections(boards: dict[str, Board]) -> list[Section]:
    """Return a table over all sets, followed by one of each."""
    titles = [title for title, _ in MEASURES.values()]
    all_sections = [Section("all sets", ["average rank", *titles, "gains shown"], overall(boards))]
    for name, board in boards.items():
        rows = []
        for method in sorted(board, key=lambda m: -(number(board[m], "ap") or 0)):
            rows.append((method, [cell(board[method], column) for column in MEASURES]))
        all_sections.append(Section(name, titles, rows))
    return all_sections


def page(page_sections: Sequence[Section]) -> str:
    """Return the tables as HTML."""
    names = [escape(section.title.replace(" ", "_")) for section in page_sections]
    links = "".join(f'<a href="#{name}">{name}</a> ' for name in names[1:])
    rows = zip(page_sections, names, strict=True)
    body = "".join(_html(section, name) for section, name in rows)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{TITLE}</title>\n<style>{STYLE}</style></head><body>\n<h1>{TITLE}</h1>\n"
        f"<p>{ABOUT}</p>\n<nav>{links}</nav>\n{body}<script>{SCRIPT}</script>\n</body></html>\n"
    )


def markdown(page_sections: Sequence[Section]) -> str:
    """Return the tables as Markdown."""
    lines = [f"# {TITLE}", "", ABOUT]
    for section in page_sections:
        heads = ("method", *section.heads)
        lines += ["", f"## {section.title}", "", f"| {' | '.join(heads)} |"]
        lines.append("| :--- |" + " ---: |" * len(section.heads))
        for method, cells in section.rows:
            texts = [method]
            for c in cells:
                text = f"**{c.text}**" if c.bold else c.text
                texts.append(f"{text} {c.interval}" if c.interval else text)
            lines.append(f"| {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def overall(boards: dict[str, Board]) -> list[tuple[str, list[Cell]]]:
    """Return the cells over all sets by method, in the order of their ranks."""
    methods = list(dict.fromkeys(method for board in boards.values() for method in board))
    ranked: dict[str, list[float]] = {}
    for method in methods:
        values = _ranked_values(boards, method)
        if len(values) == len(RANKED) * len(boards):
            ranked[method] = values
    ranks = average_ranks(ranked).mean if len(ranked) > 1 else {}
    means = {method: _means(boards, method) for method in methods}
    # methods without a rank come last
    methods.sort(key=lambda m: (ranks.get(m, np.inf), -(means[m]["ap"] or 0)))
    rows: list[tuple[str, list[Cell]]] = []
    for method in methods:
        method_rows = [board[method] for board in boards.values() if method in board]
        gains = sum(row.get("gain_winner") == "1" for row in method_rows)
        cells = [formatted(ranks.get(method), ".1f")]
        for column, (_, spec) in MEASURES.items():
            cells.append(formatted(means[method][column], spec))
        cells.append(formatted(float(gains), ".0f"))
        rows.append((method, cells))
    return rows


def _means(boards: dict[str, Board], method: str) -> dict[str, float | None]:
    """Return a method's means over its sets, of the measures that it has on all of them."""
    rows = [board[method] for board in boards.values() if method in board]
    means: dict[str, float | None] = {}
    for column in MEASURES:
        values = [number(row, column) for row in rows]
        known_values = [value for value in values if value is not None]
        is_complete = len(known_values) == len(values)
        means[column] = float(np.mean(known_values)) if is_complete else None
    return means


def _ranked_values(boards: dict[str, Board], method: str) -> list[float]:
    """Return the ranked measures that a method has, more being better."""
    values = []
    for board in boards.values():
        for column, sign in RANKED.items():
            value = number(board.get(method, {}), column)
            if value is not None:
                values.append(sign * value)
    return values


def _html(section: Section, name: str) -> str:
    """Return a table as HTML."""
    head = "".join(f'<th tabindex="0">{escape(h)}</th>' for h in ("method", *section.heads))
    body = ""
    for method, cells in section.rows:
        kind = ' class="null"' if method.endswith(NULL) else ""
        body += f'<tr{kind}><td data-value="{escape(method)}">{escape(method)}</td>'
        for c in cells:
            small = c.interval and f" <small>{c.interval}</small>"
            text = f"<strong>{c.text}{small}</strong>" if c.bold else c.text + small
            body += f'<td data-value="{"" if c.value is None else repr(c.value)}">{text}</td>'
        body += "</tr>\n"
    return (
        f'<section id="{name}"><h2>{escape(section.title)}</h2>\n<div class="scroll"><table>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div></section>\n"
    )


def cell(row: Row, column: str) -> Cell:
    """Return a value of a table with its interval; a winner is bold."""
    _, spec = MEASURES[column]
    plain = formatted(number(row, column), spec)
    if plain.value is None:
        return plain
    low = number(row, f"{column}_low")
    high = number(row, f"{column}_high")
    interval = "" if low is None or high is None else f"[{low:{spec}}, {high:{spec}}]"
    return plain._replace(interval=interval, bold=row.get(f"{column}_winner") == "1")


def formatted(value: float | None, spec: str) -> Cell:
    """Return a cell with a value written as a format such as `.1f` says."""
    return Cell(value) if value is None else Cell(value, f"{value:{spec}}")


if __name__ == "__main__":
    main()
