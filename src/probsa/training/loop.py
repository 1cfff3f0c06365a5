"""Stage 8: from a run file to a run folder: one plain loop.

An epoch: train on the plan's batches, validate in `eval()`, keep the best weights by validation
AUROC (ties: lower NLL, then the earlier epoch), write the checkpoint. Order, noise and dropout
follow from (seed, epoch, step): a run that is killed and resumed ends with the same weights.
Under torchrun each batch is shared out over the ranks; the gradients are those of the whole batch.
"""

import math
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core import Bags, seed_of, stream
from ..errors import InputError, ProbSAError
from ..models import Model, arguments, build
from ..variational import kl_weight, objective
from .batching import BagReader, Batch, Loader, Shard, plan_epoch, shard
from .checkpoints import (
    Checkpoint,
    load_checkpoint,
    optimizer_tensors,
    restore_model,
    restore_optimizer,
)
from .config import RunConfig
from .devices import World, choose_device, precision_context, world
from .optimizers import clip_gradients, make_optimizer, set_learning_rate
from .preparation import Prepared, prepare
from .progress import Progress, Saved, is_better, save_run, validation_scores
from .run_folder import RunFolder, open_run

SAME = 1e-6
"""Predictions that differ by less are one."""


class Reporter:
    """Who is told how a run goes: this one says nothing, the command line's shows a bar."""

    def start(self, *, done: int, epochs: int) -> None:
        """Before the first epoch that is to come; `done` were there already."""

    def step(self, *, epoch: int, share: float) -> None:
        """After a step: how much of the epoch (from 0) is done."""

    def epoch(self, row: Mapping[str, object]) -> None:
        """After an epoch: its row of metrics.csv."""

    def note(self, text: str) -> None:
        """Something worth a line."""

    def remark(self, text: str) -> None:
        """Something worth a line where one run is all there is: its files say it too."""


def train(
    config: RunConfig,
    out: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    reporter: Reporter | None = None,
) -> RunFolder:
    """Trains a model, or goes on training it, and gives its run folder.

    Args:
        config: the run.
        out: the run folder; made, and refused where it exists without `resume` or `overwrite`.
        resume: go on from the last epoch that ended; a finished run is left as it is.
        overwrite: remove the run that is there first.
        reporter: told of every epoch.

    Raises:
        OutputExists, InputError, BagError, TableError, CheckpointError: see each.
    """
    reporter = reporter or Reporter()
    device = choose_device(config.training.device)
    if config.training.threads:
        torch.set_num_threads(config.training.threads)
    with torch.random.fork_rng(devices=[]), world(device) as w:
        prepared = prepare(config, previous=out if resume else None)
        folder = RunFolder(out)
        if w.first:
            open_run(out, config, resume=resume, overwrite=overwrite)
            prepared.write(folder)
            if prepared.left_out:
                reporter.remark(
                    f"{len(prepared.left_out)} labelled bags are left out, without features or "
                    f"instances: {folder.notes_file} says why"
                )
        w.wait()
        try:
            Trainer(config, folder, prepared, device=device, world=w, reporter=reporter).run()
        except ProbSAError:
            if w.first and not folder.last.is_file():
                shutil.rmtree(out)  # refused before an epoch ended: nothing to go on with
            raise
        if w.first:
            prepared.write(folder)  # again: by now every bag was read, and remarked on
            if prepared.bags.notes:
                remarks = len(prepared.bags.notes)
                reporter.remark(f"{remarks} bags have remarks: {folder.notes_file}")
    return folder


