"""The loop of `training`, for many runs at once: the same batches, validation and choice of epoch.

Heads of one structure are a `Stack`. The pass keeps its own state in a folder, now and then, and a
killed pass goes on from there; the run folders are filled at its end.
"""

import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core import Bags, seed_of, stream
from ..errors import InputError
from ..models import Model, arguments, build, fixed
from ..variational import SCHEDULED, kl_weight
from .batching import BagReader, Loader, Shard, plan_epoch
from .config import RunConfig
from .devices import choose_device, keep_memory, precision_context
from .joining import pass_key, why_alone
from .joint_folder import PassFolder, fill_run
from .loop import Reporter, chunks
from .model_stack import Stack
from .optimizers import WHOLE, optimizer_of, set_learning_rate
from .preparation import Prepared, prepare
from .progress import Progress, is_better, validation_scores
from .run_folder import RunFolder, open_run


class HeadsFailed(InputError):
    """Some runs of a pass came to nothing; the others are done.

    failures: the reason of each, by its run folder.
    """

    def __init__(self, failures: Mapping[Path, str]) -> None:
        self.failures = dict(failures)
        first, reason = next(iter(failures.items()))
        super().__init__(f"{len(failures)} runs of a pass failed. {first}: {reason}")


@dataclass(kw_only=True)
class Head:
    """One run of the pass."""

    config: RunConfig
    folder: RunFolder
    model: Model
    """As it starts; its weights live in a stack from then on."""
    progress: Progress = field(default_factory=Progress)
    best: dict[str, Tensor] | None = None
    error: str | None = None


def train_together(
    configs: Sequence[RunConfig],
    outs: Sequence[Path],
    *,
    state: Path,
    reporter: Reporter | None = None,
    save_every: float = 120.0,
) -> list[RunFolder]:
    """Trains runs of one `pass_key`; each folder is then what `train` alone would leave
    (but for TensorBoard's files).

    Args:
        configs: the runs.
        outs: their run folders; a run that began alone is trained again from its start.
        state: a folder of the pass itself, for what lets it go on after an interruption; removed at
            the end.
        reporter: told of every epoch of the pass: its means over the runs.
        save_every: seconds between two states.

    Raises:
        InputError: runs that cannot train together.
        HeadsFailed: some runs diverged.
    """
    for config in configs:
        reason = why_alone(config)
        if reason or pass_key(config) != pass_key(configs[0]):
            raise InputError(
                f"{config.model} cannot train beside {configs[0].model}: "
                + (reason or "they do not see the same batches under the same settings")
            )
    threads = configs[0].training.threads
    if threads:
        torch.set_num_threads(threads)
    keep_memory()
    with torch.random.fork_rng(devices=[]):
        # a model that needs a graph has it looked for
        asks = max(configs, key=lambda c: len(fixed(c.model)[0].needs))
        prepared = prepare(asks)
        heads = [
            Head(config=c, folder=RunFolder(out), model=_model(c, prepared))
            for c, out in zip(configs, outs, strict=True)
        ]
        for head in heads:
            open_run(head.folder.path, head.config, resume=True, overwrite=False)
            prepared.write(head.folder)
        done = Pass(heads, prepared, state=PassFolder(state), reporter=reporter or Reporter())
        done.run(save_every=save_every)
        for head in heads:
            prepared.write(head.folder)  # again: by now every bag was read, and remarked on
    shutil.rmtree(state, ignore_errors=True)
    failures = {h.folder.path: h.error for h in heads if h.error is not None}
    if failures:
        for path in failures:
            shutil.rmtree(path)  # there is nothing to go on with
        raise HeadsFailed(failures)
    return [h.folder for h in heads]


def _model(config: RunConfig, prepared: Prepared) -> Model:
    torch.manual_seed(seed_of(config.seed, "weights"))
    given = {**prepared.model_arguments, **config.model_arguments}
    if "seed" in arguments(config.model):
        given.setdefault("seed", config.seed)
    return build(config.model, **given)


