"""Which runs may train side by side: those that meet the same batches, of models that stack.

They may differ in seed, λ, posterior, encoder and every other argument of the model.
"""

import json
from typing import Any

from ..models import arguments, facts
from .config import RunConfig

WHERE = ("device", "workers", "threads", "cache_gb")
"""Where a run is computed, which is not what it computes."""


def why_alone(config: RunConfig) -> str | None:
    """Why a run cannot train beside others; None: it can."""
    t = config.training
    if not facts(config.model).stackable:
        return f"{config.model} is not made of linear maps and norms alone"
    dropped = [k for k, v in _given(config).items() if "dropout" in k and v]
    if dropped:
        return f"{dropped[0]} draws from one stream"
    for key, alone in (
        ("clip_norm", t.clip_norm is not None),
        ("patience", t.patience is not None),
        ("lookahead", t.lookahead is not None),
        ("schedule", t.schedule == "plateau"),
        ("decay_vectors", not t.decay_vectors and t.weight_decay > 0),
    ):
        if alone:
            return f"{key} is {getattr(t, key)}, which is one model's own affair"
    return None


def pass_key(config: RunConfig) -> str:
    """Runs with one key see the same batches under the same settings: they can share a pass."""
    given: dict[str, Any] = config.to_dict()
    given["n_classes"] = given.pop("model").get("n_classes")
    given["data_seed"] = config.order_seed
    del given["seed"], given["training"]["kl_weight"], given["training"]["tensorboard"]
    for section in ("data", "training"):
        given[section] = {k: v for k, v in given[section].items() if k not in WHERE}
    return json.dumps(given, sort_keys=True)


def _given(config: RunConfig) -> dict[str, Any]:
    """Every argument of the model: what the run gives, else the default."""
    known = arguments(config.model)
    return {k: p.default for k, p in known.items()} | config.model_arguments
