"""Stage 8: the clinical covariates of a run, encoded on its training patients."""

from collections.abc import Sequence
from pathlib import Path

import torch

from ..core import read_json
from ..datasets import (
    BagSet,
    CovariateEncoder,
    CovariateTable,
    LabelTable,
    fit_encoder,
    read_covariates,
)
from .config import DataConfig
from .run_folder import RunFolder


def fit_covariates(
    data: DataConfig, bags: BagSet, table: LabelTable, *, train: Sequence[str]
) -> CovariateEncoder | None:
    """Fit the encoder on the training patients, and give every labelled bag its covariates.

    Args:
        data: the data section of the run.
        bags: the bags of the run.
        table: their labels, which name the patients.
        train: the training bags.

    Returns:
        The encoder; None for a run without covariates.

    Raises:
        TableError: a bag has no row, or a column is constant or of another kind.
    """
    if not data.covariates.columns:
        return None
    covariates = read_covariates(data.covariates.covariates or data.labels, data.covariates)
    patients = {table.group(table.bags.index(name)): name for name in reversed(train)}
    encoder = fit_encoder(covariates, _keys(covariates, tuple(patients.values()), table))
    _give(bags, encoder, covariates.select(_keys(covariates, table.bags, table)), table.bags)
    return encoder


def attach_covariates(
    run: RunFolder,
    bags: BagSet,
    *,
    names: Sequence[str],
    table: LabelTable | None,
    path: Path | None = None,
) -> dict[str, int]:
    """Give bags their covariates, encoded as those of a trained run.

    Args:
        run: the folder of the run.
        bags: the bags to predict.
        names: which of them get covariates.
        table: what names their patients; None if a row is found by the bag alone.
        path: the table of covariates; None for that of the run.

    Returns:
        How often each column is missing that no training patient lacked.

    Raises:
        TableError: a bag has no row.
        InputError: a category is unknown, or the run's encoder is missing or damaged.
    """
    data = run.config().data
    if not data.covariates.columns:
        return {}
    advice = "copy the run again, or train it again"
    stored = read_json(run.covariates_file, advice=advice)
    encoder = CovariateEncoder.from_dict(stored, where=str(run.covariates_file))
    covariates = read_covariates(path or data.covariates.covariates or data.labels, data.covariates)
    return _give(bags, encoder, covariates.select(_keys(covariates, names, table)), names)


def _give(
    bags: BagSet,
    encoder: CovariateEncoder,
    rows: CovariateTable,
    names: Sequence[str],
) -> dict[str, int]:
    encoded = torch.from_numpy(encoder.encode(rows)).float()
    bags.covariates = dict(zip(names, encoded, strict=True))
    return encoder.count_new_missing(rows)


def _keys(
    covariates: CovariateTable, names: Sequence[str], table: LabelTable | None
) -> tuple[str, ...]:
    """Return under which name the row of each bag is found: its own, or that of its patient."""
    if table is None:
        return tuple(names)
    groups = {bag: table.group(row) for row, bag in enumerate(table.bags)}
    return tuple(n if n in covariates.rows_of else groups.get(n, n) for n in names)
