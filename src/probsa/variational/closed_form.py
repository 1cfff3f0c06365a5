"""Pooling under independent normal scores without a sample of every instance.

The pooled value of a bag is y = Σ_n softmax(s)_n x_n with s_n ~ N(μ_n, σ_n²), where x_n is fixed
(attention) or s_n itself (evidence). A few *heavy* instances have most of the variance: they are
integrated by quasi-Monte Carlo. The sums over all *light* ones are nearly normal, and are replaced
by their moments to second order. The points of y are read as samples are, and differentiable.
Shapes: n instances, k heavy instances of a bag, c values (classes), d = 1 + c.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..core import draw_key, random_stream
from .posteriors import BLOCK, Diagonal, Streams, sample_blocks
from .priors import full_dtype

HEAVY = (32, 64, 128)
"""Numbers of heavy instances: each bag takes the first that leaves little variance to the rest."""
REST = 0.05
"""Largest influence of all light instances together, relative to (Σ e^s)². A bag with more at 128
heavy instances is sampled. benchmarks/RESULTS.md has the errors up to this limit."""
POINTS, PREDICT_POINTS = 128, 1024
"""Number of points in training and in prediction."""
DIMENSIONS = HEAVY[-1] + 32
"""Dimensions of the points, more for more values: d for the light instances, then one for each
heavy instance."""
CELLS = 1 << 16
"""Number of cells of each dimension of the points."""
JITTER = 1e-10
"""Relative addition to the variances of the light part, whose covariance may be singular."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments of e^s and e^s x of each instance, divided by the bag's largest E[e^s].

    In double precision, where the device has it.
    """

    first: Float[Tensor, "n d"]
    """E[e^s] and E[e^s x]."""
    covariance: Float[Tensor, "n d d"]
    influence: Float[Tensor, " n"]
    """Var[e^s] + Var[e^s (x − y)], summed over the values, with the y of the mean terms: the
    variances that the instance adds to the denominator and to y. Without gradient."""
    typical: Float[Tensor, " n"]
    """e^μ, the median of e^s, without gradient."""
    top: Float[Tensor, " bags"]
    """The logarithm of the largest E[e^s] of each bag, without gradient."""


def moments_of(
    mean: Float[Tensor, " n"],
    variance: Float[Tensor, " n"],
    g: Float[Tensor, "n c"] | None,
    counts: Int[Tensor, " bags"],
) -> Moments:
    """Return the moments of all instances; the arguments are those of `pool_normal`."""
    full = full_dtype(mean.device)
    mu, s2 = mean.to(full), variance.to(full)
    log_m = mu + s2 / 2
    top = torch.segment_reduce(log_m.detach(), "max", lengths=counts)
    shift = top.repeat_interleave(counts)
    m, growth = (log_m - shift).exp(), s2.expm1()
    # E[x] where e^s weighs the distribution of s
    x = (mu + s2)[:, None] if g is None else g.to(full)
    first = m[:, None] * torch.cat([torch.ones_like(x[:, :1]), x], 1)
    cov = (growth[:, None] * first)[:, :, None] * first[:, None, :]
    if g is None:
        tilt = m.square() * (1 + growth) * s2
        own = tilt * (2 * x[:, 0] + s2 + 1)
        cov = cov + torch.stack([torch.zeros_like(tilt), tilt, tilt, own], 1).view(-1, 2, 2)
    with torch.no_grad():
        sums = torch.segment_reduce(first, "sum", lengths=counts)
        y = (sums[:, 1:] / sums[:, :1]).repeat_interleave(counts, 0)
        v, cross, own = cov[:, 0, 0], cov[:, 0, 1:], cov.diagonal(dim1=1, dim2=2)[:, 1:]
        influence = v + (own - 2 * y * cross + y.square() * v[:, None]).sum(1)
        influence = influence.nan_to_num(nan=torch.inf)  # inf − inf, if e^{σ²} overflows
        return Moments(first, cov, influence, (mu - shift).exp(), top)


@dataclass(frozen=True, slots=True)
class Heavy:
    """The heavy instances of each bag, the most influential one first."""

    rows: Int[Tensor, "bags k"]
    present: Bool[Tensor, "bags k"]
    """False where a bag has fewer heavy instances than others; its first one fills the place."""
    light: Float[Tensor, " n"]
    """0 for heavy instances, 1 for all others."""
    refused: Bool[Tensor, " bags"]
    """Whether the moments of the light instances say too little of the bag's distribution."""


