"""Stage 8: the training loop of one run.

An epoch trains on the plan's batches, validates, and applies the rule `select` (see `selection`).
Batches, noise and dropout follow from (seed, epoch, step), so a run that is killed and resumed
ends with the same weights. Under torchrun each batch is divided among the processes, and the
gradients are those of the whole batch.
"""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..core import Bags, random_stream, seed_of
from ..errors import InputError
from ..tasks import Target
from ..variational import kl_weight, objective
from .averaging import WeightAverage, exponential_rate
from .batching import BagReader, Batch, Loader, Shard, plan_epoch, shard
from .checkpoints import (
    damaged_state,
    load_checkpoint,
    optimizer_tensors,
    restore_model,
    restore_optimizer,
)
from .config import RunConfig
from .devices import World, precision_context
from .imbalance import dealt_batches, epoch_order
from .optimizers import clip_gradients, make_optimizer, set_learning_rate
from .preparation import PreparedData, build_model
from .progress import Progress, SavedModel, progress_of, save_run
from .reporting import Reporter
from .run_folder import RunFolder
from .selection import SCORES, check_selection, chosen_row
from .trackers import TrackedRun
from .validation import nll_of_all, validation_scores, with_nll

EQUAL = 1e-6
"""Predictions closer than this count as equal."""
REMEDY = (
    "the weights are lost from here on. Try a lower learning_rate, clip_norm: 1, or precision: "
    "float32"
)


