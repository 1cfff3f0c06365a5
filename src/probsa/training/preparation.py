"""Stage 8: what training needs before its first step: bags, labels, split, standardisation.

Everything that is fitted (class weights, mean and deviation) is fitted on the training part alone.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..cohorts import PatchSet, Record
from ..core import Bags, write_json
from ..datasets import (
    PARTS,
    BagSet,
    GraphOptions,
    Split,
    Stated,
    Table,
    make_split,
    match,
    open_bags,
    read_clam_split,
    read_table,
    without,
)
from ..errors import GraphError, InputError, TableError
from ..models import arguments, fixed
from ..variational import balanced_weights
from .config import DataConfig, RunConfig
from .run_folder import RunFolder

TEST_PART = "it is in the test part, and nothing that trains or validates may see that"


class Standardizer(nn.Module):
    """(x − mean) / deviation of each feature; does nothing where nothing was fitted."""

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
    def fit(cls, bags: BagSet, names: tuple[str, ...]) -> "Standardizer":
        """Over the instances of these bags, read one at a time, summed in float64.

        A feature that never changes keeps its scale.
        """
        n, mean, squares = 0, torch.zeros(()), torch.zeros(())
        for name in names:
            x = bags.bag(name).x.double()
            # Chan's update: sums of squares about the mean so far, no cancellation
            m = len(x)
            delta = x.mean(0) - mean
            squares = squares + (x - x.mean(0)).square().sum(0) + delta.square() * n * m / (n + m)
            mean = mean + delta * m / (n + m)
            n += m
        deviation = (squares / n).sqrt()
        flat = deviation <= 1e-6 * mean.abs().clamp_min(1e-6)
        deviation = torch.where(flat, torch.ones_like(deviation), deviation)
        return cls(mean.float(), deviation.float())


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """What a run trains on."""

    bags: BagSet
    """Without the test part, which is sealed."""
    table: Table
    split: Split
    labels: dict[str, int]
    classes: tuple[str, ...]
    model_arguments: dict[str, Any]
    """What the data say of the model: in_dim, n_classes, class_weights."""
    standardizer: Standardizer
    stated: Stated
    """What the training bags say of themselves."""
    left_out: tuple[str, ...] = ()
    """Labelled bags without features or instances; why is in the notes."""

    def write(self, folder: RunFolder) -> None:
        """The split, what the features are, and the notes on bags, into the run folder."""
        write_json(folder.split_file, self.split.to_dict())
        write_json(folder.features_file, self.stated.to_dict())
        if self.bags.notes:
            # a run that goes on does not read every bag again, nor in the same order
            file = folder.notes_file
            held = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
            write_json(file, dict(sorted({**held, **self.bags.notes}.items())))


def prepare(config: RunConfig, *, previous: Path | None = None) -> Prepared:
    """Opens and checks the data of a run.

    Args:
        config: the run.
        previous: a run folder that is resumed: its split is kept.

    Raises:
        TableError: labels, bags and split do not fit one another.
        GraphError: the model needs a graph and no training bag has an edge.
    """
    table = read_table(config.data.labels, classes=config.data.classes)
    bags = open_data(config.data)
    whole, left_out = table, _without_features(table, bags)
    table = without(table, left_out)
    _match(table, bags, allow_unlabelled=config.data.unlabelled == "leave_out")
    left_out += bags.empty()
    table = without(table, left_out)
    split = _split(config, table, whole=whole, previous=previous)
    labels = {b: y for b, y in zip(table.bags, table.labels, strict=True) if y is not None}
    n_classes = _n_classes(config, table)
    given: dict[str, Any] = {"in_dim": bags.in_dim, "n_classes": n_classes}
    if config.training.balanced:
        y = torch.tensor([labels[name] for name in split.train])
        given["class_weights"] = balanced_weights(y, n_classes)
    _check_graph(config, bags, split)
    fitted = Standardizer.fit(bags, split.train) if config.data.standardize else Standardizer()
    return Prepared(
        bags=bags.sealed(split.test, why=TEST_PART),
        table=table,
        split=split,
        labels=labels,
        classes=table.classes,
        model_arguments={k: v for k, v in given.items() if k not in config.model_arguments},
        standardizer=fitted,
        stated=Stated.of(bags, split.train),
        left_out=left_out,
    )


def open_data(data: DataConfig, *, features: Path | None = None) -> BagSet:
    """The bags of a run, or other bags (`features`) read with the run's settings."""
    graph = GraphOptions(
        kind=data.graph,
        weights=data.edge_weights,
        weight_scale=data.weight_scale,
        neighbours=data.neighbours,
        stride=data.stride,
    )
    # labels of instances belong to the rows of the run's own features
    own = features is None or features.resolve() == data.features.resolve()
    return open_bags(
        features or data.features,
        graph=graph,
        cache_gb=data.cache_gb,
        features=data.feature_set,
        instance_labels=data.instance_labels if own else None,
    )


