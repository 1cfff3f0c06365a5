"""Pooling under independent normal scores without a sample of every instance.

The pooled value of a bag is y = Σ_n softmax(s)_n x_n with s_n ~ N(μ_n, σ_n²), where x_n is fixed
(attention) or s_n itself (evidence). A few *heavy* instances have most of the variance: they are
integrated by quasi-Monte Carlo. The sums over all *light* ones are nearly normal, and are replaced
by their moments to second order. The points of y are read as samples are, and differentiable.
Shapes: n instances, k heavy instances of a bag, c values (classes), d = 1 + c.
"""

from collections.abc import Iterator
from functools import cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..core import draw_key, on_the_cpu, random_stream
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

Block = tuple[Float[Tensor, "*classes s n"], Tensor, Float[Tensor, "s c"]]


class ClosedForm:
    """Pool `g`, or the scores themselves, over each bag.

    Args:
        mean: The means μ of the scores s. Classes that have scores of their own are pooled like
            further bags, but their k-th points are one point.
        variance: The variances σ² of the scores.
        streams: The sizes of the bags, and a generator for each.
        g: The values x to pool; None for the scores themselves.
        points: Number of points, or of samples of a bag that is sampled.
    """

    y: Float[Tensor, "bags points c"]
    """The pooled values, or the classes' pooled scores."""
    sampled: Bool[Tensor, "classes bags"]
    """Whether the moments of the light instances say too little, so that all are sampled."""

    def __init__(
        self,
        mean: Float[Tensor, "n *classes"],
        variance: Float[Tensor, "n *classes"],
        streams: Streams,
        *,
        g: Float[Tensor, "n c"] | None,
        points: int,
    ) -> None:
        self.g, self.points, self._shape = g, points, mean.movedim(0, -1).shape
        self._classes = mean.shape[1:].numel()
        mean, variance = (v.movedim(0, -1).flatten() for v in (mean, variance))
        self._mean, self._variance = mean, variance
        streams = streams.repeated(self._classes)
        self.sizes = streams.sizes
        dims = max(DIMENSIONS, HEAVY[-1] + (1 if g is None else g.shape[1]) + 1)
        generators = [on_the_cpu(own) for own in streams.generators]  # the same for every device
        self._shifts = torch.stack(
            [torch.randint(CELLS, (dims,), generator=g, dtype=torch.int32) for g in generators]
        ).to(mean.device)
        y, refused = self._pool(mean, variance)
        self._keys: dict[int, int] = {}
        """Seeds of the noise of sampled bags, so that the same samples can be drawn again."""
        if bool(refused.any()):
            places = refused.nonzero().flatten().tolist()
            self._keys = {b: draw_key(generators[b]) for b in places}
            # certain scores in place of theirs, as their own moments may have overflowed
            out = refused.repeat_interleave(torch.tensor(self.sizes, device=mean.device))
            y, _ = self._pool(mean.masked_fill(out, 0), variance.masked_fill(out, 0))
            y = torch.stack([self._mean_of(b) if b in self._keys else v for b, v in enumerate(y)])
        self.sampled = refused.view(self._classes, -1)
        self.y = y if g is not None else y.view(*self.sampled.shape, points).permute(1, 2, 0)

    def _pool(
        self, mean: Float[Tensor, " N"], variance: Float[Tensor, " N"]
    ) -> tuple[Float[Tensor, "bags points c"], Bool[Tensor, " bags"]]:
        """Return the points of y, and which bags should be sampled."""
        g, counts = self.g, torch.tensor(self.sizes, device=mean.device)
        first, covariance, typical, top = moments_of(mean, variance, g, counts)
        rows, present, refused = heavy_instances(first, covariance, typical, counts)
        (bags, k), d = rows.shape, first.shape[1]
        z = normal_points(self._shifts, self.points, d + k, series=self._classes, dtype=mean.dtype)
        light = torch.ones_like(typical).index_fill_(0, rows[present], 0)
        columns = torch.cat([first, covariance.flatten(1)], 1)
        sums = torch.segment_reduce(columns * light[:, None], "sum", lengths=counts)
        root = _root(sums[:, d:].view(-1, d, d)).to(mean.dtype)
        sums = sums.to(mean.dtype)

        each = torch.stack([mean, variance.sqrt(), *(() if g is None else g.unbind(1))], 1)
        of_heavy = each.index_select(0, rows.flatten()).view(bags, 1, k, -1)
        start, deviation, *x = of_heavy.unbind(3)
        scores = torch.addcmul(start, deviation, z[..., d:])
        absent = torch.where(present, -top[:, None], -torch.inf).to(mean.dtype)
        e = (scores + absent[:, None]).exp()
        denominator = e.sum(2) + sums[:, :1]
        inverse = denominator.reciprocal()[..., None]
        numerator = torch.stack([(e * x_k).sum(2) for x_k in x or [scores]], 2) + sums[:, None, 1:d]
        ratio = numerator * inverse
        # the distribution of the light part, and its effect on the mean to second order
        noise = torch.stack([(z[..., :d] * root[:, None, i]).sum(2) for i in range(d)], 2)
        moves = (noise - sums[:, None, d : 2 * d] * inverse) * inverse
        offset = moves[..., 1:] - ratio * moves[..., :1]
        self._first, self._second, self._top = first, covariance[:, 0, 0], top
        self._rows, self._present, self._scores = rows, present, scores
        self._denominator, self._offset = denominator, offset
        return ratio + offset, refused

    def _mean_of(self, b: int) -> Float[Tensor, "points c"]:
        """Return the pooled values of each sample of a bag."""
        blocks = ((scores.softmax(1), values) for scores, values, _ in self._blocks(b))
        if self.g is None:
            return torch.cat([(a * values).sum(1, keepdim=True) for a, values in blocks])
        return torch.cat([a @ values.T for a, values in blocks])

    def weights(self) -> tuple[Float[Tensor, "n *classes"], Float[Tensor, "n *classes"]]:
        """Return the mean and the variance of each weight softmax(s)_n."""
        counts = torch.tensor(self.sizes, device=self.y.device)
        first, second = self._first[:, 0], self._second
        inverse = self._denominator.to(first.dtype).reciprocal()
        one, two = (v.mean(1).repeat_interleave(counts) for v in (inverse, inverse.square()))
        mean = first * one
        variance = second * two + first.square() * (two - one.square())
        at = self._rows[self._present]
        weights = (self._scores - self._top[:, None, None] + inverse.log()[..., None]).exp()
        mean[at] = weights.mean(1)[self._present]
        variance[at] = weights.var(1, correction=0)[self._present]
        mean, variance = mean.to(self.y.dtype), variance.to(self.y.dtype)
        means, variances = mean.split(self.sizes), variance.split(self.sizes)
        for b in self._keys:
            # differences from these survive float32
            centre = self._mean.split(self.sizes)[b].softmax(0)
            one, two = torch.zeros_like(centre), torch.zeros_like(centre)
            for scores, _, _ in self._blocks(b):
                apart = scores.softmax(1) - centre
                one += apart.sum(0) / self.points
                two += apart.square().sum(0) / self.points
            means[b].copy_(one + centre)
            variances[b].copy_((two - one.square()).clamp_min(0))
        mean, variance = (v.view(self._shape).movedim(-1, 0).contiguous() for v in (mean, variance))
        return mean, variance

    def blocks(self, bag: int) -> Iterator[Block]:
        """Yield what some points at a time say of every instance of a bag, for explanations.

        These are the scores (log e^s up to a constant of the bag; of light instances, log E[e^s]),
        the values that they weigh, and what the distribution of the light instances adds to y.
        """
        bags = len(self.sizes) // self._classes
        of_classes = [self._blocks(bag + c * bags) for c in range(self._classes)]
        if self.g is not None:
            yield from of_classes[0]
            return
        for parts in zip(*of_classes, strict=True):
            scores, values, offsets = zip(*parts, strict=True)
            yield torch.stack(scores), torch.stack(values), torch.cat(offsets, 1)

    def _blocks(self, b: int) -> Iterator[Block]:
        n, rows = self.sizes[b], slice(sum(self.sizes[:b]), sum(self.sizes[: b + 1]))
        fixed, at_once = None if self.g is None else self.g[rows].T, max(1, BLOCK // n)
        if b in self._keys:
            streams = Streams([n], [random_stream(self._keys[b], device=self._scores.device)])
            q = Diagonal(self._mean[rows], self._variance[rows])
            for f in sample_blocks(q, self.points, streams):
                for s in f.split(at_once):
                    none = s.new_zeros(len(s), 1 if fixed is None else len(fixed))
                    yield s, s if fixed is None else fixed, none
            return
        first, kept = self._first[rows], self._present[b]
        at = self._rows[b, kept] - rows.start
        for part in torch.arange(self.points).split(at_once):
            s = self._scores[b, part][:, kept]
            scores = first[:, 0].log().to(s.dtype).repeat(len(part), 1)
            scores[:, at] = s - self._top[b].to(s.dtype)
            values = fixed
            if values is None:
                light = (first[:, 1] / first[:, 0]).nan_to_num()  # 0 / 0 if E[e^s] underflows
                values = light.to(s.dtype).repeat(len(part), 1)
                values[:, at] = s
            yield scores, values, self._offset[b, part]


def moments_of(
    mean: Float[Tensor, " n"],
    variance: Float[Tensor, " n"],
    g: Float[Tensor, "n c"] | None,
    counts: Int[Tensor, " bags"],
) -> tuple[
    Float[Tensor, "n d"], Float[Tensor, "n d d"], Float[Tensor, " n"], Float[Tensor, " bags"]
]:
    """Return the moments of e^s and e^s x of each instance, divided by the bag's largest E[e^s].

    They are the means, the covariances, and without gradient e^μ, the median of e^s, and the
    logarithm of the divisor; in double precision, where the device has it.
    """
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
    return first, cov, (mu.detach() - shift).exp(), top


@torch.no_grad()
def heavy_instances(
    first: Float[Tensor, "n d"],
    covariance: Float[Tensor, "n d d"],
    typical: Float[Tensor, " n"],
    counts: Int[Tensor, " bags"],
) -> tuple[Int[Tensor, "bags k"], Bool[Tensor, "bags k"], Bool[Tensor, " bags"]]:
    """Choose the heavy instances of each bag, each bag by itself; the most influential come first.

    Returns their rows, which of them are present in a bag with fewer than others (its first one
    fills the place), and whether the moments of the others say too little of the bag.
    """
    sums = torch.segment_reduce(first, "sum", lengths=counts)
    y = (sums[:, 1:] / sums[:, :1]).repeat_interleave(counts, 0)
    v, cross, own = covariance[:, 0, 0], covariance[:, 0, 1:], covariance.diagonal(0, 1, 2)[:, 1:]
    # the variances that an instance adds to the denominator and to y, Var[e^s] + Var[e^s (x − y)]
    influence = v + (own - 2 * y * cross + y.square() * v[:, None]).sum(1)
    influence = influence.nan_to_num(nan=torch.inf)  # inf − inf, if e^{σ²} overflows
    widest = int(counts.max())
    place = torch.arange(widest, device=first.device)
    padded = influence.new_full((len(counts), widest), -torch.inf)
    padded[place < counts[:, None]] = influence
    columns = padded.topk(min(HEAVY[-1], widest)).indices
    columns = torch.where(columns < counts[:, None], columns, columns[:, :1])
    rows, place = columns + (counts.cumsum(0) - counts)[:, None], place[: columns.shape[1]]
    # the median of a heavy term, because its mean may be far above what most points have
    moved = torch.stack([influence, first[:, 0] - typical], 1)[rows]
    moved = moved * (place < counts[:, None])[..., None]
    whole = torch.segment_reduce(influence, "sum", lengths=counts)
    left = torch.stack([whole, sums[:, 0]], 1)[:, None] - moved.cumsum(1)
    enough = left[..., 0] <= REST * left[..., 1].square()
    most = torch.tensor(HEAVY, device=first.device)
    passes = enough[:, most.clamp(max=len(place)) - 1] | (counts[:, None] <= most)
    used = most[passes.int().argmax(1)].minimum(counts)
    width = int(used.max())
    return rows[:, :width], place[:width] < used[:, None], ~passes.any(1)


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
    shifts: Int[Tensor, "bags all_dims"], count: int, dims: int, *, series: int, dtype: torch.dtype
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
