"""What the training loop writes and when: the interface, and the files of a run on its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .averaging import WeightAverage
from .checkpoints import Checkpoint, damaged_state, optimizer_tensors, restore_optimizer
from .model_groups import ModelGroup, SingleModel
from .preparation import PreparedData, Standardizer
from .progress import Run, SavedModel, progress_of, save_run
from .selection import AVERAGED, Candidates
from .trackers import TrackedRun


@dataclass(kw_only=True)
class TrainingState:
    """Everything that training changes, and the data that it trains on."""

    groups: Sequence[ModelGroup]
    optimizer: torch.optim.Optimizer
    """Over the parameters of all groups."""
    prepared: PreparedData
    standardizer: Standardizer
    """On the device."""
    epoch: int = 0
    step: int = 0

    def saved(self, run: Run, weights: Mapping[str, Tensor]) -> SavedModel:
        """Return what a checkpoint of a run holds, with these weights of its model."""
        return SavedModel(
            model=run.model.name,
            arguments=run.model.arguments,
            classes=self.prepared.classes,
            weights=weights,
            standardize=self.standardizer.state_dict(),
        )


class Keeper:
    """Writes nothing, for processes that leave this to the first one; subclasses write files."""

    def end_epoch(self, state: TrainingState) -> None:
        """Called after each epoch, once every run's progress includes it."""

    def finish(self, state: TrainingState) -> None:
        """Called after the last epoch, or when every run has failed."""


@dataclass
class EpochKeeper(Keeper):
    """Keeps a run on its own: checkpoints and metrics after every epoch, and what follows it."""

    run: Run
    tracker: TrackedRun | None = None
    candidates: Candidates = field(default_factory=Candidates)

    @cached_property
    def events(self) -> Any:
        """TensorBoard's writer, or None where it is not wanted or not installed."""
        if not self.run.config.training.tensorboard:
            return None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return None
        return SummaryWriter(str(self.run.folder.path / "tensorboard"))

    def end_epoch(self, state: TrainingState) -> None:
        run, (group,) = self.run, state.groups
        changed = self.candidates.keep(
            run.candidates, latest=state.epoch, weights=lambda: group.validated_weights(0)
        )
        optimizer, parameter_groups = optimizer_tensors(state.optimizer)
        optimizer |= {f"memory.{k}": v for k, v in run.model.memory().items()}
        # the chosen weights are in the other checkpoint
        optimizer |= self.candidates.tensors("candidate", chosen=False)
        optimizer |= group.average_tensors(0)
        last, chosen = state.saved(run, group.weights(0)), self.candidates.chosen
        best = state.saved(run, self.candidates.weights[chosen]) if changed else None
        save_run(run.folder, best, last, run.progress, optimizer=optimizer, groups=parameter_groups)
        if self.events is not None:
            row = run.progress.history[-1]
            for key, value in row.items():
                if isinstance(value, float) and key != "seconds":
                    self.events.add_scalar(key, value, row["epoch"])
        if self.tracker is not None:
            self.tracker.update(run.progress.history)

    def finish(self, state: TrainingState) -> None:
        del state
        if self.__dict__.get("events") is not None:
            self.events.close()


def restore_run(
    state: TrainingState, group: SingleModel, keeper: Keeper, checkpoint: Checkpoint
) -> None:
    """Continue a run on its own from a checkpoint whose weights its model already has."""
    (run,) = group.runs
    run.progress = progress_of(checkpoint)
    restore_optimizer(state.optimizer, checkpoint)
    state.epoch, state.step = run.progress.epoch, run.progress.step
    with damaged_state(checkpoint.path):
        group.model.restore_memory(checkpoint.part("memory"))
        if run.config.training.select in AVERAGED:
            group.average = WeightAverage(group.model)
            group.average.restore(checkpoint.part("average"))
        if isinstance(keeper, EpochKeeper):
            chosen = int(run.progress.best.get("epoch") or 0)
            keeper.candidates.restore(checkpoint.part("candidate"), chosen=chosen)