class Trainer:
    """The loop and what it needs; `train` makes one."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        prepared: Prepared,
        *,
        device: torch.device,
        world: World,
        reporter: Reporter,
    ) -> None:
        self.config, self.settings = config, config.training
        self.folder, self.prepared = folder, prepared
        self.device, self.world, self.reporter = device, world, reporter
        self.progress, self.collapsed = Progress(), False
        self.model, last = self._model()
        if world.size > 1 and self.model.couples_bags:
            raise InputError(
                f"{config.model} couples the bags of a batch in training: {world.size} processes "
                "would each see a part of it. Train it in one"
            )
        if self.settings.schedule == "plateau" and not prepared.split.val:
            raise InputError(
                "schedule is 'plateau', which follows the validation loss, but no bag validates "
                f"({prepared.split.origin})"
            )
        self.standardizer = prepared.standardizer.to(device)
        self.optimizer = make_optimizer(self.model, self.settings)
        if last is not None:
            restore_optimizer(self.optimizer, last)
            self.model.restore_memory(last.part("memory"))
            self.progress = Progress(**last.metadata["progress"])
        reader = BagReader(prepared.bags, prepared.labels)
        pin = device.type == "cuda"
        self.loader = Loader(reader, workers=self.settings.workers, pin=pin)
        self.validation = Loader(reader)
        self.plans = [self._plan(e) for e in range(self.settings.epochs)]
        self.total = sum(len(p) for p in self.plans)

    def _model(self) -> tuple[Model, Checkpoint | None]:
        """The model as it starts: from the seed, or from the last checkpoint of a resumed run."""
        if self.folder.last.is_file():
            last = load_checkpoint(self.folder.last)
            model = restore_model(last, path=self.folder.last, expect=self.config.model)
            return model.to(self.device), last
        torch.manual_seed(seed_of(self.config.seed, "weights"))
        given = {**self.prepared.model_arguments, **self.config.model_arguments}
        if "seed" in arguments(self.config.model):
            given.setdefault("seed", self.config.seed)
        model = build(self.config.model, **given)
        return model.to(self.device), None

    def _plan(self, epoch: int) -> list[Batch]:
        return plan_epoch(
            self.prepared.split.train,
            seed=self.config.order_seed,
            epoch=epoch,
            batch_size=self.settings.batch_size,
            max_instances=self.settings.max_instances,
            size=self.prepared.bags.size,
        )

    def run(self) -> None:
        """Every epoch that is still to come."""
        tensorboard = self._tensorboard()
        self.reporter.start(done=self.progress.epoch, epochs=self.settings.epochs)
        while self.progress.epoch < self.settings.epochs and not self._patience_is_over():
            started = time.perf_counter()
            row = self._train_epoch(self.progress.epoch)
            row |= self._validate()
            row["seconds"] = round(time.perf_counter() - started, 3)
            self.progress.epoch += 1
            better = is_better(row, self.progress.best)
            if better:
                self.progress.best = {k: row[k] for k in ("epoch", "val_auroc", "val_nll")}
            self.progress.history.append(row)
            if self.world.first:
                self._save(better=better)
                if tensorboard is not None:
                    for key, value in row.items():
                        if isinstance(value, float) and key != "seconds":
                            tensorboard.add_scalar(key, value, row["epoch"])
            self.reporter.epoch(row)
        if tensorboard is not None:
            tensorboard.close()
        self.world.wait()

    def _train_epoch(self, epoch: int) -> dict[str, Any]:
        self.model.train()
        self.model.start_epoch(epoch, self.settings.epochs)
        losses = [row["val_nll"] for row in self.progress.history]
        rate = set_learning_rate(self.optimizer, self.settings, epoch=epoch, losses=losses)
        shards = [shard(b, rank=self.world.rank, world=self.world.size) for b in self.plans[epoch]]
        sums: dict[str, Tensor] = {}
        weight = 0.0
        for k, (part, bags) in enumerate(self.loader.epoch(shards)):
            weight = kl_weight(self.settings.kl_weight, self.progress.step, self.total)
            for name, value in self._step(part, bags, weight).items():
                sums[name] = sums.get(name, 0) + value * part.whole
            self.progress.step += 1
            self.reporter.step(epoch=epoch, share=(k + 1) / len(shards))
        count = len(self.prepared.split.train)
        means = self._mean_over_ranks({k: float(v) / count for k, v in sums.items()})
        bad = [k for k, v in means.items() if not math.isfinite(v)]
        if bad:
            raise InputError(
                f"epoch {epoch + 1}: {', '.join(bad)} is {means[bad[0]]}; the weights are lost "
                "from here on. Try a lower learning_rate, clip_norm: 1, or precision: float32"
            )
        return {"epoch": epoch + 1, "learning_rate": rate, "kl_weight": weight, **means}

    def _step(self, part: Shard, bags: Bags, weight: float) -> dict[str, Tensor]:
        """One step of the optimiser; gives this rank's share of each term of the whole batch."""
        bags = self.standardizer(bags.to(self.device, torch.float32))
        seed, step = self.config.seed, self.progress.step
        seed_dropout(seed_of(seed, "dropout", step, self.world.rank), self.device)
        generator = stream(seed, "noise", step, device=self.device)
        self.optimizer.zero_grad(set_to_none=True)
        with precision_context(self.settings.precision, self.device):
            out = self.model(bags, generator=generator)
            terms = self.model.losses(out, bags)
        loss = objective(terms, weights=self.model.loss_weights, kl_weight=weight)
        # a rank's mean counts by the bags it has of the batch
        share = 0.0 if part.idle else len(part.names) / part.whole
        (loss * share).backward()
        self.world.sum_gradients(self.model.parameters())
        clip_gradients(self.optimizer, self.settings.clip_norm)
        self.optimizer.step()
        self.model.after_step(out, bags)
        return {k: v.detach() * share for k, v in {**terms, "loss": loss}.items()}

    def _mean_over_ranks(self, means: dict[str, float]) -> dict[str, float]:
        everyone = self.world.gather(means)
        return {k: sum(m[k] for m in everyone) for k in means}

    @torch.no_grad()
    def _validate(self) -> dict[str, float | None]:
        """AUROC and NLL of the validation part, each bag predicted as it always would be."""
        own = self.prepared.split.val[self.world.rank :: self.world.size]
        self.model.eval()
        found: list[tuple[int, list[float]]] = []
        for batch in chunks(own, self.settings.batch_size):
            for _, bags in self.validation.epoch([Shard(batch, len(batch))]):
                bags = self.standardizer(bags.to(self.device, torch.float32))
                with precision_context(self.settings.precision, self.device):
                    p = self.model(bags).probability
                labels = [self.prepared.labels[name] for name in batch]
                found += zip(labels, p.double().cpu().tolist(), strict=True)
        everyone = [pair for part in self.world.gather(found) for pair in part]
        if not all(math.isfinite(v) for _, p in everyone for v in p):
            raise InputError(
                f"epoch {self.progress.epoch + 1}: validation bags are predicted as NaN; the "
                "weights are lost. Try a lower learning_rate, clip_norm: 1, or precision: float32"
            )
        self._note_collapse([p for _, p in everyone])
        return validation_scores([y for y, _ in everyone], [p for _, p in everyone])

    def _note_collapse(self, predicted: Sequence[Sequence[float]]) -> None:
        """Says once if a model has come to predict the same for every bag."""
        if self.collapsed or len(predicted) < 2:
            return
        p = torch.tensor(predicted, dtype=torch.float64)
        if bool((p.amax(0) - p.amin(0) < SAME).all()):
            self.collapsed = True
            self.reporter.note(
                f"epoch {self.progress.epoch + 1}: all {len(p)} validation bags are predicted the "
                f"same ({p[0, -1]:.3f}): {self.config.model} has collapsed, or has yet to learn"
            )

    def _patience_is_over(self) -> bool:
        since = self.progress.epoch - int(self.progress.best.get("epoch") or 0)
        return self.settings.patience is not None and since >= self.settings.patience

    def _save(self, *, better: bool) -> None:
        state, groups = optimizer_tensors(self.optimizer)
        state |= {f"memory.{k}": v for k, v in self.model.memory().items()}
        saved = Saved(
            model=self.model.name,
            arguments=self.model.arguments,
            classes=self.prepared.classes,
            weights=self.model.state_dict(),
            standardize=self.standardizer.state_dict(),
        )
        best = saved if better else None
        save_run(self.folder, best, saved, self.progress, optimizer=state, groups=groups)

    def _tensorboard(self) -> Any:
        if not (self.settings.tensorboard and self.world.first):
            return None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return None
        return SummaryWriter(str(self.folder.path / "tensorboard"))


def seed_dropout(seed: int, device: torch.device) -> None:
    """Seeds torch's own generator of a device (`torch.manual_seed` costs a stack trace a call)."""
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def chunks(names: Sequence[str], size: int) -> list[Batch]:
    """Names in order, `size` at a time."""
    return [tuple(names[k : k + size]) for k in range(0, len(names), size)]
