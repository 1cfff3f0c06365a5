"""Stage 8: from a run file to a run folder.

An epoch trains on the plan's batches, validates, and applies the rule `select` (see `validation`).
Batches, noise and dropout follow from (seed, epoch, step), so a run that is killed and resumed ends
with the same weights. Under torchrun each batch is divided among the processes, and the gradients
are those of the whole batch. Members of a run have folders and seeds of their own.
"""

import math
import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from ..core import Bag, Bags, counted, pack, random_stream, remove_written_folder, seed_of
from ..datasets import balanced_epoch, most_frequent
from ..errors import InputError, OutputExists, ProbSAError, absent_package
from ..models import Model, Output, arguments, look_up
from ..variational import BACKGROUND, evidence_level, kl_weight, objective
from .batching import BagReader, Batch, Loader, Shard, plan_epoch, shard
from .checkpoints import (
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
from .config import ASSUMED, RunConfig
from .device_memory import StepMemory
from .devices import World, choose_device, precision_context, thread_count, world
from .objective import stack_targets
from .optimizers import averaged_model, clip_gradients, make_optimizer, set_learning_rate
from .preparation import PreparedData, build_model, prepare
from .recipes import default_recipe
from .reporting import Reporter
from .residency import ResidentReader, resident_features
from .run_folder import RunFolder, open_run
from .trackers import TrackedRun, tracked
from .validation import SCORES, check_selection, chosen_row, validation_scores

EQUAL = 1e-6
"""Predictions closer than this count as equal."""
ALIKE = 0.02
"""Range of probabilities within which a model has not learned to tell bags apart."""
MOST_COMPARED = 100
"""Upper limit of the training bags that are compared for this."""
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
        self.config = config
        self.folder = folder
        self.prepared = prepared
        self.device = device
        self.reporter = reporter
        self.world = world
        self.tracker = tracker
        self.settings = config.training
        self.epochs = 1 if fits_directly(config) else config.training.epochs
        self.standardizer = prepared.standardizer.to(device)
        checkpoint = load_checkpoint(folder.last) if folder.last.is_file() else None
        if checkpoint is None:
            model = build_model(config, prepared)
            self.progress = Progress()
        else:
            model = restore_model(checkpoint, expect=config.model)
            self.progress = progress_of(checkpoint)
        self.model = self.kept = model.to(device)
        """`kept` is what is validated and stored as the best: the model, or its average."""
        self.reader = BagReader(
            prepared.bags,
            prepared.targets,
            model=config.model,
            window=config.training.window,
            seed=config.order_seed,
        )
        workers = config.training.workers
        self.loader = Loader(self.reader, workers=workers, device=device)
        self.memory = StepMemory(device, precision=config.training.precision)
        self.average: AveragedModel | None = None
        self._collapsed = False
        self._validated: Tensor | None = None
        if model.fits_directly:
            return
        settings = config.training
        if self.world.size > 1 and model.couples_bags:
            raise InputError(
                f"{self.config.model} couples the bags of a batch in training: {self.world.size} "
                "processes would each see a part of it. Train it in one process"
            )
        check_selection(settings, model, validation=bool(self.prepared.split.val))
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
        self.plans = [self._plan(epoch) for epoch in range(self.epochs)]
        self.steps = sum(len(plan) for plan in self.plans)

    def _plan(self, epoch: int) -> list[Batch]:
        """Return the batches of an epoch (from 0), as names of bags."""
        train = self.prepared.split.train
        seed = self.config.order_seed
        order = None
        if self.settings.sampling == "balanced":
            y: list[Any] = [self.prepared.targets[name] for name in train]
            order = [train[k] for k in balanced_epoch(y, seed=seed, epoch=epoch)]
        return plan_epoch(
            train,
            order=order,
            seed=seed,
            epoch=epoch,
            batch_size=self.settings.batch_size,
            max_instances=self.settings.max_instances,
            size=self.training_size,
        )

    def training_size(self, name: str) -> int:
        """Return the number of instances of a bag that an epoch trains on."""
        size = self.prepared.bags.size(name)
        return min(size, self.settings.window or size)

    def run(self) -> None:
        """Train the remaining epochs; an InputError says that the run diverged."""
        progress = self.progress
        patience = self.settings.patience or math.inf
        first_epoch = progress.epoch
        self._keep_features()
        self.reporter.start(done=first_epoch, epochs=self.epochs)
        try:
            while progress.epoch < self.epochs:
                if progress.epoch - (progress.best.get("epoch") or 0) >= patience:
                    break
                start = time.perf_counter()
                train_epoch = self.fit if self.model.fits_directly else self.train_epoch
                row: dict[str, Any] = {**train_epoch(), **self.validate()}
                row["seconds"] = round(time.perf_counter() - start, 3)
                progress.epoch += 1
                progress.history.append(row)
                best = chosen_row(self.settings.select, progress.history)
                progress.best = {k: best[k] for k in ("epoch", *SCORES, "val_nll") if k in best}
                if self.world.first:
                    self._save()
                self.reporter.epoch(row)
        finally:
            # looked up without making the writer: `events` is a cached property
            events = self.__dict__.get("events")
            if events is not None:
                events.close()
        if progress.epoch > first_epoch:
            self._note_nothing_learned()
        self.world.wait()

    def _keep_features(self) -> None:
        """Let the features of bags stay on a CUDA device, as far as it has room for them."""
        if self.model.fits_directly or self.loader.workers:
            return
        names = (*self.prepared.split.train, *self.prepared.split.val)
        resident = resident_features(self.prepared.bags, names, device=self.device)
        if resident is not None:
            self.loader.read_with(ResidentReader(self.reader, resident), resident.on_device)
            self.reporter.remark(
                f"the features of {len(resident.names)} of {counted(len(names), 'bag')} stay on "
                f"{self.device} ({resident.nbytes / 1e9:.3g} GB)"
            )

    def fit(self) -> dict[str, Any]:
        """Fit the model in one go; return the row of its only epoch."""
        split = self.prepared.split
        train = _StandardizedBags(self, split.train)
        self.model.fit_bags(train, _StandardizedBags(self, split.val))
        self.model.eval()
        values: list[float] = []
        with torch.no_grad():
            for bag in train:
                bags = pack([bag])
                terms = self.model.losses(self.model(bags), bags)
                values += [float(value) for value in terms.values()]
        loss = math.fsum(values) / len(train)
        if not math.isfinite(loss):
            raise InputError(f"{self.config.model} could not be fitted: its loss is {loss}")
        row = {"epoch": 1, "learning_rate": None, "kl_weight": None, "loss": loss}
        return {**row, **self.model.monitored()}

    def train_epoch(self) -> dict[str, Any]:
        """Take the steps of an epoch; return its learning rate, λ and mean terms."""
        progress = self.progress
        epoch = progress.epoch
        self.model.train()
        self.model.start_epoch(epoch, self.settings.epochs)
        losses = [row["val_nll"] for row in progress.history]
        rate = set_learning_rate(self.optimizer, self.settings, epoch=epoch, losses=losses)
        shards = [
            shard(batch, rank=self.world.rank, world=self.world.size, epoch=epoch)
            for batch in self.plans[epoch]
        ]
        sums: dict[str, Tensor] = {}
        weight = 0.0
        with self.loader.epoch(shards) as batches:
            for k, (part, bags) in enumerate(batches):
                weight = kl_weight(self.settings.kl_weight, progress.step, self.steps)
                with self.memory.step(bags, is_training=True):
                    step_terms = self.step(part, bags, weight)
                for name, value in step_terms.items():
                    sums[name] = sums.get(name, 0) + value * part.whole
                progress.step += 1
                if self.average is not None:
                    self.average.update_parameters(self.model)
                self.reporter.step(epoch=epoch, share=(k + 1) / len(shards))
        count = len(self.prepared.split.train)
        ranks = self.world.gather({name: float(total) / count for name, total in sums.items()})
        terms = {name: sum(rank[name] for rank in ranks) for name in sums}
        not_finite = [name for name, value in terms.items() if not math.isfinite(value)]
        if not_finite:
            raise self._divergence(f"{', '.join(not_finite)} is {terms[not_finite[0]]}")
        row = {"epoch": epoch + 1, "learning_rate": rate, "kl_weight": weight}
        return {**row, **terms, **self.model.monitored()}

    def step(self, part: Shard, bags: Bags, kl_weight: float) -> dict[str, Tensor]:
        """Take one step; return this process's shares of the batch's mean loss and terms."""
        bags = self._on_device(bags)
        # the means over a part count by its share of the batch's bags
        share = 0.0 if part.idle else len(part.names) / part.whole
        seed = self.config.seed
        step = self.progress.step
        self.optimizer.zero_grad(set_to_none=True)
        # dropout and noise follow from seed and step, so that a resumed run draws the same
        _seed_dropout(seed_of(seed, "dropout", step, self.world.rank), bags.x.device)
        noise = random_stream(seed, "noise", step)
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
        return {name: value.detach() * share for name, value in {**terms, "loss": loss}.items()}

    @torch.no_grad()
    def validate(self) -> dict[str, float | None]:
        """Return the scores of the validation bags."""
        task = self.prepared.table.task
        names = self.prepared.split.val[self.world.rank :: self.world.size]
        size = self.settings.batch_size
        shards = [Shard(names[start : start + size], size) for start in range(0, len(names), size)]
        with self.loader.epoch(shards) as batches:
            predictions = [self._predict_batch(bags) for _, bags in batches]
        # every process gets the bags of all, rank by rank
        ranks = self.world.gather((names, predictions))
        if not self.prepared.split.val:
            return validation_scores([], task=task)
        names = [name for rank_names, _ in ranks for name in rank_names]
        predictions = [batch for _, rank_batches in ranks for batch in rank_batches]
        p = torch.cat([batch.probability for batch in predictions])
        nll = None
        if not self.kept.likelihood.of_classes:
            logits = torch.cat([batch.logits for batch in predictions]).to(self.device)
            y = stack_targets(self.prepared.targets, names).to(self.device)
            nll = self.kept.likelihood.predictive_nll(logits, y).cpu().numpy()
        is_finite = bool(p.isfinite().all()) and (nll is None or bool(np.isfinite(nll).all()))
        if not is_finite:
            raise self._divergence("validation bags are predicted as NaN")
        self._validated = p
        self._note_collapse(p)
        targets = [self.prepared.targets[name] for name in names]
        return validation_scores(targets, p, nll=nll, task=task)

    def _predict_batch(self, bags: Bags) -> "_BatchPrediction":
        """Return what is predicted for some validation bags, in memory of the CPU."""
        out = self.predict(bags)
        return _BatchPrediction(out.probability.cpu().double(), out.logits.cpu().double())

    @torch.no_grad()
    def predict(self, bags: Bags) -> Output:
        """Return the output of the model that is validated, without explanations."""
        self.kept.eval()
        self.kept.explains = False
        with (
            self.memory.step(bags, is_training=False),
            precision_context(self.settings.precision, self.device),
        ):
            out = self.kept(self._on_device(bags))
        self.kept.explains = True
        return out

    def _on_device(self, bags: Bags) -> Bags:
        return self.standardizer(bags.to(self.device))

    def _divergence(self, problem: str) -> InputError:
        return InputError(f"epoch {self.progress.epoch + 1}: {problem}; {REMEDY}")

    def _note_collapse(self, p: Tensor) -> None:
        """Report, once per run, that a model predicts the same for every validation bag."""
        if self._collapsed or len(p) < 2 or _spread(p) >= EQUAL:
            return
        self._collapsed = True
        self.reporter.note(
            f"epoch {self.progress.epoch + 1}: all {len(p)} validation bags are predicted the same "
            f"({p[0, -1]:.3f}): {self.config.model} has collapsed, or has not learned anything yet"
        )

    @torch.no_grad()
    def _note_nothing_learned(self) -> None:
        """Report that a trained classifier tells no training bag from another.

        The training bags are predicted only if the validation bags are alike, too.
        """
        is_learned = self._validated is not None and _spread(self._validated) >= ALIKE
        if is_learned or not self.kept.likelihood.of_classes or not self.world.first:
            return
        names = self.prepared.split.train[:MOST_COMPARED]
        p = torch.cat([self.predict(self.reader[Shard((n,), 1)]).probability.cpu() for n in names])
        if len(p) > 1 and _spread(p) < ALIKE:
            self.reporter.remark(
                f"after {counted(self.progress.epoch, 'epoch')} {self.config.model} predicts "
                f"nearly the same for all of {len(p)} training bags (probabilities from "
                f"{p[:, -1].min():.3f} to {p[:, -1].max():.3f}): it has learned nothing yet. Train "
                "for more epochs (epochs), or with a higher learning_rate"
            )

    @cached_property
    def events(self) -> Any:
        """TensorBoard's writer, or None where it is not wanted or not installed."""
        if not self.settings.tensorboard:
            return None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError as e:
            if absent_package(e) != "tensorboard":
                raise
            return None
        return SummaryWriter(str(self.folder.path / "tensorboard"))

    def _save(self) -> None:
        """Write checkpoints and metrics after an epoch, and tell TensorBoard and the tracker."""
        progress = self.progress
        model = self.model
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
        last = {**prefixed("model", model.state_dict()), **scaling}
        metadata["groups"] = []
        if not model.fits_directly:
            last |= optimizer_tensors(self.optimizer)
            metadata["groups"] = self.optimizer.state_dict()["param_groups"]
        last |= prefixed("memory", model.memory())
        if self.average is not None:
            last |= prefixed("average", self.kept.state_dict())
        save_checkpoint(self.folder.last, last, metadata=metadata)
        self.folder.write_metrics(progress.history)
        if self.events is not None:
            for key, value in progress.history[-1].items():
                if isinstance(value, float) and key != "seconds":
                    self.events.add_scalar(key, value, progress.epoch)
        if self.tracker is not None:
            self.tracker.update(progress.history)


class _BatchPrediction(NamedTuple):
    """The predictions of a batch in double precision."""

    probability: Float[Tensor, "bags classes"]
    logits: Float[Tensor, "bags samples classes"]


class _StandardizedBags(Sequence[Bag]):
    """Bags with their labels, standardised as in a run, and read one at a time."""

    def __init__(self, loop: TrainingLoop, names: tuple[str, ...]) -> None:
        self.loop = loop
        self.names = names

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, k: int) -> Bag:  # pyright: ignore[reportIncompatibleMethodOverride]
        bag = self.loop.reader.labelled(self.names[k])
        standardized = self.loop.standardizer(pack([bag]))
        return replace(bag, x=standardized.x)


