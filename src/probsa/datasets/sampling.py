"""Stage 5: which bags an epoch trains on, and how events are spread over its batches."""

from collections.abc import Sequence

import torch

from ..core import counted, random_stream
from ..errors import InputError

SMALLEST_BATCH = 8
"""Fewest bags in a batch for a loss that compares bags: risk sets of fewer say little."""
EVENTS_PER_BATCH = 2


def balanced_epoch(labels: Sequence[int], *, seed: int, epoch: int) -> list[int]:
    """Draw an epoch in which every class occurs equally often, in shuffled order.

    The epoch is as long as `labels`, the classes of the training bags, and consists of indices into
    it. Bags of a class are drawn with replacement. The numbers of draws of two classes differ by
    one at most; which classes get one more changes with the epoch.
    """
    generator = random_stream(seed, "balanced epoch", epoch)
    y = torch.as_tensor(labels, dtype=torch.long)
    classes = y.unique()
    classes = classes[torch.randperm(len(classes), generator=generator)]
    drawn = []
    for k, label in enumerate(classes):
        members = (y == label).nonzero()[:, 0]
        count = len(range(k, len(y), len(classes)))
        drawn.append(members[torch.randint(len(members), (count,), generator=generator)])
    indices = torch.cat(drawn)
    return indices[torch.randperm(len(indices), generator=generator)].tolist()


def deal_events(
    events: Sequence[int], *, batch_size: int, seed: int, epoch: int
) -> list[tuple[int, ...]]:
    """Divide the bags of an epoch into batches over which the events are spread evenly.

    Every bag is in exactly one batch of indices into `events`, which has 1 for each training bag
    whose event was seen and 0 for a censored one. Sizes of batches, and their numbers of events,
    differ by one at most. Cox's partial likelihood compares the bags of a batch, so one without
    events trains nothing.

    Raises:
        InputError: the batches are smaller than 8, or there are fewer than two events for each.
    """
    if batch_size < SMALLEST_BATCH:
        raise InputError(
            f"batch_size is {batch_size}: a loss that compares the bags of a batch needs at least "
            f"{SMALLEST_BATCH}"
        )
    e = torch.as_tensor(events, dtype=torch.long)
    batches, count = -(-len(e) // batch_size), int(e.sum())
    if count < EVENTS_PER_BATCH * batches:
        advice = (
            f"give a batch_size of {-(-len(e) // (count // EVENTS_PER_BATCH))} or more"
            if count >= EVENTS_PER_BATCH
            else "give more bags with an event, or another likelihood (survival: hazards)"
        )
        raise InputError(
            f"{counted(count, 'event')} for {counted(batches, 'batch', 'batches')} of up to "
            f"{batch_size} bags: each batch needs {EVENTS_PER_BATCH} events or more; {advice}"
        )
    generator = random_stream(seed, "deal events", epoch)
    order = torch.randperm(len(e), generator=generator)
    # events first, then the censored bags: dealt in turn, both are spread evenly
    dealt = torch.cat([order[e[order] == 1], order[e[order] == 0]])
    in_turn = [dealt[k::batches] for k in range(batches)]
    return [
        tuple(batch[torch.randperm(len(batch), generator=generator)].tolist()) for batch in in_turn
    ]
