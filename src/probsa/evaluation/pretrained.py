"""Models in folders with the file names of the Hugging Face Hub, which need no hub to be read.

config.json         model, arguments, classes, run, features, temperature, threshold
model.safetensors   weights and standardisation of each member
README.md           the model card, see `model_card`
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..core import (
    PositiveFloat,
    PositiveInt,
    TaskName,
    UnitInterval,
    as_record,
    read_json,
    write_json,
    write_text,
)
from ..datasets import IN_MEMORY, FeatureMetadata
from ..errors import CheckpointError, InputError, MissingExtra, OutputExists
from ..models import Model
from ..training import (
    Checkpoint,
    RunConfig,
    Standardizer,
    load_checkpoint,
    restore_model,
    save_checkpoint,
)
from .model_card import CardFacts, facts_of, model_card
from .predictor import Ensemble, Predictor

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
FORMAT = 1
AGAIN = "copy the folder again, or save the model again"
PARTS = ("model.", "standardize.")
PRIVATE = ("runs", "training_targets")
"""Entries of the origin of predictions that stay where they are: paths and labels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PretrainedMember:
    """One model of a folder."""

    model: str
    arguments: dict[str, Any]
    prior_shift: tuple[float, ...] | None = None
    """What moves its probabilities to other shares of the classes; None for nothing."""

    @classmethod
    def of(cls, model: Model) -> "PretrainedMember":
        """Return what a folder states of a model."""
        shift = model.likelihood.prior_shift
        return cls(
            model=model.name,
            arguments=model.arguments,
            prior_shift=None if shift is None else tuple(shift.tolist()),
        )


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
    """The run file, without paths; None for a converted model."""
    precision: str = "float32"
    temperature: PositiveFloat = 1.0
    threshold: UnitInterval | None = None
    about: dict[str, Any] | None = None
    """The origin of predictions, as predictions.json states it."""
    probsa_version: str = ""


def write_pretrained(
    predictor: Predictor,
    folder: Path,
    *,
    facts: CardFacts | None = None,
    more: Mapping[str, Any] | None = None,
) -> Path:
    """Write a predictor into a folder, and return the folder.

    Args:
        predictor: the predictor.
        folder: new folder, or one that holds a model that was written before.
        facts: what the card says of data and results; None for what the predictor knows.
        more: further entries of config.json.

    Raises:
        OutputExists: the folder holds other files.
        InputError: the model has clinical covariates.
    """
    from .. import __version__

    _check_folder(folder)
    if predictor.model.covariates is not None:
        raise InputError(
            "a model with clinical covariates cannot be saved without the encoder of its run: "
            "give the run folder instead"
        )
    members = predictor.members if isinstance(predictor, Ensemble) else (predictor,)
    config = PretrainedConfig(
        library_name="probsa",
        format=FORMAT,
        members=tuple(PretrainedMember.of(m.model) for m in members),
        classes=predictor.classes,
        task=predictor.task,
        outputs=predictor.model.likelihood.outputs(predictor.classes),
        features=members[0].stated,
        run=None if predictor.config is None else _without_paths(predictor.config),
        precision=predictor.precision,
        temperature=float(predictor.temperature),
        threshold=_threshold(predictor),
        about={k: v for k, v in predictor.metadata.items() if k not in PRIVATE},
        probsa_version=__version__,
    )
    tensors = {}
    for k, member in enumerate(members):
        for prefix, module in zip(PARTS, (member.model, member.standardizer), strict=True):
            state = module.state_dict()
            tensors |= {f"members.{k}.{prefix}{name}": v for name, v in state.items()}
    facts = facts or facts_of(predictor)
    save_checkpoint(folder / WEIGHTS, tensors, metadata={"members": len(members)})
    write_text(folder / CARD, model_card(predictor, facts))
    # last, because this file marks a folder as complete
    write_json(folder / CONFIG, {**asdict(config), **(more or {})})
    return folder


