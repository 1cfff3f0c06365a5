"""Stage 5: the label table, `bag,label[,group][,fold|split]`. All ids are strings."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import TableError, hint

SYNONYMS = {"slide_id": "bag", "case_id": "group"}
"""CLAM's column names."""
COLUMNS = ("bag", "label", "group", "fold", "split")
SPLIT_PARTS = ("train", "val", "test")
SHOWN = 5
"""Maximum number of names that a message lists; the others are counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelTable:
    """Labels of bags, in the order of the file; every tuple is as long as `bags`."""

    path: Path | None = None
    bags: tuple[str, ...]
    labels: tuple[int | None, ...]
    """Index into `classes`; None if the table gives no label."""
    groups: tuple[str, ...] | None = None
    """For example the patient: a split never puts bags of one group in different parts."""
    folds: tuple[int, ...] | None = None
    splits: tuple[str | None, ...] | None = None
    classes: tuple[str, ...]

    @property
    def where(self) -> str:
        """Name of the table in messages."""
        return "the table" if self.path is None else str(self.path)

    def group(self, row: int) -> str:
        """Return the group of a row; a bag without a group forms its own."""
        return self.bags[row] if self.groups is None else self.groups[row]


def read_table(
    path: Path, *, classes: Sequence[str] | None = None, labels_required: bool = True
) -> LabelTable:
    """Read a label table; `slide_id` and `case_id` are accepted for `bag` and `group`.

    Args:
        path: A CSV or TSV file with a header.
        classes: Names of the classes in order of their index, so that labels may be names.
            Without them, labels are 0 … C − 1.
        labels_required: Whether a bag without a label is an error.

    Raises:
        TableError: the table is invalid; names the file, the line, the bag and what was expected.
    """
    if classes is not None and len(set(classes)) < max(2, len(classes)):
        raise TableError(f"the classes are {', '.join(classes)}: give two or more, each once")
    header, rows = _rows(path)
    _check_header(header, path, labels_required=labels_required)
    rows_by_bag: dict[str, tuple[int, dict[str, str]]] = {}
    for line, row in rows:
        bag = row["bag"]
        if not bag:
            raise TableError(f"{path}, line {line}: the column 'bag' is empty")
        if bag in rows_by_bag:
            raise TableError(
                f"{path}, line {line}: bag {bag!r} is already in line {rows_by_bag[bag][0]}. "
                "Give each bag one line"
            )
        rows_by_bag[bag] = (line, row)
    if not rows_by_bag:
        raise TableError(f"{path} has a header but no bags")
    labels = _labels(path, rows_by_bag, classes=classes, required=labels_required)

    def location(bag: str) -> str:
        return f"{path}, line {rows_by_bag[bag][0]}, bag {bag!r}"

    return LabelTable(
        path=path,
        bags=tuple(rows_by_bag),
        labels=labels,
        groups=tuple(cells["group"] or bag for bag, (_, cells) in rows_by_bag.items())
        if "group" in header
        else None,
        folds=tuple(
            _fold(cells["fold"], location(name)) for name, (_, cells) in rows_by_bag.items()
        )
        if "fold" in header
        else None,
        splits=tuple(
            _part(cells["split"], location(name)) for name, (_, cells) in rows_by_bag.items()
        )
        if "split" in header
        else None,
        classes=tuple(classes) if classes is not None else _numbered(path, labels),
    )


def drop_bags(table: LabelTable, bags: Sequence[str]) -> LabelTable:
    """Return the table without these bags; the classes are kept."""
    excluded = set(bags)
    rows = [row for row, b in enumerate(table.bags) if b not in excluded]
    return replace(
        table,
        bags=tuple(table.bags[r] for r in rows),
        labels=tuple(table.labels[r] for r in rows),
        groups=None if table.groups is None else tuple(table.groups[r] for r in rows),
        folds=None if table.folds is None else tuple(table.folds[r] for r in rows),
        splits=None if table.splits is None else tuple(table.splits[r] for r in rows),
    )


def check_labels_match(table: LabelTable, names: Sequence[str], *, allow_unlabelled: bool) -> None:
    """Check that every label has a bag and, unless `allow_unlabelled`, that every bag has a label.

    Raises:
        TableError: they do not match; lists and counts the names, with the likely cause.
    """
    labelled = {b for b, y in zip(table.bags, table.labels, strict=True) if y is not None}
    stored_names = set(names)
    without_bag = [b for b in table.bags if b not in stored_names]
    without_label = [] if allow_unlabelled else [n for n in names if n not in labelled]
    if not without_bag and not without_label:
        return
    problems = []
    if without_bag:
        problems.append(f"{_listed(without_bag, 'label')} without a bag")
    if without_label:
        problems.append(f"{_listed(without_label, 'bag')} without a label")
    suggestion = (
        nearest(without_bag[0], names) if without_bag else nearest(without_label[0], table.bags)
    )
    raise TableError(
        f"{table.where} and the bags do not match: {' and '.join(problems)}.{suggestion} "
        "Add or remove lines, or give a folder with just the bags that are labelled"
    )


def nearest(name: str, known: Sequence[str]) -> str:
    """Suggest why a name is not among the known ones; an empty string if no cause is likely."""
    if name in known:  # the name is in the table, but without a label
        return ""
    equal_numbers = [k for k in known if k.isdigit() and name.isdigit() and int(k) == int(name)]
    if equal_numbers:
        return (
            f" There is {equal_numbers[0]!r}, not {name!r}: ids are text, so leading zeros matter "
            "(spreadsheets remove them)."
        )
    prefix_matches = [k for k in known if name.startswith(f"{k}.") or k.startswith(f"{name}.")]
    return f" Did you mean {prefix_matches[0]!r}?" if prefix_matches else hint(name, known)


def _listed(names: Sequence[str], what: str) -> str:
    shown = ", ".join(repr(n) for n in names[:SHOWN])
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{len(names)} {what}{'s' if len(names) > 1 else ''} ({shown}{more})"


def read_rows(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Read the header and the rows of a CSV or TSV file, with line numbers, without blank lines.

    Raises:
        TableError: the file is missing, empty or not text, or a row is longer than the header.
    """
    if not path.is_file():
        raise TableError(f"there is no table {path}")
    try:
        with path.open(newline="", encoding="utf-8-sig") as f:
            delimiter = max(",;\t", key=f.readline().count)
            f.seek(0)
            reader = csv.reader(f, delimiter=delimiter)
            lines = [(reader.line_num, [c.strip() for c in row]) for row in reader if any(row)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise TableError(f"{path} is not UTF-8 text ({error}): save it as CSV") from error
    if not lines:
        raise TableError(f"{path} is empty: expected a header bag,label[,group][,fold|split]")
    header = lines[0][1]
    for line, row in lines:
        if any("\0" in cell for cell in row):
            raise TableError(f"{path}, line {line}: zero bytes instead of text: copy it again")
        if len(row) > len(header):
            raise TableError(
                f"{path}, line {line}: {len(row)} cells, but the header has {len(header)}"
            )
    return header, lines[1:]


def _rows(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    header, rows = read_rows(path)
    columns = [SYNONYMS.get(c, c) for c in header]
    padded = [(line, row + [""] * (len(columns) - len(row))) for line, row in rows]
    # Columns without a name are dropped if they are empty, as spreadsheets write them, or come
    # first: the index that pandas writes.
    for k, column in enumerate(columns[1:], start=1):
        line = next((line for line, row in padded if row[k]), None)
        if not column and line is not None:
            raise TableError(
                f"{path}, line {line}: column {k + 1} has a value but no name: give it one of "
                f"{', '.join(COLUMNS)}, or leave it out"
            )
    return [c for c in columns if c], [
        (line, dict(zip(columns, row, strict=True))) for line, row in padded
    ]


def _check_header(header: list[str], path: Path, *, labels_required: bool) -> None:
    known = (*COLUMNS, *SYNONYMS)
    for column in header:
        if column not in COLUMNS:
            raise TableError(
                f"{path}: unknown column {column!r}.{hint(column, known)} "
                f"Known: {', '.join(COLUMNS)}"
            )
        if header.count(column) > 1:
            raise TableError(f"{path}: two columns are named {column!r}: leave one out")
    needed = ("bag", "label") if labels_required else ("bag",)
    for column in needed:
        if column not in header:
            raise TableError(f"{path} has no column {column!r}: it has {', '.join(header)}")
    if "fold" in header and "split" in header:
        raise TableError(f"{path} has both 'fold' and 'split': leave one out")


def _labels(
    path: Path,
    rows_by_bag: dict[str, tuple[int, dict[str, str]]],
    *,
    classes: Sequence[str] | None,
    required: bool,
) -> tuple[int | None, ...]:
    indices: list[int | None] = []
    for bag, (line, row) in rows_by_bag.items():
        text = row.get("label", "")
        label = _label(text, classes)
        if label is None and (text or required):
            label_names = sorted({r.get("label", "") for _, r in rows_by_bag.values()} - {""})
            expected = (
                f"one of {', '.join(classes)}"
                if classes is not None
                else "a class number 0, 1, …; for class names give --classes in order"
                + (f" ({','.join(label_names)})" if 1 < len(label_names) <= 2 * SHOWN else "")
            )
            problem = (
                f"the label {text!r} is neither a number nor a class"
                if text
                else "the label is empty"
            )
            raise TableError(f"{path}, line {line}, bag {bag!r}: {problem}. Expected {expected}")
        indices.append(label)
    return tuple(indices)


def _label(text: str, classes: Sequence[str] | None) -> int | None:
    """Return the class index, or None if the text does not denote a class."""
    if classes is not None and text in classes:
        return list(classes).index(text)
    number = text.removesuffix(".0")  # pandas writes integers like this if a cell is empty
    if not number.isdecimal() or (classes is not None and int(number) >= len(classes)):
        return None
    return int(number)


def _numbered(path: Path, labels: tuple[int | None, ...]) -> tuple[str, ...]:
    """Return the class names '0' … 'C − 1', at least two.

    Raises:
        TableError: a class below the highest has no bag (for example, labels 1 and 2).
    """
    present = {y for y in labels if y is not None}
    if not present <= {0, 1} and present != set(range(len(present))):
        raise TableError(
            f"{path}: the labels are {', '.join(str(y) for y in sorted(present))}, expected "
            f"0 to {len(present) - 1}: number the classes from 0 without gaps, or give --classes"
        )
    return tuple(str(c) for c in range(max(2, len(present))))


def _fold(text: str, where: str) -> int:
    number = text.removesuffix(".0")
    if number.isdecimal():
        return int(number)
    raise TableError(f"{where}: the fold is {text!r}, expected a number 0, 1, …")


def _part(text: str, where: str) -> str | None:
    if text in SPLIT_PARTS or not text:
        return text or None
    raise TableError(
        f"{where}: the split is {text!r}, expected train, val or test.{hint(text, SPLIT_PARTS)}"
    )
