"""Load what runs have fitted: predictors, null maps, and distances; of several runs their means."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Int

from ..core import read_record, remove_written, write_json
from ..datasets import FeatureMetadata
from ..errors import CheckpointError, InputError
from ..tasks import TASKS
from ..training import (
    Checkpoint,
    RunConfig,
    RunFolder,
    Standardizer,
    StoredPredictor,
    StoredTargets,
    check_is_folder,
    load_checkpoint,
    progress_of,
    read_split,
    restore_model,
    stored_prior,
)
from ..variational import Bernoulli, Categorical, Findings, Likelihood
from .baselines.distance import TrainingDistance
from .baselines.null_maps import NullMaps, null_maps_file
from .ensemble import MeansOfRuns
from .metadata import PredictionsMetadata
from .prediction import Prediction
from .predictor import Ensemble, Predictor
from .pretrained import CONFIG, local_folder, read_model
from .storage import PREDICTIONS_TABLE
from .temperature import Temperature, fit_temperature, scale_prediction

T = TypeVar("T")


def load(folder: Path | str, *, checkpoint: str = "best", device: str = "auto") -> Predictor:
    """Load the predictor of a run folder, which is an `Ensemble` if it has several members.

    Args:
        folder: folder of a training run, or one that `save_pretrained` wrote.
        checkpoint: the checkpoint of a run: `best` (chosen by `select`) or `last`.
        device: auto, cpu, cuda or mps.

    Raises:
        InputError: the folder is not a run folder; one of predictions names `read_predictions`.
        CheckpointError: the checkpoint is missing, damaged or not one of this package.
    """
    path = Path(folder)
    check_is_folder(path)
    run = RunFolder(path)
    if not run.config_file.is_file() and (path / CONFIG).is_file():
        return from_pretrained(path, device=device)
    if not run.config_file.is_file() and (path / PREDICTIONS_TABLE).is_file():
        raise InputError(
            f"{path} holds predictions, not a run: read them with "
            "probsa.evaluation.read_predictions, or give the run that made them"
        )
    config = run.config()
    if checkpoint not in ("best", "last"):
        raise CheckpointError(f"checkpoint is {checkpoint!r}: expected 'best' or 'last'")
    if config.training.members > 1:
        members = [load(m.path, checkpoint=checkpoint, device=device) for m in run.members()]
        metadata = _metadata_of_members(config.model, [member.metadata for member in members])
        predictor = Ensemble(members, config=config, metadata=metadata)
    else:
        stored = load_checkpoint(run.best if checkpoint == "best" else run.last)
        predictor = _restored(
            stored,
            expect=config.model,
            classes=stored.stated(StoredPredictor).classes,
            device=device,
            precision=config.training.precision,
            config=config,
            stated=FeatureMetadata.read(run.features_file),
        )
        monitored = dict(predictor.model.monitored())
        predictor.metadata = PredictionsMetadata(
            model=config.model,
            epoch=progress_of(stored).epoch,
            kappa=monitored.pop("kappa", None),
            more=monitored,
        )
    predictor.run = run
    prior = None
    for member in predictor.members:
        prior = _move_prior(member.model.likelihood, run, config)
    predictor.metadata = _with_target(
        replace(predictor.metadata, prior=prior), predictor, run, config
    )
    if run.temperature_file.is_file():
        advice = "remove it to predict without it, or copy the run again"
        fitted = read_record(Temperature, run.temperature_file, advice=advice)
        predictor.temperature = float(fitted.temperature)
        predictor.metadata = replace(predictor.metadata, temperature=predictor.temperature)
    thresholds = run.thresholds()
    if thresholds is not None:
        predictor.threshold = thresholds.threshold
    return predictor


def _metadata_of_members(model: str, members: Sequence[PredictionsMetadata]) -> PredictionsMetadata:
    """Return what is known of an ensemble of one run: epoch and κ of each member."""
    epochs = [member.epoch for member in members if isinstance(member.epoch, int)]
    kappas = [member.kappa for member in members if isinstance(member.kappa, float)]
    return PredictionsMetadata(
        model=model,
        members=len(members),
        epoch=tuple(epochs) or None,
        kappa=tuple(kappas) or None,
    )


def _restored(stored: Checkpoint, *, expect: str | None = None, **options: Any) -> Predictor:
    """Return the predictor of a checkpoint; `options` are those of `Predictor`."""
    model = restore_model(stored, expect=expect)
    standardizer = Standardizer.restored(stored, in_dim=model.arguments.get("in_dim"))
    predictor = Predictor(model, standardizer, **options)
    names = predictor.classes
    task = TASKS[predictor.task]
    count = max(predictor.model.n_classes, 2) if task.unordered_classes else len(names)
    if task.has_classes and not len(names) == len(set(names)) == count:
        raise CheckpointError(
            f"{stored.path} states the classes {', '.join(names) or '(none)'} for a model of "
            f"{count} classes: expected a different name for each. Copy the file again, or train "
            "again"
        )
    return predictor


def _move_prior(likelihood: Likelihood, run: RunFolder, config: RunConfig) -> str | None:
    """Move probabilities from the shares of classes in the training loss to those of the run.

    Returns:
        How they were moved, in a sentence; None if nothing is said of the shares.
    """
    prior = stored_prior(run)
    if prior is not None:
        if not isinstance(likelihood, Bernoulli | Categorical):
            return "probabilities are not adjusted: the loss is no class likelihood"
        likelihood.prior_shift = prior.shift(one_logit=isinstance(likelihood, Bernoulli))
        return prior.sentence()
    if not isinstance(likelihood, Findings) or likelihood.positive_weights is None:
        return None
    if not config.training.prior_correction:
        return "the loss weights findings, which raises the probability of rare ones"
    likelihood.prior_shift = -torch.log(likelihood.positive_weights)
    return "probabilities are moved back from weighted to training shares of findings"


def _with_target(
    metadata: PredictionsMetadata, predictor: Predictor, run: RunFolder, config: RunConfig
) -> PredictionsMetadata:
    """Add what predictions state of their target, with which they can be evaluated alone.

    These are the columns of the target, the unit and the covariates, where they are not the usual;
    for tasks without classes also the training targets, with which null rivals and weights of
    censoring are computed, and for findings the threshold of each.
    """
    data = config.data
    task = TASKS[predictor.task]
    training_targets = thresholds = None
    if not task.unordered_classes:
        stored = read_record(StoredTargets, run.targets_file, advice="train the run again")
        training_targets = stored.train
    chosen = run.thresholds() if task.has_findings else None
    if chosen is not None and chosen.findings is not None:
        thresholds = tuple(chosen.findings)
    return replace(
        metadata,
        target=tuple(data.targets.columns or ()),
        unit="patient" if data.targets.unit == "patient" else None,
        covariates=tuple(data.covariates.columns),
        training_targets=training_targets,
        thresholds=thresholds,
    )


def from_pretrained(
    source: Path | str, *, revision: str | None = None, device: str = "auto"
) -> Predictor:
    """Load the predictor that `save_pretrained` wrote.

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
    config, checkpoints = read_model(folder)
    metadata = PredictionsMetadata.of(config.about or {}, where=str(folder / CONFIG))
    run = None if config.run is None else RunConfig.from_dict(config.run)
    members = []
    for stored, about in zip(checkpoints, config.members, strict=True):
        member = _restored(
            stored,
            classes=config.classes,
            device=device,
            precision=config.precision,
            config=run,
            metadata=metadata,
            stated=config.features,
        )
        if about.prior_shift is not None:
            member.model.likelihood.prior_shift = torch.tensor(about.prior_shift)
        members.append(member)
    predictor = members[0]
    if len(members) > 1:
        predictor = Ensemble(members, config=run, metadata=metadata)
    predictor.temperature = float(config.temperature)
    predictor.threshold = config.threshold
    return predictor


