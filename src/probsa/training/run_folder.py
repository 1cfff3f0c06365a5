"""A run folder: what a training run leaves behind, and what lets it go on.

run.yaml       the resolved run file          split.json    which bag is in which part
about.json     versions, machine              metrics.csv   one row an epoch
notes.json     remarks on bags                features.json what the training bags state
checkpoints/   best.safetensors, last.safetensors
predictions/   evaluation.json   maps/        (written after training)
"""

import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import yaml

from ..core import write_csv, write_json, write_text
from ..errors import InputError, OutputExists
from ..models import arguments, names, original
from .config import RunConfig, plain
from .keys import load_yaml


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of a run."""

    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "run.yaml"

    @property
    def best(self) -> Path:
        """Checkpoint of the epoch with the best validation AUROC."""
        return self.path / "checkpoints" / "best.safetensors"

    @property
    def last(self) -> Path:
        """Checkpoint of the last epoch that ended."""
        return self.path / "checkpoints" / "last.safetensors"

    @property
    def split_file(self) -> Path:
        return self.path / "split.json"

    @property
    def features_file(self) -> Path:
        """What the features that it was trained on say of themselves."""
        return self.path / "features.json"

    @property
    def notes_file(self) -> Path:
        """What is worth knowing of single bags; only there if there is something."""
        return self.path / "notes.json"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.csv"

    @property
    def predictions(self) -> Path:
        return self.path / "predictions"

    @property
    def maps(self) -> Path:
        return self.path / "maps"

    def config(self) -> RunConfig:
        """The run that was started here.

        Raises:
            InputError: no run folder.
        """
        if not self.config_file.is_file():
            raise InputError(f"{self.path} is no run folder: it has no run.yaml")
        return RunConfig.from_dict(load_yaml(self.config_file, mention_old_names=False))

    def sweep(self) -> None:
        """Removes what a killed process had begun to write: files, and a folder of predictions."""
        for left in list(self.path.rglob(".*.tmp")):
            if left.is_dir():
                shutil.rmtree(left)
            else:
                left.unlink(missing_ok=True)

    def write_metrics(self, history: Sequence[Mapping[str, object]]) -> None:
        """metrics.csv, whole: a resumed run leaves no row of an epoch that was lost."""
        header = list(dict.fromkeys(k for row in history for k in row))
        write_csv(self.metrics_file, header, history)


def open_run(path: Path, config: RunConfig, *, resume: bool, overwrite: bool) -> RunFolder:
    """Starts a run folder, or opens the one to go on with.

    Raises:
        OutputExists: something is there, and neither `resume` nor `overwrite` was asked for.
        InputError: `resume` with another run file, or `overwrite` of what is no run folder.
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
                f"{path} exists: go on with --resume, start again with --overwrite, "
                "or give another --out"
            )
        if not folder.config_file.is_file():
            raise InputError(
                f"{path} is no run folder, so it is not overwritten: remove it yourself"
            )
        shutil.rmtree(path)
    path.mkdir(parents=True, exist_ok=True)
    # first of all files: what holds a run.yaml can be resumed
    write_text(folder.config_file, yaml.safe_dump(config.to_dict(), sort_keys=False))
    write_json(path / "about.json", metadata())
    return folder


def _same_run(folder: RunFolder, config: RunConfig) -> None:
    changed = differences(folder.config(), config)
    if changed:
        k, (there, given) = next(iter(changed.items()))
        raise InputError(
            f"{folder.path} was started with {k} = {there!r}, not {given!r}"
            f"{f' (and {len(changed) - 1} more)' if len(changed) > 1 else ''}: "
            "a resumed run keeps its run file; start another in another --out"
        )


FREE = frozenset({"training.device", "training.workers", "training.threads", "data.cache_gb"})
"""Where a run is computed, which is not what it computes."""


def differences(there: RunConfig, given: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Keys in which two runs differ, with both values; what is not given is its default.

    Where a run is computed (`FREE`) makes no difference.
    """
    one, other = _flat(there), _flat(given)
    keys = [k for k in {**one, **other} if k not in FREE and one.get(k) != other.get(k)]
    return {k: (one.get(k), other.get(k)) for k in keys}


def _flat(config: RunConfig) -> dict[str, Any]:
    values = config.to_dict()
    values["model"] = {**_defaults(config), **values["model"]}
    out: dict[str, Any] = {}
    for key, part in values.items():
        if isinstance(part, dict):
            out.update({f"{key}.{k}": v for k, v in part.items()})
        else:
            out[key] = part
    return out


def _defaults(config: RunConfig) -> dict[str, Any]:
    """What the model's arguments are where nobody gives them, as a run file holds them."""
    if config.model not in names():
        return {}
    known = arguments(config.model)
    found = {k: p.default for k, p in known.items() if p.default is not p.empty}
    if config.model_arguments.get("preset") == "original":
        found |= original(config.model)
    # read off the labels unless they are given
    read_off = ("n_classes", "class_weights", "seed")
    return {k: plain(v) for k, v in found.items() if k not in read_off}


def metadata() -> dict[str, Any]:
    """Versions and machine, for whoever reads the run later."""
    from .. import __version__

    return {
        "probsa": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
