"""Open the bags, labels and covariates that a run reads, in its own data or in others.

The unit of a run is a bag (a slide or a scan), or a patient with all of their slides.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from ..cohorts import PatchSet, Record
from ..core import hdf5_files, max_bag_gb, optional_path, read_json
from ..datasets import (
    BagSet,
    CovariateEncoder,
    CovariateTable,
    LabelTable,
    PatientBags,
    fit_encoder,
    last_part,
    match_bags,
    open_bags,
    patient_table,
    read_covariates,
    without_suffix,
)
from ..errors import InputError
from .config import DataConfig
from .given import chosen_set, read_label_table
from .run_folder import ADVICE, RunFolder


def read_labels(
    data: DataConfig, bags: BagSet | None = None, *, path: Path | None = None
) -> LabelTable:
    """Read the labels of a run, or another table with its classes.

    Args:
        data: The settings of the run, which say whether every bag needs a label.
        bags: Bags to match: an identifier in the table that is the path or the file name of a bag
            is replaced by the name of the bag.
        path: Another table; None: that of the run.

    Raises:
        TableError: the table is invalid.
    """
    table = read_label_table(data, path)
    return table if bags is None else match_bags(table, known_names(bags))


def known_names(bags: BagSet) -> set[str]:
    """Return the names of bags, and of slides beside them that have no features."""
    records = PatchSet(bags.folder.parent).record_files("patch")
    return {*bags.names, *(file.stem for file in records)}


def open_data(data: DataConfig, *, features: Path | str | None = None) -> BagSet:
    """Open the bags of a run, or those of another folder with the run's settings."""
    features = optional_path(features)
    # instance labels belong to the rows of the run's own features
    is_own_folder = features is None or features.resolve() == data.features.resolve()
    return open_bags(
        features or data.features,
        graph=data.graph,
        cache_gb=data.cache_gb,
        features=chosen_set(data, features or data.features),
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
    bags = open_data(data, features=features)
    table = read_labels(data, bags, path=labels)
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


def note_missing_features(table: LabelTable, bags: BagSet) -> tuple[str, ...]:
    """Return labelled bags for which the work folder records why they have no features.

    The reasons are added to the notes.
    """
    with_features = set(bags.names)
    reasons: dict[str, str] = {}
    patches = PatchSet(bags.folder.parent)
    for name in table.bags:
        if name in with_features or last_part(name) != name:
            continue  # a path is no name of a bag; the check of the table's lines reports it
        for stage in ("patch", bags.folder.name):
            record = Record.read(patches.record(stage, name))
            if record is not None and record.name == name and record.status != "done":
                status = record.status.replace("_", " ")
                reasons[name] = f"it has no features ({status}: {record.reason})"
                break  # the first stage that did not succeed is the reason
    bags.leave_out(reasons)
    return tuple(reasons)


def slides_to_extract(bags: BagSet) -> tuple[str, ...]:
    """Return the slides of the work folder that have patches, but no file of features yet."""
    extracted = {file.stem for file in hdf5_files(bags.folder)}
    records = PatchSet(bags.folder.parent).records("patch")
    return tuple(r.name for r in records if r.status == "done" and r.name not in extracted)


def run_covariates(data: DataConfig) -> CovariateTable | None:
    """Read the covariates of a run; None for a run without."""
    if not data.covariates.columns:
        return None
    return read_covariates(data.covariates.covariates or data.labels, data.covariates)


def fit_covariates(
    covariates: CovariateTable, bags: BagSet, table: LabelTable, *, train: Sequence[str]
) -> CovariateEncoder:
    """Fit the encoder on the training patients, and give every labelled bag its covariates.

    Raises:
        TableError: a bag has no row, or a column is constant or of another kind.
    """
    # a patient counts once, by their first bag: in reverse, it is the last to be assigned
    bag_of_patient = {table.group(table.bags.index(name)): name for name in reversed(train)}
    row_names = _row_names(covariates, tuple(bag_of_patient.values()), table)
    encoder = fit_encoder(covariates, row_names)
    rows = covariates.select(_row_names(covariates, table.bags, table))
    _set_covariates(bags, table.bags, encoder.encode(rows))
    return encoder


def attach_covariates(
    run: RunFolder,
    bags: BagSet,
    *,
    names: Sequence[str],
    table: LabelTable | None,
    path: Path | None = None,
) -> dict[str, int]:
    """Give bags their covariates, encoded as in a trained run.

    Args:
        run: The folder of the run.
        bags: The bags to predict.
        names: Names of the bags that get covariates.
        table: The table that names their patients; None to find rows by the names of bags alone.
        path: The table of covariates; None for that of the run.

    Returns:
        For each column that no training patient lacked, how many of these bags lack it.

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
    rows = covariates.select(_row_names(covariates, names, table))
    _set_covariates(bags, names, encoder.encode(rows))
    return encoder.count_new_missing(rows)


def _set_covariates(bags: BagSet, names: Sequence[str], encoded: np.ndarray) -> None:
    """Give bags their encoded covariates, one row per name."""
    values = torch.from_numpy(encoded).float()
    bags.covariates = dict(zip(names, values, strict=True))


def _row_names(
    covariates: CovariateTable, names: Sequence[str], table: LabelTable | None
) -> tuple[str, ...]:
    """Return under which name the row of each bag is found: its own, or that of its patient."""
    patients: dict[str, str] = {}
    if table is not None:
        patients = {bag: table.group(row) for row, bag in enumerate(table.bags)}
    bag_of_file = without_suffix(covariates.names, names, where=str(covariates.path))
    file_of_bag = {bag: file for file, bag in bag_of_file.items()}
    row_names: list[str] = []
    for name in names:
        if name in covariates.rows_of:
            row_names.append(name)
        else:
            row_names.append(file_of_bag.get(name, patients.get(name, name)))
    return tuple(row_names)
