"""Stage 5: the cells of a table's target columns as numbers, for each kind of target."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..core import counted
from ..errors import TableError

SHOWN = 5
"""Maximum number of names that a message lists; the others are counted."""
MOST_CLASSES = 20
"""Most whole numbers that are taken for classes unless the user says that they are."""
EVENTS = {"1": 1, "true": 1, "dead": 1, "0": 0, "false": 0, "alive": 0}
CENSORED = {"1": 0, "true": 0, "0": 1, "false": 1}
"""The event that each cell of a column `censorship` means."""

Cells = Mapping[str, tuple[int, dict[str, str]]]
Values = tuple[tuple[float, ...] | None, ...]


def class_indices(
    path: Path,
    rows: Cells,
    column: str,
    *,
    classes: Sequence[str] | None,
    required: bool,
    ordinal: bool = False,
) -> tuple[int | None, ...]:
    """Return the class of each bag, None if its cell is empty.

    Raises:
        TableError: a cell is no class, or is empty where a label is required.
    """
    indices: list[int | None] = []
    for bag, (line, row) in rows.items():
        text = row.get(column, "")
        label = _class_index(text, classes, ordinal=ordinal)
        if label is None and (text or required):
            shown = "" if column == "label" else f" (column {column!r})"
            problem = (
                f"the label {text!r}{shown} is neither a number nor a class"
                if text
                else f"the label is empty{shown}"
            )
            names = sorted({r.get(column, "") for _, r in rows.values()} - {""})
            raise TableError(
                f"{path}, line {line}, bag {bag!r}: {problem}. Expected "
                f"{_expected_class(text, names, classes, ordinal=ordinal)}"
            )
        indices.append(label)
    return tuple(indices)


def _expected_class(
    text: str, names: Sequence[str], classes: Sequence[str] | None, *, ordinal: bool
) -> str:
    if classes is not None:
        return f"one of {', '.join(classes)}"
    if ordinal:
        expected = (
            "a grade 0, 1, …; for names of grades give --classes from the lowest to the highest, "
            "as an alphabetical order is never assumed"
        )
    else:
        expected = "a class number 0, 1, …; for class names give --classes in order"
    if 1 < len(names) <= 2 * SHOWN:
        expected += f" ({', '.join(names)})"
    if finite_number(text) is not None:
        expected += "; for measurements give --task regression"
    return expected


def _class_index(text: str, classes: Sequence[str] | None, *, ordinal: bool) -> int | None:
    """Return the class index, or None if the text does not denote a class."""
    if classes is not None and text in classes:
        return list(classes).index(text)
    number = text.removesuffix(".0")  # pandas writes integers like this if a cell is empty
    if ordinal and classes is not None and any(c.isdecimal() for c in classes):
        # "1" may be the name of the lowest grade, so that numbers are names and not indices
        return list(classes).index(number) if number in classes else None
    if not number.isdecimal() or (classes is not None and int(number) >= len(classes)):
        return None
    return int(number)


def numbered_classes(path: Path, labels: Sequence[int | None]) -> tuple[str, ...]:
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


def ordered_grades(
    path: Path, labels: Sequence[int | None], classes: Sequence[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the grades in order, and notes on grades without a bag.

    Raises:
        TableError: a grade below the highest has no bag, and `classes` does not list it.
    """
    present = {y for y in labels if y is not None}
    names = tuple(classes or (str(k) for k in range(max(2, max(present, default=1) + 1))))
    absent = [names[k] for k in range(len(names)) if present and k not in present]
    if not absent:
        return names, ()
    if classes is None and max(present) > 1:
        raise TableError(
            f"{path}: the grades are {', '.join(str(y) for y in sorted(present))}, and no bag has "
            f"grade {', '.join(absent)}: if the scale has it, list all grades with --classes "
            f"{' '.join(names)}; otherwise number the grades from 0 without gaps"
        )
    return names, (
        f"no bag of {path} has grade {', '.join(absent)}, so the threshold of that grade is not "
        "identified",
    )


