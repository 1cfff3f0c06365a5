"""Terms of the objective that shape a map, and the level from which evidence is counted.

Each term is a value per bag, to be added to the negative ELBO with a weight of its own. Shapes: n
instances; several classes are averaged.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..core import Bags, random_stream, segment_max, segment_mean, segment_softmax, segment_sum
from ..errors import InputError
from .posteriors import Posterior

BACKGROUND = 0
"""Index of the class without a finding: `normal` in the classes `normal,benign,tumour`."""
LEAST_VARIANCE = 1e-6
"""Least variance of the normal that guides attention, in squared steps; see `_in_steps`."""
MAX_FALSE_SHARE = 0.15
"""Largest share of instances above the level in negative bags, relative to positive bags."""
LEVELS = 201
"""Number of levels that are tried: quantiles of the evidence."""
DRAWS = 200
"""Number of bootstrap samples."""


def normal_guidance(scores: Float[Tensor, "n *classes"], bags: Bags) -> Float[Tensor, " bags"]:
    """Return G = Σ_n r_n (log r_n − log a_n) of each bag: how far attention is from a normal.

    a = softmax(scores). r is the density of a normal at the coordinates of the instances,
    normalised over the bag. The normal has the mean and covariance of the coordinates under a, and
    no gradient flows through it. Because these moments are the bag's own, attention in the form of
    a normal costs nothing wherever it lies (Normal Guidance, arXiv:2605.27306, there for one axis).
    Attention to several separate lesions of a bag does not have this form.

    Only the least variance depends on the unit of the coordinates, which is the step of
    `_in_steps`.

    Args:
        scores: Logits of the attention.
        bags: The bags, with coordinates.
    """
    assert bags.coords is not None
    coords = _in_steps(bags)
    divergences: list[Tensor] = []
    for s in scores.view(len(scores), -1).unbind(1):
        s = s.to(coords.dtype)
        with torch.no_grad():
            # mean (bags, axes) and covariance (bags, axes, axes) of the coordinates under a
            a = segment_softmax(s, bags.sizes)
            mean = segment_sum(a[:, None] * coords, bags.sizes)
            offset = coords - mean[bags.bag]
            products = a[:, None, None] * offset[:, :, None] * offset[:, None, :]
            covariance = segment_sum(products, bags.sizes)
            # a floor for the variance along each principal axis, where attention is a line or point
            eigenvalues, axes = torch.linalg.eigh(covariance)
            variances = eigenvalues.clamp_min(LEAST_VARIANCE)
            rotated = (offset[:, None, :] @ axes[bags.bag])[:, 0]
            # log density up to a constant, which the softmax removes
            log_density = -(rotated.square() / variances[bags.bag]).sum(1) / 2
            log_r = _log_softmax(log_density, bags)
        terms = log_r.exp() * (log_r - _log_softmax(s, bags))
        divergences.append(segment_sum(terms, bags.sizes))
    return torch.stack(divergences).mean(0).to(scores.dtype)


def _in_steps(bags: Bags) -> Float[Tensor, "n axes"]:
    """Return the coordinates of each bag in steps of a square lattice, from its lowest corner.

    The lattice is as long as the longest side of the bag and has as many points as the bag has
    instances. Its step is that between neighbours if the bag fills a square, and longer if not.
    """
    assert bags.coords is not None
    coords = bags.coords.double()
    low = -segment_max(-coords, bags.sizes)
    high = segment_max(coords, bags.sizes)
    # a lattice of N points on k axes has N^(1/k) points, hence N^(1/k) − 1 steps, per side
    steps_per_side = bags.segments.counts.double() ** (1 / coords.shape[1]) - 1
    step = (high - low).amax(1) / steps_per_side.clamp_min(1)
    return (coords - low[bags.bag]) / torch.where(step > 0, step, 1.0)[bags.bag, None]


def _log_softmax(s: Float[Tensor, " n"], bags: Bags) -> Float[Tensor, " n"]:
    """Return the logarithm of the softmax over each bag, also where the softmax underflows."""
    # the largest value cancels, in the gradient too
    top = segment_max(s.detach(), bags.sizes)[bags.bag]
    return s - top - segment_sum((s - top).exp(), bags.sizes).log()[bags.bag]


def negative_instances(
    q: Posterior, y: Int[Tensor, " bags"] | Float[Tensor, " bags"], bags: Bags
) -> Float[Tensor, " bags"]:
    """Return −mean_n log P(f_n ≤ 0) of negative bags, and 0 of others.

    Where the MIL assumption holds, every instance of a negative bag is negative. With instance
    labels z_n = 1[f_n > 0], −log P(f_n ≤ 0) = −log q(z_n = 0) is the term that the ELBO has of a
    known label.

    Of several classes, the value is the mean over the classes. For a finding, all bags of other
    classes are negative. For the background they are not, because bags with a finding also hold
    background; but in a bag of the background every instance is background, which gives
    −mean_n log P(f_n > 0) there and 0 elsewhere.

    Args:
        q: The posterior of the evidence, (n,) or (n, classes).
        y: The class of each bag, 0 or 1 for evidence of one class.
        bags: The bags.

    Raises:
        InputError: The posterior is a point mass.
    """
    if not q.stochastic:
        raise InputError("P(f ≤ 0) of a point mass is 0 or 1: give a posterior with a variance")
    z = q.mean / q.variance.clamp_min(torch.finfo(q.mean.dtype).tiny).sqrt()
    # whether the bag's label gives those of all its instances: (bags,) or (bags, classes)
    is_labelled = y == 0
    if z.ndim == 2:
        classes = torch.arange(z.shape[1], device=z.device)
        is_background = classes == BACKGROUND
        is_bag_class = y[:, None] == classes
        is_labelled = torch.where(is_background, is_bag_class, ~is_bag_class)
        # the instances of a background bag have f > 0 of the background
        z = torch.where(is_background, -z, z)
    tails: Tensor = _NegativeLogTail.apply(z)  # pyright: ignore[reportAssignmentType]
    terms = segment_mean(tails, bags.sizes)
    terms = terms * is_labelled.to(terms.dtype)
    return terms if terms.ndim == 1 else terms.mean(1)


class _NegativeLogTail(torch.autograd.Function):
    """−log Φ(−z), whose derivative is φ(z) / Φ(−z).

    PyTorch takes the derivative of `log_ndtr` as a quotient of two numbers near e^(−z²/2): in
    float32 it is 4 % off at z = 1000, and six times too large at 10⁴. erfcx has no such factor.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return -torch.special.log_ndtr(-z)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore
        (z,) = ctx.saved_tensors
        # erfcx overflows to inf far below 0, where the derivative is 0
        return grad * math.sqrt(2 / math.pi) / torch.special.erfcx(z / math.sqrt(2))


