"""Stage 5: tables of clinical covariates, one row for each bag or patient.

Which columns are numbers and which are categories is said by the user and never guessed: a stage of
1–4 may be either.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
        names = self.columns
        if self.covariates is not None and not names:
            raise InputError(
                f"covariates is {self.covariates}, but no column is named: list its numbers with "
                "numeric and its categories with categorical"
            )
        for name in names:
            if names.count(name) > 1:
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
    bags: tuple[str, ...] | None
    """The bag of each row; None if the file is of patients."""
    groups: tuple[str, ...] | None
    """The patient of each row; None if the file does not state it."""
    lines: tuple[int, ...]
    """The line of each row in the file; 0 for a bag or patient without a row."""
    numbers: Float[np.ndarray, "rows numeric"]
    """NaN if missing."""
    categories: tuple[tuple[str, ...], ...]
    """One category for each categorical column, in each row; empty if missing."""
    rows_of: Mapping[str, tuple[int, ...]] = field(init=False, compare=False, repr=False)
    """The rows of each bag and of each patient."""

    def __post_init__(self) -> None:
        rows: dict[str, list[int]] = {}
        for names in (self.bags, self.groups):
            for row, name in enumerate(names or ()):
                if row not in rows.setdefault(name, []):
                    rows[name].append(row)
        object.__setattr__(self, "rows_of", {n: tuple(sorted(r)) for n, r in rows.items()})

    def __len__(self) -> int:
        return len(self.lines)

    def name(self, row: int) -> str:
        """Return the bag of a row, or its patient in a file of patients."""
        return (self.bags or self.groups or ())[row]

    def select(self, names: Sequence[str]) -> "CovariateTable":
        """Return one row for each bag or patient, in this order and under these names.

        Raises:
            TableError: one has no row, unless `missing_rows` is `as_missing`; or the lines of a
                patient disagree, where lines and values are named.
        """
        if self.options.missing_rows == "refuse":
            absent = [n for n in names if n not in self.rows_of]
            if absent:
                raise TableError(
                    f"{self.path} has no row for {listed(absent)}."
                    f"{nearest(absent[0], tuple(self.rows_of))} Add a row (empty cells are missing "
                    "values), or set missing_rows to as_missing"
                )
        rows = [self._row(name) for name in names]
        no_numbers = np.full(self.numbers.shape[1], np.nan)
        numbers = [no_numbers if r is None else self.numbers[r] for r in rows]
        none = ("",) * len(self.options.categorical)
        return replace(
            self,
            bags=tuple(names),
            groups=None,
            lines=tuple(0 if r is None else self.lines[r] for r in rows),
            numbers=np.array(numbers).reshape(len(rows), self.numbers.shape[1]),
            categories=tuple(none if r is None else self.categories[r] for r in rows),
        )

    def _row(self, name: str) -> int | None:
        """Return the row of a bag or patient, after checking that all its lines agree."""
        if name not in self.rows_of:
            return None
        first, *others = self.rows_of[name]
        for other in others:
            for column, one, two in zip(
                self.options.columns, self._cells(first), self._cells(other), strict=True
            ):
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
    names: dict[str, list[str]] = {key: [] for key in keys}
    lines, numbers, categories = [], [], []
    for name, (line, cells) in table.by_name(keys[0], what).items():
        where = f"{path}, line {line}, {what} {name!r}"
        lines.append(line)
        for key in keys:
            names[key].append(cells[key] or name)
        numbers.append([_number(cells[c], c, where) for c in options.numeric])
        categories.append(tuple(cells[c] for c in options.categorical))
    return CovariateTable(
        path=path,
        options=options,
        bags=tuple(names["bag"]) if "bag" in names else None,
        groups=tuple(names["group"]) if "group" in names else None,
        lines=tuple(lines),
        numbers=np.array(numbers, dtype=np.float64).reshape(len(lines), len(options.numeric)),
        categories=tuple(categories),
    )


def _number(text: str, column: str, where: str) -> float:
    if not text:
        return float("nan")
    return read_number(
        text,
        f"the covariate {column!r}",
        where=where,
        advice=", or an empty cell if it is missing. If it holds categories, list it under "
        "categorical",
    )
