"""Stage 8: the optimiser of a run, its learning rate in each epoch, and the clipping of gradients.

All of it follows from the run file, the epoch and the validation losses so far, beside the state
that the checkpoint holds: a resumed run goes on as if nothing had happened.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..models import Model
from ..variational import rate_factor
from .config import TrainingConfig
from .lookahead import Lookahead

WHOLE = "part_of"
"""Which of the model's own groups a group is a part of."""


def make_optimizer(model: Model, settings: TrainingConfig) -> torch.optim.Optimizer:
    """The optimiser that the settings name, over the model's own parameter groups.

    Adam is the paper's; RAdam within Lookahead, with `decay_vectors=False`, TransMIL's.
    """
    groups = [
        {**group, "params": list(group["params"]), WHOLE: k}
        for k, group in enumerate(model.parameter_groups())
    ]
    if not settings.decay_vectors:
        groups = [part for group in groups for part in _apart(group)]
    optimizer = optimizer_of(groups, settings)
    if settings.lookahead is not None:
        Lookahead(optimizer, steps=settings.lookahead, alpha=settings.lookahead_alpha)
    return optimizer


def _apart(group: dict) -> list[dict]:
    """A group as its matrices, and its vectors without weight decay."""
    matrices = [p for p in group["params"] if p.ndim > 1]
    vectors = [p for p in group["params"] if p.ndim <= 1]
    parts = [{**group, "params": matrices}, {**group, "params": vectors, "weight_decay": 0.0}]
    return [part for part in parts if part["params"]]


def optimizer_of(groups: list[dict], settings: TrainingConfig) -> torch.optim.Optimizer:
    """The optimiser that the settings name, over groups of parameters."""
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=0.9, weight_decay=decay)
    if settings.optimizer == "radam":
        return torch.optim.RAdam(groups, lr=rate, weight_decay=decay, decoupled_weight_decay=True)
    kind = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
    # one kernel a step instead of a dozen a parameter
    fused = all(p.device.type in ("cpu", "cuda") for group in groups for p in group["params"])
    return kind(groups, lr=rate, weight_decay=decay, fused=fused)


def clip_gradients(optimizer: torch.optim.Optimizer, norm: float | None) -> None:
    """Scales gradients down to `norm`, all together; a group with a `clip_norm` by itself."""
    together: list[Tensor] = []
    alone: dict[int, tuple[float, list[Tensor]]] = {}
    for k, group in enumerate(optimizer.param_groups):
        own = group.get("clip_norm")
        if own is None:
            together += group["params"]
        else:
            alone.setdefault(group.get(WHOLE, k), (own, []))[1].extend(group["params"])
    for own, params in alone.values():
        nn.utils.clip_grad_norm_(params, own)
    if norm is not None:
        nn.utils.clip_grad_norm_(together, norm)


def set_learning_rate(
    optimizer: torch.optim.Optimizer,
    settings: TrainingConfig,
    *,
    epoch: int,
    losses: Sequence[float | None] = (),
) -> float:
    """LinearLR(0.1, warmup_epochs) times the schedule, stepped per epoch; `losses` so far."""
    warm = settings.warmup_epochs
    factor = 0.1 + 0.9 * min(epoch, warm) / warm if warm else 1.0
    factor *= rate_factor(
        settings.schedule,
        epoch=epoch,
        epochs=settings.epochs,
        losses=losses,
        share=settings.schedule_factor,
        every=settings.schedule_epochs,
    )
    for group in optimizer.param_groups:
        group["lr"] = factor * group.setdefault("initial_lr", settings.learning_rate)
    return factor * settings.learning_rate
