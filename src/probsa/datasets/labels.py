"""Stage 5: the table of labels, `bag,label[,group][,fold|split]`. Every id is a string."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import TableError, hint

SYNONYMS = {"slide_id": "bag", "case_id": "group"}
"""CLAM's names of columns."""
COLUMNS = ("bag", "label", "group", "fold", "split")
PARTS = ("train", "val", "test")
SHOWN = 5
"""Names that a message lists before it only counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Labels of bags, in the order of the file; every tuple is as long as `bags`."""

    path: Path | None = None
    bags: tuple[str, ...]
    labels: tuple[int | None, ...]
    """Index into `classes`; None where the table gives none."""
    groups: tuple[str, ...] | None = None
    """The patient, say: bags of one group never come into two parts of a split."""
    folds: tuple[int, ...] | None = None
    splits: tuple[str | None, ...] | None = None
    classes: tuple[str, ...]

    @property
    def where(self) -> str:
        """The table, as messages name it."""
        return "the table" if self.path is None else str(self.path)

    def group(self, row: int) -> str:
        """The group of a row; a bag without one is a group of its own."""
        return self.bags[row] if self.groups is None else self.groups[row]


def read_table(
    path: Path, *, classes: Sequence[str] | None = None, labels_required: bool = True
) -> Table:
    """Reads a table of labels; `slide_id` and `case_id` serve for `bag` and `group`.

    Args:
        path: a CSV (or TSV) file with a header.
        classes: names of the classes in the order of their index; labels may then be names.
            Without them labels are 0 … C − 1.
        labels_required: whether a bag without a label is an error.

    Raises:
        TableError: names the file, the line, the bag and what was expected.
    """
    if classes is not None and len(set(classes)) < max(2, len(classes)):
        raise TableError(f"the classes are {', '.join(classes)}: give two or more, each once")
    header, rows = _rows(path)
    _check_header(header, path, labels_required=labels_required)
    found: dict[str, tuple[int, dict[str, str]]] = {}
    for line, row in rows:
        bag = row["bag"]
        if not bag:
            raise TableError(f"{path}, line {line}: the column 'bag' is empty")
        if bag in found:
            raise TableError(
                f"{path}, line {line}: bag {bag!r} stands in line {found[bag][0]} already. "
                "Give each bag one line"
            )
        found[bag] = (line, row)
    if not found:
        raise TableError(f"{path} has a header and no bags")
    labels = _labels(path, found, classes=classes, required=labels_required)

    def at(bag: str) -> str:
        return f"{path}, line {found[bag][0]}, bag {bag!r}"

    return Table(
        path=path,
        bags=tuple(found),
        labels=labels,
        groups=tuple(r["group"] or bag for bag, (_, r) in found.items())
        if "group" in header
        else None,
        folds=tuple(_fold(r["fold"], at(b)) for b, (_, r) in found.items())
        if "fold" in header
        else None,
        splits=tuple(_part(r["split"], at(b)) for b, (_, r) in found.items())
        if "split" in header
        else None,
        classes=tuple(classes) if classes is not None else _numbered(path, labels),
    )


def without(table: Table, bags: Sequence[str]) -> Table:
    """The table without these bags; the classes stay."""
    dropped = set(bags)
    kept = [row for row, b in enumerate(table.bags) if b not in dropped]
    return replace(
        table,
        bags=tuple(table.bags[r] for r in kept),
        labels=tuple(table.labels[r] for r in kept),
        groups=None if table.groups is None else tuple(table.groups[r] for r in kept),
        folds=None if table.folds is None else tuple(table.folds[r] for r in kept),
        splits=None if table.splits is None else tuple(table.splits[r] for r in kept),
    )


def match(table: Table, names: Sequence[str], *, allow_unlabelled: bool) -> None:
    """Sees that every label has a bag and, unless `allow_unlabelled`, every bag a label.

    Raises:
        TableError: lists the first few of each and counts them, with the likely cause.
    """
    labelled = {b for b, y in zip(table.bags, table.labels, strict=True) if y is not None}
    stored = set(names)
    without_bag = [b for b in table.bags if b not in stored]
    without_label = [] if allow_unlabelled else [n for n in names if n not in labelled]
    if not without_bag and not without_label:
        return
    said = []
    if without_bag:
        said.append(f"{_listed(without_bag, 'label')} without a bag")
    if without_label:
        said.append(f"{_listed(without_label, 'bag')} without a label")
    guess = nearest(without_bag[0], names) if without_bag else nearest(without_label[0], table.bags)
    raise TableError(
        f"{table.where} and the bags do not match: {' and '.join(said)}.{guess} "
        "Add or remove lines, or give a folder with just the bags that are labelled"
    )


