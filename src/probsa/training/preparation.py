"""Stage 8: prepare the bags, labels, split and standardisation of a run.

Class weights, means and standard deviations are computed on the training part only.
"""

from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..cohorts import FeatureRecipe, PatchSet, Record
from ..core import (
    Bags,
    as_typed,
    counted,
    read_json,
    read_record,
    seed_of,
    write_json,
)
from ..datasets import (
    SPLIT_PARTS,
    BagSet,
    CovariateEncoder,
    FeatureMetadata,
    LabelTable,
    PatientBags,
    Split,
    check_labels_match,
    drop_bags,
    make_split,
    patient_table,
    read_clam_split,
)
from ..errors import CheckpointError, GraphError, InputError, TableError
from ..models import Model, arguments, build, look_up
from ..tasks import Target
from ..variational import balanced_weights
from .checkpoints import Checkpoint
from .config import RunConfig
from .data import fit_covariates, open_data, read_labels
from .run_folder import ADVICE, RunFolder
from .targets import ClassPrior, class_prior, fit_likelihood, stack_targets, targets_of

TEST_PART = "it is in the test part, which must not be used in training or validation"


class Standardizer(nn.Module):
    """Standardise each feature: (x − mean) / std. Without statistics, return bags unchanged."""

    mean: Tensor
    deviation: Tensor

    def __init__(
        self,
        mean: Float[Tensor, " features"] | None = None,
        deviation: Float[Tensor, " features"] | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(0) if mean is None else mean)
        self.register_buffer("deviation", torch.ones(0) if deviation is None else deviation)

    def forward(self, bags: Bags) -> Bags:
        if not len(self.mean):
            return bags
        return replace(bags, x=(bags.x - self.mean) / self.deviation)

    @classmethod
    def restored(cls, checkpoint: Checkpoint, *, in_dim: int | None) -> "Standardizer":
        """Return the standardisation that a checkpoint holds, of `in_dim` features.

        Raises:
            CheckpointError: it is missing, or does not fit the model.
        """
        tensors = checkpoint.part("standardize")
        mean, deviation = tensors.get("mean"), tensors.get("deviation")
        fits = (
            mean is not None
            and deviation is not None
            and tuple(mean.shape) in ((0,), (in_dim,))
            and mean.shape == deviation.shape
            and mean.is_floating_point()
            and deviation.is_floating_point()
            and bool(mean.isfinite().all() and deviation.isfinite().all() and (deviation > 0).all())
        )
        if not fits:
            raise CheckpointError(
                f"{checkpoint.path} is damaged: its means and deviations of the features are not "
                f"finite numbers for {in_dim} features. Copy the file again, or train the run again"
            )
        return cls(mean, deviation)

    @classmethod
    def fit(cls, bags: BagSet, names: tuple[str, ...]) -> "Standardizer":
        """Compute the statistics of the instances of some bags, read one at a time, in float64.

        A feature that is constant keeps its scale.
        """
        n, mean, squares = 0, torch.zeros(()), torch.zeros(())
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

    @property
    def deals_events(self) -> bool:
        """Whether the loss compares the bags of a batch, so that each needs events."""
        return self.model_arguments.get("likelihood", {}).get("kind") == "cox"

    def write(self, folder: RunFolder) -> None:
        """Write the split, what is known of the features, and the notes on bags to the folder."""
        write_json(folder.split_file, self.split.to_dict())
        write_json(folder.features_file, self.feature_metadata.to_dict())
        if self.prior is not None:
            write_json(folder.prior_file, asdict(self.prior))
        if self.encoder is not None:
            write_json(folder.covariates_file, self.encoder.to_dict())
        if not self.table.of_task.unordered_classes:
            given = [self.targets[name] for name in self.split.train]
            train = [
                [None if v != v else v for v in y] if isinstance(y, tuple) else y for y in given
            ]
            write_json(folder.targets_file, {"task": self.table.task, "train": train})
        files = self.split.train
        if isinstance(self.bags, PatientBags):
            files = tuple(s for patient in files for s in self.bags.slides_of(patient))
        recipe = FeatureRecipe.of_features(self.bags.folder, files)
        if recipe is not None:
            write_json(folder.recipe_file, recipe.to_dict())
        if self.bags.notes:
            # a resumed run does not read every bag again: keep the notes of the earlier process
            file, advice = folder.notes_file, "remove it to continue without the earlier remarks"
            stored = read_json(file, advice=advice) if file.is_file() else {}
            earlier = as_typed(stored, dict[str, str], where=str(file), advice=advice)
            write_json(file, dict(sorted({**earlier, **self.bags.notes}.items())))