@torch.no_grad()
def heavy_instances(moments: Moments, counts: Int[Tensor, " bags"]) -> Heavy:
    """Choose the heavy instances of each bag, each bag by itself."""
    rows = _largest(moments.influence, counts, k=HEAVY[-1])
    place = torch.arange(rows.shape[1], device=rows.device)
    influence, m = moments.influence, moments.first[:, 0]
    # the median of a heavy term, because its mean may be far above what most points have
    moved = torch.stack([influence, m - moments.typical], 1)[rows]
    moved = moved * (place < counts[:, None])[..., None]
    whole = torch.segment_reduce(torch.stack([influence, m], 1), "sum", lengths=counts)
    left = whole[:, None] - moved.cumsum(1)
    enough = left[..., 0] <= REST * left[..., 1].square()
    used, decided = counts.clamp(max=HEAVY[-1]), torch.zeros_like(counts, dtype=torch.bool)
    for k in HEAVY:
        passes = counts <= k
        if k <= rows.shape[1]:
            passes = passes | enough[:, k - 1]
        used = torch.where(passes & ~decided, counts.clamp(max=k), used)
        decided = decided | passes
    width = int(used.max())
    rows, present = rows[:, :width], place[:width] < used[:, None]
    light = torch.ones_like(m).index_fill_(0, rows[present], 0)
    return Heavy(rows, present, light, ~decided)


def _largest(
    value: Float[Tensor, " n"], counts: Int[Tensor, " bags"], *, k: int
) -> Int[Tensor, "bags k"]:
    """Return the rows of the k largest values of each bag; the first one again for small bags."""
    widest = int(counts.max())
    place = torch.arange(widest, device=value.device) < counts[:, None]
    padded = value.new_full(place.shape, -torch.inf)
    padded[place] = value
    columns = padded.topk(min(k, widest)).indices
    columns = torch.where(columns < counts[:, None], columns, columns[:, :1])
    return columns + (counts.cumsum(0) - counts)[:, None]


@cache
def _sobol(
    points: int, dims: int, series: int, device: torch.device
) -> Int[Tensor, "series points dims"]:
    """Return scrambled Sobol points as numbers of cells of [0, 1)."""
    engine = torch.quasirandom.SobolEngine(series * dims, scramble=True, seed=0)
    # in turn, because the first dimensions are the most even ones
    u = engine.draw(points).view(points, dims, series).permute(2, 0, 1)
    return (u * CELLS).to(torch.int32).clamp_(max=CELLS - 1).to(device)


@cache
def _quantiles(dtype: torch.dtype, device: torch.device) -> Float[Tensor, " cells"]:
    """Return the normal quantile of v = 1 − |2u − 1|, u being the middle of each cell.

    By this baker's transform, errors of shifted points are those of periodic functions (Hickernell
    2002). A table is 20 times as fast as the inverse error function.
    """
    u = (torch.arange(CELLS, dtype=torch.float64) + 0.5) / CELLS
    return torch.special.ndtri(1 - (2 * u - 1).abs()).to(device, dtype)


