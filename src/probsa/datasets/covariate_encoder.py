"""Stage 5: clinical covariates as a vector, with scales and levels of the training patients alone.

Numbers are standardised and categories are compared with the most frequent one, so that zero stands
for the average patient's numbers and the most frequent categories.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from ..core import as_record
from ..errors import InputError, TableError, hint
from .covariates import CovariateTable


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
        own = {column: [column] for column in self.numeric}
        for column, levels in zip(self.categorical, self.levels, strict=True):
            own[column] = [f"{column}={level}" for level in levels[1:]]
        flags = {c: [f"{c}_missing"] if c in self.missing else [] for c in own}
        return tuple(name for c in own for name in (*own[c], *flags[c]))

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
        for k, column in enumerate(self.numeric):
            x = rows.numbers[:, k]
            scaled = (x - self.means[k]) / self.deviations[k]
            blocks.append(np.where(np.isnan(x), 0.0, scaled)[:, None])
            if column in self.missing:
                blocks.append(np.isnan(x)[:, None])
        for k, column in enumerate(self.categorical):
            given = np.array([self._known(rows, row, k) for row in range(len(rows))], dtype=str)
            shown = [*self.levels[k][1:], *([""] if column in self.missing else [])]
            blocks += [(given == level)[:, None] for level in shown]
        return np.concatenate(blocks, axis=1, dtype=np.float64)

    def count_new_missing(self, rows: CovariateTable) -> dict[str, int]:
        """Return how often each column is missing that no training patient lacked.

        Unknown categories that are treated as missing are counted, too.
        """
        counts = dict(zip(self.numeric, np.isnan(rows.numbers).sum(0).tolist(), strict=True))
        for k, column in enumerate(self.categorical):
            counts[column] = sum(not self._known(rows, row, k) for row in range(len(rows)))
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

    def _known(self, rows: CovariateTable, row: int, k: int) -> str:
        """Return the category in a row, empty if it is missing or unknown."""
        category, levels, column = rows.categories[row][k], self.levels[k], self.categorical[k]
        if not category or category in levels:
            return category
        if self.unknown_category == "as_missing":
            return ""
        raise InputError(
            f"{rows.path}, line {rows.lines[row]}, {rows.names[row]!r}: the covariate {column!r} "
            f"is {category!r}, which no training patient has. Known: {', '.join(levels)}."
            f"{hint(category, levels)} Correct it, or set unknown_category to as_missing"
        )


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
    rows, options = table.select(patients), table.options

    def constant(column: str, shown: str) -> TableError:
        return TableError(
            f"{table.path}: the covariate {column!r} is {shown} for all {len(patients)} training "
            "patients for whom it is known, so it says nothing: leave it out"
        )

    means, deviations, missing = [], [], []
    for k, column in enumerate(options.numeric):
        observed = rows.numbers[~np.isnan(rows.numbers[:, k]), k]
        if not len(observed) or observed.min() == observed.max():
            shown = f"{observed[0]:g}" if len(observed) else "missing"
            raise constant(column, shown)
        means.append(float(observed.mean()))
        deviations.append(float(observed.std()))
        if len(observed) < len(patients):
            missing.append(column)
    levels = []
    for k, column in enumerate(options.categorical):
        counts = Counter(given[k] for given in rows.categories)
        lacking = counts.pop("", 0)
        if not counts or (len(counts) == 1 and not lacking):
            raise constant(column, next(iter(counts), "missing"))
        # the most frequent, the first by name of equals; then the others by name
        reference = min(counts, key=lambda level: (-counts[level], level))
        levels.append((reference, *sorted(set(counts) - {reference})))
        if lacking:
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