def read_split(folder: RunFolder) -> Split:
    """The split that a run was started with."""
    return Split.from_dict(json.loads(folder.split_file.read_text(encoding="utf-8")))


def _without_features(table: Table, bags: BagSet) -> tuple[str, ...]:
    """Labelled bags that a work folder knows to have no features, with the reason in the notes."""
    there, found = set(bags.names), []
    made, stage = PatchSet(bags.folder.parent), bags.folder.name
    for name in table.bags:
        if name in there:
            continue
        for path in (made.record("patch", name), made.record(stage, name)):
            record = Record.read(path)
            if record is not None and record.name == name and record.status != "done":
                what = record.status.replace("_", " ")
                bags.notes[name] = f"left out: it has no features ({what}: {record.reason})"
                found.append(name)
                break
    return tuple(found)


def _match(table: Table, bags: BagSet, *, allow_unlabelled: bool) -> None:
    """Every bag with its label; of a work folder, where to read what became of each slide."""
    try:
        match(table, bags.names, allow_unlabelled=allow_unlabelled)
    except TableError as error:
        made = PatchSet(bags.folder.parent)
        if not set(table.bags) - set(bags.names) or next(made.records(), None) is None:
            raise
        tables = f"{made.report('patch')} and {made.report(bags.folder.name)}"
        raise TableError(f"{error}. What became of each slide is in {tables}") from error


def _split(config: RunConfig, table: Table, *, whole: Table, previous: Path | None) -> Split:
    """Of the bags that can be used; a split's file may name others of the `whole` table."""
    if previous is not None and RunFolder(previous).split_file.is_file():
        kept = read_split(RunFolder(previous))
        usable = set(table.bags)
        gone = [n for p in PARTS for n in getattr(kept, p) if n not in usable]
        if gone:
            raise TableError(
                f"{previous} was started with {len(gone)} bags that now have no label, features or "
                f"instances ({gone[0]!r} first): put them back, or start another run"
            )
        return kept
    if config.data.split is not None:
        split = read_clam_split(config.data.split, whole)
        usable = set(table.bags)
        parts = {p: tuple(n for n in getattr(split, p) if n in usable) for p in PARTS}
        if not parts["train"]:
            raise TableError(f"no bag is left to train on ({split.origin})")
        return replace(split, **parts)
    return make_split(
        table,
        test_fold=config.data.test_fold,
        validation=config.data.validation,
        seed=config.order_seed,
    )


def _n_classes(config: RunConfig, table: Table) -> int:
    """One logit for two classes unless the run says otherwise."""
    if "n_classes" not in arguments(config.model):
        raise InputError(f"the model {config.model!r} has no n_classes argument")
    given = config.model_arguments.get("n_classes")
    if given is not None:
        if max(given, 2) != max(len(table.classes), 2):
            raise InputError(
                f"n_classes is {given}, but {table.path} has {len(table.classes)} classes: leave "
                "n_classes out, or name every class with classes"
            )
        return int(given)
    return 1 if len(table.classes) <= 2 else len(table.classes)


def _check_graph(config: RunConfig, bags: BagSet, split: Split) -> None:
    """A smoothness prior on bags without a single edge would do nothing, and say nothing of it."""
    if "edges" not in fixed(config.model)[0].needs:
        return
    several = [name for name in split.train if bags.size(name) > 1]
    if several and not any(bags.bag(name).edges.shape[1] for name in several):
        raise GraphError(
            f"{config.model} needs neighbours, but no training bag of {bags.folder} has an edge "
            f"(graph: {config.data.graph}). Give coordinates, or graph: knn, or train abmil"
        )
