"""Models in folders with the file names of the Hugging Face Hub, which need no hub to be read.

config.json         model, arguments, classes, run, features, temperature, threshold
model.safetensors   weights and standardisation of each member
README.md           the model card, see `model_card`
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ..core import (
    PositiveFloat,
    PositiveInt,
    TaskName,
    UnitInterval,
    as_record,
    foreign,
    read_json,
    write_json,
    write_text,
)
from ..datasets import FeatureMetadata
from ..errors import CheckpointError, InputError, imports_from
from ..training import Checkpoint, load_checkpoint, save_checkpoint
from .storage import check_output

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
CARD = "README.md"
FORMAT = 1
AGAIN = "copy the folder again, or save the model again"
PARTS = ("model.", "standardize.")


@dataclass(frozen=True, kw_only=True, slots=True)
class PretrainedMember:
    """One model of a folder."""

    model: str
    arguments: dict[str, Any]
    prior_shift: tuple[float, ...] | None = None
    """What moves its probabilities to other shares of the classes; None for nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PretrainedConfig:
    """What config.json states; other keys are kept for those who wrote them."""

    library_name: str
    format: PositiveInt
    members: tuple[PretrainedMember, ...]
    classes: tuple[str, ...]
    task: TaskName = "binary"
    outputs: tuple[str, ...] = ()
    """What is predicted, and the names of the predicted columns; the arguments determine both."""
    features: FeatureMetadata | None = None
    run: dict[str, Any] | None = None
    """The run file, without paths; None if the predictor has none."""
    precision: str = "float32"
    temperature: PositiveFloat = 1.0
    threshold: UnitInterval | None = None
    about: dict[str, Any] | None = None
    """The origin of predictions, as predictions.json states it."""
    probsa_version: str = ""


def write_model(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], *, card: str
) -> Path:
    """Write the three files of a model into a folder, and return the folder.

    Raises:
        OutputExists: the folder holds other files.
    """
    check_output(folder, {CONFIG, WEIGHTS, CARD, ".git", ".gitattributes"}, owner="a model")
    for path in (folder / CARD, folder / WEIGHTS):
        if path.exists() and not (folder / CONFIG).is_file():  # there is no model yet
            raise foreign(path)
    save_checkpoint(folder / WEIGHTS, tensors, metadata={"members": len(config["members"])})
    write_text(folder / CARD, card)
    write_json(folder / CONFIG, config)  # last, because this file marks a folder as complete
    return folder


def read_model(folder: Path) -> tuple[PretrainedConfig, list[Checkpoint]]:
    """Read what `write_model` wrote: what config.json states, and the tensors of each member.

    Raises:
        InputError: config.json is missing or damaged.
        CheckpointError: the weights are damaged, or a tensor belongs to no member.
    """
    where = folder / CONFIG
    values = read_json(where, advice=AGAIN)
    config = as_record(PretrainedConfig, values, where=str(where), advice=AGAIN)
    problem = ""
    if config.library_name != "probsa":
        problem = f"is of {config.library_name!r}, not of a model of probsa"
    elif config.format > FORMAT:
        problem = f"has format {config.format}; this probsa reads up to {FORMAT}: update probsa"
    elif not config.members:
        problem = f"is damaged: it has no members. {AGAIN.capitalize()}"
    if problem:
        raise InputError(f"{where} {problem}")
    stored = load_checkpoint(folder / WEIGHTS)
    beginnings = [f"members.{k}.{part}" for k in range(len(config.members)) for part in PARTS]
    for name in stored.tensors:
        if not name.startswith(tuple(beginnings)):
            raise CheckpointError(
                f"{stored.path} has a tensor {name!r}, which is none of the model in {CONFIG}. "
                f"{AGAIN.capitalize()}"
            )
    members = [
        replace(stored, tensors=stored.part(f"members.{k}"), metadata=asdict(member))
        for k, member in enumerate(config.members)
    ]
    return config, members


def local_folder(source: Path | str, *, revision: str | None = None) -> Path:
    """Return the folder of a model, downloaded (or from the cache) if it names a repository.

    Raises:
        InputError: there is no such folder, or the repository cannot be reached.
        MissingExtra: huggingface_hub is not installed.
    """
    if Path(source).is_dir():
        return Path(source)
    name = str(source)
    if name.count("/") != 1 or name.startswith((".", "/", "~")) or Path(source).exists():
        raise InputError(
            f"there is no folder {name}: give one that save_pretrained wrote, or the name "
            "owner/name of a repository on the Hugging Face Hub"
        )
    with imports_from("hub", "huggingface_hub"):
        from huggingface_hub import snapshot_download
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=[CONFIG, WEIGHTS]))
    except (OSError, ValueError) as error:  # the hub's errors are among these
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"there is no folder {name}, and the repository of this name cannot be read "
            f"({reason}): check the name, the network and HF_HUB_OFFLINE"
        ) from error