def normal_points(
    shifts: Int[Tensor, "bags all_dims"], *, count: int, dims: int, series: int, dtype: torch.dtype
) -> Float[Tensor, "bags count dims"]:
    """Return the first dimensions of standard normal quasi-random points, shifted by bag.

    The bags are in `series` parts of equal length. Different parts have independent points, of
    which the k-th ones of a bag together are one point.
    """
    base = _sobol(count, shifts.shape[1], series, shifts.device)[..., :dims]
    cells = base.repeat_interleave(len(shifts) // series, 0) + shifts[:, None, :dims]
    cells = cells.bitwise_and_(CELLS - 1)
    found = _quantiles(dtype, shifts.device).index_select(0, cells.flatten())
    return found.view(cells.shape)


@dataclass(frozen=True, slots=True)
class ScoredBlock:
    """What some points say of every instance of a bag, for explanations."""

    scores: Float[Tensor, "s n"]
    """log e^s up to a constant of the bag; of light instances, log E[e^s]."""
    values: Float[Tensor, "s n"] | None
    """x where it depends on the score; None if it is fixed."""
    offset: Float[Tensor, "s c"]
    """What the distribution of the light instances adds to y; 0 of samples."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClosedForm:
    """Points of y of some bags, and what the moments of their weights need."""

    y: Float[Tensor, "bags points c"]
    moments: Moments
    heavy: Heavy
    scores: Float[Tensor, "bags points k"]
    """s of the heavy instances."""
    denominator: Float[Tensor, "bags points"]
    """Σ_n e^s, with the light instances at their mean, divided as the moments are."""
    offset: Float[Tensor, "bags points c"]
    """The part of y that is due to the distribution of the light instances."""
    sizes: list[int]
    fixed: bool
    """Whether x is fixed."""

    def weights(self) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """Return the mean and the variance of each weight softmax(s)_n."""
        counts = torch.tensor(self.sizes, device=self.y.device)
        first, second = self.moments.first[:, 0], self.moments.covariance[:, 0, 0]
        inverse = self.denominator.to(first.dtype).reciprocal()
        one, two = (v.mean(1).repeat_interleave(counts) for v in (inverse, inverse.square()))
        mean = first * one
        variance = second * two + first.square() * (two - one.square())
        at, present = self.heavy.rows[self.heavy.present], self.heavy.present
        log_weights = self.scores - self.moments.top[:, None, None] + inverse.log()[..., None]
        weights = log_weights.exp()
        mean[at] = weights.mean(1)[present]
        variance[at] = weights.var(1, correction=0)[present]
        return mean.to(self.y.dtype), variance.to(self.y.dtype)

    def blocks(self, bag: int) -> Iterator[ScoredBlock]:
        """Yield what the points say of every instance of a bag, some points at a time."""
        n, points = self.sizes[bag], self.y.shape[1]
        rows = slice(sum(self.sizes[:bag]), sum(self.sizes[: bag + 1]))
        first = self.moments.first[rows]
        kept = self.heavy.present[bag]
        at = self.heavy.rows[bag, kept] - rows.start
        for part in torch.arange(points).split(max(1, BLOCK // n)):
            s = self.scores[bag, part][:, kept]
            scores = first[:, 0].log().to(s.dtype).repeat(len(part), 1)
            scores[:, at] = s - self.moments.top[bag].to(s.dtype)
            values = None
            if not self.fixed:
                light = (first[:, 1] / first[:, 0]).nan_to_num()  # 0 / 0 if E[e^s] underflows
                values = light.to(s.dtype).repeat(len(part), 1)
                values[:, at] = s
            yield ScoredBlock(scores, values, self.offset[bag, part])


def closed_form(
    mean: Float[Tensor, " n"],
    variance: Float[Tensor, " n"],
    sizes: list[int],
    *,
    g: Float[Tensor, "n c"] | None,
    shifts: Int[Tensor, "bags all_dims"],
    points: int,
    series: int,
) -> ClosedForm:
    """Pool without samples; the arguments are those of `pool_normal`."""
    counts = torch.tensor(sizes, device=mean.device)
    moments = moments_of(mean, variance, g, counts)
    heavy = heavy_instances(moments, counts)
    (bags, k), d = heavy.rows.shape, moments.first.shape[1]
    z = normal_points(shifts, count=points, dims=d + k, series=series, dtype=mean.dtype)
    columns = torch.cat([moments.first, moments.covariance.flatten(1)], 1)
    sums = torch.segment_reduce(columns * heavy.light[:, None], "sum", lengths=counts)
    root = _root(sums[:, d:].view(-1, d, d)).to(mean.dtype)
    sums = sums.to(mean.dtype)

    each = torch.stack([mean, variance.sqrt(), *(() if g is None else g.unbind(1))], 1)
    of_heavy = each.index_select(0, heavy.rows.flatten()).view(bags, 1, k, -1)
    start, deviation, *x = of_heavy.unbind(3)
    scores = torch.addcmul(start, deviation, z[..., d:])
    absent = torch.where(heavy.present, -moments.top[:, None], -torch.inf).to(mean.dtype)
    e = (scores + absent[:, None]).exp()
    denominator = e.sum(2) + sums[:, :1]
    inverse = denominator.reciprocal()[..., None]
    numerator = torch.stack([(e * x_k).sum(2) for x_k in x or [scores]], 2) + sums[:, None, 1:d]
    ratio = numerator * inverse
    # the distribution of the light part, and its effect on the mean to second order
    noise = torch.stack([(z[..., :d] * root[:, None, i]).sum(2) for i in range(d)], 2)
    moves = (noise - sums[:, None, d : 2 * d] * inverse) * inverse
    offset = moves[..., 1:] - ratio * moves[..., :1]
    return ClosedForm(
        y=ratio + offset,
        moments=moments,
        heavy=heavy,
        scores=scores,
        denominator=denominator,
        offset=offset,
        sizes=sizes,
        fixed=g is not None,
    )


def _root(v: Float[Tensor, "bags d d"]) -> Float[Tensor, "bags d d"]:
    """Return the lower Cholesky factor of covariances that may be 0 or nearly singular."""
    columns: list[Tensor] = []
    rest = v
    for j in range(v.shape[1]):
        # what is left of a variance must not vanish beside its rounding errors
        pivot = (rest[:, j, j] + JITTER * v[:, j, j] + 1e-30).sqrt()
        columns.append(rest[:, :, j] / pivot[:, None])
        rest = rest - columns[-1][:, :, None] * columns[-1][:, None, :]
    return torch.stack(columns, 2).tril()


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledBag:
    """A bag of which every instance is sampled, as often as other bags have points."""

    q: Diagonal
    g: Float[Tensor, "n c"] | None
    points: int
    key: int
    """Seed of the noise, so that the same samples can be drawn again."""

    def blocks(self) -> Iterator[ScoredBlock]:
        """Yield the samples: all at once for gradients, else some at a time."""
        n = len(self.q.mean)
        streams = Streams([n], [random_stream(self.key, device=self.q.mean.device)])
        at_once = torch.is_grad_enabled()
        drawn = (
            [self.q.sample(self.points, streams)]
            if at_once
            else sample_blocks(self.q, self.points, streams)
        )
        for f in drawn:
            for block in [f] if at_once else f.split(max(1, BLOCK // n)):
                columns = 1 if self.g is None else self.g.shape[1]
                values = block if self.g is None else None
                yield ScoredBlock(block, values, block.new_zeros(len(block), columns))

    def y(self) -> Float[Tensor, "points c"]:
        """Return the pooled values of each sample."""
        parts = []
        for block in self.blocks():
            weights = block.scores.softmax(1)
            if self.g is None:
                parts.append((weights * block.scores).sum(1, keepdim=True))
            else:
                parts.append(weights @ self.g)
        return torch.cat(parts)

    def weights(self) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """Return the mean and the variance of each weight softmax(s)_n."""
        centre = self.q.mean.softmax(0)  # differences from it survive float32
        first, second = torch.zeros_like(centre), torch.zeros_like(centre)
        for block in self.blocks():
            apart = block.scores.softmax(1) - centre
            first += apart.sum(0) / self.points
            second += apart.square().sum(0) / self.points
        return first + centre, (second - first.square()).clamp_min(0)


@dataclass(frozen=True, kw_only=True, slots=True)
class PooledBags:
    """The pooled values of every bag of a batch."""

    y: Float[Tensor, "bags points c"]
    closed: ClosedForm
    sampled: dict[int, SampledBag]
    """The bags that the closed form leaves to sampling, by their place in the batch."""

    def weights(self) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """Return the mean and the variance of each weight softmax(s)_n."""
        mean, variance = self.closed.weights()
        parts = mean.split(self.closed.sizes), variance.split(self.closed.sizes)
        for b, bag in self.sampled.items():
            for part, value in zip(parts, bag.weights(), strict=True):
                part[b].copy_(value)
        return mean, variance

    def blocks(self, bag: int) -> Iterator[ScoredBlock]:
        """Yield what the points say of every instance of a bag, some points at a time."""
        return self.sampled[bag].blocks() if bag in self.sampled else self.closed.blocks(bag)


def pool_normal(
    mean: Float[Tensor, " n"],
    variance: Float[Tensor, " n"],
    sizes: Sequence[int],
    *,
    g: Float[Tensor, "n c"] | None,
    points: int,
    generators: Sequence[torch.Generator],
    series: int = 1,
) -> PooledBags:
    """Pool `g`, or the scores themselves, over each bag.

    Args:
        mean: The means μ of the scores s.
        variance: The variances σ² of the scores.
        sizes: Number of instances of each bag.
        g: The values x to pool; None for the scores themselves.
        points: Number of points, or of samples of a bag that is sampled.
        generators: One generator per bag.
        series: Number of parts of equal length that the bags are in, such as classes: the k-th
            points of a bag in all parts are one point.
    """
    sizes = list(sizes)
    dims = max(DIMENSIONS, HEAVY[-1] + (1 if g is None else g.shape[1]) + 1)
    kind = {"dtype": torch.int32, "device": mean.device}
    shifts = torch.stack(
        [torch.randint(CELLS, (dims,), generator=own, **kind) for own in generators]
    )
    options = {"g": g, "shifts": shifts, "points": points, "series": series}
    closed = closed_form(mean, variance, sizes, **options)
    refused = closed.heavy.refused
    if not bool(refused.any()):
        return PooledBags(y=closed.y, closed=closed, sampled={})
    means, variances = mean.split(sizes), variance.split(sizes)
    values = [None] * len(sizes) if g is None else g.split(sizes)
    sampled = {
        b: SampledBag(
            q=Diagonal(means[b], variances[b]),
            g=values[b],
            points=points,
            key=draw_key(generators[b]),
        )
        for b in refused.nonzero().flatten().tolist()
    }
    # again with bags of certain scores in their place, as their own moments may have overflowed
    out = refused.repeat_interleave(torch.tensor(sizes, device=mean.device))
    closed = closed_form(mean.masked_fill(out, 0), variance.masked_fill(out, 0), sizes, **options)
    y = [sampled[b].y() if b in sampled else own for b, own in enumerate(closed.y)]
    return PooledBags(y=torch.stack(y), closed=closed, sampled=sampled)
