"""Read the cells of a table of predictions; every error names the file and the cell."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from ..errors import TableError

Row = Mapping[str, str]


def read_label(text: str, path: Path, *, bag: str) -> int | None:
    """Return the class index in a cell; None if it is empty."""
    if not text:
        return None
    if not text.isdigit():
        raise TableError(f"{path}, bag {bag!r}: label {text!r} is not a class number (0, 1, …)")
    return int(text)


def read_probability(row: Mapping[str, str], column: str, path: Path) -> float:
    """Return the number from 0 to 1 in a cell."""
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise TableError(
            f"{path}, bag {row['bag']!r}: {column} is {row[column]!r}, expected 0 to 1"
        )
    return value


def read_columns(
    rows: Sequence[Mapping[str, str]], start: str, columns: Sequence[str], path: Path
) -> Float[np.ndarray, "bags columns"]:
    """Return the numbers from 0 to 1 of all classes, whose columns begin with `start`."""
    return np.array([[read_probability(r, f"{start}_{c}", path) for c in columns] for r in rows])


def read_shares(rows: Sequence[Row], column: str, path: Path) -> Float[np.ndarray, " bags"] | None:
    """Return a column of numbers from 0 to 1; None if the table does not have it."""
    if column not in rows[0]:
        return None
    return np.array([read_probability(row, column, path) for row in rows])


def read_distances(
    rows: Sequence[Row], column: str, path: Path
) -> Float[np.ndarray, " bags"] | None:
    """Return a column of numbers that are not negative; None if the table does not have it."""
    if column not in rows[0]:
        return None
    values = []
    for row in rows:
        try:
            value = float(row[column])
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf:
            raise TableError(
                f"{path}, bag {row['bag']!r}: {column} is {row[column]!r}, expected a distance, "
                "0 or more"
            )
        values.append(value)
    return np.array(values)


def read_numbers(
    rows: Sequence[Row],
    columns: Sequence[str],
    path: Path,
    *,
    within: tuple[float, float] = (-math.inf, math.inf),
    optional: bool = False,
) -> Float[np.ndarray, "bags columns"]:
    """Return finite numbers within limits; an empty cell is nan if it is `optional`."""
    values = np.full((len(rows), len(columns)), np.nan)
    for i, row in enumerate(rows):
        for k, column in enumerate(columns):
            if optional and not row[column]:
                continue
            try:
                value = float(row[column])
            except ValueError:
                value = math.nan
            if not (math.isfinite(value) and within[0] <= value <= within[1]):
                expected = "a number" if math.isinf(within[1]) else f"{within[0]} to {within[1]}"
                raise TableError(
                    f"{path}, bag {row['bag']!r}: {column} is {row[column]!r}, expected {expected}"
                )
            values[i, k] = value
    return values
