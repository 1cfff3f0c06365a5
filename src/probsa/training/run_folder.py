"""A run folder: the results of a training run, and the state from which it is resumed.

run.yaml       the resolved run file          split.json    the part of each bag
about.json     versions, machine              metrics.csv   one row per epoch
notes.json, leaks.csv   remarks on bags       features.json, targets.json, covariates.json
checkpoints/   best.safetensors, last    recipe.json   how those were made, if they state it
members/<k>/   of an ensemble; later also predictions/, maps/, evaluation.json and other results
"""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml

from ..core import (
    Limits,
    TaskName,
    TextTable,
    as_paths,
    check_folder_place,
    check_no_link,
    files_matching,
    is_empty,
    open_output,
    read_json,
    read_record,
    remove_leftovers,
    remove_written_folder,
    write_csv,
    write_json,
    write_text,
)
from ..errors import CheckpointError, InputError, OutputExists, UnknownName
from ..removed import REMOVED
from .config import RunConfig, leaves, load_yaml, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
else:
    Axes = Any  # a folder that is no run is refused before Matplotlib or PyTorch are imported

PRETRAINED = "config.json"
"""File of a folder that `save_pretrained` wrote."""
ADVICE = "copy the run again, or train it again"


LOSSES = (("nll", "training", "--"), ("val_nll", "validation", "-"))
"""The columns of losses, and their names and line styles in a plot."""
MEMBER_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours of Okabe and Ito, which readers with any colour vision can tell apart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredThreshold:
    """The content of threshold.json."""

    threshold: Annotated[float, Limits(at_least=0, at_most=1)] | None
    """None without validation bags to choose it on, or for several findings."""
    findings: list[float] | None = None
    """One threshold for each finding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTargets:
    """The content of targets.json."""

    task: TaskName
    train: list[float] | list[list[float | None]]
    """The targets of the training bags, a number or a list each."""


class _Inside:
    """The path of a file or folder of a run folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: "RunFolder | None", owner: type | None = None) -> Path:
        return Path(self.name) if folder is None else folder.path / self.name


@dataclass(frozen=True)
class RunFolder:
    """The paths of a run's files."""

    path: Path

    def __post_init__(self) -> None:
        as_paths(self)

    config_file = _Inside("run.yaml")
    best = _Inside("checkpoints/best.safetensors")
    """The checkpoint with the weights that the rule `select` chose."""
    last = _Inside("checkpoints/last.safetensors")
    """The checkpoint of the last complete epoch."""
    targets_file = _Inside("targets.json")
    """What the training bags were labelled with, for tasks other than classes."""
    covariates_file = _Inside("covariates.json")
    """How clinical covariates are encoded, for runs that have some."""
    prior_file = _Inside("prior.json")
    """The shares of the classes, for runs whose loss treats all classes alike."""
    split_file = _Inside("split.json")
    features_file = _Inside("features.json")
    """Metadata of the features that the run was trained on."""
    recipe_file = _Inside("recipe.json")
    """How the training features were made from slides or scans, if they state it."""
    notes_file = _Inside("notes.json")
    """Remarks on single bags; the file exists only if there are any."""
    leaks_file = _Inside("leaks.csv")
    """Patients, bags and copies of bags in several parts; the file exists only if there are any."""
    threshold_file = _Inside("threshold.json")
    """p(Y = 1) from which the run calls a bag positive."""
    metrics_file = _Inside("metrics.csv")
    predictions = _Inside("predictions")
    map_score_file = _Inside("map_score.json")
    """Which score the run's maps show, and why."""
    temperature_file = _Inside("temperature.json")
    """The temperature of the predicted probabilities, if the run scales them."""
    distance_file = _Inside("training_distance.npz")
    """What distances from the training features are computed from, if the run has them."""
    maps = _Inside("maps")

    def members(self, count: int | None = None) -> tuple["RunFolder", ...]:
        """Return the folders of the members of an ensemble (`count`, if known); else the run's."""
        if count is None:
            count = self.config().training.members
        if count == 1:
            return (self,)
        return tuple(RunFolder(self.path / "members" / str(k)) for k in range(count))

    def config(self) -> RunConfig:
        """Read the configuration of the run; an InputError says that the folder holds none."""
        if not self.config_file.is_file():
            raise InputError(f"{self.path} is not a run folder: it has no run.yaml")
        values = load_yaml(self.config_file)
        try:
            return RunConfig.from_dict(values)
        except (InputError, UnknownName) as e:
            if isinstance(e, UnknownName) and e.removed:
                raise InputError(f"{self.config_file} is of an earlier version: {e}") from e
            raise InputError(f"{self.config_file} is damaged: {e}. Copy the run again") from e

    def seconds(self) -> float:
        """Return how long the epochs took, of all members together."""
        if not self.metrics_file.is_file():
            return 0.0
        rows = TextTable.read(self.metrics_file).rows
        return sum(float(row.get("seconds") or 0) for row in rows)

    def plot_training(self, ax: Axes | None = None) -> Axes:
        """Draw the losses of every epoch, with a colour for each member.

        Training is dashed and validation solid.

        Args:
            ax: the axes to draw on; None for pyplot's current ones.

        Returns:
            The axes.
        """
        import matplotlib.pyplot as plt

        ax = plt.gca() if ax is None else ax
        members = self.members()
        for k, member in enumerate(members):
            rows = TextTable.read(member.metrics_file).rows
            name = f"member {k + 1}, " if len(members) > 1 else ""
            epochs = [int(row["epoch"]) for row in rows]
            colour = MEMBER_COLOURS[k % len(MEMBER_COLOURS)]
            for column, part, style in LOSSES:
                if column in rows[0]:
                    loss = [float(row[column] or "nan") for row in rows]
                    ax.plot(epochs, loss, color=colour, ls=style, label=f"{name}{part}")
        ax.set(xlabel="epoch", ylabel="negative log-likelihood")
        ax.legend()
        return ax

    def thresholds(self) -> StoredThreshold | None:
        """Read the thresholds of the run; None before its predictions."""
        if not self.threshold_file.is_file():
            return None
        return read_record(StoredThreshold, self.threshold_file, advice=ADVICE)

    def write_metrics(self, history: Sequence[Mapping[str, object]]) -> None:
        """Rewrite metrics.csv without the rows of epochs that were lost."""
        header = list(dict.fromkeys(k for row in history for k in row))
        write_csv(self.metrics_file, header, history)


