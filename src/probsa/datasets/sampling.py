"""Stage 5: which bags an epoch trains on."""

from collections.abc import Sequence

import torch

from ..core import random_stream


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
