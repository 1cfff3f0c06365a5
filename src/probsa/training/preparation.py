"""Stage 8: prepare what a run learns from: bags, labels, split, covariates and likelihood.

Class weights, means and standard deviations are computed on the training part only. The unit of a
run is a bag (a slide or a scan), or a patient with all of their slides.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..cohorts import FeatureRecipe, PatchSet, Record
from ..core import (
    Bags,
    counted,
    hdf5_files,
    max_bag_gb,
    optional_path,
    read_json,
    read_record,
    seed_of,
    write_json,
)
from ..datasets import (
    SPLIT_PARTS,
    BagNotes,
    BagSet,
    CovariateEncoder,
    CovariateTable,
    FeatureMetadata,
    LabelTable,
    PatientBags,
    Split,
    bags_without_label,
    check_enough_match,
    check_labels_match,
    check_training_part,
    drop_bags,
    fit_encoder,
    last_part,
    make_split,
    match_bags,
    open_bags,
    patient_table,
    read_clam_split,
    read_covariates,
    read_notes,
    without_suffix,
    write_notes,
)
from ..errors import CheckpointError, GraphError, InputError, OneClass, TableError
from ..models import Model, arguments, build, check_task, look_up
from ..statistics import choose_threshold
from ..tasks import Target, Task
from ..variational import LikelihoodSpec, balanced_weights, fit_spec
from .checkpoints import Checkpoint
from .config import DEFAULT_RULE, DataConfig, RunConfig, TrainingConfig
from .given import chosen_set, read_label_table
from .run_folder import ADVICE, RunFolder


def read_labels(
    data: DataConfig, bags: BagSet | None = None, *, path: Path | None = None
) -> LabelTable:
    """Read the labels of a run, or another table with its classes.

    Bags need a label only in a run that refuses those without. With bags, ids that are theirs but
    for folders or the suffix of a file become theirs.

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
    patients = {table.group(table.bags.index(name)): name for name in reversed(train)}
    encoder = fit_encoder(covariates, _row_names(covariates, tuple(patients.values()), table))
    _encode(bags, encoder, covariates, names=table.bags, table=table)
    return encoder


