"""Stage 9: apply a trained model, or several together, to bags."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from ..core import (
    Bag,
    Bags,
    GraphOptions,
    TaskName,
    as_bag,
    counted,
    is_pair,
    pack,
    segment_softmax,
    with_graph,
)
from ..datasets import IN_MEMORY, FeatureMetadata, Metadata
from ..errors import BagError, InputError
from ..models import Model, Output, bag_rows
from ..tasks import TASKS, Stated
from ..training import RunConfig, RunFolder, Standardizer, choose_device, precision_context
from .ensemble import combine, new_to
from .metadata import PredictionsMetadata
from .model_card import PARTS as PARTS_OF_RUN
from .model_card import CardFacts, facts_of, model_card
from .prediction import EXPLANATIONS, Prediction
from .pretrained import FORMAT, PARTS, PretrainedConfig, PretrainedMember, write_model
from .temperature import scale_prediction
from .words import METRIC_TITLES

MAX_INSTANCES = 8192
"""Maximum number of instances per step; a larger bag has a step of its own."""
ONE_BAG = 2
"""Number of axes of an array that is a single bag: instances and features."""
SEEN_BY_ALL = "every run was trained or validated on it"
"""Why a bag is not predicted by several runs."""


class Predictor:
    """A model with the standardisation of its training; create one with `probsa.load`.

    A prediction depends only on the run and the bag, whose name seeds the noise. The bag has a
    graph as in training, see `predict`.
    """

    seen: tuple[frozenset[str], ...] = ()
    """Of several runs, for each member the bags that it does not predict."""

    def __init__(
        self,
        model: Model,
        standardizer: Standardizer,
        *,
        classes: Sequence[str] = ("0", "1"),
        device: str = "cpu",
        precision: str = "float32",
        config: RunConfig | None = None,
        metadata: PredictionsMetadata | None = None,
        stated: FeatureMetadata | None = None,
    ) -> None:
        self.device = choose_device(device)
        self.model = model.to(self.device).eval()
        self.standardizer = standardizer.to(self.device)
        self.classes = tuple(classes)
        self.precision = precision
        self.config = config
        self.metadata = metadata or PredictionsMetadata()
        """The origin of the predictions, which is stored with them."""
        self.stated = stated
        """The metadata of the training features; None if it is not known."""
        self.run: RunFolder | None = None
        """The run that the model comes from; None if there is none."""
        self.threshold: float | None = None
        """p(Y = 1) from which a bag is positive; None if not known."""
        self.temperature = 1.0
        """Temperature of the probabilities of bags, see `temperature`; 1 changes nothing."""

    def __repr__(self) -> str:
        """Return the model, the task, and as far as known the bags and the first metric."""
        count = len(self.members)
        task = TASKS[self.task]
        run = facts_of(self.run)
        facts = [f"{count} × {self.model.name}" if count > 1 else self.model.name]
        facts.append(f"{task.name} ({', '.join(self.classes)})" if self.classes else task.name)
        for part, bags in run.parts.items():
            if bags:
                facts.append(f"{bags:,} {PARTS_OF_RUN[part]} bags")
        name = task.headline[0]
        if run.report is not None and name in run.report.metrics:
            metric = run.report.metrics[name]
            facts.append(f"{run.report.part} {METRIC_TITLES[name]} {metric}")
        return f"<{type(self).__name__}: {', '.join(facts)}>"

    def plot_training(self, ax: Axes | None = None) -> Axes:
        """Draw the losses of every epoch of the run, as `RunFolder.plot_training` does.

        Raises:
            InputError: the model does not come from a run folder.
        """
        if self.run is None or not self.run.metrics_file.is_file():
            raise InputError("the model was not loaded from a run folder, which has its losses")
        return self.run.plot_training(ax)

    @property
    def task(self) -> TaskName:
        """What the model was trained to predict."""
        return self.model.likelihood.task

    @property
    def members(self) -> tuple["Predictor", ...]:
        """The predictors whose predictions are combined; only this one if it is one model."""
        return (self,)

    def new_to(self, name: str) -> list["Predictor"]:
        """Return the members that predict a bag of this name, because they have not seen it."""
        return new_to(name, self.members, self.seen)

    def difference(self, name: str, metadata: Metadata) -> str | None:
        """Return how a bag's metadata differ from the training bags of a member that predicts it.

        None if they do not, or if the metadata of the training bags are not known.
        """
        for member in self.new_to(name):
            difference = None if member.stated is None else member.stated.difference(metadata)
            if difference is not None:
                return difference
        return None

    def check(self, bag: Bag) -> None:
        """Refuse a bag that the training of a member that predicts it would refuse.

        Raises:
            BagError: the bag has another number of features than the model was trained on, or
                lacks what the model needs, such as a graph.
        """
        for member in self.new_to(bag.name):
            wanted = member.model.arguments.get("in_dim")
            if wanted is not None and bag.x.shape[1] != wanted:
                raise BagError(
                    f"bag {bag.name!r} has {bag.x.shape[1]} features per instance, but the model "
                    f"was trained on {wanted}: extract them with the encoder it was trained on"
                )
            member.model.check_bag(bag, name=member.model.name)

    def save_pretrained(
        self,
        folder: Path | str,
        *,
        data: str = "",
        facts: CardFacts | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write the model into a folder: `config.json`, `model.safetensors` and a model card.

        `probsa.from_pretrained` reads it. The folder can be uploaded to the Hugging Face Hub as it
        is. It holds no bag, no label and no path of this machine.

        Args:
            folder: new folder, or one that holds a model that was written before.
            data: a sentence on the data for the card.
            facts: all that the card says of data and results; None for what the run states.
            more: further entries of config.json.

        Raises:
            OutputExists: the folder holds other files.
            InputError: the model has clinical covariates.
        """
        from .. import __version__

        if self.model.covariates is not None:
            raise InputError(
                "a model with clinical covariates cannot be saved without the encoder of its run: "
                "give the run folder instead"
            )
        config = PretrainedConfig(
            library_name="probsa",
            format=FORMAT,
            members=tuple(_pretrained_member(member) for member in self.members),
            classes=self.classes,
            task=self.task,
            outputs=self.model.likelihood.outputs(self.classes).names,
            features=self.members[0].stated,
            run=None if self.config is None else _without_paths(self.config).to_dict(),
            precision=self.precision,
            temperature=float(self.temperature),
            threshold=self.threshold,
            about=replace(self.metadata, runs=(), training_targets=None).to_dict(),
            probsa_version=__version__,
        )
        tensors: dict[str, Tensor] = {}
        for k, member in enumerate(self.members):
            modules = (member.model, member.standardizer)
            for part, module in zip(PARTS, modules, strict=True):
                for name, tensor in module.state_dict().items():
                    tensors[f"members.{k}.{part}{name}"] = tensor
        facts = facts or facts_of(self.run, data=data)
        card = model_card(config, facts, score_kind=self.model.score_kind)
        return write_model(Path(folder), {**asdict(config), **(more or {})}, tensors, card=card)

    @property
    def graph(self) -> GraphOptions | None:
        """How the graphs of the training bags were built; None if it is not known."""
        return None if self.config is None else self.config.data.graph

    def predict(
        self,
        bags: Any,
        *,
        names: Sequence[str] | None = None,
        stride: float | None = None,
        parts: bool = False,
    ) -> list[Prediction]:
        """Return one `Prediction` per bag, in order; `stream` yields them one by one.

        The graph of each bag is that of the training: arrays get one, and so does a `Bag` whose
        graph was made by default. Features are standardised as in training.

        Args:
            bags: The bags, each a `Bag`, an array (n, features), or a tuple (features, coords) as
                for `Bag.from_arrays`; or a single one of these, which gives a list of one.
            names: Names of bags that are arrays, one for each bag. The name seeds the noise of a
                prediction: with the name of a stored bag, it is the one of `probsa predict`. By
                default, an array is named by a digest of its values.
            stride: Distance between adjacent patches of arrays, in the unit of their coordinates;
                None: it is estimated.
            parts: Whether these are only some instances of each bag, which may have lost all of
                their neighbours; then `check` is left out, and a graph is used as it is.

        Raises:
            InputError: The argument is neither a bag nor several, or there are not as many names.
            BagError: A bag cannot be used or does not suit the model, see `check`.
            GraphError: A `Bag` was made with another graph, which somebody chose, or coordinates
                are missing or contradict the stride.
        """
        items = _items(bags)
        if names is not None:
            items = list(items)
            if isinstance(names, str) or len(names) != len(items):
                raise InputError(
                    f"names is {names!r} for {counted(len(items), 'bag')}: give a list with one "
                    "name for each bag"
                )
        return list(self._predictions(items, names=names, stride=stride, parts=parts))

    def stream(self, bags: Iterable[Bag], *, parts: bool = False) -> Iterator[Prediction]:
        """Yield one `Prediction` per bag, in order, and hold no more bags than a step needs.

        Arguments and errors are those of `predict`.
        """
        return self._predictions(_items(bags), names=None, stride=None, parts=parts)

    def with_graph(self, bag: Bag) -> Bag:
        """Return the bag with the graph with which it is predicted.

        Raises:
            GraphError: the bag was made with another graph, which somebody chose, or coordinates
                are missing or contradict the stride.
        """
        return bag if self.graph is None else with_graph(bag, self.graph)

    def _predictions(
        self,
        items: Iterable[Any],
        *,
        names: Sequence[str] | None,
        stride: float | None,
        parts: bool,
    ) -> Iterator[Prediction]:
        waiting: list[Bag] = []
        for number, item in enumerate(items):
            if parts:
                bag = item
            else:
                name = None if names is None else names[number]
                bag = self._checked_bag(item, number=number, name=name, stride=stride)
            if waiting and sum(map(len, waiting)) + len(bag) > MAX_INSTANCES:
                yield from self._scaled(waiting)
                waiting = []
            waiting.append(bag)
        if waiting:
            yield from self._scaled(waiting)

    def _checked_bag(
        self, item: Any, *, number: int, name: str | None, stride: float | None
    ) -> Bag:
        """Return an item of `predict` as a bag with the graph of the training, after `check`."""
        is_bag = isinstance(item, Bag)
        bag = as_bag(
            item,
            place=str(number),
            graph=self.graph,
            name=None if is_bag else name,
            stride=None if is_bag else stride,
        )
        if is_bag and name is not None and name != bag.name:
            raise InputError(
                f"bag {bag.name!r} has its own name, but names has {name!r}: leave names out for a "
                "probsa.Bag"
            )
        self.check(bag)
        return bag

    @property
    def names_and_thresholds(self) -> Stated:
        """The names of the classes and the thresholds, with which bags are called."""
        metadata = self.metadata
        return Stated(self.classes, self.threshold, metadata.thresholds, metadata.target)

    def _scaled(self, bags: list[Bag]) -> Iterator[Prediction]:
        for p in self._predict_batch(bags):
            yield replace(
                scale_prediction(p, temperature=self.temperature), stated=self.names_and_thresholds
            )

    @torch.no_grad()
    def _predict_batch(self, bags: list[Bag]) -> list[Prediction]:
        packed = self.standardizer(pack([_unlabelled(bag) for bag in bags]).to(self.device))
        with precision_context(self.precision, self.device):
            out = self.model(packed)
            scores = self.model.instance_scores(packed, out)
            if scores is not out.attention:  # the weights of `out` belong to its attention
                out = replace(out, attention=scores, extras={})
        predictions = list(_unpack(out, packed, bags, kind=self.model.score_kind))
        likelihood = self.model.likelihood
        if likelihood.of_classes:
            return predictions
        outputs = likelihood.outputs(self.classes)
        return [
            replace(
                p, task=self.task, outputs=outputs, scores=self._scores(out.logits[b : b + 1], bag)
            )
            for b, (p, bag) in enumerate(zip(predictions, bags, strict=True))
        ]

    def _scores(self, logits: Tensor, bag: Bag) -> dict[str, float]:
        """Return the scores of a labelled bag that need its whole predictive distribution."""
        if bag.y is None:
            return {}
        y = torch.as_tensor(bag.y, device=logits.device)[None]
        scores = self.model.likelihood.score(logits, y)
        return {name: float(value[0]) for name, value in scores.items()}