def fits_directly(config: RunConfig) -> bool:
    """Return whether a run's model is fitted in one go."""
    return look_up(config.model).model.fits_directly


def _seed_dropout(seed: int, device: torch.device) -> None:
    """Seed torch's own generator of a device; `torch.manual_seed` would record a stack trace."""
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def train(
    config: RunConfig,
    out: Path | str,
    *,
    resume: bool = False,
    overwrite: bool = False,
    prepared: PreparedData | None = None,
    reporter: Reporter | None = None,
    check: Callable[[RunFolder, PreparedData], None] | None = None,
) -> RunFolder:
    """Train a model or its members, or continue their training, and return the run folder.

    Args:
        config: the run.
        out: the run folder to create. One that exists is refused without `resume` or `overwrite`.
        resume: continue after the last complete epoch; a finished run is left as it is.
        overwrite: first remove the run that is there.
        prepared: its data, for bags in memory; None to open those that `config` names.
        reporter: receives the progress.
        check: called by the first process before it trains.

    Raises:
        OutputExists: `out` exists, and neither `resume` nor `overwrite` is set.
        InputError: `out` holds another run, labels, bags, split or model do not fit one another
            (`TableError`, `GraphError`, `BagError`), or the run diverged.
        CheckpointError: the checkpoint to resume from cannot be used.
    """
    out = Path(out)
    reporter = reporter or Reporter()
    device = choose_device(config.training.device)
    # training leaves torch's global generators as they were
    forked = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
    with thread_count(config.training.threads), forked, world(device) as processes:
        if prepared is None:
            prepared = prepare(config, previous=out if resume else None)
        folder = RunFolder(out)
        if processes.first:
            open_run(out, config, resume=resume, overwrite=overwrite)
            prepared.write(folder)
            describe_data(prepared, reporter)
            if prepared.left_out:
                reporter.remark(f"why they are left out: {folder.notes_file}")
            if check is not None:
                check(folder, prepared)
        processes.wait()
        try:
            with tracked(config, folder) if processes.first else nullcontext() as tracker:
                _train_members(
                    config,
                    folder,
                    prepared,
                    device=device,
                    processes=processes,
                    reporter=reporter,
                    tracker=tracker,
                )
        except ProbSAError:
            if processes.first and not any(out.rglob("*.safetensors")):
                # it failed before an epoch ended: there is nothing to resume
                with suppress(OutputExists):  # the user's files stay
                    remove_written_folder(out)
            raise
        if processes.first:
            prepared.write(folder)  # again, as training may have added remarks on bags
            notes = prepared.bags.notes
            if notes:
                reporter.remark(
                    f"{counted(len(notes), 'bag')} with remarks, most often: "
                    f"{most_frequent(notes.values())}; see {folder.notes_file}"
                )
    return folder