WRITTEN_BY_LIBRARIES = ("*tensorboard/events.out.tfevents.*", "*wandb/*")
"""Patterns of the files that TensorBoard and trackers write into a run folder."""
FILES_OF_A_RUN = (
    "about.json",
    "cell.json",
    "checkpoints/*.safetensors",
    "covariates.json",
    "evaluation.json",
    "features.json",
    "leaks.csv",
    "map_score.json",
    "mean_features.safetensors",
    "metrics.csv",
    "notes.json",
    "null_maps.*",
    "prior.json",
    "recipe.json",
    "run.yaml",
    "split.json",
    "targets.json",
    "temperature.json",
    "threshold.json",
    "tracker.json",
    "training_distance.*",
)
"""Patterns of the files that version 0.2 wrote for a run, or for a member of an ensemble."""
RESULTS_OF_A_RUN = ("predictions/**/*", "maps/*.png", "tensorboard/events.out.tfevents.*")
"""Patterns of the files that version 0.2 wrote for the whole run."""


def earlier_files(folder: Path) -> list[Path]:
    """List the files of a run folder that a version of probsa without ledgers wrote."""
    try:
        RunFolder(folder).config()
        about = read_json(folder / "about.json")
    except InputError:  # there is no run
        return []
    if not isinstance(about, dict) or "probsa" not in about:
        return []
    members = (f"members/*/{pattern}" for pattern in FILES_OF_A_RUN)
    return files_matching(folder, (*FILES_OF_A_RUN, *members, *RESULTS_OF_A_RUN))


