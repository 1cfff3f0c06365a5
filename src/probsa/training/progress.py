"""Stage 8: the progress of a run, and the files that hold it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..core import NonNegativeInt
from ..models import Model
from .checkpoints import Checkpoint, save_checkpoint
from .preparation import PreparedData
from .run_folder import RunFolder


@dataclass
class Progress:
    """How far a run has come; every field is stored in its checkpoints."""

    epoch: NonNegativeInt = 0
    """Number of epochs that are complete."""
    step: NonNegativeInt = 0
    """Number of steps that are complete."""
    best: dict[str, int | float | None] = field(default_factory=dict)
    """Number (from 1) and validation scores of the best epoch."""
    history: list[dict[str, int | float | None]] = field(default_factory=list)
    """The rows of metrics.csv."""

    @property
    def since_best(self) -> int:
        """Number of epochs since the best one, which `patience` limits."""
        return self.epoch - int(self.best.get("epoch") or 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class _StoredProgress:
    progress: Progress


def progress_of(checkpoint: Checkpoint) -> Progress:
    """Return the progress that a checkpoint states.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    return checkpoint.stated(_StoredProgress).progress


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedModel:
    """The part of a checkpoint that prediction needs."""

    model: str
    arguments: Mapping[str, Any]
    classes: Sequence[str]
    weights: Mapping[str, Tensor]
    standardize: Mapping[str, Tensor]

    @classmethod
    def of(
        cls, model: Model, prepared: PreparedData, *, weights: Mapping[str, Tensor] | None = None
    ) -> "SavedModel":
        """Return the model of a run, with other weights than its own if they are given."""
        return cls(
            model=model.name,
            arguments=model.arguments,
            classes=prepared.classes,
            weights=model.state_dict() if weights is None else weights,
            standardize=prepared.standardizer.state_dict(),
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors under their names in a checkpoint."""
        return {f"model.{k}": v for k, v in self.weights.items()} | {
            f"standardize.{k}": v for k, v in self.standardize.items()
        }

    def metadata(self) -> dict[str, Any]:
        """Return everything that is not a tensor."""
        return {"model": self.model, "arguments": self.arguments, "classes": self.classes}


def save_run(
    folder: RunFolder,
    best: SavedModel | None,
    last: SavedModel,
    progress: Progress,
    *,
    optimizer: Mapping[str, Tensor],
    groups: Sequence[Any],
) -> None:
    """Write a run's checkpoints and metrics.csv.

    Args:
        folder: the run folder.
        best: the model with the chosen weights, or None to keep the checkpoint that is there.
        last: the model after the last epoch.
        progress: stored in both checkpoints.
        optimizer: tensors of the optimiser's state, the model's memory and averages of weights, by
            name.
        groups: the optimiser's parameter groups.
    """
    metadata = {"progress": vars(progress)}
    if best is not None:
        save_checkpoint(folder.best, best.tensors(), metadata={**best.metadata(), **metadata})
    tensors = {**last.tensors(), **optimizer}
    save_checkpoint(
        folder.last, tensors, metadata={**last.metadata(), **metadata, "groups": groups}
    )
    folder.write_metrics(progress.history)