def scale_run(
    run: RunFolder,
    predictor: Predictor,
    validation: Sequence[Prediction],
    *,
    y: Int[np.ndarray, " bags"],
) -> list[Prediction]:
    """Fit and store the temperature of a run that asks for one; return scaled predictions.

    Args:
        run: the run, whose earlier temperature is replaced or removed.
        predictor: its predictor, which scales its predictions from now on.
        validation: unscaled predictions of the validation bags.
        y: their class indices.
    """
    predictor.metadata = replace(predictor.metadata, temperature=None)
    if not run.config().training.temperature_scaling or not validation:
        remove_written(run.temperature_file)
        return list(validation)
    p = np.stack([p.probability for p in validation]).astype(np.float64)
    fitted = fit_temperature(y, p)
    write_json(run.temperature_file, asdict(fitted))
    predictor.temperature = fitted.temperature
    predictor.metadata = replace(predictor.metadata, temperature=fitted.temperature)
    return [scale_prediction(p, temperature=fitted.temperature) for p in validation]


def load_several(
    folders: Sequence[Path | str], *, checkpoint: str = "best", device: str = "auto"
) -> Ensemble:
    """Load runs as one ensemble, in which no bag is predicted by a run that has seen it.

    A run has seen the bags of its training and validation parts. Bags that its split does not list
    are new to it. The temperature of the ensemble is the geometric mean of those of the runs, and
    its threshold the mean, if each has one.

    Args:
        folders: run folders.
        checkpoint: `best` or `last`, as for `load`.
        device: auto, cpu, cuda or mps.

    Raises:
        InputError: the runs differ in classes, features, graph or the kind of their scores, or a
            run is given twice.
    """
    folders = [Path(folder) for folder in folders]
    resolved = [folder.resolve() for folder in folders]
    for k, folder in enumerate(resolved):
        if folder in resolved[:k]:
            raise InputError(f"the run {folder} is given twice")
        runs_above = set(folder.parents) & set(resolved)
        if runs_above:
            raise InputError(
                f"{folder} is a member of the run {runs_above.pop()}, which is also given: give "
                "one of them"
            )
    runs = [load(folder, checkpoint=checkpoint, device=device) for folder in folders]
    first = runs[0]
    traits = _traits(first)
    for folder, run in zip(folders, runs, strict=True):
        for trait, value in _traits(run).items():
            if traits.get(trait, value) != value:
                raise InputError(
                    f"{folders[0]} and {folder} cannot be combined: their {trait} differ "
                    f"({traits[trait]} and {value})"
                )
    if TASKS[first.task].averages != "runs":
        raise InputError(
            f"runs of the task {first.task} cannot be combined: quantiles have no common mean, and "
            "each run chose its own survival times. Predict with each run separately"
        )
    members: list[Predictor] = []
    seen_by_member: list[frozenset[str]] = []
    for run, seen_bags in zip(runs, _seen(folders), strict=True):
        members += run.members
        seen_by_member += [seen_bags] * len(run.members)
    models = {run.metadata.model for run in runs}
    ensemble = Ensemble(
        members,
        seen=seen_by_member,
        config=next((run.config for run in runs if run.config is not None), None),
        metadata=PredictionsMetadata(
            model=models.pop() if len(models) == 1 else None,
            runs=tuple(map(str, folders)),
            members=len(members),
            target=first.metadata.target,
            unit=first.metadata.unit,
            covariates=first.metadata.covariates,
            prior=first.metadata.prior,
        ),
    )
    ensemble.temperature = float(np.exp(np.mean(np.log([run.temperature for run in runs]))))
    thresholds = [run.threshold for run in runs if run.threshold is not None]
    if len(thresholds) == len(runs):
        ensemble.threshold = sum(thresholds) / len(runs)
    if ensemble.temperature != 1:
        ensemble.metadata = replace(ensemble.metadata, temperature=ensemble.temperature)
    return ensemble


