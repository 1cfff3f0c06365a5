"""Tensors that say that they are on a GPU, so that a CPU runs the code written for one."""

import torch


class GpuLike(torch.Tensor):
    """A tensor in the memory of the CPU whose `is_cuda` is true; results of it are of its kind."""

    is_cuda = True


def as_on_a_gpu(v: torch.Tensor) -> torch.Tensor:
    """Return the tensor as a `GpuLike`, with gradients."""
    return v.as_subclass(GpuLike)