def _train_members(
    config: RunConfig,
    folder: RunFolder,
    prepared: PreparedData,
    *,
    device: torch.device,
    processes: World,
    reporter: Reporter,
    tracker: TrackedRun | None,
) -> None:
    """Train the members of a run one after another; a run without members is its only one."""
    folders = folder.members(config.training.members)
    impossible = impossible_assumptions(config, prepared)
    is_default = list(config.training.assume) == default_recipe()["training.assume"]
    for assumption, reason in impossible.items():
        if is_default and assumption == "one_region":
            continue  # nobody asked for it, and there is nothing to choose
        reporter.note(f"no member assumes {assumption}: {reason}")
    for k, member_config in enumerate(member_configs(config, without=impossible)):
        member_folder = folders[k]
        is_whole_run = member_folder == folder
        if not is_whole_run:
            reporter.member(k + 1, len(folders))
            if processes.first:
                open_run(member_folder.path, member_config, resume=True, overwrite=False, own=False)
                prepared.write(member_folder)
        processes.wait()
        # one process fits a model that is fitted in one go
        member_processes = World() if fits_directly(member_config) else processes
        try:
            if processes.first or member_processes.size > 1:
                loop = TrainingLoop(
                    member_config,
                    member_folder,
                    prepared,
                    device=device,
                    world=member_processes,
                    reporter=reporter,
                    tracker=tracker if is_whole_run else None,
                )
                loop.run()
        except InputError as e:
            if is_whole_run:
                raise
            raise InputError(f"{member_folder.path}: {e}") from e
        if processes.first:
            _store_level(member_folder, prepared, device=device)
        processes.wait()
    if processes.first and config.training.members > 1:
        folder.write_metrics(_mean_history(folders))
    if tracker is not None:
        tracker.update(_mean_history(folders))


