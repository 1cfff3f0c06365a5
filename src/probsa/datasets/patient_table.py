"""Stage 5: a table of slides as a table of patients, each with one target, fold and part."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from ..core import check_file_name
from ..errors import BagError, TableError
from .labels import LabelTable, select_rows


def patient_table(table: LabelTable) -> LabelTable:
    """Return the table with one row for each patient, in the order of their first slides.

    A patient is named by its group, which also is its bag's name (`PatientBags`). For regression,
    the quintiles by which splits are balanced become those of the patients.

    Raises:
        TableError: the table has no groups, or the slides of a patient disagree in the target, the
            fold or the part; names both lines and values.
    """
    rows = rows_by_patient(table)
    target = " and ".join(map(repr, table.target))
    columns: dict[str, Sequence[Any]] = {
        target: [_target(table, row) for row in range(len(table.bags))]
    }
    if table.folds is not None:
        columns["fold"] = table.folds
    if table.splits is not None:
        columns["split"] = [part or "unused" for part in table.splits]
    for patient, (first, *other_rows) in rows.items():
        try:
            check_file_name(patient)  # its predictions are files of this name
        except BagError as error:
            raise TableError(f"{table.where}, {table.place(first)}: its patient: {error}") from None
        for row, (column, values) in product(other_rows, columns.items()):
            if values[first] != values[row]:
                raise TableError(
                    f"{table.where}: the slides of patient {patient!r} disagree in {column}: "
                    f"{table.place(first)} has {values[first]}, {table.place(row)} has "
                    f"{values[row]}. With the unit 'patient' all its slides need the same; correct "
                    "one, or use the unit 'bag'"
                )
    patients = select_rows(table, [first for first, *_ in rows.values()])
    return replace(
        patients,
        bags=tuple(rows),
        groups=tuple(rows),
        labels=table.of_task.labels.bag_strata(patients.values),
    )


def rows_by_patient(table: LabelTable) -> dict[str, list[int]]:
    """Return the rows of each patient, in the order of their first slides.

    Raises:
        TableError: the table has no groups.
    """
    if table.groups is None:
        raise TableError(
            f"{table.where} does not say which slides belong to one patient: add a column 'group' "
            "with the patient of each slide, or use the unit 'bag'"
        )
    rows: dict[str, list[int]] = {}
    for row, patient in enumerate(table.groups):
        rows.setdefault(patient, []).append(row)
    return rows


def _target(table: LabelTable, row: int) -> str:
    """Return the target of a row as text, which is the same for equal targets only."""
    value = table.values[row]
    label = table.labels[row]
    if value is None or label is None:
        return "no label"
    if table.of_task.has_classes:
        return repr(table.classes[label])
    return ", ".join("unknown" if math.isnan(v) else repr(v).removesuffix(".0") for v in value)