def attach_covariates(
    run: RunFolder,
    bags: BagSet,
    *,
    names: Sequence[str],
    table: LabelTable | None,
    path: Path | None = None,
) -> dict[str, int]:
    """Give bags to predict their covariates, encoded as those of a trained run.

    Return how often each column is missing that no training patient lacked.

    Args:
        run: the folder of the run.
        bags: the bags to predict, of which `names` get covariates.
        names: names of bags.
        table: what names their patients; None if a row is found by the bag alone.
        path: the table of covariates; None for that of the run.

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
    return _encode(bags, encoder, covariates, names=names, table=table)


def _encode(
    bags: BagSet,
    encoder: CovariateEncoder,
    covariates: CovariateTable,
    *,
    names: Sequence[str],
    table: LabelTable | None,
) -> dict[str, int]:
    rows = covariates.select(_row_names(covariates, names, table))
    encoded = torch.from_numpy(encoder.encode(rows)).float()
    bags.covariates = dict(zip(names, encoded, strict=True))
    return encoder.count_new_missing(rows)


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


MOST_WEIGHT = 20.0
"""Largest weight of the positive bags of a rare finding."""


def targets_of(table: LabelTable) -> dict[str, Target]:
    """Return the target of every labelled bag."""
    labels = table.of_task.labels
    targets: dict[str, Target] = {}
    for bag, value in zip(table.bags, table.values, strict=True):
        if value is not None:
            targets[bag] = labels.model_target(value)
    return targets


def fit_likelihood(config: RunConfig, table: LabelTable, split: Split) -> LikelihoodSpec | None:
    """Return the likelihood of a run, fitted on its training bags; None for classes.

    Raises:
        InputError: the model cannot learn the task, an option does not suit it, or the training
            bags do not determine the likelihood or lack a class, finding or event (`TableError`).
    """
    check_task(config.model, table.task)
    _check_options(config, table)
    check_training_part(table, split)
    if table.of_task.unordered_classes:
        return None
    train = split.train
    y = stack_targets(targets_of(table), train)
    spec = fit_spec(
        table.task,
        y,
        n_classes=len(table.classes),
        options=config.data.likelihood,
        one_logit=look_up(config.model).model.one_field,
    )
    if table.of_task.has_findings and config.training.balanced:
        negative_bags = (y == 0).sum(0)
        positive_bags = (y == 1).sum(0)
        weights = (negative_bags / positive_bags).clamp(max=MOST_WEIGHT)
        spec = replace(spec, positive_weights=tuple(weights.tolist()))
    return spec


def stack_targets(targets: Mapping[str, Target], names: Sequence[str]) -> Tensor:
    """Return the targets of some bags: (bags,) int64 or float64, or (bags, targets) float64."""
    y = torch.tensor([targets[name] for name in names])
    return y.double() if y.is_floating_point() else y


def as_two_classes(table: LabelTable, train: Sequence[str]) -> dict[str, int]:
    """Return classes in place of the targets of all labelled bags, to fit null maps on.

    Classes and grades stay. Otherwise class 1 has any finding, the event, or a number above the
    median of the training bags.
    """
    names = [bag for bag, value in zip(table.bags, table.values, strict=True) if value is not None]
    classes = table.of_task.labels.as_two_classes(table.y(names), table.y(train))
    return dict(zip(names, classes.tolist(), strict=True))


def _check_options(config: RunConfig, table: LabelTable) -> None:
    """Refuse options that do not suit the task or the model, or contradict each other."""
    training = config.training
    task = table.of_task
    if training.threshold != DEFAULT_RULE:
        # a rule that cannot be read is refused before the run trains
        choose_threshold(np.array([True, False]), np.array([0.9, 0.1]), rule=training.threshold)
    problem = next(_unsuitable_options(training, task), None)
    if problem is not None:
        raise InputError(f"{problem}, and the task is {task.name}: leave it out")
    if training.sampling == "balanced":
        if training.balanced:
            raise InputError(
                "both `balanced` (weights in the loss) and `sampling: balanced` (draws every class "
                "equally often) are set, but each corrects the class shares alone: remove one"
            )
        if look_up(config.model).model.fits_directly:
            raise InputError(
                f"sampling: balanced draws bags for gradient steps, but {config.model} is fitted "
                "in one go: leave it out"
            )
    if training.prevalence is not None:
        _check_prevalence(training.prevalence, count=max(2, len(table.classes)))


def _unsuitable_options(training: TrainingConfig, task: Task) -> Iterator[str]:
    """Yield a sentence for each option that has no meaning for the task."""
    has_classes = task.unordered_classes
    if training.threshold != DEFAULT_RULE and not task.two_classes:
        yield f"threshold {training.threshold!r} is for two classes"
    if training.sampling == "balanced" and not has_classes:
        yield "sampling: balanced is for classes"
    if training.prevalence is not None and not has_classes:
        yield "prevalence is for classes"
    if training.balanced and not (has_classes or task.has_findings):
        yield "balanced weights the loss of classes"
    if training.temperature_scaling and not has_classes:
        yield "temperature_scaling scales the probabilities of classes"
    if training.members > 1 and task.averages is None:
        yield "members above 1 average predictions, but quantiles cannot be averaged"


def _check_prevalence(shares: Sequence[float], *, count: int) -> None:
    """Refuse shares that are not one for each class, positive, with the sum 1."""
    if len(shares) != count or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
        raise InputError(
            f"prevalence is {list(shares)}: expected {count} shares above 0 that add up to 1"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassPrior:
    """The shares of the classes in training, in the loss, and in the predictions (`prior.json`)."""

    training: list[float]
    """π: the shares of the training bags."""
    effective: list[float]
    """π': those that weights or sampling imply."""
    predicted: list[float] | None
    """Those that predictions are moved to; None to leave them at the effective ones."""

    def shift(self, *, one_logit: bool) -> Tensor | None:
        """Return what is added to the logits: log π*_c/π'_c; for one logit, the log odds ratio."""
        if self.predicted is None:
            return None
        ratios = [math.log(p / q) for p, q in zip(self.predicted, self.effective, strict=True)]
        # one logit is the log odds of class 1
        shifts = [ratios[1] - ratios[0]] if one_logit else ratios
        return torch.tensor(shifts, dtype=torch.float64)

    def sentence(self) -> str:
        """Return what a report says of it."""
        if self.predicted is None:
            return "probabilities refer to equally frequent classes, as in the training loss"
        before = ", ".join(f"{share:.3g}" for share in self.effective)
        after = ", ".join(f"{share:.3g}" for share in self.predicted)
        return f"probabilities are adjusted from class shares {before} (in the loss) to {after}"