def _spread(p: Tensor) -> float:
    """Return the largest range of a predicted probability over the bags."""
    return float((p.amax(0) - p.amin(0)).max())


@torch.no_grad()
def _store_level(folder: RunFolder, prepared: PreparedData, *, device: torch.device) -> None:
    """Put the level of evidence into the checkpoints of a model of evidence, for classes.

    It is found on the validation bags. Each of several classes has its own, and the background 0,
    because instances of it are in the negative bags as well.
    """
    names = prepared.split.val
    for path in (folder.best, folder.last):
        checkpoint = load_checkpoint(path)
        model = restore_model(checkpoint).to(device).eval()
        has_level = "level" in arguments(model.name) and model.likelihood.of_classes
        model_arguments = checkpoint.metadata["arguments"]
        if model_arguments.get("level") is not None or not has_level or not names:
            continue
        model.explains = False
        standardizer = prepared.standardizer.to(device)
        reader = BagReader(prepared.bags, prepared.targets, model=model.name)
        moments: list[Tensor] = []  # mean and variance of each bag: (2, instances, classes)
        for name in names:
            bags = standardizer(reader[Shard((name,), 1)].to(device))
            q = model(bags).attention
            stacked = torch.stack([q.mean, q.variance]).double().cpu()
            moments.append(stacked.view(2, len(bags.x), -1))
        sizes = [part.shape[1] for part in moments]
        mean, variance = torch.cat(moments, 1)
        y = stack_targets(prepared.targets, names)
        levels: list[float] = []
        for k in range(mean.shape[1]):
            if model.n_classes > 1 and k == BACKGROUND:
                levels.append(0.0)
                continue
            positive = y == (k if model.n_classes > 1 else 1)
            levels.append(evidence_level(mean[:, k], variance[:, k], sizes, positive))
        level = tuple(levels) if model.n_classes > 1 else levels[0]
        metadata = {**checkpoint.metadata, "arguments": {**model_arguments, "level": level}}
        save_checkpoint(path, checkpoint.tensors, metadata=metadata)


