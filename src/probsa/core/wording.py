"""Text for people: numbers of things, and names that are harmless on a terminal and in a table.

A file may be named `=HYPERLINK(…)`, which a spreadsheet would run, or hold the escape codes of a
terminal.
"""

import re
from collections.abc import Sequence

HIDDEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tab and newline, reversed writing, and bytes that are no text."""
FORMULA = re.compile(r"[=+\-@＝＋－＠\t\n].", re.DOTALL)
"""How cells begin that spreadsheets calculate."""
SPELT = re.compile(r"\\(?:\\|x[0-9a-f]{2}|u[0-9a-f]{4})")


def counted(number: int, thing: str, plural: str | None = None) -> str:
    """Return the number and its noun, in the singular for 1.

    Args:
        number: How many there are.
        thing: The noun in the singular.
        plural: The noun in the plural; None for the noun with an s.

    >>> counted(1, "bag"), counted(1200, "bag"), counted(2, "series", "series")
    ('1 bag', '1,200 bags', '2 series')
    """
    return f"{number:,} {thing if number == 1 else plural or f'{thing}s'}"


def enumerated(things: Sequence[str]) -> str:
    """Return the things with commas between them, and `and` before the last one.

    >>> enumerated(["train"]), enumerated(["train", "val", "test"])
    ('train', 'train, val and test')
    """
    *first, last = things
    return f"{', '.join(first)} and {last}" if first else last


def printable(text: str) -> str:
    r"""Return a text with escape codes and other hidden characters spelt out, for a terminal.

    >>> printable("\x1b[31mslide")
    '\\x1b[31mslide'
    """
    return HIDDEN.sub(_spell_out, text)


def _spell_out(match: re.Match[str]) -> str:
    """Return a character as Python writes it: `\\x1b`, `\\u202a`."""
    code = ord(match[0])
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}"


def protect_cell(text: str) -> str:
    r"""Return a text as a cell of a CSV file that no spreadsheet calculates and no terminal obeys.

    A formula gets an apostrophe in front; hidden characters are spelt out behind one, and so are
    backslashes then. Numbers and all other texts stay. `restore_cell` is the inverse.

    >>> protect_cell("=1+1"), protect_cell("-1.5"), protect_cell("\x1b[31m")
    ("'=1+1", '-1.5', "'\\x1b[31m")
    """
    if not _is_risky(text):
        return text
    return "'" + printable(text.replace("\\", "\\\\"))


def restore_cell(cell: str) -> str:
    """Return the text of a cell that `protect_cell` wrote; others, of any tool, stay."""
    if not cell.startswith("'"):
        return cell
    text = SPELT.sub(lambda match: match[0].encode().decode("unicode_escape"), cell[1:])
    return text if _is_risky(text) and protect_cell(text) == cell else cell


def _is_risky(text: str) -> bool:
    """Return whether a text would be obeyed, or be taken for one that was protected."""
    body = text.lstrip("'")
    if HIDDEN.search(text) or (body != text and "\\" in text):
        return True
    try:
        float(body)
    except ValueError:
        return bool(FORMULA.match(body))
    return False