class Ensemble(Predictor):
    """Several models whose predictions of a bag are combined; `model` is that of the first.

    Args:
        members: at least one predictor.
        seen: for each member, the names of bags that it does not predict; None for no bags.
        config: the run of all members, or the first one.
        metadata: the origin of the predictions.
    """

    def __init__(
        self,
        members: Sequence[Predictor],
        *,
        seen: Sequence[frozenset[str]] | None = None,
        config: RunConfig | None = None,
        metadata: PredictionsMetadata | None = None,
    ) -> None:
        first = members[0]
        super().__init__(
            first.model,
            first.standardizer,
            classes=first.classes,
            device=first.device.type,
            precision=first.precision,
            config=config,
            metadata=metadata,
        )
        self._members = tuple(members)
        self.seen = tuple(seen or ())

    @property
    def members(self) -> tuple[Predictor, ...]:
        """The predictors whose predictions are combined."""
        return self._members

    def _predict_batch(self, bags: list[Bag]) -> list[Prediction]:
        predictions: list[list[Prediction]] = [[] for _ in bags]
        for member in self.members:
            new_bags = [k for k, bag in enumerate(bags) if member in self.new_to(bag.name)]
            if new_bags:
                batch = member._predict_batch([bags[k] for k in new_bags])
                for k, prediction in zip(new_bags, batch, strict=True):
                    predictions[k].append(prediction)
        for bag, by_members in zip(bags, predictions, strict=True):
            if not by_members:
                raise BagError(f"bag {bag.name!r}: {SEEN_BY_ALL}")
        align = self.model.score_kind == "logit"
        return [combine(by_members, align=align) for by_members in predictions]


