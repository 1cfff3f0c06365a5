"""Stage 8: the training of one model.

An epoch trains on the plan's batches, validates, and applies the rule `select` (see `validation`).
Batches, noise and dropout follow from (seed, epoch, step), so a run that is killed and resumed
ends with the same weights. Under torchrun each batch is divided among the processes, and the
gradients are those of the whole batch. Models that are fitted in one go have a single epoch.
"""

import math
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from ..core import Bag, Bags, pack, random_stream, seed_of
from ..datasets import balanced_epoch, deal_events
from ..errors import InputError
from ..models import Model, look_up
from ..variational import kl_weight, objective
from .batching import BagReader, Batch, Loader, Shard, plan_epoch, shard
from .checkpoints import (
    Checkpoint,
    Progress,
    damaged_state,
    load_checkpoint,
    optimizer_tensors,
    prefixed,
    progress_of,
    restore_model,
    restore_optimizer,
    save_checkpoint,
)
from .config import RunConfig
from .devices import World, precision_context
from .optimizers import averaged_model, clip_gradients, make_optimizer, set_learning_rate
from .preparation import PreparedData, build_model
from .reporting import Reporter
from .run_folder import RunFolder
from .targets import stack_targets
from .trackers import TrackedRun
from .validation import SCORES, check_selection, chosen_row, validation_scores

EQUAL = 1e-6
"""Predictions closer than this count as equal."""
REMEDY = (
    "the weights are lost from here on. Try a lower learning_rate, clip_norm: 1, or precision: "
    "float32"
)


