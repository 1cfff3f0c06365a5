"""Read tables of text: CSV, TSV and semicolon-separated files, in UTF-8 or UTF-16.

Every cell is a string without surrounding whitespace, so that ids keep their leading zeros. The
index of a table is the line in the file at which each row starts, for messages.
"""

import codecs
import csv
import difflib
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import TableError, hint
from .wording import counted, enumerated, restore_cell

if TYPE_CHECKING:
    from pandas import DataFrame
else:
    DataFrame = Any  # importing pandas takes long, so that only commands that read tables do it

CLOSE = 0.8
"""How similar a name must be, from 0 to 1, to be a misspelling: `grup` and `group`, not `gold`."""
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
DELIMITERS = ",;\t"
LAST = "!"
"""A row that is put after the last one: a quotation mark that is still open contains it."""

MINUS = ("-", "–", "—")
OF_PROGRAMS = ("na", "n/a", "n.a.", "#n/a", "#na", "<na>", "nan", "-nan", "nat", "null")
OF_TCGA = (
    "not available",
    "not reported",
    "[not available]",
    "[not applicable]",
    "[not evaluated]",
    "[not reported]",
    "[unknown]",
    "[discrepancy]",
    "[pending]",
)
MISSING = frozenset(("", *OF_PROGRAMS, *MINUS, "--", ".", "?", *OF_TCGA))
"""What tables of R, pandas, spreadsheets and TCGA write for a missing value, in small letters.

`None` is one as Python writes it, and `none` is not, as it may be a category; so may `unknown`.
A minus is a value in a column that has a plus, too.
"""

LEAST_LIKE = 0.6
"""Least similarity of a column that is suggested, unless the missing name contains it: .5 would
take `age` for `label`."""

NumberedRow = tuple[int, dict[str, str]]
"""The line of a row and its cells by the names of their columns."""