class Pass:
    """The loop and what it needs; `train_together` makes one."""

    def __init__(
        self, heads: Sequence[Head], prepared: Prepared, *, state: PassFolder, reporter: Reporter
    ) -> None:
        self.heads, self.prepared, self.reporter = heads, prepared, reporter
        self.config, self.settings = heads[0].config, heads[0].config.training
        self.device = choose_device(self.settings.device)
        self.members = _alike(heads)
        self.stacks = [Stack([h.model for h in own]).to(self.device) for own in self.members]
        params = [p for s in self.stacks for p in s.parameters()]
        self.optimizer = optimizer_of([{"params": params, WHOLE: 0}], self.settings)
        self.standardizer = prepared.standardizer.to(self.device)
        reader = BagReader(prepared.bags, prepared.labels)
        self.loader, self.validation = Loader(reader, workers=self.settings.workers), Loader(reader)
        self.plans = [
            plan_epoch(
                prepared.split.train,
                seed=self.config.order_seed,
                epoch=epoch,
                batch_size=self.settings.batch_size,
                max_instances=self.settings.max_instances,
                size=prepared.bags.size,
            )
            for epoch in range(self.settings.epochs)
        ]
        self.total = sum(len(p) for p in self.plans)
        self.state = state
        self.epoch = self.step = 0
        self.state.restore(self)

    def run(self, *, save_every: float) -> None:
        """Every epoch that is still to come, and the run folders."""
        self.reporter.start(done=self.epoch, epochs=self.settings.epochs)
        saved = time.monotonic()
        while self.epoch < self.settings.epochs:
            started = time.perf_counter()
            rows = self._train_epoch()
            scores = self._validate()
            seconds = round((time.perf_counter() - started) / len(self.heads), 3)
            self.epoch += 1
            for own, stack in zip(self.members, self.stacks, strict=True):
                for place, head in enumerate(own):
                    row = rows[id(head)] | scores[id(head)] | {"seconds": seconds}
                    self._note(head, row, stack, place)
            self.reporter.epoch(self._means())
            if time.monotonic() - saved > save_every and self.epoch < self.settings.epochs:
                self.state.save(self)
                saved = time.monotonic()
        self._finish()

    def _train_epoch(self) -> dict[int, dict[str, Any]]:
        """One row a head (by its id): learning rate, λ and the means of its terms."""
        for stack in self.stacks:
            stack.train()
        rate = set_learning_rate(self.optimizer, self.settings, epoch=self.epoch)
        shards = [Shard(b, len(b)) for b in self.plans[self.epoch]]
        sums: list[dict[str, Tensor]] = [{} for _ in self.stacks]
        weights: list[list[float]] = []
        for k, (part, bags) in enumerate(self.loader.epoch(shards)):
            weights = [self._kl_weights(own) for own in self.members]
            for own, terms in zip(sums, self._step(bags, weights), strict=True):
                for name, value in terms.items():
                    own[name] = own.get(name, 0) + value * part.whole
            self.step += 1
            self.reporter.step(epoch=self.epoch, share=(k + 1) / len(shards))
        count = len(self.prepared.split.train)
        rows = {}
        for own, terms, of in zip(self.members, sums, weights, strict=True):
            means = {name: (v / count).tolist() for name, v in terms.items()}
            for place, head in enumerate(own):
                row = {"epoch": self.epoch + 1, "learning_rate": rate, "kl_weight": of[place]}
                rows[id(head)] = row | {name: v[place] for name, v in means.items()}
        return rows

    def _kl_weights(self, own: Sequence[Head]) -> list[float]:
        return [kl_weight(h.config.training.kl_weight, self.step, self.total) for h in own]

    def _step(self, bags: Bags, weights: Sequence[Sequence[float]]) -> list[dict[str, Tensor]]:
        """One step of every head; gives each stack's terms, one value a head."""
        bags = self.standardizer(bags.to(self.device, torch.float32))
        self.optimizer.zero_grad(set_to_none=True)
        found = []
        for own, stack, of in zip(self.members, self.stacks, weights, strict=True):
            generators = [
                stream(h.config.seed, "noise", self.step, device=self.device) for h in own
            ]
            with precision_context(self.settings.precision, self.device):
                out, many = stack(bags, generators=generators)
                terms = stack.losses(out, many)
            loss = objectives(terms, weights=stack.model.loss_weights, kl_weights=of)
            # heads share nothing: the gradient of the sum is each one's own
            loss.sum().backward()
            found.append({k: v.detach() for k, v in {**terms, "loss": loss}.items()})
        self.optimizer.step()
        return found

    @torch.no_grad()
    def _validate(self) -> dict[int, dict[str, Any]]:
        """AUROC and NLL of the validation part by each head (by its id)."""
        labels: list[int] = []
        found: list[list[Tensor]] = [[] for _ in self.stacks]
        for batch in chunks(self.prepared.split.val, self.settings.batch_size):
            labels += [self.prepared.labels[name] for name in batch]
            for _, bags in self.validation.epoch([Shard(batch, len(batch))]):
                bags = self.standardizer(bags.to(self.device, torch.float32))
                for stack, own in zip(self.stacks, found, strict=True):
                    stack.eval()
                    with precision_context(self.settings.precision, self.device):
                        p = stack.probability(stack(bags)[0])
                    own.append(p.double().cpu())
        scores = {}
        for own, parts in zip(self.members, found, strict=True):
            p = torch.cat(parts, 1).tolist() if parts else [[]] * len(own)
            for head, values in zip(own, p, strict=True):
                finite = all(math.isfinite(v) for row in values for v in row)
                lost = {"val_auroc": None, "val_nll": math.nan}  # the run's end: `_note`
                scores[id(head)] = validation_scores(labels, values) if finite else lost
        return scores

    def _note(self, head: Head, row: dict[str, Any], stack: Stack, place: int) -> None:
        """Keeps an epoch of a head, and its weights if it is the best so far."""
        bad = [k for k in ("loss", "nll", "kl") if not math.isfinite(row.get(k, 0.0))]
        what = f"{bad[0]} is {row[bad[0]]}" if bad else None
        if not bad and math.isnan(row["val_nll"] or 0.0):
            what = "validation bags are predicted as NaN"
        if what and head.error is None:
            head.error = (
                f"epoch {self.epoch}: {what}; the weights are lost from here on. Try a lower "
                "learning_rate, clip_norm: 1, or precision: float32"
            )
        if head.error is not None:
            return
        if is_better(row, head.progress.best):
            head.progress.best = {k: row[k] for k in ("epoch", "val_auroc", "val_nll")}
            head.best = stack.state_of(place)
        head.progress.epoch, head.progress.step = self.epoch, self.step
        head.progress.history.append(row)

    def _means(self) -> dict[str, Any]:
        """A row for whoever watches: means over the heads that are well."""
        rows = [h.progress.history[-1] for h in self.heads if h.error is None]
        row: dict[str, Any] = {"epoch": self.epoch}
        for key in ("learning_rate", "loss", "val_auroc", "val_nll", "seconds"):
            values = [r[key] for r in rows if r[key] is not None]
            row[key] = sum(values) / len(values) if values else None
        return row

    def _finish(self) -> None:
        before = 0
        for own, stack in zip(self.members, self.stacks, strict=True):
            for place, head in enumerate(own):
                if head.error is None:
                    fill_run(self, head, stack, place=place, before=before)
            before += len(list(stack.parameters()))


def objectives(
    terms: Mapping[str, Tensor], *, weights: Mapping[str, float], kl_weights: Sequence[float]
) -> Tensor:
    """`objective` of every head: terms are (heads,)."""
    total = None
    for name, value in terms.items():
        w = weights.get(name, 1.0)
        if name == SCHEDULED:
            each = value.new_tensor(kl_weights) * w
            # λ = 0 must not turn an infinite KL into NaN, here or in a gradient
            on = each > 0
            term = torch.zeros_like(value).masked_scatter(on, value[on] * each[on])
        else:
            term = value * w
        total = term if total is None else total + term
    assert total is not None, "a model gives at least one term"
    return total


def _alike(heads: Sequence[Head]) -> list[list[Head]]:
    """Heads by structure: class, arguments but the seed, and shapes."""
    groups: dict[str, list[Head]] = {}
    for head in heads:
        given = {k: v for k, v in head.model.arguments.items() if k != "seed"}
        key = f"{head.config.model} {sorted(given.items(), key=str)}"
        groups.setdefault(key, []).append(head)
    return list(groups.values())
