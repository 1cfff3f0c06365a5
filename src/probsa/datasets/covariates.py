"""Stage 5: clinical covariates, one row for each bag or patient, and their encoding as a vector.

Which columns are numbers and which are categories is said by the user and never guessed: a stage of
1–4 may be either. Numbers are standardised and categories are compared with the most frequent one,
so that zero stands for the average training patient's numbers and the most frequent categories.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from ..core import TextTable, as_paths, as_record, check_options, read_number
from ..errors import InputError, TableError, hint
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
        as_paths(self)
        for name in ("numeric", "categorical"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.covariates is not None and not self.columns:
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
    cells: Mapping[str, np.ndarray]
    """By column, a value for each row: a number, NaN if missing, or a text, empty if missing."""
    rows_of: Mapping[str, Sequence[int]]
    """The rows of each bag and of each patient of the file."""
    notes: tuple[str, ...] = ()
    """Which words were read as missing values, and in which lines."""

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
        # one more row, the last (−1), for bags and patients that have none
        lines = (*self.lines, 0)
        cells: dict[str, np.ndarray] = {}
        for column, values in self.cells.items():
            missing = np.nan if column in self.options.numeric else ""
            cells[column] = np.append(values, missing)[rows]
        return replace(
            self,
            names=tuple(names),
            lines=tuple(lines[row] for row in rows),
            cells=cells,
            rows_of={name: (row,) for row, name in enumerate(names)},
        )

    def _row(self, name: str) -> int:
        """Return the row of a bag or patient, −1 if it has none; all its lines must agree."""
        first, *others = self.rows_of.get(name, (-1,))
        for other, (column, values) in product(others, self.cells.items()):
            first_text = _cell_text(values[first])
            other_text = _cell_text(values[other])
            if first_text != other_text:
                raise TableError(
                    f"{self.path}: the lines of patient {name!r} disagree in {column!r}: line "
                    f"{self.lines[first]} has {first_text or 'no value'}, line "
                    f"{self.lines[other]} has {other_text or 'no value'}. Give a patient the same "
                    "covariates in each line"
                )
        return first


def _cell_text(value: str | float) -> str:
    """Return a covariate as text, empty if it is missing; equal numbers have the same text."""
    if isinstance(value, str):
        return value
    return "" if np.isnan(value) else f"{value:.12g}"


def read_covariates(path: Path | str, options: CovariateOptions) -> CovariateTable:
    """Read covariates from a CSV or TSV file with a column `bag` or `group`, or with both.

    An empty cell is a missing value, and so is a word for one (`is_missing`). With both columns,
    rows are found by bag and by patient.

    Raises:
        TableError: a column is missing or named twice, a bag or patient has no name, a bag (in a
            file of patients: a patient) has two lines, or a number is not finite; names the line.
    """
    path = Path(path)
    table = TextTable.read(path, expected="bag,… or group,… with the covariates").select(
        *options.columns, optional=("bag", "group"), synonyms=SYNONYMS
    )
    if "bag" in table.columns:
        key = "bag"
        noun = "bag"
        table = table.blank_missing((*options.columns, "group"))
    elif "group" in table.columns:
        key = "group"
        noun = "patient"
        table = table.blank_missing(options.columns)
    else:
        raise TableError(
            f"{path} has neither a column 'bag' nor 'group' (or patient, case_id), so its rows "
            "belong to no bag"
        )
    advice = (
        ", or an empty cell if it is missing. If it holds categories, list it under categorical"
    )
    rows = table.by_name(key, noun)
    values: dict[str, list[float | str]] = {column: [] for column in options.columns}
    rows_of: dict[str, list[int]] = {}
    for row, (name, (line, cells)) in enumerate(rows.items()):
        where = f"{path}, line {line}, {noun} {name!r}"
        for column in options.columns:
            cell = cells[column]
            if column not in options.numeric:
                values[column].append(cell)
            elif cell:
                role = f"the covariate {column!r}"
                values[column].append(read_number(cell, role, where=where, advice=advice))
            else:
                values[column].append(np.nan)
        patient = cells.get("group") or name
        # once where a bag has the name of its patient
        for key_of_row in dict.fromkeys((name, patient)):
            rows_of.setdefault(key_of_row, []).append(row)
    return CovariateTable(
        path=path,
        options=options,
        names=tuple(rows),
        lines=tuple(line for line, _ in rows.values()),
        cells={column: np.array(cells) for column, cells in values.items()},
        rows_of=rows_of,
        notes=table.missing_notes(),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class CovariateEncoder:
    """How covariates become numbers; `to_dict` gives it for a JSON file.

    A numeric column x becomes (x − mean) / sd, and 0 where it is missing; if it was missing in
    training, a column `x_missing` of 0 and 1 follows. A categorical column becomes one column of
    0 and 1 for each level but the first, and `x_missing` if it was missing in training.
    """

    numeric: tuple[str, ...]
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    """Population standard deviations of the observed training values."""
    categorical: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...]
    """Categories of each categorical column in training; the first, the most frequent one, is the
    reference."""
    missing: tuple[str, ...]
    """Columns that were missing for a training patient, and so have a column `x_missing`."""
    unknown_category: Literal["refuse", "as_missing"] = "refuse"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the d encoded columns: `age`, `age_missing`, `sex=f`, …"""
        columns = {column: [column] for column in self.numeric}
        for column, levels in zip(self.categorical, self.levels, strict=True):
            columns[column] = [f"{column}={level}" for level in levels[1:]]
        names: list[str] = []
        for column, encoded in columns.items():
            names += encoded
            if column in self.missing:
                names.append(f"{column}_missing")
        return tuple(names)

    def encode(self, rows: CovariateTable) -> Float[np.ndarray, "rows d"]:
        """Return the encoded rows of `CovariateTable.select`.

        A value that is missing here but never was in training is 0: the mean, or the most frequent
        category; `count_new_missing` counts these.

        Raises:
            InputError: the columns differ from those of training, or a category is unknown.
        """
        options = rows.options
        if (options.numeric, options.categorical) != (self.numeric, self.categorical):
            raise InputError(
                f"{rows.path}: the covariates are {', '.join(options.columns) or 'none'}, expected "
                f"{', '.join((*self.numeric, *self.categorical)) or 'none'} as in training"
            )
        blocks = [np.zeros((len(rows), 0))]
        for column, mean, sd in zip(self.numeric, self.means, self.deviations, strict=True):
            x = rows.cells[column]
            blocks.append(np.where(np.isnan(x), 0.0, (x - mean) / sd)[:, None])
            if column in self.missing:
                blocks.append(np.isnan(x)[:, None])
        for column, levels in zip(self.categorical, self.levels, strict=True):
            categories = self._categories(rows, column, levels)
            blocks += [(categories == level)[:, None] for level in levels[1:]]
            if column in self.missing:
                blocks.append((categories == "")[:, None])
        return np.concatenate(blocks, axis=1, dtype=np.float64)

    def count_new_missing(self, rows: CovariateTable) -> dict[str, int]:
        """Return how often each column is missing that no training patient lacked.

        Unknown categories that are treated as missing are counted, too.
        """
        counts = {column: int(np.isnan(rows.cells[column]).sum()) for column in self.numeric}
        for column, levels in zip(self.categorical, self.levels, strict=True):
            counts[column] = int((self._categories(rows, column, levels) == "").sum())
        return {c: n for c, n in counts.items() if n and c not in self.missing}

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-compatible values for `from_dict`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], *, where: str) -> "CovariateEncoder":
        """Return the encoder that `to_dict` stored in the file `where`.

        Raises:
            InputError: a value is missing or of another type.
        """
        return as_record(cls, stored, where=where, complete=True)

    def _categories(self, rows: CovariateTable, column: str, levels: Sequence[str]) -> np.ndarray:
        """Return the category of each row, empty if it is missing or unknown."""
        categories = rows.cells[column]
        is_known = np.isin(categories, levels)
        unknown = np.flatnonzero(~is_known & (categories != ""))
        if len(unknown) and self.unknown_category == "refuse":
            row = unknown[0]
            category = str(categories[row])
            raise InputError(
                f"{rows.path}, line {rows.lines[row]}, {rows.names[row]!r}: the covariate "
                f"{column!r} is {category!r}, which no training patient has. Known: "
                f"{', '.join(levels)}.{hint(category, levels)} Correct it, or set "
                "unknown_category to as_missing"
            )
        return np.where(is_known, categories, "")