def _pretrained_member(member: Predictor) -> PretrainedMember:
    """Return what config.json states of a member."""
    shift = member.model.likelihood.prior_shift
    return PretrainedMember(
        model=member.model.name,
        arguments=member.model.arguments,
        prior_shift=None if shift is None else tuple(shift.tolist()),
    )


def _without_paths(config: RunConfig) -> RunConfig:
    """Return a run file that names no file of this machine."""
    data = replace(
        config.data, features=IN_MEMORY, labels=IN_MEMORY, split=None, instance_labels=None
    )
    return replace(config, data=data)


def _items(bags: Any) -> Iterable[Any]:
    """Return the bags that are given, of which there may be a single one.

    Raises:
        InputError: this is neither a bag nor several.
    """
    is_array = isinstance(bags, np.ndarray | Tensor)
    is_one_array = is_array and bags.dtype != object and bags.ndim == ONE_BAG
    if isinstance(bags, Bag) or is_pair(bags) or is_one_array:
        return [bags]
    if isinstance(bags, str | bytes | Path | Mapping) or not isinstance(bags, Iterable):
        raise InputError(
            f"predict() takes bags, not a {type(bags).__name__}: give probsa.Bags, arrays "
            "(instances, features) or pairs (features, coords); read a bag from a file with "
            "open_bags(folder).bag(name), or predict a whole folder with predict_folder"
        )
    if isinstance(bags, list) and _is_list_of_pair(bags):
        raise InputError(
            "predict() got a list of an array of features and one of coordinates, which would be "
            "two bags: give the pair as a tuple, (features, coords)"
        )
    return bags


