"""Stage 8: the bags of a run in its unit: slides or scans, or patients with all of their slides."""

from pathlib import Path

from ..core import max_bag_gb
from ..datasets import (
    BagSet,
    LabelTable,
    PatientBags,
    drop_bags,
    open_bags,
    patient_table,
    read_table,
)
from ..errors import InputError
from .config import DataConfig


def read_labels(data: DataConfig, *, path: Path | None = None) -> LabelTable:
    """Read the labels of a run, or another table with the run's classes and targets.

    Args:
        data: the data section of the run.
        path: the other table, whose bags need no label; None for that of the run.

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
    """Open the bags of a run, or other bags with the run's settings.

    Args:
        data: the data section of the run.
        features: folder of the other bags, or None for those of the run.
    """
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

    Slides of a patient that have a line but no bag are left out, and noted.

    Args:
        data: the data section of the run.
        features: folder of the other bags; None for those of the run.
        labels: table of the other bags; None for that of the run. Its bags need no label.

    Raises:
        TableError: the table cannot be used, or says nothing of patients that are needed.
    """
    bags, table = open_data(data, features=features), read_labels(data, path=labels)
    if data.targets.unit != "patient":
        return bags, table
    return PatientBags(bags, table, missing="leave_out"), patient_table(table)


def as_units(
    data: DataConfig, bags: BagSet, table: LabelTable
) -> tuple[BagSet, LabelTable, tuple[str, ...]]:
    """Return bags and labels in the unit of a run, and the patients without a usable slide.

    Args:
        data: the data section of the run.
        bags: the slides.
        table: their labels, a line per slide.

    Raises:
        TableError: a slide is missing and may not be, or slides of a patient disagree.
    """
    if data.targets.unit != "patient":
        return bags, table, ()
    patients = PatientBags(bags, table, missing=data.targets.missing)
    whole = patient_table(table)
    return patients, drop_bags(whole, patients.without_slides), patients.without_slides


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