def _column_advice(missing: Sequence[str], others: Sequence[str], meant: Mapping[str, str]) -> str:
    """Say which of the other columns the missing ones may be; empty if none is likely.

    Args:
        missing: The columns that are missing.
        others: The columns of the table that are not used.
        meant: Other accepted names, with the column that each stands for.
    """
    questions: dict[str, str] = {}
    for column in missing:
        synonyms = [name for name, standard in meant.items() if standard == column]
        for name in (column, *synonyms):
            contained = [other for other in others if other in name]
            question = hint(name, others, least=LEAST_LIKE) or hint(name, contained)
            if question:
                questions[column] = question
                break
    all_differ = len(set(questions.values())) == len(missing)
    if not all_differ and len(others) == len(missing):
        pairs = zip(others, missing, strict=True)
        renamings = [f"{other!r} to {column!r}" for other, column in pairs]
        return f" Rename {' and '.join(renamings)}"
    if len(missing) == 1:
        return "".join(questions.values())
    return "".join(f" For {column!r}:{question}" for column, question in questions.items())


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TextTable:
    """The cells of a table, all of them strings.

    Args:
        path: The file, for messages.
        frame: The cells; the index is the line of each row in the file.
        names_in_file: The names in the file of the columns that `select` has renamed.
    """

    path: Path
    frame: DataFrame
    names_in_file: Mapping[str, str] = field(default_factory=dict)
    blanked: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """The words for a missing value that `blank_missing` has emptied, by column and line."""

    @classmethod
    def read(cls, path: Path | str, *, expected: str = "", header: bool = True) -> "TextTable":
        """Read a file, without its blank rows; short rows are filled with empty cells.

        Args:
            path: The file.
            expected: Which header the table should have, for the message about an empty file.
            header: Whether the first row names the columns, which otherwise are numbered.

        Raises:
            TableError: The file is missing, empty, not text or cut short, a row is longer than the
                first, or a column with values has no name; names the line.
        """
        path = Path(path)
        frame = _parse(path, _text(path))
        if frame.empty:
            expectation = f": expected a header {expected}" if expected else ""
            raise TableError(f"{path} is empty{expectation}")
        if not header:
            return cls(path=path, frame=frame)
        names = list(frame.iloc[0])
        frame = frame.iloc[1:].set_axis(names, axis=1)
        # Spreadsheets add empty columns without a name; the first column is the index of pandas.
        has_name = [bool(name) or k == 0 for k, name in enumerate(names)]
        for k, is_named in enumerate(has_name):
            if is_named:
                continue
            filled_lines = frame.index[frame.iloc[:, k] != ""]
            if len(filled_lines):
                raise TableError(
                    f"{path}, line {filled_lines[0]}: column {k + 1} has a value but no name: "
                    "give it one, or leave it out"
                )
        return cls(path=path, frame=frame.loc[:, has_name])

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns; a first column without a name, an index, is not among them."""
        return tuple(name for name in self.frame.columns if name != "")

    @property
    def rows(self) -> list[dict[str, str]]:
        """The cells of each row by the names of their columns."""
        names = list(self.frame.columns)
        rows = self.frame.itertuples(index=False, name=None)
        return [dict(zip(names, cells, strict=True)) for cells in rows]

    @property
    def numbered(self) -> list[NumberedRow]:
        """The line and the cells of each row."""
        return list(zip(self.frame.index.tolist(), self.rows, strict=True))

    def select(
        self,
        *columns: str,
        optional: Iterable[str] = (),
        synonyms: Mapping[str, str] | None = None,
        advice: str = "",
        extra_advice: Mapping[str, str] | None = None,
    ) -> "TextTable":
        """Return the table with these columns only.

        Args:
            columns: Columns that the table must have.
            optional: Columns that it may have.
            synonyms: Other names that are accepted, with the column that each stands for.
            advice: How to help if a column is missing; by default the most similar name.
            extra_advice: What to add to the default, by the name of a missing column.

        Raises:
            TableError: A column is missing, or two have its name.
        """
        meant = synonyms or {}
        names = list(self.frame.columns)
        standard_names = [meant.get(name, name) for name in names]
        index_of: dict[str, int] = {}
        requested = dict.fromkeys((*columns, *optional))
        for column in requested:
            indices = [k for k, name in enumerate(standard_names) if name == column]
            if len(indices) > 1:
                other_names = {repr(names[k]) for k in indices} - {repr(column)}
                synonym = " and ".join(sorted(other_names))
                also = f" ({synonym} counts as {column!r})" if synonym else ""
                raise TableError(
                    f"{self.path}: two columns are named {column!r}{also}: leave one out"
                )
            if indices:
                index_of[column] = indices[0]
        missing = [column for column in columns if column not in index_of]
        if missing:
            if not advice:
                others = [name for name in self.columns if meant.get(name, name) not in requested]
                advice = _column_advice(missing, others, meant)
                for column, text in (extra_advice or {}).items():
                    if column in missing:
                        advice += text
            end = f".{advice}" if advice else ""
            raise TableError(
                f"{self.path} has no column {' and no column '.join(map(repr, missing))}: it has "
                f"{', '.join(self.columns)}{end}"
            )
        frame = self.frame.iloc[:, list(index_of.values())].set_axis(list(index_of), axis=1)
        return TextTable(
            path=self.path,
            frame=frame,
            names_in_file={column: names[k] for column, k in index_of.items()},
        )

    def blank_missing(self, columns: Iterable[str], *, values: Iterable[str] = ()) -> "TextTable":
        """Return the table with empty cells in place of words for a missing value.

        Args:
            columns: The columns in which `is_missing` decides; those that are absent are passed
                over.
            values: Words that are values all the same, such as a class that is named `NA`.
        """
        frame = self.frame.copy()
        common_values = frozenset(values)
        blanked: dict[str, Mapping[int, str]] = dict(self.blanked)
        for column in dict.fromkeys(columns):
            if column not in self.columns:
                continue
            lines: list[int] = self.frame.index.tolist()
            texts: list[str] = self.frame[column].tolist()
            # a minus is a value beside a plus
            column_values = common_values.union(MINUS) if "+" in texts else common_values
            words: dict[int, str] = {}
            for line, cell in zip(lines, texts, strict=True):
                if cell and is_missing(cell) and cell not in column_values:
                    words[line] = cell
            if words:
                frame.loc[list(words), column] = ""
                blanked[column] = words
        return replace(self, frame=frame, blanked=blanked)

    def as_written(self, column: str, line: int, cell: str) -> str:
        """Return a cell as it stands in the file, for messages."""
        return cell or self.blanked.get(column, {}).get(line, "")

    def missing_notes(self) -> tuple[str, ...]:
        """Say for each column which words were read as missing values, and in which lines."""
        notes: list[str] = []
        for column, words in self.blanked.items():
            name = self.names_in_file.get(column, column)
            distinct_words = ", ".join(dict.fromkeys(words.values()))
            notes.append(
                f"the column {name!r} of {self.path} has "
                f"{counted(len(words), 'missing value')}, written {distinct_words}: "
                f"{numbered_lines(list(words))}"
            )
        return tuple(notes)

    def misspelt(self, names: Iterable[str]) -> dict[str, str]:
        """Return the columns that are named almost as one of these names, with that name.

        Names of the same letters in another order are as near: `fodl` and `fold`.
        """
        plain = {name.lower(): name for name in names}
        by_letters = {"".join(sorted(name)): name for name in plain}
        similar: dict[str, str] = {}
        for column in self.columns:
            if column in plain.values():
                continue
            close = difflib.get_close_matches(column.lower(), list(plain), n=1, cutoff=CLOSE)
            name = close[0] if close else by_letters.get("".join(sorted(column.lower())))
            if name is not None:
                similar[column] = plain[name]
        return similar

    def by_name(self, column: str, what: str = "bag") -> dict[str, NumberedRow]:
        """Return the line and the cells of each row by the name in a column.

        Args:
            column: The column that holds the names.
            what: What has these names, for messages.

        Raises:
            TableError: A row has no name, two rows have the same one, or there are no rows.
        """
        rows: dict[str, NumberedRow] = {}
        for line, cells in self.numbered:
            name = cells[column]
            where = f"{self.path}, line {line}"
            if not name:
                name_in_file = self.names_in_file.get(column, column)
                raise TableError(f"{where}: the column {name_in_file!r} is empty")
            if name in rows:
                raise TableError(
                    f"{where}: {what} {name!r} is already in line {rows[name][0]}. Give each "
                    f"{what} one line"
                )
            rows[name] = (line, cells)
        if not rows:
            raise TableError(f"{self.path} has a header but no {what}s")
        return rows


def is_missing(cell: str) -> bool:
    """Return whether a cell is empty or holds a word for a missing value, see `MISSING`."""
    return cell == "None" or cell.lower() in MISSING


def numbered_lines(lines: Sequence[int], *, most: int = 10) -> str:
    """Return the first lines of a table for a message, and how many more there are.

    >>> numbered_lines([3]), numbered_lines([3, 5, 9]), numbered_lines([3, 5, 9], most=2)
    ('line 3', 'lines 3, 5 and 9', 'lines 3, 5 and 1 more')
    """
    numbers = [str(line) for line in lines[:most]]
    if len(lines) > most:
        numbers.append(f"{len(lines) - most} more")
    return f"{'line' if len(lines) == 1 else 'lines'} {enumerated(numbers)}"


def finite_number(text: str) -> float | None:
    """Return the number that a cell holds, None if it holds no finite number."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None