def finding_values(
    path: Path, rows: Cells, columns: Sequence[str]
) -> tuple[Values, tuple[str, ...]]:
    """Return 0, 1 or NaN (empty) for each finding, None for bags without any, and notes on these.

    Raises:
        TableError: a cell is not 0, 1 or empty.
    """
    known = {"0": 0.0, "0.0": 0.0, "1": 1.0, "1.0": 1.0, "": math.nan}
    values: list[tuple[float, ...] | None] = []
    unobserved = []
    for bag, (line, row) in rows.items():
        cells = [row.get(c, "") for c in columns]
        for column, cell in zip(columns, cells, strict=True):
            if cell not in known:
                raise TableError(
                    f"{path}, line {line}, bag {bag!r}: the finding {column!r} is {cell!r}, "
                    "expected 0 or 1, or an empty cell if it is not known"
                )
        observed = any(cells)
        values.append(tuple(known[c] for c in cells) if observed else None)
        if not observed:
            unobserved.append(bag)
    if not unobserved or not any(v is not None for v in values):
        return tuple(values), ()
    shown = ", ".join(unobserved[:SHOWN]) + (", …" if len(unobserved) > SHOWN else "")
    what = counted(len(unobserved), "bag")
    verb = "has" if len(unobserved) == 1 else "have"
    return tuple(values), (f"{what} of {path} {verb} no finding that is known ({shown})",)


def measured_values(path: Path, rows: Cells, column: str, *, required: bool) -> Values:
    """Return the measured value of each bag.

    Raises:
        TableError: a cell is no finite number, or is empty where a label is required.
    """
    values: list[tuple[float, ...] | None] = []
    for bag, (line, row) in rows.items():
        text = row.get(column, "")
        number = finite_number(text)
        if number is None and (text or required):
            what = f"is {text!r}" if text else "is empty"
            raise TableError(
                f"{path}, line {line}, bag {bag!r}: the value of {column!r} {what}, expected a "
                "finite number such as 1.5, which the task regression predicts. For classes give "
                "--task multiclass"
            )
        values.append(None if number is None else (number,))
    return tuple(values)


def quintiles(values: Values) -> tuple[int | None, ...]:
    """Return the quintile 0–4 of each value among those that are known; equal values share one."""
    known = np.array([v[0] for v in values if v is not None])
    if not len(known):
        return (None,) * len(values)
    cuts = np.quantile(known, [0.2, 0.4, 0.6, 0.8])
    return tuple(
        None if v is None else int(np.searchsorted(cuts, v[0], side="right")) for v in values
    )


def survival_values(
    path: Path, rows: Cells, columns: Sequence[str], *, required: bool, inverted: bool
) -> tuple[Values, tuple[str, ...]]:
    """Return (time, event) of each bag, and a note if the second column was read inverted.

    Raises:
        TableError: a time is not positive and finite, an event is not 0 or 1, or one of both is
            empty.
    """
    time_column, event_column = columns
    events = CENSORED if inverted else EVENTS
    values: list[tuple[float, ...] | None] = []
    for bag, (line, row) in rows.items():
        where = f"{path}, line {line}, bag {bag!r}"
        time, event = row.get(time_column, ""), row.get(event_column, "")
        if not time and not event and not required:
            values.append(None)
            continue
        duration = finite_number(time)
        if duration is None or duration <= 0:
            raise TableError(
                f"{where}: the time ({time_column!r}) is {time or 'empty'}, expected a number more "
                "than 0, in one unit for all bags. Correct it, or leave the bag out"
            )
        seen = events.get(event.lower().removesuffix(".0"))
        if seen is None:
            one, zero = ("censored", "event seen") if inverted else ("event seen", "censored")
            accepted = "true or false" if inverted else "true or false, dead or alive"
            raise TableError(
                f"{where}: the column {event_column!r} is {event or 'empty'}, expected 1 ({one}) "
                f"or 0 ({zero}); also {accepted}. Other words are not guessed"
            )
        values.append((duration, float(seen)))
    if not inverted:
        return tuple(values), ()
    return tuple(values), (
        f"the column {event_column!r} of {path} is read inverted: 1 means censored, 0 that the "
        "event was seen",
    )


def finite_number(text: str) -> float | None:
    """Return the number that a cell holds, None if it holds no finite number."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None
