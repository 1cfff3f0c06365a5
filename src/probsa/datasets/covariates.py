"""Stage 5: tables of clinical covariates, one row for each bag or patient.

Which columns are numbers and which are categories is said by the user and never guessed: a stage of
1–4 may be either.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float

from ..core import TextTable, check_options, read_number
from ..errors import InputError, TableError
from .names import COLUMNS, SYNONYMS, listed, nearest


@dataclass(frozen=True, kw_only=True, slots=True)
class CovariateOptions:
    """Which clinical covariates a model gets beside the image.

    Args:
        covariates: Table with a column `bag` or `group` (or a synonym) and the covariates; further
            columns are ignored, so it may be the label table itself. None for the label table.
        numeric: Columns that hold numbers.
        categorical: Columns that hold names of categories.
        unknown_category: What to do about a category that no training patient has: refuse it, or
            treat it as missing.
        missing_rows: What to do about a bag or patient without a row: refuse it, or treat all its
            covariates as missing.

    Raises:
        InputError: a column is named twice, or holds something else; or there is a table but no
            column.
    """

    covariates: Path | None = None
    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    unknown_category: Literal["refuse", "as_missing"] = "refuse"
    missing_rows: Literal["refuse", "as_missing"] = "refuse"

    def __post_init__(self) -> None:
        check_options(self)
        for name in ("numeric", "categorical"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.covariates is not None:
            object.__setattr__(self, "covariates", Path(self.covariates))
            if not self.columns:
                raise InputError(
                    f"covariates is {self.covariates}, but no column is named: list its numbers "
                    "with numeric and its categories with categorical"
                )
        for name in self.columns:
            if self.columns.count(name) > 1:
                raise InputError(
                    f"the covariate {name!r} is listed twice: give it once, under numeric or "
                    "under categorical"
                )
            if SYNONYMS.get(name, name) in COLUMNS:
                raise InputError(
                    f"the column {name!r} cannot be a covariate: it names the bag, its patient, "
                    "its label or its part"
                )

    @property
    def columns(self) -> tuple[str, ...]:
        """All covariates, the numeric ones first."""
        return (*self.numeric, *self.categorical)


@dataclass(frozen=True, kw_only=True, slots=True)
class CovariateTable:
    """Covariates as they were read; the rows are in the order of the file or of `select`."""

    path: Path
    options: CovariateOptions
    names: tuple[str, ...]
    """The bag of each row, or its patient in a file of patients."""
    lines: tuple[int, ...]
    """The line of each row in the file; 0 for a bag or patient without a row."""
    numbers: Float[np.ndarray, "rows numeric"]
    """NaN if missing."""
    categories: tuple[tuple[str, ...], ...]
    """One category for each categorical column, in each row; empty if missing."""
    rows_of: Mapping[str, Sequence[int]]
    """The rows of each bag and of each patient of the file."""

    def __len__(self) -> int:
        return len(self.lines)

    def select(self, names: Sequence[str]) -> "CovariateTable":
        """Return one row for each bag or patient, in this order and under these names.

        Raises:
            TableError: one has no row, unless `missing_rows` is `as_missing`; or the lines of a
                patient disagree, where lines and values are named.
        """
        absent = [n for n in names if n not in self.rows_of]
        if absent and self.options.missing_rows == "refuse":
            raise TableError(
                f"{self.path} has no row for {listed(absent)}."
                f"{nearest(absent[0], tuple(self.rows_of))} Add a row (empty cells are missing "
                "values), or set missing_rows to as_missing"
            )
        rows = [self._row(name) for name in names]
        # one more row, the last, for those that have none
        numbers = np.vstack([self.numbers, np.full(self.numbers.shape[1], np.nan)])
        categories = (*self.categories, ("",) * len(self.options.categorical))
        return replace(
            self,
            names=tuple(names),
            lines=tuple((*self.lines, 0)[r] for r in rows),
            numbers=numbers[rows],
            categories=tuple(categories[r] for r in rows),
            rows_of={name: (row,) for row, name in enumerate(names)},
        )

    def _row(self, name: str) -> int:
        """Return the row of a bag or patient, −1 if it has none; all its lines must agree."""
        first, *others = self.rows_of.get(name, (-1,))
        for other in others:
            cells = zip(self.options.columns, self._cells(first), self._cells(other), strict=True)
            for column, one, two in cells:
                if one != two:
                    raise TableError(
                        f"{self.path}: the lines of patient {name!r} disagree in {column!r}: line "
                        f"{self.lines[first]} has {one or 'no value'}, line {self.lines[other]} "
                        f"has {two or 'no value'}. Give a patient the same covariates in each line"
                    )
        return first

    def _cells(self, row: int) -> tuple[str, ...]:
        numbers = ("" if np.isnan(x) else f"{x:.12g}" for x in self.numbers[row])
        return (*numbers, *self.categories[row])


def read_covariates(path: Path, options: CovariateOptions) -> CovariateTable:
    """Read covariates from a CSV or TSV file with a column `bag` or `group`, or with both.

    An empty cell is a missing value. With both columns, rows are found by bag and by patient.

    Raises:
        TableError: a column is missing or named twice, a bag or patient has no name, a bag (in a
            file of patients: a patient) has two lines, or a number is not finite; names the line.
    """
    table = TextTable.read(path, expected="bag,… or group,… with the covariates").select(
        *options.columns, optional=("bag", "group"), synonyms=SYNONYMS
    )
    keys = [key for key in ("bag", "group") if key in table.columns]
    if not keys:
        raise TableError(
            f"{path} has neither a column 'bag' nor 'group' (or patient, case_id), so its rows "
            "belong to no bag"
        )
    what = "bag" if keys[0] == "bag" else "patient"
    advice = (
        ", or an empty cell if it is missing. If it holds categories, list it under categorical"
    )
    rows = table.by_name(keys[0], what)
    numbers, rows_of = np.full((len(rows), len(options.numeric)), np.nan), dict[str, list[int]]()
    for row, (name, (line, cells)) in enumerate(rows.items()):
        where = f"{path}, line {line}, {what} {name!r}"
        for k, column in enumerate(options.numeric):
            if text := cells[column]:
                role = f"the covariate {column!r}"
                numbers[row, k] = read_number(text, role, where=where, advice=advice)
        for known in dict.fromkeys((name, cells.get("group") or name)):
            rows_of.setdefault(known, []).append(row)
    return CovariateTable(
        path=path,
        options=options,
        names=tuple(rows),
        lines=tuple(line for line, _ in rows.values()),
        numbers=numbers,
        categories=tuple(
            tuple(cells[c] for c in options.categorical) for _, cells in rows.values()
        ),
        rows_of=rows_of,
    )