def check_run_output(path: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that `open_run` cannot create or open; nothing is changed.

    Raises:
        OutputExists: it is not empty, and neither `resume` nor `overwrite` is set.
        InputError: it is not empty and holds no run.
    """
    folder = RunFolder(path)
    check_folder_place(path)
    if not path.exists() or is_empty(path):
        return
    if resume:
        if not folder.config_file.is_file():
            raise InputError(f"{path} is not empty and holds no run.yaml: nothing to resume")
        return
    if not overwrite:
        raise OutputExists(
            f"{path} exists: continue with --resume, start again with --overwrite, "
            "or give another --out"
        )
    if not folder.config_file.is_file():
        raise InputError(
            f"{path} is not a run folder, so it is not overwritten: remove it yourself"
        )
    check_no_link(path)


def check_trained(path: Path, *, checkpoint: Literal["best", "last"] = "best") -> None:
    """Refuse what is neither a trained run nor a saved model; no weights are read.

    Raises:
        InputError: the folder is no run, or its run file is damaged.
        CheckpointError: the run has no such checkpoint.
    """
    check_is_folder(path)
    if (path / PRETRAINED).is_file():
        return
    run = RunFolder(path)
    if not run.config_file.is_file() and (path / "predictions.csv").is_file():
        raise InputError(f"{path} holds predictions, not a run: give the run that made them")
    for member in run.members():
        file = member.best if checkpoint == "best" else member.last
        if not file.is_file():
            raise CheckpointError(
                f"there is no checkpoint {file}: train the run to its end with `probsa train "
                f"--out {path} --resume`"
            )


def check_is_folder(path: Path) -> None:
    """Refuse a file in place of a run, such as one that an earlier version converted.

    Raises:
        InputError: it is a file.
    """
    if path.is_file():
        raise InputError(
            f"{path} is a file: expected the folder of a run, or one that save_pretrained wrote. A "
            "model that `probsa convert-checkpoint` wrote is not read any more. Instead: "
            f"{REMOVED['convert_checkpoint']}"
        )


def open_run(
    path: Path, config: RunConfig, *, resume: bool, overwrite: bool, own: bool = True
) -> RunFolder:
    """Create a run folder, or open the one to resume; `overwrite` removes the run that is there.

    Args:
        path: the folder.
        config: the run.
        resume: whether to continue the run that is there.
        overwrite: whether to remove it.
        own: whether the folder keeps a ledger of its own, unlike a member of an ensemble.

    Raises:
        OutputExists: the folder is not empty, and neither `resume` nor `overwrite` is set; or it
            holds a file that probsa did not write.
        InputError: `resume` is set and the folder holds another run, or the folder is not empty
            and holds no run.
    """
    from .. import __version__

    folder = RunFolder(path)
    if resume and path.is_dir():
        remove_leftovers(path)
    if folder.config_file.is_file() and resume:
        changes = config_differences(folder.config(), config)
        if changes:
            key, (stored, requested) = next(iter(changes.items()))
            more = f" (and {len(changes) - 1} more)" if len(changes) > 1 else ""
            raise InputError(
                f"{path} was started with {key} = {stored!r}, not {requested!r}{more}: "
                "a resumed run keeps its run file; start another in another --out"
            )
        open_output(path, earlier=earlier_files, own=own, others=WRITTEN_BY_LIBRARIES)
        return folder
    check_run_output(path, resume=resume, overwrite=overwrite)
    if overwrite and path.exists() and not is_empty(path):
        remove_written_folder(path, earlier=earlier_files)
    import torch

    open_output(path, own=own, others=WRITTEN_BY_LIBRARIES)
    # written before all other files: a folder with a run.yaml can be resumed
    write_text(folder.config_file, yaml.safe_dump(config.to_dict(), sort_keys=False))
    about = {
        "probsa": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_json(path / "about.json", about)
    return folder


EXECUTION_KEYS = frozenset(
    {"training.device", "training.workers", "training.threads", "training.tracker"}
    | {"data.cache_gb", "data.max_bag_gb", "data.unlabelled"}
)
"""Settings that affect execution, not results. A run keeps its split, whatever is now done about
bags without a label."""


def config_differences(stored: RunConfig, requested: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Return the keys in which two runs differ, with both values.

    A missing key has its default value. Settings that only affect execution are ignored.
    """
    stored_values = _complete_values(stored)
    requested_values = _complete_values(requested)
    differences: dict[str, tuple[Any, Any]] = {}
    for key in {**stored_values, **requested_values}:
        pair = (stored_values.get(key), requested_values.get(key))
        if key not in EXECUTION_KEYS and pair[0] != pair[1]:
            differences[key] = pair
    return differences


def _complete_values(config: RunConfig) -> dict[str, Any]:
    """Return the plain values of a run by the full names of their keys, also model defaults."""
    from ..models import names
    from .runfile import run_keys

    values: dict[str, Any] = {}
    if config.model in names():
        preset = config.model_arguments.get("preset", "paper")
        for name, key in run_keys(config.model, preset).items():
            if key.section == "model":
                values[name] = plain(key.default)
    return {**values, **dict(leaves(config.to_dict()))}