class TrainingLoop:
    """Trains a run to its last epoch, and writes its files after each epoch.

    It continues from the folder's last checkpoint, if there is one.

    Args:
        config: the run.
        folder: the run folder.
        prepared: the data that it trains on.
        device: where to train.
        reporter: receives the progress.
        world: the processes that train together; the first one writes the files.
        tracker: an experiment tracker that receives the metrics as well.

    Raises:
        InputError: the run cannot be trained with these settings and bags.
        CheckpointError: the checkpoint cannot be used.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        prepared: PreparedData,
        *,
        device: torch.device,
        reporter: Reporter,
        world: World,
        tracker: TrackedRun | None = None,
    ) -> None:
        self.config, self.folder, self.prepared = config, folder, prepared
        self.device, self.reporter, self.world, self.tracker = device, reporter, world, tracker
        self.settings = config.training
        self.standardizer = prepared.standardizer.to(device)
        checkpoint = load_checkpoint(folder.last) if folder.last.is_file() else None
        if checkpoint is None:
            model, self.progress = build_model(config, prepared), Progress()
        else:
            model = restore_model(checkpoint, path=folder.last, expect=config.model)
            self.progress = progress_of(checkpoint)
        self.model = model.to(device)
        self._check()
        self.optimizer = make_optimizer(model, self.settings)
        self.average = WeightAverage(model) if self.settings.select == "ema-nll" else None
        """The average of weights that is validated and kept instead of the weights."""
        if checkpoint is not None:
            restore_optimizer(self.optimizer, checkpoint)
            with damaged_state(checkpoint.path):
                model.restore_memory(checkpoint.part("memory"))
                if self.average is not None:
                    self.average.restore(checkpoint.part("average"))
        reader = BagReader(prepared.bags, prepared.targets, models=[self.config.model])
        pin = device.type == "cuda"
        self.loader = Loader(reader, workers=self.settings.workers, pin=pin)
        self.validation_loader = Loader(reader)
        self.plans = [self._plan(epoch) for epoch in range(self.settings.epochs)]
        self.steps = sum(len(plan) for plan in self.plans)
        self._collapsed = False

    def _check(self) -> None:
        model, split, settings = self.model, self.prepared.split, self.settings
        coupled = self.config.model if model.couples_bags else "the Cox likelihood"
        if self.world.size > 1 and (model.couples_bags or model.likelihood.couples_bags):
            raise InputError(
                f"{coupled} couples the bags of a batch in training: {self.world.size} processes "
                "would each see a part of it. Train it in one process"
            )
        if settings.schedule == "plateau" and not split.val:
            raise InputError(
                "schedule is 'plateau', which follows the validation loss, but there are no "
                f"validation bags ({split.origin})"
            )
        check_selection(
            settings.select, model, patience=settings.patience, validation=bool(split.val)
        )

    def _plan(self, epoch: int) -> list[Batch]:
        table, train = self.prepared.table, self.prepared.split.train
        if self.prepared.deals_events:
            return dealt_batches(self.config, table, train, epoch=epoch)
        return plan_epoch(
            train,
            order=epoch_order(self.config, table, train, epoch=epoch),
            seed=self.config.order_seed,
            epoch=epoch,
            batch_size=self.settings.batch_size,
            max_instances=self.settings.max_instances,
            size=self.prepared.bags.size,
        )

    def run(self) -> None:
        """Train the remaining epochs.

        Raises:
            InputError: the run diverged.
        """
        progress, epochs, patience = self.progress, self.settings.epochs, self.settings.patience
        self.reporter.start(done=progress.epoch, epochs=epochs)
        try:
            while progress.epoch < epochs:
                if patience is not None and progress.since_best >= patience:
                    break
                started = time.perf_counter()
                row: dict[str, Any] = {**self.train_epoch(), **self.validate()}
                row["seconds"] = round(time.perf_counter() - started, 3)
                progress.epoch += 1
                progress.history.append(row)
                best = chosen_row(self.settings.select, progress.history)
                progress.best = {k: best[k] for k in ("epoch", *SCORES, "val_nll") if k in best}
                if self.world.first:
                    self._save()
                self.reporter.epoch(row)
        finally:
            if self.__dict__.get("events") is not None:
                self.events.close()
        self.world.wait()

    def train_epoch(self) -> dict[str, Any]:
        """Take the steps of an epoch; return its learning rate, λ and mean terms."""
        progress, epoch = self.progress, self.progress.epoch
        self.model.train()
        self.model.start_epoch(epoch, self.settings.epochs)
        losses = [row["val_nll"] for row in progress.history]
        rate = set_learning_rate(self.optimizer, self.settings, epoch=epoch, losses=losses)
        shards = [shard(b, rank=self.world.rank, world=self.world.size) for b in self.plans[epoch]]
        sums: dict[str, Tensor] = {}
        weight = 0.0
        for k, (part, bags) in enumerate(self.loader.epoch(shards)):
            weight = kl_weight(self.settings.kl_weight, progress.step, self.steps)
            for name, value in self.step(part, bags, weight).items():
                sums[name] = sums.get(name, 0) + value * part.whole
            progress.step += 1
            if self.average is not None:
                self.average.update(exponential_rate(self.settings.ema_decay, step=progress.step))
            self.reporter.step(epoch=epoch, share=(k + 1) / len(shards))
        count = len(self.prepared.split.train)
        ranks = self.world.gather({k: float(v) / count for k, v in sums.items()})
        terms = {k: sum(rank[k] for rank in ranks) for k in sums}
        if bad := [k for k, v in terms.items() if not math.isfinite(v)]:
            raise self._divergence(f"{', '.join(bad)} is {terms[bad[0]]}")
        row = {"epoch": epoch + 1, "learning_rate": rate, "kl_weight": weight}
        return {**row, **terms, **self.model.monitored()}

    def step(self, part: Shard, bags: Bags, kl_weight: float) -> dict[str, Tensor]:
        """Take one step of the optimiser; return the loss and its terms.

        They are this process's share of the means over the whole batch.

        Args:
            part: this process's part of the batch.
            bags: the bags of that part.
            kl_weight: λ at this step.
        """
        bags = self._on_device(bags)
        # the means over a part count by its share of the batch's bags
        share = 0.0 if part.idle else len(part.names) / part.whole
        seed, step = self.config.seed, self.progress.step
        self.optimizer.zero_grad(set_to_none=True)
        _seed_dropout(seed_of(seed, "dropout", step, self.world.rank), bags.x.device)
        noise = random_stream(seed, "noise", step, device=bags.x.device)
        with precision_context(self.settings.precision, bags.x.device):
            output = self.model(bags, generator=noise)
            terms = self.model.losses(output, bags)
        loss = objective(terms, weights=self.model.loss_weights, kl_weight=kl_weight)
        (loss * share).backward()
        self.world.sum_gradients(self.model.parameters())
        clip_gradients(self.optimizer, self.settings.clip_norm)
        with torch.no_grad():
            sums = self.model.batch_statistics(output, bags)
            self.optimizer.step()
            if sums is not None:
                # the bags of an idle process do not count: others have the whole batch
                sums = torch.zeros_like(sums) if part.idle else sums
                self.model.update_statistics(self.world.sum(sums))
        self.model.after_step(output, bags)
        return {k: v.detach() * share for k, v in {**terms, "loss": loss}.items()}

    def _on_device(self, bags: Bags) -> Bags:
        return self.standardizer(bags.to(self.device, torch.float32))

    def _divergence(self, problem: str) -> InputError:
        return InputError(f"epoch {self.progress.epoch + 1}: {problem}; {REMEDY}")

    @torch.no_grad()
    def validate(self) -> dict[str, float | None]:
        """Return the scores of the validation bags."""
        labels, predicted = self._predict_validation()
        if not all(math.isfinite(v) for values in predicted for v in values):
            raise self._divergence("validation bags are predicted as NaN")
        if predicted and self.model.likelihood.couples_bags:
            predicted = nll_of_all(labels, predicted, self.model.likelihood)
        self._note_collapse(predicted)
        return validation_scores(labels, predicted, task=self.prepared.table.task)

    def _predict_validation(self) -> tuple[list[Target], list[list[float]]]:
        """Return the targets of all validation bags, and their predictions."""
        names = self.prepared.split.val[self.world.rank :: self.world.size]
        predicted: list[list[float]] = []
        self.model.eval()
        self.model.explains = False  # no one reads the explanations of an epoch
        with self._validated():
            for batch in chunks(names, self.settings.batch_size):
                for _, bags in self.validation_loader.epoch([Shard(batch, len(batch))]):
                    bags = self._on_device(bags)
                    with precision_context(self.settings.precision, self.device):
                        values = with_nll(self.model(bags), self.model.likelihood, bags)
                    predicted += values.cpu().double().tolist()
        self.model.explains = True
        ranks = self.world.gather(([self.prepared.targets[name] for name in names], predicted))
        return [y for labels, _ in ranks for y in labels], [p for _, rows in ranks for p in rows]

    def _validated(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the weights that are validated and kept."""
        return nullcontext() if self.average is None else self.average.applied()

    def _note_collapse(self, predicted: Sequence[Sequence[float]]) -> None:
        """Report, once per run, that a model predicts the same for every validation bag."""
        if self._collapsed or len(predicted) < 2:
            return
        if not self.prepared.table.of_task.unordered_classes:  # without the NLL, see `validation`
            predicted = [values[:-1] for values in predicted]
        if all(max(column) - min(column) < EQUAL for column in zip(*predicted, strict=True)):
            self._collapsed = True
            self.reporter.note(
                f"epoch {self.progress.epoch + 1}: all {len(predicted)} validation bags are "
                f"predicted the same ({predicted[0][-1]:.3f}): {self.config.model} has collapsed, "
                "or has not learned anything yet"
            )

    @cached_property
    def events(self) -> Any:
        """TensorBoard's writer, or None where it is not wanted or not installed."""
        if not self.settings.tensorboard:
            return None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return None
        return SummaryWriter(str(self.folder.path / "tensorboard"))

    def _save(self) -> None:
        """Write checkpoints and metrics after an epoch, and tell TensorBoard and the tracker."""
        progress = self.progress
        optimizer, groups = optimizer_tensors(self.optimizer)
        optimizer |= {f"memory.{k}": v for k, v in self.model.memory().items()}
        if self.average is not None:
            optimizer |= {f"average.{k}": v for k, v in self.average.tensors.items()}
        best = None
        if progress.best["epoch"] == progress.epoch:
            with self._validated():
                weights = {k: v.clone() for k, v in self.model.state_dict().items()}
            best = SavedModel.of(self.model, self.prepared, weights=weights)
        last = SavedModel.of(self.model, self.prepared)
        save_run(self.folder, best, last, progress, optimizer=optimizer, groups=groups)
        row = progress.history[-1]
        if self.events is not None:
            for key, value in row.items():
                if isinstance(value, float) and key != "seconds":
                    self.events.add_scalar(key, value, row["epoch"])
        if self.tracker is not None:
            self.tracker.update(progress.history)


def _seed_dropout(seed: int, device: torch.device) -> None:
    """Seed torch's own generator of a device; `torch.manual_seed` would record a stack trace."""
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def chunks(names: Sequence[str], size: int) -> Iterator[Batch]:
    """Yield the names in order, `size` at a time."""
    for k in range(0, len(names), size):
        yield tuple(names[k : k + size])
