"""Decide which runs can train jointly: the same batches, and models that can be stacked.

They may differ in seed, λ, posterior, encoder and every other argument of the model.
"""

import json
from typing import Any

from ..models import arguments, facts
from ..tasks import TASKS
from .config import RunConfig
from .direct import fits_directly
from .run_folder import EXECUTION_KEYS


def why_not_jointly(config: RunConfig) -> str | None:
    """Return why a run cannot train jointly with others, or None if it can."""
    training = config.training
    if training.members > 1:
        return f"members is {training.members}: its members already train with each other"
    if fits_directly(config):
        return f"{config.model} is fitted in one go, without gradient steps"
    if (task := config.data.targets.task) != "auto" and not TASKS[task].unordered_classes:
        return f"the task {task} has parameters beside those of the model"
    if config.data.covariates.columns:
        return "covariates have coefficients beside the weights of the model"
    if not facts(config.model).stackable:
        return f"{config.model} is not made of linear maps and norms alone"
    dropouts = [k for k, v in _model_arguments(config).items() if "dropout" in k and v]
    if dropouts:
        return f"{dropouts[0]} draws all its noise from one random stream"
    for key, is_set in (
        ("clip_norm", training.clip_norm is not None),
        ("scalar_rate", training.scalar_rate not in (None, 1)),
        ("patience", training.patience is not None),
        ("lookahead", training.lookahead is not None),
        ("schedule", training.schedule == "plateau"),
        ("decay_vectors", not training.decay_vectors and training.weight_decay > 0),
    ):
        if is_set:
            return f"{key} is {getattr(training, key)}, which joint training does not support"
    return None


def joint_key(config: RunConfig) -> str:
    """Return a text that is equal for runs that see the same batches under the same settings."""
    values: dict[str, Any] = config.to_dict()
    values["n_classes"] = values.pop("model").get("n_classes")
    values["data_seed"] = config.order_seed
    del values["seed"], values["training"]["kl_weight"], values["training"]["tensorboard"]
    for section in ("data", "training"):
        values[section] = {
            k: v for k, v in values[section].items() if f"{section}.{k}" not in EXECUTION_KEYS
        }
    return json.dumps(values, sort_keys=True)


def _model_arguments(config: RunConfig) -> dict[str, Any]:
    """Return every argument of the model: the run's value, else the default."""
    defaults = {k: p.default for k, p in arguments(config.model).items()}
    return defaults | config.model_arguments