def class_prior(config: RunConfig, table: LabelTable, split: Split) -> ClassPrior | None:
    """Return the prior of a run whose loss treats all classes alike, or with a `prevalence`.

    It is None for other runs, and if a class has no training bag.
    """
    if not table.of_task.unordered_classes:
        return None
    training = config.training
    classes = max(2, len(table.classes))
    y = stack_targets(targets_of(table), split.train).numpy()
    counts = np.bincount(y, minlength=classes)
    if not counts.all():
        return None
    shares = (counts / len(split.train)).tolist()
    effective = shares
    if training.balanced or training.sampling == "balanced":
        effective = [1 / classes] * classes
    if training.prevalence is not None:
        predicted = list(training.prevalence)
    elif effective == shares:
        return None
    else:
        predicted = shares if training.prior_correction else None
    return ClassPrior(training=shares, effective=effective, predicted=predicted)


def stored_prior(run: RunFolder) -> ClassPrior | None:
    """Return the prior of a run folder; None if it has none."""
    if not run.prior_file.is_file():
        return None
    return read_record(ClassPrior, run.prior_file, advice=ADVICE)


TEST_PART = "it is in the test part, which must not be used in training or validation"


class Standardizer(nn.Module):
    """Standardise each feature: (x − mean) / std. Without statistics, return bags unchanged."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Tensor | None = None, deviation: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(0) if mean is None else mean)
        self.register_buffer("deviation", torch.ones(0) if deviation is None else deviation)

    def forward(self, bags: Bags) -> Bags:
        if len(self.mean) == 0:
            return bags
        return replace(bags, x=(bags.x - self.mean) / self.deviation)

    @classmethod
    def restored(cls, checkpoint: Checkpoint, *, in_dim: int | None) -> "Standardizer":
        """Return the standardisation that a checkpoint holds, of `in_dim` features.

        Raises:
            CheckpointError: it is missing, or does not fit the model.
        """
        tensors = checkpoint.part("standardize")
        absent = torch.zeros(1, 1)  # a shape that fits no model
        mean = tensors.get("mean", absent)
        std = tensors.get("deviation", absent)
        fits = mean.shape == std.shape and tuple(mean.shape) in ((0,), (in_dim,))
        is_finite = all(v.is_floating_point() and v.isfinite().all() for v in (mean, std))
        if not fits or not is_finite or (std <= 0).any():
            raise CheckpointError(
                f"{checkpoint.path} is damaged: its means and deviations of the features are not "
                f"finite numbers for {in_dim} features. Copy the file again, or train the run again"
            )
        return cls(mean, std)

    @classmethod
    def fit(cls, bags: BagSet, names: tuple[str, ...]) -> "Standardizer":
        """Compute the statistics of the instances of some bags, read one at a time, in float64.

        A feature that is constant keeps its scale.
        """
        n = 0
        mean = torch.zeros(())
        squares = torch.zeros(())
        for name in names:
            x = bags.bag(name).x.double()
            # Chan's update keeps sums of squares about the running mean and avoids cancellation
            m = len(x)
            delta = x.mean(0) - mean
            squares = squares + (x - x.mean(0)).square().sum(0) + delta.square() * n * m / (n + m)
            mean = mean + delta * m / (n + m)
            n += m
        std = (squares / n).sqrt()
        is_constant = std <= 1e-6 * mean.abs().clamp_min(1e-6)
        std = torch.where(is_constant, torch.ones_like(std), std)
        return cls(mean.float(), std.float())


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedData:
    """The data that a run trains on."""

    bags: BagSet
    """All bags; those of the test part cannot be read."""
    table: LabelTable
    split: Split
    targets: dict[str, Target]
    """What each labelled bag is trained on."""
    model_arguments: dict[str, Any]
    """Arguments of the model that follow from the data: in_dim, and n_classes and class_weights or,
    for other tasks than classes, the likelihood."""
    standardizer: Standardizer
    feature_metadata: FeatureMetadata
    """Metadata of the training bags' features."""
    encoder: CovariateEncoder | None = None
    """How clinical covariates are encoded; None for a run without."""
    prior: ClassPrior | None = None
    """The shares of the classes that predictions refer to, where the loss treats all alike."""
    left_out: tuple[str, ...] = ()
    """Labelled bags without features or instances; the notes give the reasons."""
    unlabelled: tuple[str, ...] = ()
    """Bags with features that are left out as they have no label."""
    notes: tuple[str, ...] = ()
    """What users should know about how the covariates were read."""

    def write(self, folder: RunFolder) -> None:
        """Write the split, what is known of the features, and the notes on bags to the folder."""
        recipe = FeatureRecipe.of_features(self.bags.folder, self._training_files())
        write_json(folder.split_file, self.split.to_dict())
        write_json(folder.features_file, self.feature_metadata.to_dict())
        if self.prior is not None:
            write_json(folder.prior_file, asdict(self.prior))
        if self.encoder is not None:
            write_json(folder.covariates_file, self.encoder.to_dict())
        if not self.table.of_task.unordered_classes:
            targets = [_as_json(self.targets[name]) for name in self.split.train]
            write_json(folder.targets_file, {"task": self.table.task, "train": targets})
        if recipe is not None:
            write_json(folder.recipe_file, recipe.to_dict())
        if self.bags.notes:
            self._write_notes(folder.notes_file)

    def _training_files(self) -> tuple[str, ...]:
        """Return the names of the files that hold the training bags: slides, also of patients."""
        train = self.split.train
        if not isinstance(self.bags, PatientBags):
            return train
        return tuple(slide for patient in train for slide in self.bags.slides_of(patient))

    def _write_notes(self, file: Path) -> None:
        """Write the notes on bags, with those of an earlier process.

        A resumed run does not read every bag again, and would lose them.
        """
        earlier: BagNotes = {}
        if file.is_file():
            advice = "remove it to continue without the earlier remarks"
            earlier = read_notes(file, advice=advice)
        write_notes(file, earlier | self.bags.notes)


