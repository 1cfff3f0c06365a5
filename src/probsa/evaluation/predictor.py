"""Stage 9: apply a trained model to bags."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core import Bag, Bags, TaskName, pack, read_record, segment_softmax
from ..datasets import FeatureMetadata, Metadata
from ..errors import BagError, CheckpointError, InputError
from ..models import Model, Output, bag_rows
from ..training import (
    RunConfig,
    RunFolder,
    Standardizer,
    StoredPredictor,
    choose_device,
    load_checkpoint,
    precision_context,
    progress_of,
    restore_model,
)
from ..variational import Field, PerClass
from .ensemble import combine
from .prediction import Prediction
from .prior_shift import move_prior
from .target_metadata import target_metadata
from .temperature import Temperature, scale_prediction

MAX_INSTANCES = 8192
"""Maximum number of instances per step; a larger bag has a step of its own."""
SEEN_BY_ALL = "every run was trained or validated on it"
"""Why a bag is not predicted by several runs."""


class Predictor:
    """A model with the standardisation of its training; create one with `probsa.load`.

    A prediction depends only on the run and the bag, whose name seeds the noise.
    """

    def __init__(
        self,
        model: Model,
        standardizer: Standardizer,
        *,
        classes: Sequence[str] = ("0", "1"),
        device: str = "cpu",
        precision: str = "float32",
        config: RunConfig | None = None,
        metadata: dict[str, Any] | None = None,
        stated: FeatureMetadata | None = None,
    ) -> None:
        self.device = choose_device(device)
        self.model = model.to(self.device).eval()
        self.standardizer = standardizer.to(self.device)
        self.classes, self.precision = tuple(classes), precision
        self.config, self.metadata = config, metadata or {}
        self.stated = stated
        """The metadata of the training features; None if it is not known."""
        self.run: RunFolder | None = None
        """The run that the model comes from; None if there is none."""
        self.threshold: float | None = None
        """p(Y = 1) from which a bag is positive, of a model without a run; None if not known."""
        self.temperature = 1.0
        """Temperature of the probabilities of bags, see `temperature`; 1 changes nothing."""

    @property
    def task(self) -> TaskName:
        """What the model was trained to predict."""
        return self.model.likelihood.task

    def difference(self, name: str, metadata: Metadata) -> str | None:
        """Return how a bag's metadata differ from those of all training bags; None if not known."""
        del name
        return None if self.stated is None else self.stated.difference(metadata)

    def check(self, bag: Bag) -> None:
        """Refuse a bag that training would refuse.

        Raises:
            BagError: the bag has another number of features than the model was trained on, or
                lacks what the model needs, such as a graph.
        """
        wanted = self.model.arguments.get("in_dim")
        if wanted is not None and bag.x.shape[1] != wanted:
            raise BagError(
                f"bag {bag.name!r} has {bag.x.shape[1]} features per instance, but the model "
                f"was trained on {wanted}: extract them with the encoder it was trained on"
            )
        self.model.check_bag(bag, name=self.model.name)

    def save_pretrained(self, folder: Path | str, *, data: str = "") -> Path:
        """Write the model into a folder: `config.json`, `model.safetensors` and a model card.

        `probsa.from_pretrained` reads it. The folder can be uploaded to the Hugging Face Hub as it
        is. It holds no bag, no label and no path of this machine.

        Args:
            folder: new folder, or one that holds a model that was written before.
            data: a sentence on the data for the card.

        Raises:
            OutputExists: the folder holds other files.
        """
        from .model_card import facts_of
        from .pretrained import write_pretrained

        return write_pretrained(self, Path(folder), facts=facts_of(self, data=data))

    def predict(self, bags: Iterable[Bag], *, parts: bool = False) -> Iterator[Prediction]:
        """Yield one `Prediction` per bag, in order.

        Args:
            bags: the bags.
            parts: whether these are only some instances of each bag, which may have lost all of
                their neighbours; then `check` is left out.

        Raises:
            InputError: the argument is a single bag, or contains something that is not a bag.
            BagError: a bag does not suit the model, see `check`.
        """
        if isinstance(bags, Bag):
            raise InputError("predict() takes several bags: give [bag]")
        waiting: list[Bag] = []
        for bag in bags:
            if not isinstance(bag, Bag):
                raise InputError(
                    f"predict() takes Bags, not {type(bag).__name__}: read one from a file with "
                    "open_bags(folder).bag(name), or predict a whole folder with predict_folder"
                )
            if not parts:
                self.check(bag)
            if waiting and sum(map(len, waiting)) + len(bag) > MAX_INSTANCES:
                yield from self._scaled(waiting)
                waiting = []
            waiting.append(bag)
        if waiting:
            yield from self._scaled(waiting)

    def _scaled(self, bags: list[Bag]) -> Iterator[Prediction]:
        for p in self._predict_batch(bags):
            yield scale_prediction(p, temperature=self.temperature)

    def _predict_batch(self, bags: list[Bag]) -> Iterator[Prediction]:
        # Not used as a decorator, which may fail to recognise a wrapped generator.
        with torch.no_grad():
            packed = pack([replace(b, x=b.x.float(), y=None) for b in bags])
            packed = self.standardizer(packed.to(self.device, torch.float32))
            with precision_context(self.precision, self.device):
                out = self.model(packed)
                scores = self.model.instance_scores(packed, out)
                if scores is not out.attention:  # the weights of `out` belong to its attention
                    out = replace(out, attention=scores, extras={})
            scored = _scores(out, bags, model=self.model)
        for p, of_bag in zip(_unpack(out, packed, bags, model=self.model), scored, strict=True):
            if self.model.likelihood.of_classes:
                yield p
            else:
                outputs = self.model.likelihood.outputs(self.classes)
                yield replace(p, task=self.task, outputs=outputs, scores=of_bag)


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
        metadata: dict[str, Any] | None = None,
    ) -> None:
        first = members[0]
        self.members, self.seen = tuple(members), tuple(seen or [frozenset()] * len(members))
        self.device, self.model, self.standardizer = first.device, first.model, first.standardizer
        self.classes, self.precision = first.classes, first.precision
        self.config, self.metadata = config, metadata or {}
        self.stated = None  # each member has its own
        self.run = None
        self.threshold = None
        self.temperature = 1.0

    def may_predict(self, name: str) -> bool:
        """Return whether any member predicts a bag of this name."""
        return any(name not in seen for seen in self.seen)

    def difference(self, name: str, metadata: Metadata) -> str | None:
        """Return how a bag's metadata differ from the training bags of a run that predicts it."""
        for member, seen in zip(self.members, self.seen, strict=True):
            if name not in seen and (found := member.difference(name, metadata)) is not None:
                return found
        return None

    def check(self, bag: Bag) -> None:
        """Refuse a bag that the training of any member that predicts it would refuse.

        Raises:
            BagError: as for one model.
        """
        for member, seen in zip(self.members, self.seen, strict=True):
            if bag.name not in seen:
                member.check(bag)

    def _predict_batch(self, bags: list[Bag]) -> Iterator[Prediction]:
        predictions: list[list[Prediction]] = [[] for _ in bags]
        for member, seen in zip(self.members, self.seen, strict=True):
            mine = [k for k, bag in enumerate(bags) if bag.name not in seen]
            if mine:
                of_member = member._predict_batch([bags[k] for k in mine])
                for k, prediction in zip(mine, of_member, strict=True):
                    predictions[k].append(prediction)
        align = self.model.score_kind == "logit"
        for bag, of_bag in zip(bags, predictions, strict=True):
            if not of_bag:
                raise BagError(f"bag {bag.name!r}: {SEEN_BY_ALL}")
            yield combine(of_bag, align=align)