def impossible_assumptions(config: RunConfig, prepared: PreparedData) -> dict[str, str]:
    """Return the assumptions of a run that no member can make, with the reasons."""
    coords = prepared.bags.bag(prepared.split.train[0]).coords
    has_one_axis = coords is not None and coords.shape[1] == 1
    are_scans = has_one_axis and config.data.targets.unit == "bag"
    reasons: dict[str, str] = {}
    for assumption in config.training.assume:
        missing = ASSUMED[assumption].keys() - arguments(config.model).keys()
        if missing:
            reasons[assumption] = f"{config.model} has no {', '.join(missing)}"
        elif assumption == "one_region" and not are_scans:
            reasons[assumption] = (
                "it needs bags with one axis, such as scans; for others, give --guidance normal"
            )
    return reasons


def member_configs(config: RunConfig, *, without: Collection[str] = ()) -> list[RunConfig]:
    """Return the run of each member: seeds seed, seed + 1, …, and the batches of the whole run.

    Each has the next of the assumptions `assume`, or none where that is one of `without`.
    """
    count = config.training.members
    assumptions = config.training.assume or ("none",)
    training = replace(config.training, members=1, assume=())
    runs: list[RunConfig] = []
    for k in range(count):
        assumption = assumptions[k % len(assumptions)]
        changed_arguments = {} if assumption in without else ASSUMED[assumption]
        run = replace(config, model_arguments={**config.model_arguments, **changed_arguments})
        if count > 1:
            seeds = {"seed": config.seed + k, "data_seed": config.order_seed}
            run = replace(run, **seeds, training=training)
        runs.append(run)
    return runs


