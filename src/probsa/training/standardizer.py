"""Standardise features by the mean and the deviation of the training instances."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from ..core import Bags
from ..datasets import BagSet
from ..errors import CheckpointError
from .checkpoints import Checkpoint

FLOAT32_ROUNDING = 1e-6
"""A feature whose deviation is at most this share of its mean is constant up to rounding."""
SMALLEST_MEAN = 1e-6
"""A mean nearer to 0 counts as this one, so that a feature of zeros is constant as well."""


class Standardizer(nn.Module):
    """Standardise each feature: (x − mean) / deviation, in float32; without statistics, convert.

    Bags come in the precision that their files have, and are converted on the device of the model:
    half precision is moved and kept at half of the bytes, and float32 has all of its values.
    """

    mean: Tensor
    """(features,), or empty without statistics."""
    deviation: Tensor
    """Standard deviations, of the same shape."""

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
        # Chan's update: sums of squares about the running mean, without cancellation
        n = 0  # instances of the bags so far
        mean = torch.zeros(())
        squares = torch.zeros(())
        for name in names:
            x = bags.bag(name).x.double()
            m = len(x)
            bag_mean = x.mean(0)
            bag_squares = (x - bag_mean).square().sum(0)
            shift = bag_mean - mean
            squares = squares + bag_squares + shift.square() * n * m / (n + m)
            mean = mean + shift * m / (n + m)
            n += m
        deviation = (squares / n).sqrt()
        is_constant = deviation <= FLOAT32_ROUNDING * mean.abs().clamp_min(SMALLEST_MEAN)
        deviation = torch.where(is_constant, torch.ones_like(deviation), deviation)
        return cls(mean.float(), deviation.float())


def _are_usable(mean: Tensor, deviation: Tensor, in_dim: int | None) -> bool:
    """Return whether stored statistics are finite, and empty or of `in_dim` features."""
    if mean.shape != deviation.shape:
        return False
    if tuple(mean.shape) not in ((0,), (in_dim,)):
        return False
    for tensor in (mean, deviation):
        if not tensor.is_floating_point() or not tensor.isfinite().all():
            return False
    return bool((deviation > 0).all())
