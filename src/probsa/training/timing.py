"""How long an epoch will take, from a step on its largest batch and one on a median batch."""

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from ..core import Bags
from ..variational import objective
from .batching import BagReader, Batch, Shard, plan_epoch
from .config import RunConfig
from .devices import choose_device, precision_context, thread_count
from .preparation import PreparedData, build_model


def epoch_seconds(config: RunConfig, prepared: PreparedData) -> float:
    """Return an estimate of the time of an epoch, with validation but without reading bags.

    The time of a batch is taken to be linear in its number of instances.
    """
    settings, device = config.training, choose_device(config.training.device)
    reader = BagReader(prepared.bags, prepared.targets, model=config.model)
    model = build_model(config, prepared).to(device)
    standardizer = prepared.standardizer.to(device)

    def step(bags: Bags) -> None:
        terms = model.train().losses(model(bags), bags)
        objective(terms, weights=model.loss_weights, kl_weight=1.0).backward()

    @torch.no_grad()
    def predict(bags: Bags) -> None:
        model.eval()(bags).probability.sum().item()

    def duration(compute: Callable[[Bags], None], batches: Sequence[Batch]) -> float:
        sizes = np.array([sum(map(prepared.bags.size, names)) for names in batches])
        order, seconds = sizes.argsort(), []
        timed = order[[len(order) // 2, len(order) // 2, -1]]  # the first one warms up
        for k in timed:
            bags = reader[Shard(batches[k], len(batches[k]))].to(device, torch.float32)
            start = time.perf_counter()
            with precision_context(settings.precision, device):
                compute(standardizer(bags))
            seconds.append(time.perf_counter() - start)
        middle, largest = sizes[timed[1:]]
        slope = (seconds[2] - seconds[1]) / max(1, largest - middle)
        return float((seconds[1] + slope * (sizes - middle)).clip(0).sum())

    with thread_count(settings.threads):
        total = 0.0
        for compute, part in ((step, prepared.split.train), (predict, prepared.split.val)):
            batches = plan_epoch(
                part,
                seed=config.order_seed,
                epoch=0,
                batch_size=settings.batch_size,
                max_instances=settings.max_instances,
                size=prepared.bags.size,
            )
            total += duration(compute, batches) if batches else 0.0
    return total
