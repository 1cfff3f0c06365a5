"""Stage 8: prepare what a run learns from: bags, labels, split, covariates and likelihood.

Class weights, means and standard deviations are computed on the training part only.
"""

import math
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..cohorts import FeatureRecipe, PatchSet
from ..core import (
    counted,
    optional_path,
    read_record,
    seed_of,
    write_json,
)
from ..datasets import (
    SPLIT_PARTS,
    BagNotes,
    BagSet,
    CovariateEncoder,
    FeatureMetadata,
    LabelTable,
    PatientBags,
    Split,
    bags_without_label,
    check_enough_match,
    check_labels_match,
    drop_bags,
    make_split,
    patient_table,
    read_clam_split,
    read_notes,
    write_notes,
)
from ..errors import GraphError, InputError, OneClass, TableError
from ..models import Model, arguments, build, look_up
from ..tasks import Target
from ..variational import balanced_weights
from .config import DataConfig, RunConfig
from .objective import ClassPrior, class_prior, fit_likelihood, stack_targets, targets_of
from .run_data import fit_covariates, note_missing_features, open_data, read_labels, run_covariates
from .run_folder import ADVICE, RunFolder
from .standardizer import Standardizer
from .windows import check_window, window_note

TEST_PART = "it is in the test part, which must not be used in training or validation"


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
    """What users should know about how the covariates were read, and about windows."""

    def write(self, folder: RunFolder) -> None:
        """Write the split, what is known of the features, and the notes on bags to the folder."""
        recipe = FeatureRecipe.of_features(self.bags.folder, self.training_files())
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

    def training_files(self) -> tuple[str, ...]:
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
    unlabelled = bags_without_label(table, bags.names)
    labelled = drop_bags(table, _lines_without_label(table, config.data))
    if not labelled.bags:
        raise TableError(f"{table.where} has no label in any of its lines: give labels to train on")
    present, left_out = _drop_missing(labelled, bags, config.data)
    if config.data.targets.unit == "patient":
        units = _patients(bags, config.data, full=table, labelled=labelled, present=present)
    else:
        units = _Units(bags=bags, table=present, full_table=table, left_out=left_out)
    bags = units.bags
    left_out = units.left_out + bags.empty()
    usable = drop_bags(units.table, left_out)
    split = _split(config, usable, full_table=units.full_table, previous=previous)
    prepared = prepare_bags(config, bags, table=usable, split=split, left_out=left_out)
    return replace(prepared, unlabelled=unlabelled)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Units:
    """What a run counts: bags, or patients with all of their slides."""

    bags: BagSet
    table: LabelTable
    """Those with features."""
    full_table: LabelTable
    """All that the table of labels has a line for, any of which a split file may name."""
    left_out: tuple[str, ...]


def _drop_missing(
    table: LabelTable, bags: BagSet, data: DataConfig
) -> tuple[LabelTable, tuple[str, ...]]:
    """Return a table without bags that have no features, and the names of these.

    Raises:
        TableError: another bag of the table is missing, and the run does not leave such bags out,
            or a bag lacks its label.
    """
    left_out = note_missing_features(table, bags)
    present = drop_bags(table, left_out)
    if data.targets.missing == "leave_out":
        check_enough_match(present, bags.names)
        without_bag = tuple(sorted(set(present.bags) - set(bags.names)))
        bags.leave_out(dict.fromkeys(without_bag, "it has a line, but no bag"))
        present = drop_bags(present, without_bag)
        left_out += without_bag
    _match(present, bags, allow_unlabelled=data.unlabelled == "leave_out")
    return present, left_out


def _patients(
    bags: BagSet, data: DataConfig, *, full: LabelTable, labelled: LabelTable, present: LabelTable
) -> _Units:
    """Return patients as the units of a run, from tables of their slides."""
    missing = data.targets.missing
    # with the lines of missing slides, the remarks on a patient can name these slides
    slides = labelled if missing == "leave_out" else present
    patients = PatientBags(bags, slides, missing=missing)
    return _Units(
        bags=patients,
        table=patient_table(slides),
        full_table=patient_table(full),
        left_out=patients.without_slides,
    )


def _lines_without_label(table: LabelTable, data: DataConfig) -> tuple[str, ...]:
    """Return the bags whose lines have no label and are left out of training.

    If one slide of a patient has a label, the patient keeps all slides: whether the labels of the
    slides agree is checked later.
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

    Args:
        config: The run, whose paths are not used, except for that of its covariates.
        bags: The open bags.
        table: Their labels.
        split: The parts of the run.
        left_out: Names of labelled bags that are not used.

    Raises:
        InputError: the number of classes, the task or an option does not fit the labels, the model
            or the training part; or the model cannot be trained on windows.
        TableError: a bag has no row of covariates.
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
    check_window(config)
    covariates = run_covariates(config.data)
    encoder = None
    notes: tuple[str, ...] = ()
    if covariates is not None:
        encoder = fit_covariates(covariates, bags, table, train=split.train)
        from_data["covariates"] = len(encoder.names)
        # a table that holds labels and covariates has noted its missing values already
        notes = tuple(note for note in covariates.notes if note not in table.notes)
    if config.training.window is not None:
        sizes = [bags.size(name) for name in split.train]
        notes += (window_note(sizes, window=config.training.window),)
    standardizer = Standardizer()
    if config.data.standardize:
        standardizer = Standardizer.fit(bags, split.train)
    # what the run states itself is not taken from the data
    model_arguments: dict[str, Any] = {}
    for key, value in from_data.items():
        if key not in config.model_arguments:
            model_arguments[key] = value
    return PreparedData(
        bags=bags.sealed(split.test, why=TEST_PART),
        table=table,
        split=split,
        targets=targets,
        model_arguments=model_arguments,
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
    # 1 means two classes with one logit, as does a table in which only one class occurs
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
    """Return the split that a run was started with.

    Raises:
        InputError: the file is missing or damaged.
    """
    file = folder.split_file
    split = read_record(Split, file, advice=ADVICE)
    for name, count in Counter(_split_names(split)).items():
        if count > 1:
            raise InputError(f"{file} is damaged: it names the bag {name!r} twice. Train again")
    return split


def _split_names(split: Split) -> list[str]:
    """Return the names of the bags of all parts, one part after another."""
    return [name for part in SPLIT_PARTS for name in getattr(split, part)]


def _match(table: LabelTable, bags: BagSet, *, allow_unlabelled: bool) -> None:
    """Check that labels and bags match; in a work folder, the error names its tables of slides.

    Raises:
        TableError: a label has no bag, or a bag no label.
    """
    try:
        check_labels_match(table, bags.names, allow_unlabelled=allow_unlabelled)
    except TableError as error:
        labels_without_bag = set(table.bags) - set(bags.names)
        if not labels_without_bag:
            raise
        patches = PatchSet(bags.folder.parent)
        is_work_folder = next(patches.records(), None) is not None
        if not is_work_folder:
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