def from_pretrained(
    source: Path | str, *, revision: str | None = None, device: str = "auto"
) -> Predictor:
    """Load the predictor that `write_pretrained` wrote.

    Args:
        source: the folder, or the name `owner/name` of a repository on the Hugging Face Hub.
        revision: commit of the repository; name one, so that results can be repeated.
        device: auto, cpu, cuda or mps.

    Raises:
        InputError: there is no such folder or repository, or config.json is damaged.
        CheckpointError: the weights are damaged, or a tensor is missing or not expected.
        MissingExtra: a repository is named, and huggingface_hub is not installed.
    """
    folder = local_folder(source, revision=revision)
    where = folder / CONFIG
    values = read_json(where, advice=AGAIN)
    config = as_record(PretrainedConfig, values, where=str(where), advice=AGAIN)
    if config.library_name != "probsa":
        raise InputError(f"{where} is of {config.library_name!r}, not of a model of probsa")
    if config.format > FORMAT:
        raise InputError(
            f"{where} has format {config.format}, but this probsa reads up to {FORMAT}: update "
            "probsa"
        )
    if not config.members:
        raise InputError(f"{where} is damaged: it has no members. {AGAIN.capitalize()}")
    run = None if config.run is None else RunConfig.from_dict(config.run)
    checkpoint = load_checkpoint(folder / WEIGHTS)
    _check_names(checkpoint, len(config.members))
    members = [
        _member(config, checkpoint, k, run=run, device=device) for k in range(len(config.members))
    ]
    predictor = members[0]
    if len(members) > 1:
        predictor = Ensemble(members, config=run, metadata=config.about)
    predictor.temperature = float(config.temperature)
    predictor.threshold = config.threshold
    return predictor


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
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
        )
    except ImportError as error:
        raise MissingExtra("huggingface_hub", "hub") from error
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=[CONFIG, WEIGHTS]))
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"there is no folder {name}, and the repository of this name cannot be read "
            f"({reason}): check the name, the network and HF_HUB_OFFLINE"
        ) from error


def _member(
    config: PretrainedConfig,
    checkpoint: Checkpoint,
    k: int,
    *,
    run: RunConfig | None,
    device: str,
) -> Predictor:
    own = Checkpoint(
        tensors=checkpoint.part(f"members.{k}"),
        metadata=asdict(config.members[k]),
        path=checkpoint.path,
    )
    model = restore_model(own, path=checkpoint.path)
    shift = config.members[k].prior_shift
    model.likelihood.prior_shift = None if shift is None else torch.tensor(shift)
    return Predictor(
        model,
        Standardizer.restored(own, in_dim=model.arguments.get("in_dim")),
        classes=config.classes,
        device=device,
        precision=config.precision,
        config=run,
        metadata=config.about,
        stated=config.features,
    )


def _check_names(checkpoint: Checkpoint, members: int) -> None:
    """Refuse tensors that belong to no member; `restore_model` compares those of each model."""
    known = tuple(f"members.{k}.{part}" for k in range(members) for part in PARTS)
    for name in checkpoint.tensors:
        if not name.startswith(known):
            raise CheckpointError(
                f"{checkpoint.path} has a tensor {name!r}, which is none of the model in "
                f"{CONFIG}. {AGAIN.capitalize()}"
            )


def _check_folder(folder: Path) -> None:
    own = {CONFIG, WEIGHTS, CARD, ".git", ".gitattributes"}
    foreign = sorted({p.name for p in folder.iterdir()} - own) if folder.is_dir() else []
    if folder.exists() and not folder.is_dir():
        raise OutputExists(f"{folder} is a file: give a new folder")
    if foreign:
        raise OutputExists(
            f"{folder} holds {foreign[0]!r}, which is no part of a model: give a new folder"
        )


def _without_paths(config: RunConfig) -> dict[str, Any]:
    """Return the run file without the paths of the machine that it was trained on."""
    data = replace(
        config.data, features=IN_MEMORY, labels=IN_MEMORY, split=None, instance_labels=None
    )
    return replace(config, data=data).to_dict()


def _threshold(predictor: Predictor) -> float | None:
    run = predictor.run
    if run is None or not run.threshold_file.is_file():
        return predictor.threshold
    return run.threshold()
