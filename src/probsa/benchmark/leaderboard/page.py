"""The leaderboard as one HTML file without scripts from elsewhere; a click on a heading sorts."""

from html import escape

from ..tables.formats import shown
from ..tables.table import Column, ResultTable, TableCell

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
nav a { margin-right: 1rem; }
ul { max-width: 75ch; }
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


def to_html(table: ResultTable, *, title: str) -> str:
    """Return a page with a table and those that follow it."""
    tables = [table, *table.follow]
    links = "".join(f'<a href="#{escape(t.name)}">{escape(t.title)}</a>' for t in tables[1:])
    body = "\n".join(_section(t) for t in tables)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style></head><body>\n"
        f"<h1>{escape(title)}</h1>\n<nav>{links}</nav>\n{body}\n"
        f"<script>{SCRIPT}</script>\n</body></html>\n"
    )


def _section(table: ResultTable) -> str:
    heads = "".join(f'<th tabindex="0">{escape(c.title)}</th>' for c in table.columns)
    rows = "\n".join(_row(row, table.columns) for row in table.rows)
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.footnotes)
    return (
        f'<section id="{escape(table.name)}"><h2>{escape(table.title)}</h2>\n'
        f'<div class="scroll"><table><thead><tr>{heads}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody></table></div>\n<ul>{notes}</ul></section>"
    )


def _row(row: tuple[TableCell, ...], columns: tuple[Column, ...]) -> str:
    name = ' class="null"' if row[0].text.endswith("(null)") else ""
    cells = "".join(_cell(cell, column) for cell, column in zip(row, columns, strict=True))
    return f"<tr{name}>{cells}</tr>"


def _cell(cell: TableCell, column: Column) -> str:
    text = escape(shown(cell, column))
    value, bracket, interval = text.partition(" [")
    if bracket:
        text = f"{value} <small>[{interval}</small>"
    if cell.bold:
        text = f"<strong>{text}</strong>"
    key = cell.text if column.unit == "text" else "" if cell.value is None else f"{cell.value!r}"
    return f'<td data-value="{escape(key)}">{text}</td>'