def prepare(config: RunConfig, *, previous: Path | None = None) -> PreparedData:
    """Open and check the data of a run; `previous` is a run folder whose split is used again.

    Raises:
        TableError: labels, bags and split do not fit one another.
        InputError: as `prepare_bags`.
    """
    table = read_labels(config.data)
    bags = open_data(config.data)
    full_table, left_out = table, note_missing_features(table, bags)
    present = drop_bags(table, left_out)
    if config.data.targets.missing == "leave_out":
        without_bag = tuple(sorted(set(present.bags) - set(bags.names)))
        bags.notes |= dict.fromkeys(without_bag, "left out: it has a line, but no bag")
        present, left_out = drop_bags(present, without_bag), left_out + without_bag
    _match(present, bags, allow_unlabelled=config.data.unlabelled == "leave_out")
    if config.data.targets.unit == "patient":
        # with all lines of a patient, the remarks can name the slides that are missing
        all_lines = table if config.data.targets.missing == "leave_out" else present
        bags = PatientBags(bags, all_lines, missing=config.data.targets.missing)
        table, left_out = patient_table(all_lines), bags.without_slides
        full_table = patient_table(full_table)
    else:
        table = present
    left_out += bags.empty()
    table = drop_bags(table, left_out)
    split = _split(config, table, full_table=full_table, previous=previous)
    return prepare_bags(config, bags, table=table, split=split, left_out=left_out)


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
        from_data["n_classes"] = _n_classes(config, table)
        if config.training.balanced:
            y = stack_targets(targets, split.train)
            from_data["class_weights"] = balanced_weights(y, from_data["n_classes"])
    _check_graph(config, bags, split)
    encoder = fit_covariates(config.data, bags, table, train=split.train)
    if encoder is not None:
        from_data["covariates"] = len(encoder.names)
    standardize = config.data.standardize
    return PreparedData(
        bags=bags.sealed(split.test, why=TEST_PART),
        table=table,
        split=split,
        targets=targets,
        model_arguments={k: v for k, v in from_data.items() if k not in config.model_arguments},
        standardizer=Standardizer.fit(bags, split.train) if standardize else Standardizer(),
        feature_metadata=FeatureMetadata.of(bags, split.train),
        left_out=left_out,
        encoder=encoder,
        prior=class_prior(config, table, split),
    )


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
    counts = Counter(name for part in SPLIT_PARTS for name in getattr(split, part))
    for name, count in counts.items():
        if count > 1:
            raise InputError(f"{file} is damaged: it names the bag {name!r} twice. Train again")
    return split


def note_missing_features(table: LabelTable, bags: BagSet) -> tuple[str, ...]:
    """Return labelled bags for which the work folder records why they have no features.

    The reasons are added to the notes.
    """
    known, reasons = set(bags.names), {}
    patches = PatchSet(bags.folder.parent)
    for name in (name for name in table.bags if name not in known):
        for stage in (bags.folder.name, "patch"):  # the reason of the first stage counts
            record = Record.read(patches.record(stage, name))
            if record is not None and record.name == name and record.status != "done":
                status = record.status.replace("_", " ")
                reasons[name] = f"left out: it has no features ({status}: {record.reason})"
    bags.notes |= reasons
    return tuple(reasons)


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
        if gone := [n for p in SPLIT_PARTS for n in getattr(split, p) if n not in usable]:
            raise TableError(
                f"{previous} was started with {counted(len(gone), 'bag')} that now lack a label, "
                f"features or instances ({gone[0]!r} first): put them back, or start another run"
            )
        return split
    if config.data.split is not None:
        split = read_clam_split(config.data.split, full_table)
        parts = {p: tuple(n for n in getattr(split, p) if n in usable) for p in SPLIT_PARTS}
        if not parts["train"]:
            raise TableError(f"no bag is left to train on ({split.origin})")
        return replace(split, **parts)
    return make_split(
        table,
        test_fold=config.data.test_fold,
        validation=config.data.validation,
        seed=config.order_seed,
    )


def _n_classes(config: RunConfig, table: LabelTable) -> int:
    """Return the run's `n_classes`, else that of the labels, where two classes need one logit."""
    from_run = config.model_arguments.get("n_classes")
    if from_run is not None:
        if max(from_run, 2) != max(len(table.classes), 2):
            raise InputError(
                f"n_classes is {from_run}, but {table.path} has {len(table.classes)} classes: "
                "leave n_classes out, or name every class with classes"
            )
        return int(from_run)
    return 1 if len(table.classes) <= 2 else len(table.classes)


def _check_graph(config: RunConfig, bags: BagSet, split: Split) -> None:
    """Reject a model that needs edges, such as one with a smoothness prior, if there are none."""
    if "edges" not in look_up(config.model).model.needs:
        return
    larger = [name for name in split.train if bags.size(name) > 1]
    if not larger or any(bags.bag(name).edges.shape[1] for name in larger):
        return
    if any(bags.bag(name).coords is not None for name in larger):
        what = "Add --graph knn (in a run file, graph: knn) to join the nearest instances"
    else:
        what = "They have no coordinates: store those with the features"
    raise GraphError(
        f"{config.model} needs neighbours, but no training bag of {bags.folder} has an edge "
        f"(graph: {config.data.graph.kind}). {what}, or train a model that needs no graph: "
        "--model abmil"
    )