def _as_json(target: Target) -> Any:
    """Return a target as JSON has it: null for NaN, the mark of a missing value among several."""
    if not isinstance(target, tuple):
        return target
    return [None if math.isnan(value) else value for value in target]


def prepare(config: RunConfig, *, previous: Path | str | None = None) -> PreparedData:
    """Open and check the data of a run; `previous` is a run folder whose split is used again.

    Raises:
        TableError: labels, bags and split do not fit one another.
        InputError: as `prepare_bags`.
    """
    previous = optional_path(previous)
    bags = open_data(config.data)
    try:
        table = read_labels(config.data, bags)
    except OneClass as error:
        without = counted(len({*bags.names} - error.bags), "bag")
        raise TableError(f"{error}: {without} of {bags.folder} have no label") from None
    full_table = table
    unlabelled = bags_without_label(table, bags.names)
    table = drop_bags(table, _lines_without_label(table, config.data))
    if not table.bags:
        raise TableError(f"{table.where} has no label in any of its lines: give labels to train on")
    left_out = note_missing_features(table, bags)
    present = drop_bags(table, left_out)
    if config.data.targets.missing == "leave_out":
        check_enough_match(present, bags.names)
        without_bag = tuple(sorted(set(present.bags) - set(bags.names)))
        bags.leave_out(dict.fromkeys(without_bag, "it has a line, but no bag"))
        present = drop_bags(present, without_bag)
        left_out += without_bag
    _match(present, bags, allow_unlabelled=config.data.unlabelled == "leave_out")
    if config.data.targets.unit == "patient":
        # with all lines of a patient, the remarks can name the slides that are missing
        all_lines = table if config.data.targets.missing == "leave_out" else present
        bags = PatientBags(bags, all_lines, missing=config.data.targets.missing)
        table = patient_table(all_lines)
        full_table = patient_table(full_table)
        left_out = bags.without_slides
    else:
        table = present
    left_out += bags.empty()
    table = drop_bags(table, left_out)
    split = _split(config, table, full_table=full_table, previous=previous)
    prepared = prepare_bags(config, bags, table=table, split=split, left_out=left_out)
    return replace(prepared, unlabelled=unlabelled)