def _seen(folders: Sequence[Path]) -> tuple[frozenset[str], ...]:
    """Return the bags that each run was trained or validated on; none if it has no split."""
    seen: list[frozenset[str]] = []
    for run in map(RunFolder, folders):
        if run.split_file.is_file():
            split = read_split(run)
            seen.append(frozenset((*split.train, *split.val)))
        else:
            seen.append(frozenset())
    return tuple(seen)


def _traits(run: Predictor) -> dict[str, Any]:
    """Return what runs must have in common, by the name that a message gives it."""
    traits: dict[str, Any] = {
        "tasks": run.task,
        "classes": ", ".join(run.classes),
        "numbers of features per instance": run.model.arguments.get("in_dim"),
        "numbers of outputs": run.model.n_classes,
        "kinds of instance scores": run.model.score_kind,
    }
    if run.config is not None:
        data = run.config.data
        traits["graphs"] = data.graph
        traits["feature sets"] = data.feature_set
        traits["targets"] = data.targets
        traits["covariates"] = data.covariates
    return traits


def null_maps_of(runs: Sequence[Path]) -> NullMaps | MeansOfRuns | None:
    """Return the null maps of a run or of several runs; None if a run has none.

    Raises:
        CheckpointError: a file is damaged.
    """
    return _means(runs, null_maps_file, NullMaps.load)


def distances_of(runs: Sequence[Path]) -> TrainingDistance | MeansOfRuns | None:
    """Return the distances from training of a run or of several runs; None if a run has none.

    Raises:
        InputError: a file is damaged.
    """
    return _means(runs, lambda run: RunFolder(run).distance_file, TrainingDistance.read)


def _means(
    runs: Sequence[Path], file_of: Callable[[Path], Path], read: Callable[[Path], T]
) -> T | MeansOfRuns | None:
    """Return what one run has fitted, or the means of what several have; None if one lacks it."""
    files = [file_of(run) for run in runs]
    if not all(file.is_file() for file in files):
        return None
    fitted = tuple(map(read, files))
    return fitted[0] if len(fitted) == 1 else MeansOfRuns(runs=fitted, seen=_seen(runs))