def read_number(
    text: str,
    column: str,
    *,
    where: str,
    low: float = -math.inf,
    high: float = math.inf,
    whole: bool = False,
    advice: str = "",
) -> float:
    """Return the number that a cell holds.

    Args:
        text: The cell.
        column: What the cell holds, for messages.
        where: The file, the line and the bag, for messages.
        low: Lowest number.
        high: Highest number.
        whole: Whether it must be a whole number; `1.0` is one, as pandas writes it.
        advice: What to do about another cell; it ends the message.

    Raises:
        TableError: The cell holds no such number.
    """
    number = finite_number(text)
    if number is not None and low <= number <= high and not (whole and number % 1):
        return number
    limits = f" from {low:g}" if math.isfinite(low) else ""
    limits += f" to {high:g}" if math.isfinite(high) else ""
    kind = "whole" if whole else "finite"
    raise TableError(f"{where}: {column} is {text!r}, expected a {kind} number{limits}{advice}")


def _text(path: Path) -> str:
    """Return the text of a file, whose lines end with a newline whatever system wrote them."""
    if not path.is_file():  # a pipe would be waited for
        raise TableError(f"there is no table {path}")
    data = path.read_bytes()
    try:
        text = data.decode("utf-16" if data.startswith(UTF16) else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise TableError(f"{path} is not UTF-8 text ({error}): save it as CSV in UTF-8") from error
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    zero = text.find("\0")
    if zero >= 0:
        line = 1 + text.count("\n", 0, zero)
        raise TableError(f"{path}, line {line}: zero bytes instead of text: copy it again")
    return text


def _parse(path: Path, text: str) -> DataFrame:
    """Return the rows with content; the index is the line at which each starts."""
    import pandas as pd

    body = re.sub(rf"\A(?:[{DELIMITERS} ]*\n)+", "", text)  # without blank rows on top
    if not body.strip(f"{DELIMITERS} "):
        return pd.DataFrame()
    # the delimiter is the most frequent one of the header, where it is not quoted
    outside_quotes = re.sub(rf'(?m)(^|[{DELIMITERS}])"[^"]*"(?:"[^"]*")*', r"\1", body)
    header = outside_quotes.partition("\n")[0]
    delimiter = max(DELIMITERS, key=header.count)
    reader = csv.reader(io.StringIO(f"{body}\n{LAST}"), delimiter=delimiter)
    first = 1 + text.count("\n") - body.count("\n")
    line = first
    rows: dict[int, list[str]] = {}
    end: list[str] = []
    with suppress(csv.Error):  # a cell of more than a hundred thousand characters
        for row in reader:
            rows[line] = row
            width = len(rows[first])
            if len(row) > width:
                raise TableError(
                    f"{path}, line {line}: {len(row)} cells, but the header has {width}"
                )
            line = first + reader.line_num
        line, end = rows.popitem()
    if end != [LAST]:
        raise TableError(f"{path}, line {line}: a quotation mark is never closed")
    width = len(rows[first])
    last_line = max(rows)
    if not text.endswith("\n") and len(rows[last_line]) < width:
        raise TableError(
            f"{path}, line {last_line}: {len(rows[last_line])} cells, but the header has {width}: "
            "the file may be cut; copy it again, or end it with a newline"
        )
    table: dict[int, list[str]] = {}
    for line, row in rows.items():
        cells = [cell.strip() for cell in row]
        if any(cells):
            cells += [""] * (width - len(cells))
            table[line] = [restore_cell(cell) for cell in cells]
    return pd.DataFrame(list(table.values()), index=pd.Index(list(table)), dtype=str)