def _is_list_of_pair(items: list[Any]) -> bool:
    """Return whether a list looks like features and coordinates instead of bags."""
    if len(items) != 2 or not all(isinstance(item, np.ndarray | Tensor) for item in items):
        return False
    features, coords = items
    few_columns = coords.ndim == 1 or (coords.ndim == ONE_BAG and coords.shape[1] in (1, 2))
    wide = features.ndim == ONE_BAG and features.shape[1] > 2
    return wide and few_columns and len(features) == len(coords)


def _unlabelled(bag: Bag) -> Bag:
    """Return a bag without its label, and with its features in at most single precision."""
    x = bag.x if bag.x.element_size() < 4 else bag.x.float()
    return replace(bag, x=x, y=None)


def _unpack(out: Output, packed: Bags, bags: list[Bag], *, kind: str) -> Iterator[Prediction]:
    """Yield the prediction of each bag of a batch."""
    columns: dict[str, Any] = {}  # their types differ from those of the fields that follow
    for name, tensor in _instance_tensors(out, packed, kind=kind).items():
        columns[name] = _numpy(tensor)
    neighbour_weight = out.attention.neighbour_weight
    neighbour_weights = None if neighbour_weight is None else _numpy(neighbour_weight)
    probability = _numpy(out.predicted.values)
    std = _numpy(out.predicted.spread)
    for b, (bag, rows) in enumerate(zip(bags, bag_rows(packed), strict=True)):
        weights_of_bag = None if neighbour_weights is None else neighbour_weights[rows]
        yield Prediction(
            name=bag.name,
            probability=probability[b],
            std=std[b],
            score_kind=kind,
            kind="ct" if bag.coords is not None and bag.coords.shape[1] == 1 else "slide",
            stride=bag.stride,
            slides=bag.slides,
            neighbour_weight=None if weights_of_bag is None else float(weights_of_bag.mean()),
            coords=None if bag.coords is None else bag.coords.numpy(),
            instance_labels=None if bag.instance_labels is None else bag.instance_labels.numpy(),
            slide=None if bag.slide is None else bag.slide.numpy(),
            **{name: values[rows] for name, values in columns.items()},
        )


