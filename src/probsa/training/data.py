"""Stage 8: the bags, labels and covariates of a run, and other data with the run's settings.

The unit of a run is a bag (a slide or a scan), or a patient with all of their slides.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from ..core import max_bag_gb, read_json
from ..datasets import (
    BagSet,
    CovariateEncoder,
    CovariateTable,
    LabelTable,
    PatientBags,
    fit_encoder,
    open_bags,
    patient_table,
    read_covariates,
    read_table,
)
from ..errors import InputError
from .config import DataConfig
from .run_folder import ADVICE, RunFolder


def read_labels(data: DataConfig, *, path: Path | None = None) -> LabelTable:
    """Read the labels of a run, or another table with its classes, whose bags need no label.

    Raises:
        TableError: the table is invalid.
    """
    return read_table(
        path or data.labels,
        classes=data.classes,
        target=data.targets,
        covariates=data.covariates.columns,
        labels_required=path is None,
    )


def open_data(data: DataConfig, *, features: Path | None = None) -> BagSet:
    """Open the bags of a run, or those of another folder with the run's settings."""
    # instance labels belong to the rows of the run's own features
    is_own_folder = features is None or features.resolve() == data.features.resolve()
    return open_bags(
        features or data.features,
        graph=data.graph,
        cache_gb=data.cache_gb,
        features=data.feature_set,
        instance_labels=data.instance_labels if is_own_folder else None,
        max_bag_gb=max_bag_gb(data.max_bag_gb),
    )


def open_units(
    data: DataConfig, *, features: Path | None = None, labels: Path | None = None
) -> tuple[BagSet, LabelTable]:
    """Open the bags of a run, or other bags, and their labels, in the unit of the run.

    Slides of a patient that have a line but no bag are left out, and noted. Bags of another table
    need no label.

    Raises:
        TableError: the table cannot be used, or says nothing of patients that are needed.
    """
    bags, table = open_data(data, features=features), read_labels(data, path=labels)
    if data.targets.unit != "patient":
        return bags, table
    return PatientBags(bags, table, missing="leave_out"), patient_table(table)


def need_table(data: DataConfig, labels: Path | None) -> None:
    """Refuse to predict patients without a table that says which slides belong to whom.

    Raises:
        InputError: the unit of the run is the patient, and there is no table.
    """
    if data.targets.unit == "patient" and labels is None:
        raise InputError(
            "the run was trained on patients: give --labels with a line for each slide and its "
            "patient in the column 'group'; labels may be empty"
        )


def fit_covariates(
    data: DataConfig, bags: BagSet, table: LabelTable, *, train: Sequence[str]
) -> CovariateEncoder | None:
    """Fit the encoder on the training patients, and give every labelled bag its covariates.

    Return None for a run without covariates.

    Raises:
        TableError: a bag has no row, or a column is constant or of another kind.
    """
    if not data.covariates.columns:
        return None
    covariates = read_covariates(data.covariates.covariates or data.labels, data.covariates)
    patients = {table.group(table.bags.index(name)): name for name in reversed(train)}
    encoder = fit_encoder(covariates, _row_names(covariates, tuple(patients.values()), table))
    _encode(bags, encoder, covariates, names=table.bags, table=table)
    return encoder


def attach_covariates(
    run: RunFolder,
    bags: BagSet,
    *,
    names: Sequence[str],
    table: LabelTable | None,
    path: Path | None = None,
) -> dict[str, int]:
    """Give bags to predict their covariates, encoded as those of a trained run.

    Return how often each column is missing that no training patient lacked.

    Args:
        run: the folder of the run.
        bags: the bags to predict.
        names: which of them get covariates.
        table: what names their patients; None if a row is found by the bag alone.
        path: the table of covariates; None for that of the run.

    Raises:
        TableError: a bag has no row.
        InputError: a category is unknown, or the run's encoder is missing or damaged.
    """
    data = run.config().data
    if not data.covariates.columns:
        return {}
    stored = read_json(run.covariates_file, advice=ADVICE)
    encoder = CovariateEncoder.from_dict(stored, where=str(run.covariates_file))
    covariates = read_covariates(path or data.covariates.covariates or data.labels, data.covariates)
    return _encode(bags, encoder, covariates, names=names, table=table)


def _encode(
    bags: BagSet,
    encoder: CovariateEncoder,
    covariates: CovariateTable,
    *,
    names: Sequence[str],
    table: LabelTable | None,
) -> dict[str, int]:
    rows = covariates.select(_row_names(covariates, names, table))
    encoded = torch.from_numpy(encoder.encode(rows)).float()
    bags.covariates = dict(zip(names, encoded, strict=True))
    return encoder.count_new_missing(rows)


def _row_names(
    covariates: CovariateTable, names: Sequence[str], table: LabelTable | None
) -> tuple[str, ...]:
    """Return under which name the row of each bag is found: its own, or that of its patient."""
    if table is None:
        return tuple(names)
    groups = {bag: table.group(row) for row, bag in enumerate(table.bags)}
    return tuple(n if n in covariates.rows_of else groups.get(n, n) for n in names)
