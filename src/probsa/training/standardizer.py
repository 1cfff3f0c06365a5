"""Standardise features by the mean and the deviation of the training instances."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from ..core import (
    Bags,
)
from ..datasets import (
    BagSet,
)
from ..errors import CheckpointError
from .checkpoints import Checkpoint

FLOAT32_ROUNDING = 1e-6
"""Relative deviation up to which a feature counts as constant."""
SMALLEST_MEAN = 1e-6
"""Mean below which the deviation is not compared with the mean itself."""


class Standardizer(nn.Module):
    """Standardise each feature: (x − mean) / std, in float32. Without statistics, only convert.

    Bags come in the precision that their files have, and are converted on the device of the model:
    half precision is moved and kept at half of the bytes, and float32 has all of its values.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Tensor | None = None, deviation: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(0) if mean is None else mean)
        self.register_buffer("deviation", torch.ones(0) if deviation is None else deviation)

    def forward(self, bags: Bags) -> Bags:
        x = bags.x.float()
        if len(self.mean) > 0:
            x = (x - self.mean) / self.deviation
        return bags if x is bags.x else replace(bags, x=x)

    @classmethod
    def restored(cls, checkpoint: Checkpoint, *, in_dim: int | None) -> "Standardizer":
        """Return the standardisation that a checkpoint holds, of `in_dim` features.

        Raises:
            CheckpointError: it is missing, or does not fit the model.
        """
        tensors = checkpoint.part("standardize")
        mean = tensors.get("mean")
        deviation = tensors.get("deviation")
        if mean is None or deviation is None or not _are_usable(mean, deviation, in_dim):
            raise CheckpointError(
                f"{checkpoint.path} is damaged: its means and deviations of the features are not "
                f"finite numbers for {in_dim} features. Copy the file again, or train the run again"
            )
        return cls(mean, deviation)

    @classmethod
    def fit(cls, bags: BagSet, names: tuple[str, ...]) -> "Standardizer":
        """Compute the statistics of the instances of some bags, read one at a time, in float64.

        A feature that is constant keeps its scale.
        """
        n = 0
        mean = torch.zeros(())
        squares = torch.zeros(())
        for name in names:
            x = bags.bag(name).x.double()
            # Chan's update keeps sums of squares about the running mean and avoids cancellation
            m = len(x)
            delta = x.mean(0) - mean
            squares = squares + (x - x.mean(0)).square().sum(0) + delta.square() * n * m / (n + m)
            mean = mean + delta * m / (n + m)
            n += m
        std = (squares / n).sqrt()
        # constant up to the rounding of float32, relative to the mean, or absolute if that is 0
        is_constant = std <= FLOAT32_ROUNDING * mean.abs().clamp_min(SMALLEST_MEAN)
        std = torch.where(is_constant, torch.ones_like(std), std)
        return cls(mean.float(), std.float())


def _are_usable(mean: Tensor, deviation: Tensor, in_dim: int | None) -> bool:
    """Return whether stored statistics are finite, and those of no feature or of all of them."""
    if mean.shape != deviation.shape or tuple(mean.shape) not in ((0,), (in_dim,)):
        return False
    for tensor in (mean, deviation):
        if not tensor.is_floating_point() or not tensor.isfinite().all():
            return False
    return bool((deviation > 0).all())