def load(folder: Path | str, *, checkpoint: str = "best", device: str = "auto") -> Predictor:
    """Load the predictor of a run folder (an `Ensemble` of its members), or of a converted model.

    Args:
        folder: folder of a training run, one that `save_pretrained` wrote, or a file that `probsa
            convert-checkpoint` wrote.
        checkpoint: the checkpoint of a run: `best` (chosen by `select`) or `last`.
        device: auto, cpu, cuda or mps.

    Raises:
        InputError: the folder is not a run folder.
        CheckpointError: the checkpoint is missing, damaged or not one of this package.
    """
    if Path(folder).is_file():
        return _load_file(Path(folder), device=device)
    run = RunFolder(Path(folder))
    if not run.config_file.is_file() and (run.path / "config.json").is_file():
        from .pretrained import from_pretrained

        return from_pretrained(run.path, device=device)
    config = run.config()
    if checkpoint not in ("best", "last"):
        raise CheckpointError(f"checkpoint is {checkpoint!r}: expected 'best' or 'last'")
    if config.training.members > 1:
        members = [load(m.path, checkpoint=checkpoint, device=device) for m in run.members()]
        epochs = [member.metadata["epoch"] for member in members]
        metadata = {"model": config.model, "epoch": epochs, "members": len(members)}
        if "kappa" in members[0].metadata:
            metadata["kappa"] = [member.metadata["kappa"] for member in members]
        return _with_temperature(Ensemble(members, config=config, metadata=metadata), run)
    path = run.best if checkpoint == "best" else run.last
    stored = load_checkpoint(path)
    model = restore_model(stored, path=path, expect=config.model)
    predictor = Predictor(
        model,
        Standardizer.restored(stored, in_dim=model.arguments.get("in_dim")),
        classes=stored.stated(StoredPredictor).classes,
        device=device,
        precision=config.training.precision,
        config=config,
        metadata={
            "model": config.model,
            "epoch": progress_of(stored).epoch,
            **{name: v.tolist()[0] for name, v in model.monitored().items()},
        },
        stated=FeatureMetadata.read(run.features_file),
    )
    return _with_temperature(predictor, run)