def fit_encoder(table: CovariateTable, training_patients: Sequence[str]) -> CovariateEncoder:
    """Return the encoder whose means, standard deviations and levels are those of training.

    Args:
        table: The covariates.
        training_patients: The patients, each of whom counts once, however many slides they have.

    Raises:
        TableError: a patient has no row; or a column is empty or the same for all patients.
        InputError: there are no patients.
    """
    patients = list(dict.fromkeys(training_patients))
    if not patients:
        raise InputError("there are no training patients to fit the covariates to")
    rows = table.select(patients)
    options = table.options

    def constant(column: str, value: str) -> TableError:
        return TableError(
            f"{table.path}: the covariate {column!r} is {value} for all {len(patients)} training "
            "patients for whom it is known, so it says nothing: leave it out"
        )

    means: list[float] = []
    deviations: list[float] = []
    missing: list[str] = []
    for column in options.numeric:
        observed = rows.cells[column][~np.isnan(rows.cells[column])]
        if not len(observed):
            raise constant(column, "missing")
        if observed.min() == observed.max():
            raise constant(column, f"{observed[0]:g}")
        means.append(float(observed.mean()))
        deviations.append(float(observed.std()))
        if len(observed) < len(patients):
            missing.append(column)
    levels: list[tuple[str, ...]] = []
    for column in options.categorical:
        counts = Counter(rows.cells[column].tolist())
        missing_count = counts.pop("", 0)
        if not counts or (len(counts) == 1 and not missing_count):
            raise constant(column, next(iter(counts), "missing"))
        # the most frequent, the first by name of equals; then the others by name
        reference = min(counts, key=lambda level: (-counts[level], level))
        levels.append((reference, *sorted(set(counts) - {reference})))
        if missing_count:
            missing.append(column)
    return CovariateEncoder(
        numeric=options.numeric,
        means=tuple(means),
        deviations=tuple(deviations),
        categorical=options.categorical,
        levels=tuple(levels),
        missing=tuple(missing),
        unknown_category=options.unknown_category,
    )