def nearest(name: str, known: Sequence[str]) -> str:
    """The likely cause of a name that is not among the known ones, or nothing."""
    if name in known:  # a line of the table whose label is empty
        return ""
    same = [k for k in known if k.isdigit() and name.isdigit() and int(k) == int(name)]
    if same:
        return (
            f" There is {same[0]!r}, not {name!r}: ids are text, and the zeros in front count "
            "(spreadsheets take them off)."
        )
    cut = [k for k in known if name.startswith(f"{k}.") or k.startswith(f"{name}.")]
    return f" Did you mean {cut[0]!r}?" if cut else hint(name, known)


def _listed(names: Sequence[str], what: str) -> str:
    shown = ", ".join(repr(n) for n in names[:SHOWN])
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{len(names)} {what}{'s' if len(names) > 1 else ''} ({shown}{more})"


def read_rows(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Header and rows of a CSV or TSV file, with line numbers, without blank lines.

    Raises:
        TableError: the file is missing, empty, no text, or a row has more cells than the header.
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
        raise TableError(f"{path} is no table in UTF-8 text ({error}): save it as CSV") from error
    if not lines:
        raise TableError(f"{path} is empty: expected a header bag,label[,group][,fold|split]")
    header = lines[0][1]
    for line, row in lines[1:]:
        if len(row) > len(header):
            raise TableError(
                f"{path}, line {line}: {len(row)} cells, but the header has {len(header)}"
            )
    return header, lines[1:]


def _rows(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    header, rows = read_rows(path)
    columns = [SYNONYMS.get(c, c) for c in header]
    padded = [(line, row + [""] * (len(columns) - len(row))) for line, row in rows]
    # A column without a name is the index that pandas writes.
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
            raise TableError(f"{path}: two columns say {column!r}: leave one out")
    needed = ("bag", "label") if labels_required else ("bag",)
    for column in needed:
        if column not in header:
            raise TableError(f"{path} has no column {column!r}: it has {', '.join(header)}")
    if "fold" in header and "split" in header:
        raise TableError(f"{path} has both 'fold' and 'split': leave one out")


def _labels(
    path: Path,
    rows: dict[str, tuple[int, dict[str, str]]],
    *,
    classes: Sequence[str] | None,
    required: bool,
) -> tuple[int | None, ...]:
    found: list[int | None] = []
    for bag, (line, row) in rows.items():
        text = row.get("label", "")
        label = _label(text, classes)
        if label is None and (text or required):
            names = sorted({r.get("label", "") for _, r in rows.values()} - {""})
            expected = (
                f"one of {', '.join(classes)}"
                if classes is not None
                else "a class number 0, 1, …; for names of classes give --classes in their order"
                + (f" ({','.join(names)})" if 1 < len(names) <= 2 * SHOWN else "")
            )
            came = f"the label {text!r} is no number or class" if text else "the label is empty"
            raise TableError(f"{path}, line {line}, bag {bag!r}: {came}. Expected {expected}")
        found.append(label)
    return tuple(found)


def _label(text: str, classes: Sequence[str] | None) -> int | None:
    """The class index, or None if the text is none."""
    if classes is not None and text in classes:
        return list(classes).index(text)
    number = text.removesuffix(".0")  # what pandas makes of a column with an empty cell
    if not number.isdecimal() or (classes is not None and int(number) >= len(classes)):
        return None
    return int(number)


def _numbered(path: Path, labels: tuple[int | None, ...]) -> tuple[str, ...]:
    """Classes '0' … 'C − 1', at least two.

    Raises:
        TableError: a class below the highest has no bag (labels 1 and 2, say).
    """
    held = {y for y in labels if y is not None}
    if not held <= {0, 1} and held != set(range(len(held))):
        raise TableError(
            f"{path}: the labels are {', '.join(str(y) for y in sorted(held))}, expected "
            f"0 to {len(held) - 1}: number the classes from 0 without gaps, or give --classes"
        )
    return tuple(str(c) for c in range(max(2, len(held))))


def _fold(text: str, where: str) -> int:
    number = text.removesuffix(".0")
    if number.isdecimal():
        return int(number)
    raise TableError(f"{where}: the fold is {text!r}, expected a number 0, 1, …")


def _part(text: str, where: str) -> str | None:
    if text in PARTS or not text:
        return text or None
    raise TableError(
        f"{where}: the split is {text!r}, expected train, val or test.{hint(text, PARTS)}"
    )