def _with_temperature(predictor: Predictor, run: RunFolder) -> Predictor:
    """Set the run of a predictor and its temperature, if it has one."""
    predictor.run = run
    members = predictor.members if isinstance(predictor, Ensemble) else (predictor,)
    for member in members:
        predictor.metadata |= move_prior(member.model.likelihood, run)
    if predictor.config is not None:
        predictor.metadata |= target_metadata(run, predictor.config, task=predictor.task)
    if run.temperature_file.is_file():
        advice = "remove it to predict without it, or copy the run again"
        stored = read_record(Temperature, run.temperature_file, advice=advice)
        predictor.temperature = float(stored.temperature)
        predictor.metadata["temperature"] = predictor.temperature
    return predictor


def _load_file(path: Path, *, device: str) -> Predictor:
    checkpoint = load_checkpoint(path)
    stored = checkpoint.stated(StoredPredictor)
    return Predictor(
        restore_model(checkpoint, path=path),
        Standardizer(),
        classes=stored.classes,
        device=device,
        metadata={"model": stored.model, "from": stored.reference},
    )


def _unpack(out: Output, packed: Bags, bags: list[Bag], *, model: Model) -> Iterator[Prediction]:
    q, kind = out.attention, model.score_kind
    weight = out.extras.get("weight_mean")
    if weight is None:
        weight = _weights(q.mean, packed.sizes, kind=kind)
    weight_variance = out.extras.get("weight_variance")
    if weight_variance is None:
        weight_variance = torch.zeros_like(weight)
    columns = [_numpy(v) for v in (q.mean, q.variance, weight, weight_variance, packed.degrees)]
    explained = _explained(out)
    field = q.joint if isinstance(q, PerClass) else q
    share = None
    if isinstance(field, Field):  # of several classes, the mean
        share = _numpy(field.neighbour_share.view(-1, len(packed.x)).mean(0))
    probability, std = _numpy(out.probability), _numpy(out.std)
    for b, (bag, rows) in enumerate(zip(bags, bag_rows(packed), strict=True)):
        mean, variance, w_mean, w_variance, degree = (c[rows] for c in columns)
        p = Prediction(
            name=bag.name,
            probability=probability[b],
            std=std[b],
            coords=None if bag.coords is None else bag.coords.numpy(),
            attention_mean=mean,
            attention_variance=variance,
            weight_mean=w_mean,
            weight_variance=w_variance,
            degree=degree,
            score_kind=kind,
            kind="ct" if bag.coords is not None and bag.coords.shape[1] == 1 else "slide",
            stride=bag.stride,
            instance_labels=None if bag.instance_labels is None else bag.instance_labels.numpy(),
            slide=None if bag.slide is None else bag.slide.numpy(),
            slides=bag.slides,
            neighbour_share=None if share is None else float(share[rows].mean()),
        )
        yield replace(p, **{name: values[rows] for name, values in explained.items()})


def _scores(out: Output, bags: list[Bag], *, model: Model) -> list[dict[str, float]]:
    """Return the scores of the bags that have targets, for tasks without classes."""
    if model.likelihood.of_classes:
        return [{} for _ in bags]
    scored: list[dict[str, float]] = []
    for b, bag in enumerate(bags):
        of_bag: dict[str, Tensor] = {}
        if bag.y is not None:
            y = torch.as_tensor(bag.y, device=out.logits.device)[None]
            of_bag = model.likelihood.score(out.logits[b : b + 1], y)
        scored.append({name: float(value[0]) for name, value in of_bag.items()})
    return scored


def _explained(out: Output) -> dict[str, np.ndarray]:
    """Return the arrays of the explanation by field of `Prediction`; (n,) for a single logit."""
    if out.explanation is None:
        return {}
    tensors = {
        "class_score": out.explanation.scores,
        "contribution": out.explanation.contributions,
        "leave_one_out": out.explanation.leave_one_out,
        "probability_positive": out.explanation.probability,
        "at_least": out.explanation.at_least,
    }
    return {
        name: _numpy(v[:, 0] if v.shape[1] == 1 else v)
        for name, v in tensors.items()
        if v is not None
    }


def _weights(score: Tensor, sizes: Sequence[int], *, kind: str) -> Tensor:
    """Return the weights of the instances, which sum to 1 per bag (a softmax for logits)."""
    if kind == "logit":
        return segment_softmax(score, sizes)
    if kind == "weight":
        return score
    positive = score.clamp_min(0)
    return torch.cat([s / s.sum(0).clamp_min(1e-30) for s in positive.split(list(sizes))])


def _numpy(v: Tensor) -> np.ndarray:
    return v.detach().float().cpu().numpy()