def _mean_history(folders: Sequence[RunFolder]) -> list[dict[str, Any]]:
    """Return one row per epoch: means over the members that trained that long, summed seconds."""
    histories = [progress_of(load_checkpoint(member.last)).history for member in folders]
    mean_rows: list[dict[str, Any]] = []
    for member_rows in zip_longest(*histories):
        trained = [row for row in member_rows if row is not None]
        mean_row: dict[str, Any] = {"epoch": len(mean_rows) + 1}
        for key in trained[0]:
            if key == "epoch":
                continue
            values = [value for row in trained if (value := row[key]) is not None]
            if not values:
                mean_row[key] = None
            elif key == "seconds":
                mean_row[key] = math.fsum(values)
            else:
                mean_row[key] = math.fsum(values) / len(values)
        mean_rows.append(mean_row)
    return mean_rows


MOST_NAMES = 5
"""Number of bags that a remark names."""


def describe_data(prepared: PreparedData, reporter: Reporter) -> None:
    """Tell a reporter what is learned from which bags, and which ones are left out."""
    table = prepared.table
    has_patients = table.groups is not None and len(set(table.groups)) < len(table.bags)
    if not table.of_task.unordered_classes or table.notes or has_patients:
        reporter.note(table.describe())
    for note in (*table.notes, *prepared.notes):
        reporter.note(f"note: {note}")
    barcodes = table.patients_in_names
    if barcodes is not None:
        reporter.note(
            f"note: {counted(barcodes.named, 'bag')} look like "
            f"{counted(barcodes.patient_count, 'patient')} ({barcodes.form} names), but each "
            f"bag counts as a patient of its own: give {table.where} a column 'group' with the "
            "patient of each bag, which probsa folds writes"
        )
    if prepared.unlabelled:
        reporter.remark(
            f"left out {counted(len(prepared.unlabelled), 'bag')} of {prepared.bags.folder} "
            f"without a label ({_first_names(prepared.unlabelled)})"
        )
    if prepared.left_out:
        reporter.remark(
            f"left out {counted(len(prepared.left_out), 'labelled bag')} without features or "
            f"instances ({_first_names(prepared.left_out)})"
        )


