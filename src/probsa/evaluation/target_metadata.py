"""What the predictions of a run state of its targets, with which they can be evaluated alone."""

from typing import Any

from ..core import TaskName, read_record
from ..tasks import task_of
from ..training import RunConfig, RunFolder, StoredTargets


def target_metadata(run: RunFolder, config: RunConfig, *, task: TaskName) -> dict[str, Any]:
    """Return the columns of the target, the unit and the covariates, where they are not the usual.

    For tasks without classes also the training targets, with which null rivals and weights of
    censoring are computed, and for findings the threshold of each.

    Raises:
        InputError: a file of the run is missing or damaged.
    """
    data, stated = config.data, dict[str, Any]()
    if data.targets.columns is not None:
        stated["target"] = list(data.targets.columns)
    if data.targets.unit == "patient":
        stated["unit"] = "patient"
    if data.covariates.columns:
        stated["covariates"] = list(data.covariates.columns)
    if not task_of(task).unordered_classes:
        stored = read_record(StoredTargets, run.targets_file, advice="train the run again")
        stated["training_targets"] = stored.train
    if task_of(task).has_findings and (thresholds := run.finding_thresholds()) is not None:
        stated["thresholds"] = thresholds
    return stated
