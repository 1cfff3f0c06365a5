"""Write the files of joint training: its state periodically, and the run folders at its end."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from ..core import NonNegativeInt
from ..errors import CheckpointError
from .averaging import WeightAverage
from .checkpoints import (
    Checkpoint,
    damaged_state,
    load_checkpoint,
    optimizer_tensors,
    restore_optimizer,
    save_checkpoint,
)
from .keepers import Keeper, TrainingState
from .keys import with_current_names
from .progress import Progress, Run, save_run
from .selection import AVERAGED, Candidates


@dataclass(frozen=True, kw_only=True, slots=True)
class _Head:
    """The state of one run of a joint training."""

    progress: Progress
    error: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _JointState:
    """What the checkpoint of a joint training states."""

    epoch: NonNegativeInt
    step: NonNegativeInt
    heads: tuple[_Head, ...]


class JointKeeper(Keeper):
    """Keeps runs that train jointly.

    Args:
        runs: the runs, in the order in which the caller named them.
        folder: folder for the state of the joint training.
        save_every: seconds between two writes of the state.
    """

    def __init__(self, runs: Sequence[Run], folder: Path, *, save_every: float) -> None:
        self.runs, self.folder, self.save_every = runs, folder, save_every
        self.candidates = [Candidates() for _ in runs]
        """Weights of the epochs that each run may still choose."""
        self.saved = time.monotonic()

    @property
    def file(self) -> Path:
        """The checkpoint with the state of every run."""
        return self.folder / "pass.safetensors"

    def end_epoch(self, state: TrainingState) -> None:
        for group in state.groups:
            for place, run in enumerate(group.runs):
                if run.error is None:
                    self.candidates[self.runs.index(run)].keep(
                        run.candidates,
                        latest=state.epoch,
                        weights=partial(group.validated_weights, place),
                    )
        is_last = state.epoch == self.runs[0].config.training.epochs
        if time.monotonic() - self.saved > self.save_every and not is_last:
            self.save(state)
            self.saved = time.monotonic()

    def save(self, state: TrainingState) -> None:
        """Write weights, averages, optimiser, and each run's kept weights and progress."""
        tensors: dict[str, Tensor] = {}
        for k, group in enumerate(state.groups):
            tensors |= {f"stack{k}.{name}": v for name, v in group.model.state_dict().items()}
            if group.average is not None:
                tensors |= {f"average{k}.{name}": v for name, v in group.average.tensors.items()}
        for k, kept in enumerate(self.candidates):
            tensors |= kept.tensors(f"best{k}", chosen=True)
        optimizer, parameter_groups = optimizer_tensors(state.optimizer)
        metadata = {
            "members": self._members(),
            "epoch": state.epoch,
            "step": state.step,
            "groups": parameter_groups,
            "heads": [{"progress": vars(run.progress), "error": run.error} for run in self.runs],
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        save_checkpoint(self.file, {**tensors, **optimizer}, metadata=metadata)

    def restore(self, state: TrainingState) -> None:
        """Continue from the folder's state, if it belongs to the same runs."""
        try:
            checkpoint = load_checkpoint(self.file)
        except CheckpointError:
            return  # missing or damaged: training starts at its beginning
        if with_current_names(checkpoint.metadata.get("members")) != self._members():
            return
        stored = checkpoint.stated(_JointState)
        with damaged_state(self.file):
            self._restore(state, stored, checkpoint)

    def _restore(self, state: TrainingState, stored: "_JointState", checkpoint: Checkpoint) -> None:
        for k, group in enumerate(state.groups):
            group.model.load_state_dict(checkpoint.part(f"stack{k}"))
            if self.runs[0].config.training.select in AVERAGED:
                group.average = WeightAverage(group.model)
                group.average.restore(checkpoint.part(f"average{k}"))
        for k, (run, saved) in enumerate(zip(self.runs, stored.heads, strict=True)):
            run.progress, run.error = saved.progress, saved.error
            chosen = int(run.progress.best.get("epoch") or 0)
            self.candidates[k].restore(checkpoint.part(f"best{k}"), chosen=chosen)
        restore_optimizer(state.optimizer, checkpoint)
        state.epoch, state.step = stored.epoch, stored.step

    def _members(self) -> list[Any]:
        """Return the runs that train jointly, in the form in which JSON restores them."""
        runs = [[str(run.folder.path), run.config.to_dict()] for run in self.runs]
        return json.loads(json.dumps(runs))

    def finish(self, state: TrainingState) -> None:
        """Write the run folders of the runs that have not failed."""
        optimizer, parameter_groups = optimizer_tensors(state.optimizer)
        first = 0
        for group in state.groups:
            count = len(list(group.module.parameters()))
            groups = [{**parameter_groups[0], "params": list(range(count))}]
            for place, run in enumerate(group.runs):
                if run.error is None:
                    kept = self.candidates[self.runs.index(run)]
                    best = state.saved(run, kept.weights[kept.chosen])
                    last = state.saved(run, group.weights(place))
                    own = _optimizer_of_run(optimizer, place, first=first, count=count)
                    own |= kept.tensors("candidate", chosen=False) | group.average_tensors(place)
                    save_run(run.folder, best, last, run.progress, optimizer=own, groups=groups)
            first += count


def _optimizer_of_run(
    tensors: dict[str, Tensor], place: int, *, first: int, count: int
) -> dict[str, Tensor]:
    """Return the optimiser's tensors of one run, numbered as if the run had trained alone.

    `first` and `count`: index of its group's first parameter, and their number.
    """
    own: dict[str, Tensor] = {}
    for key, value in tensors.items():
        _, index, name = key.split(".", 2)
        if first <= int(index) < first + count:
            # scalars such as Adam's step are common to all runs
            own[f"optimizer.{int(index) - first}.{name}"] = value[place] if value.ndim else value
    return own
