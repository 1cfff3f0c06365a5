"""Stage 8: the optimiser of a run, its learning rate in each epoch, and gradient clipping.

Besides the optimiser's state, everything follows from the run file, the epoch and the validation
losses so far, so that a resumed run continues as if it had not been interrupted.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from ..models import Model
from ..variational import rate_factor
from .config import TrainingConfig

TARGET_RATE = 10.0
"""The default of `scalar_rate` for other targets than classes."""
WHOLE = "part_of"
"""Key under which a group stores the index of the model's parameter group that it is part of."""


def make_optimizer(model: Model, settings: TrainingConfig) -> torch.optim.Optimizer:
    """Return the optimiser of the settings, over the model's own parameter groups.

    The paper uses Adam; TransMIL uses RAdam, with `decay_vectors=False`.
    """
    special_groups = _special_groups(model, settings)
    special = {id(p) for group in special_groups for p in group["params"]}
    groups: list[dict] = []
    for k, group in enumerate(model.parameter_groups()):
        parameters = [p for p in group["params"] if id(p) not in special]
        common = {**group, "params": parameters, WHOLE: k}
        groups += [common] if settings.decay_vectors else _split_vectors(common)
    groups += special_groups
    rate = settings.learning_rate
    decay = settings.weight_decay
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=0.9, weight_decay=decay)
    if settings.optimizer == "radam":
        return torch.optim.RAdam(groups, lr=rate, weight_decay=decay, decoupled_weight_decay=True)
    adam = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
    # a fused optimiser needs one kernel per step instead of a dozen per parameter
    fused = all(p.device.type in ("cpu", "cuda") for group in groups for p in group["params"])
    return adam(groups, lr=rate, weight_decay=decay, fused=fused)


def _special_groups(model: Model, settings: TrainingConfig) -> list[dict]:
    """Return the parameters with a learning rate or a weight decay of their own.

    Thresholds, biases and variances of a likelihood have no weight decay, and the coefficients of
    covariates have `covariate_weight_decay`. `scalar_rate` holds for single numbers.
    """
    factor = settings.scalar_rate
    if factor is None:
        factor = 1.0 if model.likelihood.of_classes else TARGET_RATE
    rate = {} if factor == 1 else {"lr": factor * settings.learning_rate}
    groups: list[dict] = []
    target_scalars = [p for p in model.likelihood.parameters() if p.requires_grad]
    if target_scalars:
        groups.append({"params": target_scalars, "weight_decay": 0.0, **rate})
    # with the common rate, the scalars of pooling stay in their groups
    pooling_scalars = list(model.pooling_scalars()) if rate else []
    if pooling_scalars:
        decay = {} if settings.decay_vectors else {"weight_decay": 0.0}
        groups.append({"params": pooling_scalars, **rate, **decay})
    if model.covariates is not None:
        decay = settings.covariate_weight_decay
        groups.append({"params": list(model.covariates.parameters()), "weight_decay": decay})
    return groups


def _split_vectors(group: dict) -> list[dict]:
    """Split a group into its matrices, and its vectors without weight decay."""
    matrices = [p for p in group["params"] if p.ndim > 1]
    vectors = [p for p in group["params"] if p.ndim <= 1]
    parts = [{**group, "params": matrices}, {**group, "params": vectors, "weight_decay": 0.0}]
    return [part for part in parts if part["params"]]


def averaged_model(model: nn.Module, *, decay: float) -> AveragedModel:
    """Return a copy of a model that `update_parameters` makes the exponential average over steps.

    The weights of step t enter at the rate (1 − d) / (1 − dᵗ), so that those of all steps sum to 1
    as Adam's moments do: the initial weights, which say nothing of the data, are not part of it.
    Floating buffers are averaged as well; others, which count or index, are those of the model.
    """

    def update(average: Tensor, value: Tensor, steps: int | Tensor) -> Tensor:
        rate = (1 - decay) / (1 - decay ** (int(steps) + 1))
        return average.lerp(value, rate) if average.is_floating_point() else value

    return AveragedModel(model, avg_fn=update, use_buffers=True)


def clip_gradients(optimizer: torch.optim.Optimizer, norm: float | None) -> None:
    """Scale the gradients down to a norm; groups with a `clip_norm` are clipped separately.

    A norm of None leaves the gradients of all other groups as they are.
    """
    common: list[Tensor] = []
    separate: dict[int, list[Tensor]] = {}
    separate_norms: dict[int, float] = {}
    for k, group in enumerate(optimizer.param_groups):
        if group.get("clip_norm") is None:
            common += group["params"]
            continue
        # matrices and vectors of one group of the model are clipped together
        whole = group.get(WHOLE, k)
        separate.setdefault(whole, []).extend(group["params"])
        separate_norms.setdefault(whole, group["clip_norm"])
    for whole, parameters in separate.items():
        nn.utils.clip_grad_norm_(parameters, separate_norms[whole])
    if norm is not None:
        nn.utils.clip_grad_norm_(common, norm)


def set_learning_rate(
    optimizer: torch.optim.Optimizer,
    settings: TrainingConfig,
    *,
    epoch: int,
    losses: Sequence[float | None] = (),
) -> float:
    """Set and return the learning rate of an epoch (from 0).

    It rises linearly from a tenth over `warmup_epochs`, and is multiplied by the schedule's factor.
    The plateau schedule follows the validation losses of the epochs so far.
    """
    warmup = settings.warmup_epochs
    factor = 0.1 + 0.9 * min(epoch, warmup) / warmup if warmup else 1.0
    factor *= rate_factor(
        settings.schedule,
        epoch=epoch,
        epochs=settings.epochs,
        losses=losses,
        share=settings.schedule_factor,
        every=settings.schedule_epochs,
    )
    for group in optimizer.param_groups:
        group["lr"] = factor * group.setdefault("initial_lr", group["lr"])
    return factor * settings.learning_rate
