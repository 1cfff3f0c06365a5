"""Stage 8: runs of models that are fitted in one go (`Model.fits_directly`), without an epoch loop.

Their run folder has one epoch: one row of metrics.csv, and both checkpoints with equal weights.
"""

import math
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import torch

from ..core import Bag, pack
from ..errors import InputError
from ..models import Model, fixed
from ..tasks import Target
from .batching import BagReader
from .config import RunConfig
from .preparation import PreparedData, Standardizer, build_model
from .progress import Progress, SavedModel, save_run
from .reporting import Reporter
from .run_folder import RunFolder
from .validation import validation_scores


def fits_directly(config: RunConfig) -> bool:
    """Return whether a run's model is fitted in one go."""
    return fixed(config.model)[0].fits_directly


def epochs_of(config: RunConfig) -> int:
    """Return the number of epochs of a complete run: 1 for a model that is fitted in one go."""
    return 1 if fits_directly(config) else config.training.epochs


class LabelledBags(Collection[Bag]):
    """Bags with their labels, standardised as in the run, and read one at a time."""

    def __init__(
        self, reader: BagReader, names: Sequence[str], *, standardizer: Standardizer
    ) -> None:
        self.reader, self.names, self.standardizer = reader, tuple(names), standardizer

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[Bag]:
        for name in self.names:
            bag = self.reader.labelled(name)
            scaled = self.standardizer(pack([replace(bag, x=bag.x.float())]))
            yield replace(bag, x=scaled.x)


def fit_run(
    config: RunConfig, folder: RunFolder, prepared: PreparedData, *, reporter: Reporter
) -> None:
    """Fit the model of a run whose folder exists; a run that is complete stays as it is.

    Raises:
        InputError: the bags do not suffice, or the fit is not finite.
        BagError: a bag cannot be used.
    """
    if folder.best.is_file() and folder.last.is_file():
        return
    reporter.start(done=0, epochs=1)
    began = time.perf_counter()
    model = build_model(config, prepared)
    reader = BagReader(prepared.bags, prepared.targets, models=[config.model])
    parts = {
        part: LabelledBags(reader, names, standardizer=prepared.standardizer)
        for part, names in (("train", prepared.split.train), ("val", prepared.split.val))
    }
    model.fit_bags(parts["train"], parts["val"])
    model.eval()
    loss = math.fsum(_loss(model, bag) for bag in parts["train"]) / len(parts["train"])
    row: dict[str, float | int | None] = {
        "epoch": 1,
        "learning_rate": None,
        "kl_weight": None,
        "loss": loss,
        **model.monitored(),
        **validation_scores(*_predicted(model, parts["val"])),
        "seconds": round(time.perf_counter() - began, 3),
    }
    if not math.isfinite(loss):
        raise InputError(f"{config.model} could not be fitted: its loss is {loss}")
    best = {k: row[k] for k in ("epoch", "val_auroc", "val_nll")}
    progress = Progress(epoch=1, best=best, history=[row])
    saved = SavedModel.of(model, prepared)
    save_run(folder, saved, saved, progress, optimizer={}, groups=[])
    reporter.epoch(row)


@torch.no_grad()
def _loss(model: Model, bag: Bag) -> float:
    bags = pack([bag])
    return sum(float(v) for v in model.losses(model(bags), bags).values())


@torch.no_grad()
def _predicted(model: Model, bags: LabelledBags) -> tuple[list[Target], list[list[float]]]:
    """Return the labels of the bags and their probabilities."""
    labels = [bags.reader.targets[name] for name in bags.names]
    return labels, [model(pack([bag])).probability[0].tolist() for bag in bags]