class TrainingLoop:
    """Trains a run to its last epoch, and writes its files after each epoch.

    It continues from the folder's last checkpoint, if there is one. Of the processes that train
    together (`world`), the first one writes the files.

    Raises:
        InputError: the run cannot be trained with these settings and bags.
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
        device = torch.device("cpu") if fits_directly(config) else device
        self.config, self.folder, self.prepared = config, folder, prepared
        self.device, self.reporter, self.world, self.tracker = device, reporter, world, tracker
        self.settings = config.training
        self.epochs = 1 if fits_directly(config) else config.training.epochs
        self.standardizer = prepared.standardizer.to(device)
        checkpoint = load_checkpoint(folder.last) if folder.last.is_file() else None
        if checkpoint is None:
            model, self.progress = build_model(config, prepared), Progress()
        else:
            model = restore_model(checkpoint, expect=config.model)
            self.progress = progress_of(checkpoint)
        self.model = self.kept = model.to(device)
        """`kept` is what is validated and stored as the best: the model, or its average."""
        self.reader = BagReader(prepared.bags, prepared.targets, model=config.model)
        self.average: AveragedModel | None = None
        self._collapsed = False
        if not model.fits_directly:
            self._check()
            self._begin(checkpoint)

    def _begin(self, checkpoint: Checkpoint | None) -> None:
        """Make what gradient steps need, and restore its state."""
        model, settings = self.model, self.settings
        self.optimizer = make_optimizer(model, settings)
        if settings.select == "ema-nll":
            self.average = averaged_model(model, decay=settings.ema_decay)
            self.kept = cast(Model, self.average.module)
        if checkpoint is not None:
            restore_optimizer(self.optimizer, checkpoint)
            with damaged_state(checkpoint.path):
                model.restore_memory(checkpoint.part("memory"))
                if self.average is not None:
                    self.kept.load_state_dict({**model.state_dict(), **checkpoint.part("average")})
                    self.average.n_averaged.fill_(self.progress.step)
        pin = self.device.type == "cuda"
        self.loader = Loader(self.reader, workers=settings.workers, pin=pin)
        self.plans = [self._plan(epoch) for epoch in range(self.epochs)]
        self.steps = sum(len(plan) for plan in self.plans)

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
        train, seed, order = self.prepared.split.train, self.config.order_seed, None
        size = self.settings.batch_size
        y: list[Any] = [self.prepared.targets[name] for name in train]
        if self.prepared.deals_events:
            dealt = deal_events([int(e) for _, e in y], batch_size=size, seed=seed, epoch=epoch)
            return [tuple(train[k] for k in batch) for batch in dealt]
        if self.settings.sampling == "balanced":
            order = [train[k] for k in balanced_epoch(y, seed=seed, epoch=epoch)]
        return plan_epoch(
            train, order=order, seed=seed, epoch=epoch, batch_size=size,
            max_instances=self.settings.max_instances, size=self.prepared.bags.size,
        )  # fmt: skip

    def run(self) -> None:
        """Train the remaining epochs; an InputError says that the run diverged."""
        progress, patience = self.progress, self.settings.patience
        self.reporter.start(done=progress.epoch, epochs=self.epochs)
        try:
            while progress.epoch < self.epochs:
                if patience is not None and progress.since_best >= patience:
                    break
                started = time.perf_counter()
                train_epoch = self.fit if self.model.fits_directly else self.train_epoch
                row: dict[str, Any] = {**train_epoch(), **self.validate()}
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

    def fit(self) -> dict[str, Any]:
        """Fit the model in one go; return the row of its only epoch."""
        split = self.prepared.split
        train, val = (_StandardizedBags(self, names) for names in (split.train, split.val))
        self.model.fit_bags(train, val)
        self.model.eval()
        with torch.no_grad():
            packed = (pack([bag]) for bag in train)
            terms = [self.model.losses(self.model(bags), bags) for bags in packed]
        loss = math.fsum(float(v) for each in terms for v in each.values()) / len(train)
        if not math.isfinite(loss):
            raise InputError(f"{self.config.model} could not be fitted: its loss is {loss}")
        row = {"epoch": 1, "learning_rate": None, "kl_weight": None, "loss": loss}
        return {**row, **self.model.monitored()}

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
                self.average.update_parameters(self.model)
            self.reporter.step(epoch=epoch, share=(k + 1) / len(shards))
        count = len(self.prepared.split.train)
        ranks = self.world.gather({k: float(v) / count for k, v in sums.items()})
        terms = {k: sum(rank[k] for rank in ranks) for k in sums}
        if bad := [k for k, v in terms.items() if not math.isfinite(v)]:
            raise self._divergence(f"{', '.join(bad)} is {terms[bad[0]]}")
        row = {"epoch": epoch + 1, "learning_rate": rate, "kl_weight": weight}
        return {**row, **terms, **self.model.monitored()}

    def step(self, part: Shard, bags: Bags, kl_weight: float) -> dict[str, Tensor]:
        """Take one step on this process's part of a batch; return the loss and its terms.

        They are this process's share of the means over the whole batch.
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

    @torch.no_grad()
    def validate(self) -> dict[str, float | None]:
        """Return the scores of the validation bags."""
        task = self.prepared.table.task
        names = self.prepared.split.val[self.world.rank :: self.world.size]
        batches: list[tuple[Tensor, Tensor]] = []
        self.kept.eval()
        self.kept.explains = False  # no one reads the explanations of an epoch
        for k in range(0, len(names), size := self.settings.batch_size):
            bags = self._on_device(self.reader[Shard(names[k : k + size], size)])
            with precision_context(self.settings.precision, self.device):
                out = self.kept(bags)
            batches.append((out.probability.cpu().double(), out.logits.cpu().double()))
        self.kept.explains = True
        ranks = self.world.gather((names, batches))
        if not self.prepared.split.val:
            return validation_scores([], task=task)
        names = [name for part, _ in ranks for name in part]
        p, logits = map(torch.cat, zip(*(b for _, batches in ranks for b in batches), strict=True))
        nll = None
        if not self.kept.likelihood.of_classes:
            y = stack_targets(self.prepared.targets, names).to(self.device)
            nll = self.kept.likelihood.predictive_nll(logits.to(self.device), y).cpu().numpy()
        if not (p.isfinite().all() and np.isfinite(0.0 if nll is None else nll).all()):
            raise self._divergence("validation bags are predicted as NaN")
        self._note_collapse(p)
        targets = [self.prepared.targets[name] for name in names]
        return validation_scores(targets, p, nll=nll, task=task)

    def _on_device(self, bags: Bags) -> Bags:
        return self.standardizer(bags.to(self.device, torch.float32))

    def _divergence(self, problem: str) -> InputError:
        return InputError(f"epoch {self.progress.epoch + 1}: {problem}; {REMEDY}")

    def _note_collapse(self, p: Tensor) -> None:
        """Report, once per run, that a model predicts the same for every validation bag."""
        if self._collapsed or len(p) < 2 or bool((p.amax(0) - p.amin(0) >= EQUAL).any()):
            return
        self._collapsed = True
        self.reporter.note(
            f"epoch {self.progress.epoch + 1}: all {len(p)} validation bags are predicted the same "
            f"({p[0, -1]:.3f}): {self.config.model} has collapsed, or has not learned anything yet"
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
        progress, model = self.progress, self.model
        metadata = {
            "model": model.name,
            "arguments": model.arguments,
            "classes": self.prepared.table.classes,
            "progress": vars(progress),
        }
        scaling = prefixed("standardize", self.standardizer.state_dict())
        if progress.best["epoch"] == progress.epoch:
            best = prefixed("model", self.kept.state_dict())
            save_checkpoint(self.folder.best, {**best, **scaling}, metadata=metadata)
        state, groups = {}, []
        if not model.fits_directly:
            state, groups = optimizer_tensors(self.optimizer)
        state |= prefixed("memory", model.memory())
        if self.average is not None:
            state |= prefixed("average", self.kept.state_dict())
        last = {**prefixed("model", model.state_dict()), **scaling, **state}
        save_checkpoint(self.folder.last, last, metadata={**metadata, "groups": groups})
        self.folder.write_metrics(progress.history)
        row = progress.history[-1]
        if self.events is not None:
            for key, value in row.items():
                if isinstance(value, float) and key != "seconds":
                    self.events.add_scalar(key, value, row["epoch"])
        if self.tracker is not None:
            self.tracker.update(progress.history)


class _StandardizedBags(Collection[Bag]):
    """Bags with their labels, standardised as in a run, and read one at a time."""

    def __init__(self, loop: TrainingLoop, names: Sequence[str]) -> None:
        self.loop, self.names = loop, names

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[Bag]:
        for name in self.names:
            bag = self.loop.reader.labelled(name)
            scaled = self.loop.standardizer(pack([replace(bag, x=bag.x.float())]))
            yield replace(bag, x=scaled.x)


def fits_directly(config: RunConfig) -> bool:
    """Return whether a run's model is fitted in one go."""
    return look_up(config.model).model.fits_directly


def _seed_dropout(seed: int, device: torch.device) -> None:
    """Seed torch's own generator of a device; `torch.manual_seed` would record a stack trace."""
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
