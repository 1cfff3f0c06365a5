"""Stage 8: how far a run is, which of its epochs is the best, and how both are kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from .checkpoints import save_checkpoint
from .run_folder import RunFolder


@dataclass
class Progress:
    """Where a run is: all of it goes into the checkpoint."""

    epoch: int = 0
    step: int = 0
    best: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """What a checkpoint holds of a model."""

    model: str
    arguments: Mapping[str, Any]
    classes: Sequence[str]
    weights: Mapping[str, Tensor]
    standardize: Mapping[str, Tensor]

    def tensors(self) -> dict[str, Tensor]:
        """By the checkpoint's names."""
        return {f"model.{k}": v for k, v in self.weights.items()} | {
            f"standardize.{k}": v for k, v in self.standardize.items()
        }

    def metadata(self) -> dict[str, Any]:
        """What is not a tensor."""
        return {"model": self.model, "arguments": self.arguments, "classes": self.classes}


def save_run(
    folder: RunFolder,
    best: Saved | None,
    last: Saved,
    progress: Progress,
    *,
    optimizer: Mapping[str, Tensor],
    groups: Sequence[Any],
) -> None:
    """Writes where a run is: the best checkpoint (if there is a new one), the last, metrics."""
    metadata = {"progress": vars(progress)}
    if best is not None:
        save_checkpoint(folder.best, best.tensors(), metadata={**best.metadata(), **metadata})
    tensors = {**last.tensors(), **optimizer}
    save_checkpoint(
        folder.last, tensors, metadata={**last.metadata(), **metadata, "groups": groups}
    )
    folder.write_metrics(progress.history)


def is_better(row: Mapping[str, Any], best: Mapping[str, Any]) -> bool:
    """Higher AUROC; where equal or undefined, lower NLL; the earlier epoch keeps a tie."""
    if not best or row["val_nll"] is None:
        return True

    def rank(r: Mapping[str, Any]) -> tuple[float, float]:
        return (r["val_auroc"] if r["val_auroc"] is not None else 0.0, -r["val_nll"])

    return rank(row) > rank(best)


def validation_scores(
    labels: Sequence[int], probability: Sequence[Sequence[float]]
) -> dict[str, float | None]:
    """AUROC (one against the rest for more classes) and NLL; None where undefined, never 0.5."""
    if not labels:
        return {"val_auroc": None, "val_nll": None}
    p = torch.tensor(probability, dtype=torch.float64)
    y = torch.tensor(labels)
    full = torch.cat([1 - p, p], 1) if p.shape[1] == 1 else p
    chosen = full[torch.arange(len(y)), y].clamp_min(1e-12)
    auroc = None
    if len(set(labels)) == full.shape[1]:
        scores = full[:, 1] if full.shape[1] == 2 else full / full.sum(1, keepdim=True)
        auroc = float(roc_auc_score(y.numpy(), scores.numpy(), multi_class="ovr"))
    return {"val_auroc": auroc, "val_nll": float(-chosen.log().mean())}