def _lines_without_label(table: LabelTable, data: DataConfig) -> tuple[str, ...]:
    """Return the bags of lines without a label, which are left out of training.

    A patient of whom a slide has a label keeps all slides, so that slides that disagree are found.
    """
    if data.unlabelled == "refuse":
        return ()
    labelled_patients: set[str] = set()
    if data.targets.unit == "patient":
        for row, value in enumerate(table.values):
            if value is not None:
                labelled_patients.add(table.group(row))
    unlabelled: list[str] = []
    for row, (bag, value) in enumerate(zip(table.bags, table.values, strict=True)):
        if value is None and table.group(row) not in labelled_patients:
            unlabelled.append(bag)
    return tuple(unlabelled)


def prepare_bags(
    config: RunConfig,
    bags: BagSet,
    *,
    table: LabelTable,
    split: Split,
    left_out: tuple[str, ...] = (),
) -> PreparedData:
    """Check bags that are open, and standardise and describe them on their training part.

    The paths of the run are not used. `left_out` names labelled bags that are not used.

    Raises:
        InputError: the number of classes does not fit the labels.
        GraphError: the model needs a graph, and no training bag has an edge.
    """
    targets = targets_of(table)
    spec = fit_likelihood(config, table, split)
    from_data: dict[str, Any] = {"in_dim": bags.in_dim}
    if spec is not None:
        from_data["likelihood"] = spec.as_dict()
    else:
        logits = _class_logits(config, table)
        from_data["n_classes"] = logits
        if config.training.balanced:
            y = stack_targets(targets, split.train)
            from_data["class_weights"] = balanced_weights(y, logits)
    _check_graph(config, bags, split)
    covariates = run_covariates(config.data)
    encoder = None
    notes: tuple[str, ...] = ()
    if covariates is not None:
        encoder = fit_covariates(covariates, bags, table, train=split.train)
        from_data["covariates"] = len(encoder.names)
        # a table that holds labels and covariates has noted its missing values already
        notes = tuple(note for note in covariates.notes if note not in table.notes)
    standardizer = Standardizer()
    if config.data.standardize:
        standardizer = Standardizer.fit(bags, split.train)
    return PreparedData(
        bags=bags.sealed(split.test, why=TEST_PART),
        table=table,
        split=split,
        targets=targets,
        model_arguments={k: v for k, v in from_data.items() if k not in config.model_arguments},
        standardizer=standardizer,
        feature_metadata=FeatureMetadata.of(bags, split.train),
        left_out=left_out,
        notes=notes,
        encoder=encoder,
        prior=class_prior(config, table, split),
    )


def _class_logits(config: RunConfig, table: LabelTable) -> int:
    """Return how many logits a model of classes gives: one for two classes, else one per class.

    Raises:
        InputError: the run states another number of classes than the table has.
    """
    classes = len(table.classes)
    n_classes = config.model_arguments.get("n_classes")
    if n_classes is None:
        return 1 if classes <= 2 else classes
    if max(n_classes, 2) != max(classes, 2):
        raise InputError(
            f"n_classes is {n_classes}, but {table.path} has {classes} classes: leave n_classes "
            "out, or name every class with classes"
        )
    return n_classes