def _first_names(names: Sequence[str]) -> str:
    more = ", …" if len(names) > MOST_NAMES else ""
    return ", ".join(map(repr, names[:MOST_NAMES])) + more


TIMINGS = 3
"""How often a batch is timed; the shortest time counts, as others wait for the machine."""


def epoch_seconds(config: RunConfig, prepared: PreparedData) -> float:
    """Return an estimate of the time of an epoch, with validation but without reading bags.

    The smallest and the largest batch are timed; the time of the others is taken to be linear in
    instances between the two, so that no estimate lies outside what was measured.
    """
    loop = TrainingLoop(
        config,
        RunFolder(Path(os.devnull)),
        prepared,
        device=choose_device(config.training.device),
        reporter=Reporter(),
        world=World(),
    )
    val = prepared.split.val
    size = config.training.batch_size
    validation_batches = [val[start : start + size] for start in range(0, len(val), size)]
    with thread_count(config.training.threads):
        seconds = _batches_seconds(loop, loop.plans[0], is_training=True)
        seconds += _batches_seconds(loop, validation_batches, is_training=False)
    return seconds


def _batches_seconds(loop: TrainingLoop, batches: Sequence[Batch], *, is_training: bool) -> float:
    """Return an estimate of the time that batches take; see `epoch_seconds`."""
    if not batches:
        return 0.0

    def shortest(names: Batch) -> float:
        return min(_batch_seconds(loop, names, is_training=is_training) for _ in range(TIMINGS))

    bag_size = loop.training_size if is_training else loop.prepared.bags.size
    sizes = np.array([sum(map(bag_size, names)) for names in batches])
    smallest = int(sizes.argmin())
    largest = int(sizes.argmax())
    _batch_seconds(loop, batches[smallest], is_training=is_training)  # warms up
    low = shortest(batches[smallest])
    high = max(low, shortest(batches[largest]))
    return float(np.interp(sizes, sizes[[smallest, largest]], (low, high)).sum())


def _batch_seconds(loop: TrainingLoop, names: Batch, *, is_training: bool) -> float:
    """Return how long a step or a prediction takes, once its bags have been read."""
    part = Shard(names, len(names), epoch=0 if is_training else None)
    bags = loop.reader[part]
    start = time.perf_counter()
    loop.model.train(is_training)
    if is_training:
        value = loop.step(part, bags, 1.0)["loss"]
    else:
        value = loop.predict(bags).probability.sum()
    value.item()  # waits for the device
    return time.perf_counter() - start