def _instance_tensors(out: Output, packed: Bags, *, kind: str) -> dict[str, Tensor]:
    """Return what a model says of the instances of a batch, by the fields of `Prediction`."""
    attention = out.attention
    explanation = out.explanation
    weight = out.extras.get("weight_mean")
    if weight is None:
        weight = _weights(attention.mean, packed.sizes, kind=kind)
    tensors = {
        "attention_mean": attention.mean,
        "attention_variance": attention.variance,
        "weight_mean": weight,
        "weight_variance": out.extras.get("weight_variance", torch.zeros_like(weight)),
        "degree": packed.degrees,
    }
    if kind == "logit" and attention.stochastic and "weight_above_uniform" in out.extras:
        tensors["weight_above_uniform"] = out.extras["weight_above_uniform"]
    if explanation is not None:
        for name, field in EXPLANATIONS.items():
            values = getattr(explanation, field)
            if values is not None:
                # (n,) for a single logit
                tensors[name] = values[:, 0] if values.shape[1] == 1 else values
    return tensors


def _weights(score: Tensor, sizes: Sequence[int], *, kind: str) -> Tensor:
    """Return the weights of the instances, which sum to 1 per bag (a softmax for logits)."""
    if kind == "logit":
        return segment_softmax(score, sizes)
    if kind == "weight":
        return score
    # scores below 0 have no weight; the floor keeps a bag without any positive score finite
    bags = score.clamp_min(0).split(list(sizes))
    return torch.cat([bag / bag.sum(0).clamp_min(1e-30) for bag in bags])


def _numpy(v: Tensor) -> np.ndarray:
    return v.detach().float().cpu().numpy()
