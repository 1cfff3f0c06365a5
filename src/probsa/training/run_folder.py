"""A run folder: the results of a training run, and the state from which it is resumed.

run.yaml       the resolved run file          split.json    the part of each bag
about.json     versions, machine              metrics.csv   one row per epoch
notes.json     remarks on bags                features.json, targets.json, covariates.json
checkpoints/   best.safetensors, last    recipe.json   how those were made, if they state it
members/<k>/   of an ensemble; later also predictions/, maps/, evaluation.json and other results
"""

import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import torch
import yaml

from ..core import Limits, TaskName, read_record, write_csv, write_json, write_text
from ..errors import InputError, OutputExists, UnknownName
from ..models import arguments, names, original
from .config import RunConfig, plain
from .yaml_files import load_yaml


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredThreshold:
    """The content of threshold.json."""

    threshold: Annotated[float, Limits(at_least=0, at_most=1)] | None
    chosen: str = ""
    """How it was chosen."""
    findings: list[float] | None = None
    """One threshold for each finding, for runs of several findings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTargets:
    """The content of targets.json."""

    task: TaskName
    train: list[float] | list[list[float | None]]
    """The targets of the training bags, a number or a list each."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The paths of a run's files."""

    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "run.yaml"

    @property
    def best(self) -> Path:
        """The checkpoint with the weights that the rule `select` chose."""
        return self.path / "checkpoints" / "best.safetensors"

    @property
    def last(self) -> Path:
        """The checkpoint of the last complete epoch."""
        return self.path / "checkpoints" / "last.safetensors"

    @property
    def targets_file(self) -> Path:
        """What the training bags were labelled with, for tasks other than classes."""
        return self.path / "targets.json"

    @property
    def covariates_file(self) -> Path:
        """How clinical covariates are encoded, for runs that have some."""
        return self.path / "covariates.json"

    @property
    def prior_file(self) -> Path:
        """The shares of the classes, for runs whose loss treats all classes alike."""
        return self.path / "prior.json"

    @property
    def split_file(self) -> Path:
        return self.path / "split.json"

    @property
    def features_file(self) -> Path:
        """Metadata of the features that the run was trained on."""
        return self.path / "features.json"

    @property
    def recipe_file(self) -> Path:
        """How the training features were made from slides or scans, if they state it."""
        return self.path / "recipe.json"

    @property
    def notes_file(self) -> Path:
        """Remarks on single bags; the file exists only if there are any."""
        return self.path / "notes.json"

    @property
    def threshold_file(self) -> Path:
        """p(Y = 1) from which the run calls a bag positive."""
        return self.path / "threshold.json"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.csv"

    @property
    def predictions(self) -> Path:
        return self.path / "predictions"

    @property
    def map_score_file(self) -> Path:
        """Which score the run's maps show, and why."""
        return self.path / "map_score.json"

    @property
    def temperature_file(self) -> Path:
        """The temperature of the predicted probabilities, if the run scales them."""
        return self.path / "temperature.json"

    @property
    def distance_file(self) -> Path:
        """What distances from the training features are computed from, if the run has them."""
        return self.path / "training_distance.npz"

    @property
    def maps(self) -> Path:
        return self.path / "maps"

    def members(self) -> tuple["RunFolder", ...]:
        """Return the run folders of the members of an ensemble; of another run, itself."""
        count = self.config().training.members
        if count == 1:
            return (self,)
        return tuple(RunFolder(self.path / "members" / str(k)) for k in range(count))

    def config(self) -> RunConfig:
        """Read the configuration of the run.

        Raises:
            InputError: the folder holds no run.
        """
        if not self.config_file.is_file():
            raise InputError(f"{self.path} is not a run folder: it has no run.yaml")
        values = load_yaml(self.config_file)
        try:
            return RunConfig.from_dict(values)
        except (InputError, UnknownName) as e:
            raise InputError(f"{self.config_file} is damaged: {e}. Copy the run again") from e

    def threshold(self) -> float | None:
        """Read the threshold of the run; None if it had no validation bags to choose one on.

        Raises:
            InputError: the file is missing or damaged.
        """
        advice = "copy the run again, or train it again"
        return read_record(StoredThreshold, self.threshold_file, advice=advice).threshold

    def finding_thresholds(self) -> list[float] | None:
        """Return the threshold of each finding; None for other tasks, and before predictions."""
        if not self.threshold_file.is_file():
            return None
        advice = "predict again"
        return read_record(StoredThreshold, self.threshold_file, advice=advice).findings

    def sweep(self) -> None:
        """Remove temporary files and folders that a killed process left behind."""
        for path in list(self.path.rglob(".*.tmp")):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def write_metrics(self, history: Sequence[Mapping[str, object]]) -> None:
        """Rewrite metrics.csv without the rows of epochs that were lost."""
        header = list(dict.fromkeys(k for row in history for k in row))
        write_csv(self.metrics_file, header, history)


