"""Write the files of joint training: its state periodically, and the run folders at its end."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import CheckpointError
from .checkpoints import load_checkpoint, optimizer_tensors, restore_optimizer, save_checkpoint
from .keepers import Keeper, TrainingState
from .keys import with_current_names
from .model_stack import StackedModels
from .progress import Progress, Run, save_run


class JointKeeper(Keeper):
    """Keeps runs that train jointly.

    Args:
        runs: the runs, in the order in which the caller named them.
        folder: folder for the state of the joint training.
        save_every: seconds between two writes of the state.
    """

    def __init__(self, runs: Sequence[Run], folder: Path, *, save_every: float) -> None:
        self.runs, self.folder, self.save_every = runs, folder, save_every
        self.best: list[dict[str, Tensor]] = [{} for _ in runs]
        """Weights of each run's best epoch so far."""
        self.saved = time.monotonic()

    @property
    def file(self) -> Path:
        """The checkpoint with the state of every run."""
        return self.folder / "pass.safetensors"

    def end_epoch(self, state: TrainingState) -> None:
        for group in state.groups:
            for place, run in enumerate(group.runs):
                if run.error is None and run.progress.latest_is_best:
                    self.best[self.runs.index(run)] = group.weights(place)
        is_last = state.epoch == self.runs[0].config.training.epochs
        if time.monotonic() - self.saved > self.save_every and not is_last:
            self.save(state)
            self.saved = time.monotonic()

    def save(self, state: TrainingState) -> None:
        """Write weights, optimiser, and each run's best weights and progress."""
        tensors: dict[str, Tensor] = {}
        for k, group in enumerate(state.groups):
            assert isinstance(group, StackedModels)
            weights = group.stack.model.state_dict()
            tensors |= {f"stack{k}.{name}": v for name, v in weights.items()}
        for k, best in enumerate(self.best):
            tensors |= {f"best{k}.{name}": v for name, v in best.items()}
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
        metadata = checkpoint.metadata
        if with_current_names(metadata.get("members")) != self._members():
            return
        for k, group in enumerate(state.groups):
            assert isinstance(group, StackedModels)
            group.stack.model.load_state_dict(checkpoint.part(f"stack{k}"))
        for k, (run, saved) in enumerate(zip(self.runs, metadata["heads"], strict=True)):
            self.best[k] = checkpoint.part(f"best{k}")
            run.progress, run.error = Progress(**saved["progress"]), saved["error"]
        restore_optimizer(state.optimizer, checkpoint)
        state.epoch, state.step = metadata["epoch"], metadata["step"]

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
                    best = state.saved(run, self.best[self.runs.index(run)])
                    last = state.saved(run, group.weights(place))
                    own = _optimizer_of_run(optimizer, place, first=first, count=count)
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
