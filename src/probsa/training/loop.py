"""Stage 8: the training loop, over one run or several that see the same batches.

An epoch trains on the plan's batches, validates, and applies the rule `select` (see `selection`).
Batches, noise and dropout follow from (seed, epoch, step), so a run that is killed and resumed
ends with the same weights. Under torchrun each batch is divided among the processes, and the
gradients are those of the whole batch.
"""

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from ..core import Bags
from ..errors import InputError
from ..tasks import Target
from ..variational import kl_weight
from .averaging import WeightAverage, exponential_rate, first_averaged_epoch
from .batching import BagReader, Batch, Loader, Shard, plan_epoch, shard
from .devices import World, precision_context
from .imbalance import dealt_batches, epoch_order
from .keepers import Keeper, TrainingState
from .model_groups import ModelGroup
from .optimizers import clip_gradients, set_learning_rate
from .progress import Run
from .reporting import Reporter
from .selection import AVERAGED, SCORES, candidates, check_selection
from .validation import validation_scores

EQUAL = 1e-6
"""Predictions closer than this count as equal."""
REMEDY = (
    "the weights are lost from here on. Try a lower learning_rate, clip_norm: 1, or precision: "
    "float32"
)


class TrainingLoop:
    """Trains every run of `state` to its last epoch; `train` and `train_jointly` make one."""

    def __init__(
        self,
        state: TrainingState,
        *,
        keeper: Keeper,
        device: torch.device,
        reporter: Reporter,
        world: World | None = None,
    ) -> None:
        self.state, self.keeper, self.reporter = state, keeper, reporter
        self.device, self.world = device, world or World()
        self.prepared, self.groups = state.prepared, state.groups
        self.config = self.runs[0].config
        self.settings = self.config.training
        if self.settings.schedule == "plateau" and not self.prepared.split.val:
            raise InputError(
                "schedule is 'plateau', which follows the validation loss, but there are no "
                f"validation bags ({self.prepared.split.origin})"
            )
        self._check_selection()
        for group in self.groups:
            if self.settings.select in AVERAGED and group.average is None:
                group.average = WeightAverage(group.model)
        models = [run.config.model for run in self.runs]
        reader = BagReader(self.prepared.bags, self.prepared.targets, models=models)
        pin = device.type == "cuda"
        self.loader = Loader(reader, workers=self.settings.workers, pin=pin)
        self.validation_loader = Loader(reader)
        self.plans = [self._plan(epoch) for epoch in range(self.settings.epochs)]
        self.steps = sum(len(plan) for plan in self.plans)

    def _check_selection(self) -> None:
        split, targets = self.prepared.split, self.prepared.targets
        check_selection(
            self.settings.select,
            [group.model for group in self.groups],
            patience=self.settings.patience,
            validation=bool(split.val),
        )
        of_class = Counter(targets[name] for name in split.val)
        self.counts = [of_class[c] for c in range(max(2, len(self.prepared.classes)))]
        """Number of validation bags of each class."""

    @property
    def runs(self) -> list[Run]:
        """All runs, group by group."""
        return [run for group in self.groups for run in group.runs]

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

        A run that diverges gets an `error` and is no longer saved; the others go on.
        """
        state = self.state
        self.reporter.start(done=state.epoch, epochs=self.settings.epochs)
        while state.epoch < self.settings.epochs and not self._is_over():
            started = time.perf_counter()
            rows = self.train_epoch()
            if not self._all_failed():
                for row, scores in zip(rows, self.validate(), strict=True):
                    row |= scores
            seconds = round((time.perf_counter() - started) / len(rows), 3)
            if self._all_failed():
                break
            state.epoch += 1
            for run, row in zip(self.runs, rows, strict=True):
                if run.error is None:
                    self._append(run, row | {"seconds": seconds})
            self.keeper.end_epoch(state)
            self.reporter.epoch(mean_row(self.runs))
        self.keeper.finish(state)
        self.world.wait()

    def _all_failed(self) -> bool:
        return all(run.error is not None for run in self.runs)

    def _is_over(self) -> bool:
        """Return whether no run is left to train: each has failed or run out of patience."""
        return all(run.error is not None or run.patience_is_over for run in self.runs)

    def _append(self, run: Run, row: dict[str, Any]) -> None:
        progress = run.progress
        progress.epoch, progress.step = self.state.epoch, self.state.step
        progress.history.append(row)
        rule, settings = self.settings.select, self.settings
        run.candidates = candidates(
            rule, progress.history, epochs=settings.epochs, counts=self.counts
        )
        best = next(r for r in progress.history if r["epoch"] == run.candidates[0])
        progress.best = {k: best[k] for k in ("epoch", *SCORES, "val_nll") if k in best}
        if rule == "one-se":
            progress.best["improved"] = run.candidates[-1]

    def train_epoch(self) -> list[dict[str, Any]]:
        """Take the steps of an epoch; return each run's learning rate, λ and mean terms."""
        state, epoch = self.state, self.state.epoch
        for group in self.groups:
            group.start_epoch(epoch, self.settings.epochs)
        # only schedule: plateau reads the losses, and runs with it train alone
        losses = [row["val_nll"] for row in self.runs[0].progress.history]
        rate = set_learning_rate(state.optimizer, self.settings, epoch=epoch, losses=losses)
        shards = [shard(b, rank=self.world.rank, world=self.world.size) for b in self.plans[epoch]]
        sums: list[dict[str, Tensor]] = [{} for _ in self.groups]
        kl_weights: list[list[float]] = []
        for k, (part, bags) in enumerate(self.loader.epoch(shards)):
            kl_weights = [self._kl_weights(group) for group in self.groups]
            for group_sums, terms in zip(sums, self.step(part, bags, kl_weights), strict=True):
                for name, value in terms.items():
                    group_sums[name] = group_sums.get(name, 0) + value * part.whole
            state.step += 1
            self._average_step()
            self.reporter.step(epoch=epoch, share=(k + 1) / len(shards))
        self._average_epoch()
        rows = []
        for group, group_sums, weights in zip(self.groups, sums, kl_weights, strict=True):
            means = group.means(group_sums, len(self.prepared.split.train))
            for run, weight, run_means in zip(group.runs, weights, means, strict=True):
                terms = self._sum_over_ranks(run_means)
                self._check_terms(run, terms)
                rows.append(
                    {"epoch": epoch + 1, "learning_rate": rate, "kl_weight": weight, **terms}
                )
            for row, values in zip(rows[-len(group.runs) :], group.monitored(), strict=True):
                row |= values
        return rows

    def _average_step(self) -> None:
        if self.settings.select == "ema-nll":
            rate = exponential_rate(self.settings.ema_decay, step=self.state.step)
            for group in self.groups:
                assert group.average is not None
                group.average.update(rate)

    def _average_epoch(self) -> None:
        number = self.state.epoch + 2 - first_averaged_epoch(self.settings.epochs)
        if self.settings.select == "average" and number > 0:
            for group in self.groups:
                assert group.average is not None
                group.average.update(1 / number)

    def _kl_weights(self, group: ModelGroup) -> list[float]:
        return [
            kl_weight(run.config.training.kl_weight, self.state.step, self.steps)
            for run in group.runs
        ]

    def step(
        self, part: Shard, bags: Bags, kl_weights: Sequence[Sequence[float]]
    ) -> list[dict[str, Tensor]]:
        """Take one step of the optimiser; return each group's terms.

        The terms are this process's share of the means over the whole batch.

        Args:
            part: this process's part of the batch.
            bags: the bags of that part.
            kl_weights: λ of each run, by group.
        """
        bags = self._on_device(bags)
        # the means over a part count by its share of the batch's bags
        share = 0.0 if part.idle else len(part.names) / part.whole
        optimizer = self.state.optimizer
        optimizer.zero_grad(set_to_none=True)
        terms = [
            group.backward(bags, step=self.state.step, kl_weights=weights, share=share)
            for group, weights in zip(self.groups, kl_weights, strict=True)
        ]
        self.world.sum_gradients(p for group in self.groups for p in group.module.parameters())
        clip_gradients(optimizer, self.settings.clip_norm)
        statistics = [group.batch_statistics(idle=part.idle) for group in self.groups]
        optimizer.step()
        for group, sums in zip(self.groups, statistics, strict=True):
            if sums is not None:
                group.update_statistics(self.world.sum(sums))
            group.after_step()
        return terms

    def _on_device(self, bags: Bags) -> Bags:
        return self.state.standardizer(bags.to(self.device, torch.float32))

    def _sum_over_ranks(self, means: dict[str, float]) -> dict[str, float]:
        ranks = self.world.gather(means)
        return {k: sum(rank[k] for rank in ranks) for k in means}

    def _check_terms(self, run: Run, terms: dict[str, float]) -> None:
        bad = [k for k, v in terms.items() if not math.isfinite(v)]
        if bad:
            self._fail(run, f"{', '.join(bad)} is {terms[bad[0]]}")

    def _fail(self, run: Run, problem: str) -> None:
        if run.error is None:
            run.error = f"epoch {self.state.epoch + 1}: {problem}; {REMEDY}"

    @torch.no_grad()
    def validate(self) -> list[dict[str, float | None]]:
        """Return the scores of the validation bags for each run; nothing for a failed run."""
        labels, predicted = self._predict_validation()
        scores: list[dict[str, float | None]] = []
        for run, probability in zip(self.runs, predicted, strict=True):
            if not all(math.isfinite(v) for values in probability for v in values):
                self._fail(run, "validation bags are predicted as NaN")
            if run.error is None:
                self._note_collapse(run, probability)
                task = self.prepared.table.task
                scores.append(validation_scores(labels, probability, task=task))
            else:
                scores.append({})
        return scores

    def _predict_validation(self) -> tuple[list[Target], list[list[list[float]]]]:
        """Return the targets of all validation bags, and every run's predictions of them."""
        names = self.prepared.split.val[self.world.rank :: self.world.size]
        batches: list[list[Tensor]] = []
        with ExitStack() as weights:
            for group in self.groups:
                group.module.eval()
                weights.enter_context(group.validated())
            for batch in chunks(names, self.settings.batch_size):
                for _, bags in self.validation_loader.epoch([Shard(batch, len(batch))]):
                    bags = self._on_device(bags)
                    with precision_context(self.settings.precision, self.device):
                        batches.append([group.probability(bags) for group in self.groups])
        predicted: list[list[list[float]]] = []
        for k, group in enumerate(self.groups):
            parts = [batch[k].cpu().double() for batch in batches]
            predicted += torch.cat(parts, 1).tolist() if parts else [[] for _ in group.runs]
        labels = [self.prepared.targets[name] for name in names]
        ranks = self.world.gather((labels, predicted))
        return (
            [y for rank_labels, _ in ranks for y in rank_labels],
            [
                [p for _, rank_predicted in ranks for p in rank_predicted[k]]
                for k in range(len(self.runs))
            ],
        )

    def _note_collapse(self, run: Run, predicted: Sequence[Sequence[float]]) -> None:
        """Report, once per run, that a model predicts the same for every validation bag."""
        if run.collapsed or len(predicted) < 2:
            return
        if not self.prepared.table.of_task.unordered_classes:  # without the NLL, see `validation`
            predicted = [values[:-1] for values in predicted]
        if all(max(column) - min(column) < EQUAL for column in zip(*predicted, strict=True)):
            run.collapsed = True
            where = f"{run.folder.path}: " if len(self.runs) > 1 else ""
            self.reporter.note(
                f"{where}epoch {self.state.epoch + 1}: all {len(predicted)} validation bags are "
                f"predicted the same ({predicted[0][-1]:.3f}): {run.config.model} has collapsed, "
                "or has not learned anything yet"
            )


def mean_row(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the last row of a run; of several runs, the means over those that have not failed."""
    rows = [run.progress.history[-1] for run in runs if run.error is None]
    if len(runs) == 1:
        return rows[0]
    mean: dict[str, Any] = {"epoch": rows[0]["epoch"]}
    for key in ("learning_rate", "loss", *SCORES, "val_nll", "seconds"):
        if key not in rows[0]:
            continue
        values = [v for row in rows if (v := row[key]) is not None]
        mean[key] = sum(values) / len(values) if values else None
    return mean


def chunks(names: Sequence[str], size: int) -> Iterator[Batch]:
    """Yield the names in order, `size` at a time."""
    for k in range(0, len(names), size):
        yield tuple(names[k : k + size])