def evidence_level(
    mean: Float[Tensor, " n"],
    variance: Float[Tensor, " n"],
    sizes: Sequence[int],
    positive: Bool[Tensor, " bags"],
) -> float:
    """Return the level c above which evidence is hardly found in negative bags.

    Let s_b(c) = mean_n P(f_n > c), the expected share of a bag's instances above c. The level is
    the lowest c that meets two conditions: the mean of s_b over negative bags is at most
    `MAX_FALSE_SHARE` times the mean over positive bags, and a positive bag has one instance or more
    above c, on average. If the negative instances of positive bags are like those of negative bags,
    at most that share of what is called in positive bags is called wrongly.

    The fewer the bags, the nearer to 0 the level stays: it is computed in `DRAWS` bootstrap samples
    of the bags, with 0 for a sample without such a level, and the value returned is the one of
    their 80 % interval that is nearest to 0. It is 0 without bags of both labels.

    Args:
        mean: Means of f of all instances, one bag after another.
        variance: Their variances.
        sizes: Numbers of instances of the bags.
        positive: Which bags are positive.
    """
    if positive.all() or not positive.any():
        return 0.0
    spread = variance.clamp_min(torch.finfo(mean.dtype).tiny).sqrt()
    shares_below = torch.linspace(0, 1, LEVELS, dtype=mean.dtype)
    levels = _quantiles(mean, shares_below).unique()
    # expected number and share of the instances above each level: (levels, bags)
    expected = [segment_sum(torch.special.ndtr((mean - c) / spread), sizes) for c in levels]
    count = torch.stack(expected)
    share = count / torch.tensor(sizes, dtype=mean.dtype)
    stream = random_stream(0, "level")
    positive_weights = _bootstrap_weights(positive, stream, dtype=mean.dtype)
    negative_weights = _bootstrap_weights(~positive, stream, dtype=mean.dtype)
    # means over the positive or negative bags of each sample: (levels, draws)
    positive_share = share @ positive_weights
    negative_share = share @ negative_weights
    positive_count = count @ positive_weights
    is_admissible = (negative_share <= MAX_FALSE_SHARE * positive_share) & (positive_count >= 1)
    # levels ascend, so the first admissible one is the lowest; 0 where there is none
    first = is_admissible.byte().argmax(0)
    lowest = torch.where(is_admissible.any(0), levels[first], 0.0)
    low, high = _quantiles(lowest, torch.tensor([0.1, 0.9], dtype=mean.dtype)).tolist()
    if low > 0:
        return low
    if high < 0:
        return high
    return 0.0


def _quantiles(values: Float[Tensor, " n"], shares: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
    """Return quantiles with linear interpolation; `torch.quantile` refuses more than 2²⁴ values."""
    ascending = values.sort().values
    rank = shares * (len(values) - 1)
    below = rank.floor()
    lower = ascending[below.long()]
    upper = ascending[rank.ceil().long()]
    return lower.lerp(upper, rank - below)


def _bootstrap_weights(
    is_eligible: Bool[Tensor, " bags"], stream: torch.Generator, *, dtype: torch.dtype
) -> Float[Tensor, "bags draws"]:
    """Return the weight of each bag in `DRAWS` bootstrap samples of the eligible bags.

    The weights of a sample sum to 1; bags that are not eligible have weight 0.
    """
    eligible = is_eligible.nonzero()[:, 0]
    choices = torch.randint(len(eligible), (DRAWS, len(eligible)), generator=stream)
    drawn_bags = eligible[choices]
    ones = torch.ones(drawn_bags.shape, dtype=dtype)
    counts = torch.zeros(DRAWS, len(is_eligible), dtype=dtype).scatter_add(1, drawn_bags, ones)
    return counts.T / len(eligible)