def open_run(path: Path, config: RunConfig, *, resume: bool, overwrite: bool) -> RunFolder:
    """Create a run folder, or open the one to resume.

    Args:
        path: the folder.
        config: the run.
        resume: continue the run that is there, if any.
        overwrite: remove the run that is there, if any.

    Raises:
        OutputExists: the folder is not empty, and neither `resume` nor `overwrite` is set.
        InputError: `resume` is set and the folder holds another run, or the folder is not empty
            and holds no run.
    """
    folder = RunFolder(path)
    if resume and path.is_dir():
        folder.sweep()
    if folder.config_file.is_file() and resume:
        _same_run(folder, config)
        return folder
    if path.exists() and any(path.iterdir()):
        if resume:
            raise InputError(f"{path} is not empty and holds no run.yaml: nothing to resume")
        if not overwrite:
            raise OutputExists(
                f"{path} exists: continue with --resume, start again with --overwrite, "
                "or give another --out"
            )
        if not folder.config_file.is_file():
            raise InputError(
                f"{path} is not a run folder, so it is not overwritten: remove it yourself"
            )
        shutil.rmtree(path)
    path.mkdir(parents=True, exist_ok=True)
    # written before all other files: a folder with a run.yaml can be resumed
    write_text(folder.config_file, yaml.safe_dump(config.to_dict(), sort_keys=False))
    write_json(path / "about.json", metadata())
    return folder


def _same_run(folder: RunFolder, config: RunConfig) -> None:
    changes = config_differences(folder.config(), config)
    if changes:
        key, (stored, requested) = next(iter(changes.items()))
        raise InputError(
            f"{folder.path} was started with {key} = {stored!r}, not {requested!r}"
            f"{f' (and {len(changes) - 1} more)' if len(changes) > 1 else ''}: "
            "a resumed run keeps its run file; start another in another --out"
        )


EXECUTION_KEYS = frozenset(
    {
        "training.device",
        "training.workers",
        "training.threads",
        "training.tracker",
        "data.cache_gb",
        "data.max_bag_gb",
    }
)
"""Settings that affect execution, not results."""


def config_differences(stored: RunConfig, requested: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Return the keys in which two runs differ, with both values.

    A missing key has its default value. Settings that only affect execution are ignored.
    """
    one, other = _flat(stored), _flat(requested)
    keys = [k for k in {**one, **other} if k not in EXECUTION_KEYS and one.get(k) != other.get(k)]
    return {k: (one.get(k), other.get(k)) for k in keys}


def _flat(config: RunConfig) -> dict[str, Any]:
    values = config.to_dict()
    values["model"] = {**_defaults(config), **values["model"]}
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat.update({f"{key}.{k}": v for k, v in value.items()})
        else:
            flat[key] = value
    return flat


def _defaults(config: RunConfig) -> dict[str, Any]:
    """Return the default arguments of the run's model, in the form of a run file."""
    if config.model not in names():
        return {}
    parameters = arguments(config.model)
    defaults = {k: p.default for k, p in parameters.items() if p.default is not p.empty}
    if config.model_arguments.get("preset") == "original":
        defaults |= original(config.model)
    # their values follow from the labels and the seed of the run
    from_run = ("n_classes", "class_weights", "seed")
    return {k: plain(v) for k, v in defaults.items() if k not in from_run}


def metadata() -> dict[str, Any]:
    """Return versions and machine, as about.json records them."""
    from .. import __version__

    return {
        "probsa": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
