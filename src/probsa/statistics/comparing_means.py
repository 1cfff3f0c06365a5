"""Compare methods by the mean of a value that each item has, such as the AP within each bag."""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Shaped

from ..errors import InputError
from .comparison import Comparison, compared_samples
from .paired_difference import Difference, MethodSample, PairedData, compare_pair
from .replicates import draw_patients, resampled_metric


def compare_means(
    values: Mapping[str, Float[np.ndarray, "replicates items"]],
    *,
    groups: Sequence[Hashable],
    baseline: str | None = None,
    blocks: Sequence[Hashable] | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> Comparison:
    """Compare the methods' means with a baseline (or the best), and decide on a winner.

    The rule and the arguments are those of `compare`; higher values are better.

    Args:
        values: for each method, a value of each item in every replicate; the shapes agree.

    Raises:
        InputError: the shapes differ, or a value is nan.
    """
    data, samples = _samples(values, groups=groups, blocks=blocks, resamples=resamples, seed=seed)
    if baseline is not None and baseline not in values:
        raise InputError(f"no baseline {baseline!r} among {', '.join(values)}")
    return compared_samples(samples, baseline=baseline, data=data)


def mean_interval(
    values: Float[np.ndarray, "replicates items"],
    *,
    groups: Sequence[Hashable],
    blocks: Sequence[Hashable] | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> Difference:
    """Return the mean with its interval over groups and replicates, as a difference to 0.

    Raises:
        InputError: a value is nan.
    """
    both = {"values": values, "zero": np.zeros_like(values)}
    data, samples = _samples(both, groups=groups, blocks=blocks, resamples=resamples, seed=seed)
    return compare_pair(samples["values"], samples["zero"], data=data)


def _samples(
    values: Mapping[str, Float[np.ndarray, "replicates items"]],
    *,
    groups: Sequence[Hashable],
    blocks: Sequence[Hashable] | None,
    resamples: int,
    seed: int,
) -> tuple[PairedData, dict[str, MethodSample]]:
    shape = next(iter(values.values())).shape
    for name, v in values.items():
        if v.shape != shape or v.shape[1] != len(groups):
            raise InputError(
                f"{name} has values of shape {v.shape}: expected {shape} for all methods, with "
                f"one value for each of {len(groups)} items"
            )
        if not np.isfinite(v).all():
            raise InputError(f"{name} has a value that is nan: leave the item out for all methods")
    draws, freedom = draw_patients(
        [0] * len(groups), groups=list(groups), resamples=resamples, seed=seed
    )
    y = np.ones(len(groups), dtype=bool)

    def sample(scores: Shaped[np.ndarray, "replicates items"]) -> MethodSample:
        rows = resampled_metric(y, scores, draws=draws, metric="mean")
        return MethodSample(values=rows, scores=scores)

    data = PairedData(
        y=y,
        member=draws.member,
        freedom=freedom,
        blocks=tuple(range(shape[0]) if blocks is None else blocks),
        metric="mean",
    )
    return data, {name: sample(v) for name, v in values.items()}