def build_model(config: RunConfig, prepared: PreparedData) -> Model:
    """Return a run's model with the initial weights that follow from its seed."""
    torch.manual_seed(seed_of(config.seed, "weights"))
    values = {**prepared.model_arguments, **config.model_arguments}
    if "seed" in arguments(config.model):
        values.setdefault("seed", config.seed)
    return build(config.model, **values)


def read_split(folder: RunFolder) -> Split:
    """Return the split that a run was started with, from a file that may be damaged."""
    file = folder.split_file
    split = read_record(Split, file, advice=ADVICE)
    for name, count in Counter(_split_names(split)).items():
        if count > 1:
            raise InputError(f"{file} is damaged: it names the bag {name!r} twice. Train again")
    return split


def _split_names(split: Split) -> list[str]:
    """Return the names of the bags of all parts, one part after another."""
    return [name for part in SPLIT_PARTS for name in getattr(split, part)]


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
        for stage in (bags.folder.name, "patch"):  # the reason of the first stage counts
            record = Record.read(patches.record(stage, name))
            if record is not None and record.name == name and record.status != "done":
                status = record.status.replace("_", " ")
                reasons[name] = f"it has no features ({status}: {record.reason})"
    bags.leave_out(reasons)
    return tuple(reasons)


def slides_to_extract(bags: BagSet) -> tuple[str, ...]:
    """Return the slides of the work folder that have patches, but no file of features yet."""
    extracted = {file.stem for file in hdf5_files(bags.folder)}
    records = PatchSet(bags.folder.parent).records("patch")
    return tuple(r.name for r in records if r.status == "done" and r.name not in extracted)


def _match(table: LabelTable, bags: BagSet, *, allow_unlabelled: bool) -> None:
    """Check that every bag has its label; in a work folder, errors name the table of failures."""
    try:
        check_labels_match(table, bags.names, allow_unlabelled=allow_unlabelled)
    except TableError as error:
        patches = PatchSet(bags.folder.parent)
        if not set(table.bags) - set(bags.names) or next(patches.records(), None) is None:
            raise
        tables = f"{patches.report('patch')} and {patches.report(bags.folder.name)}"
        raise TableError(f"{error}. For the status of each slide, see {tables}") from error


def _split(
    config: RunConfig, table: LabelTable, *, full_table: LabelTable, previous: Path | None
) -> Split:
    """Return the split of the usable bags; a split file may name any bag of the full table."""
    usable = set(table.bags)
    if previous is not None and RunFolder(previous).split_file.is_file():
        split = read_split(RunFolder(previous))
        gone = [name for name in _split_names(split) if name not in usable]
        if gone:
            raise TableError(
                f"{previous} was started with {counted(len(gone), 'bag')} that now lack a label, "
                f"features or instances ({gone[0]!r} first): put them back, or start another run"
            )
        return split
    if config.data.split is not None:
        split = read_clam_split(config.data.split, full_table)
        parts: dict[str, tuple[str, ...]] = {}
        for part in SPLIT_PARTS:
            parts[part] = tuple(name for name in getattr(split, part) if name in usable)
        if not parts["train"]:
            raise TableError(f"no bag is left to train on ({split.origin})")
        return replace(split, **parts)
    return make_split(
        table,
        test_fold=config.data.test_fold,
        validation=config.data.validation,
        seed=config.order_seed,
    )


def _check_graph(config: RunConfig, bags: BagSet, split: Split) -> None:
    """Reject a model that needs edges, such as one with a smoothness prior, if there are none."""
    if "edges" not in look_up(config.model).model.needs:
        return
    # a bag of one instance has no edge in any graph
    larger = [name for name in split.train if bags.size(name) > 1]
    if not larger or any(bags.bag(name).edges.shape[1] for name in larger):
        return
    remedy = "They have no coordinates: store those with the features"
    if any(bags.bag(name).coords is not None for name in larger):
        remedy = "Add --graph knn (in a run file, graph: knn) to join the nearest instances"
    raise GraphError(
        f"{config.model} needs neighbours, but no training bag of {bags.folder} has an edge "
        f"(graph: {config.data.graph.kind}). {remedy}, or train a model that needs no graph: "
        "--model abmil"
    )
