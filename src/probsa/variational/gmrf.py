"""Gaussian Markov random fields N(0, Q⁻¹) on the graphs of a batch of bags, by Cholesky factors.

Q = LLᵀ is factorised along a nested dissection of the graph, all nodes of a level of the tree
together (the multifrontal method): about n log n numbers and n^1.5 operations for a lattice of n
instances. A small bag is a tree of one node, and small bags of one size are the nodes of one level.
Autograd records nothing of this.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core import Bags
from ..errors import InputError
from .dissection import Level, dissect

DENSE = 256
"""Bags of at most this many instances are not dissected."""
LEAF = 80
"""Largest number of instances of a leaf of larger bags."""
SEVERAL = 20_000
"""Smallest number of instances whose products are computed by several threads."""
LARGEST = 1 << 29
"""Largest number of elements of a bag's matrices: 4 GB in double precision."""
PROBES = 16
"""Number of random vectors from which `GMRF.probed` makes its estimates."""


class GMRF:
    """The fields of all bags of a batch, with S = Q⁻¹. Vectors are rows, in packed order.

    Args:
        diagonal: The diagonal of Q.
        pairs: The entry of Q for each edge.
        bags: The bags, for their graphs.

    Raises:
        InputError: The matrices of a bag would have more than `LARGEST` elements.
    """

    @torch.no_grad()
    def __init__(
        self, diagonal: Float[Tensor, " n"], pairs: Float[Tensor, " e"], *, bags: Bags
    ) -> None:
        self._threads = 1 if len(diagonal) < SEVERAL else torch.get_num_threads()
        filled = torch.cat([diagonal, torch.ones_like(diagonal[:1])])
        with self._context(filled):
            self._factors = [
                Factor(filled, pairs, levels=levels, bags=own) for levels, own in _trees(bags)
            ]

    @contextmanager
    def _context(self, like: Tensor) -> Iterator[None]:
        """Compute without autocast, which would reach float32, and few instances on one thread.

        Beside other jobs, threads wait for one another longer than such products take.
        """
        threads = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            with torch.autocast(like.device.type, enabled=False):
                yield
        finally:
            torch.set_num_threads(threads)

    def _apply(
        self, b: Float[Tensor, "r n"], *steps: "Callable[[Factor, Tensor], None]"
    ) -> Float[Tensor, "r n"]:
        """Return b after these steps, each of which changes the rows of a matrix (n + 1, r)."""
        x = torch.cat([b.T, b.new_zeros(1, len(b))])
        with self._context(x):
            for factor in self._factors:
                for step in steps:
                    step(factor, x)
                    x[-1] = 0  # NaN of one bag must not reach others
        return x[:-1].T.contiguous()

    def solve(self, b: Float[Tensor, "r n"]) -> Float[Tensor, "r n"]:
        """Return S b for each row b."""
        return self._apply(b, Factor.forth, Factor.back)

    def deviations(self, noise: Float[Tensor, "r n"]) -> Float[Tensor, "r n"]:
        """Return samples of N(0, S) from standard normal noise, in the noise's precision."""
        return self._apply(noise, Factor.back)

    def marginals(self) -> Float[Tensor, " n"]:
        """Return diag S."""
        n = sum(len(factor.rows) for factor in self._factors)
        return self._apply(self._factors[0].log_determinant.new_empty(1, n), Factor.marginals)[0]

    def probed(self, d: Float[Tensor, " n"]) -> Float[Tensor, "two n"]:
        """Return diag S and diag(S diag(d) S): exact for small bags, otherwise estimates.

        With random signs z, E[z ⊙ Sz] = diag S and E[Sz ⊙ S(d ⊙ z)] = diag(S diag(d) S). The signs
        are new in each call.
        """
        out = d.new_empty(2, len(d))
        if any(len(factor.fronts) > 1 for factor in self._factors):
            z = torch.empty(PROBES, len(d), dtype=d.dtype, device=d.device).bernoulli_(0.5)
            z.mul_(2).sub_(1)
            x, y = self.solve(torch.cat([z, d * z])).chunk(2)
            out = torch.stack([(z * x).mean(0), (x * y).mean(0)])
        for front in (factor.fronts[0] for factor in self._factors if len(factor.fronts) == 1):
            s = front.inverse.mT @ front.inverse
            out[0, front.pivots] = s.diagonal(dim1=1, dim2=2)
            out[1, front.pivots] = (s.square() @ d[front.pivots][:, :, None])[:, :, 0]
        return out

    def log_determinants(self) -> Float[Tensor, " bags"]:
        """Return log |Q| of each bag."""
        bags = torch.tensor([b for factor in self._factors for b in factor.bags])
        joined = torch.cat([factor.log_determinant for factor in self._factors])
        return joined[bags.argsort().to(joined.device)]

    def deviations_of(self, bag: int, noise: Float[Tensor, "r m"]) -> Float[Tensor, "r m"]:
        """Return samples of one bag."""  # until posteriors.py has sample
        factor = next(f for f in self._factors if bag in f.bags)
        if len(factor.bags) > 1:
            return noise @ factor.fronts[0].inverse[factor.bags.index(bag)].to(noise.dtype)
        x = noise.new_zeros(1 + max(int(f.rows.max()) for f in self._factors) + 1, len(noise))
        rows = factor.rows.sort().values
        x[rows] = noise.T
        with self._context(x):
            factor.back(x)
        return x[rows].T


@dataclass(slots=True)
class Front:
    """The nodes of a level of the tree, with their parts of L."""

    pivots: Int[Tensor, "nodes p"]
    """The packed rows of the nodes' instances; the row after the last one for fillers."""
    boundary: Int[Tensor, "nodes b"]
    source: Int[Tensor, "nodes b b"]
    """Where the entries of the boundaries lie in the matrices of the level above."""
    inverse: Float[Tensor, "nodes p p"]
    """L_pp⁻¹."""
    border: Float[Tensor, "nodes b p"]
    """L_bp."""

    def to(self, dtype: torch.dtype) -> "Front":
        """Return the front in another precision."""
        return replace(self, inverse=self.inverse.to(dtype), border=self.border.to(dtype))


class Factor:
    """The Cholesky factor L of a large bag, or of small bags of one size.

    Args:
        diagonal: The diagonal of Q of all bags, and 1 for fillers.
        pairs: The entry of Q for each edge of all bags.
        levels: The levels of the tree, the root first, with packed rows and edges.
        bags: The bags' numbers, one for each root.
    """

    def __init__(
        self,
        diagonal: Float[Tensor, " n_plus_1"],
        pairs: Float[Tensor, " e"],
        *,
        levels: Sequence[Level],
        bags: Sequence[int],
    ) -> None:
        self.bags, fronts = bags, []
        self.log_determinant = diagonal.new_zeros(len(bags))
        update, source = diagonal[:0], torch.empty(0, dtype=torch.long, device=diagonal.device)
        for level, above in zip(reversed(levels), [*reversed(levels[:-1]), None], strict=True):
            pivots, boundary, places, at, edges, entries = (
                torch.from_numpy(v).to(diagonal.device) for v in astuple(level)
            )
            (nodes, p), b = pivots.shape, boundary.shape[1]
            matrices = diagonal.new_zeros(nodes, p + b, p + b)
            flat = matrices.view(-1)
            flat[at] = diagonal[pivots]
            flat[entries] = pairs[edges]
            flat.index_add_(0, source.flatten(), update.flatten())
            root, failed = torch.linalg.cholesky_ex(matrices[:, :p, :p])
            # no error: a diverged model gives NaN here, which the training loop reports
            root = root.masked_fill(failed[:, None, None] > 0, torch.nan)
            logs = root.diagonal(dim1=1, dim2=2).log()
            self.log_determinant += 2 * logs.reshape(len(bags), -1).sum(1)
            eye = torch.eye(p, dtype=root.dtype, device=root.device).expand_as(root)
            inverse = torch.linalg.solve_triangular(root, eye, upper=False)
            border = matrices[:, p:, :p] @ inverse.mT
            update = torch.baddbmm(matrices[:, p:, p:], border, border.mT, alpha=-1)
            size = 0 if above is None else above.size
            parent = torch.arange(nodes, device=pivots.device)[:, None, None] // 2
            source = (parent * size + places[:, :, None]) * size + places[:, None]
            fronts.append(Front(pivots, boundary, source, inverse, border))
        self.fronts: list[Front] = fronts[::-1]
        rows = torch.cat([front.pivots.flatten() for front in fronts])
        self.rows = rows[rows < len(diagonal) - 1]
        self._fronts = {diagonal.dtype: self.fronts}

    def _in(self, dtype: torch.dtype) -> list[Front]:
        if dtype not in self._fronts:
            self._fronts[dtype] = [front.to(dtype) for front in self.fronts]
        return self._fronts[dtype]

    def forth(self, x: Float[Tensor, "n_plus_1 r"]) -> None:
        """Replace x by L⁻¹x, in the bags' rows."""
        for front in reversed(self._in(x.dtype)):
            own = front.inverse @ x[front.pivots]
            x[front.pivots] = own
            x.index_add_(0, front.boundary.flatten(), (front.border @ own).flatten(0, 1), alpha=-1)

    def back(self, x: Float[Tensor, "n_plus_1 r"]) -> None:
        """Replace x by L⁻ᵀx, whose covariance is S if x is standard normal."""
        for front in self._in(x.dtype):
            rest = torch.baddbmm(x[front.pivots], front.border.mT, x[front.boundary], alpha=-1)
            x[front.pivots] = front.inverse.mT @ rest

    def marginals(self, x: Float[Tensor, "n_plus_1 1"]) -> None:
        """Replace x by diag S, by selected inversion (Takahashi's equations) from the root down."""
        above = x[:0]
        for k, front in enumerate(self.fronts):
            if len(self.fronts) == 1:
                x[front.pivots, 0] = front.inverse.square().sum(1)
                return
            gain = front.border @ front.inverse
            outer = above.flatten()[front.source] if k else gain.new_zeros(len(gain), 0, 0)
            across = outer @ gain
            own = torch.baddbmm(front.inverse.mT @ front.inverse, gain.mT, across)
            x[front.pivots, 0] = own.diagonal(dim1=1, dim2=2)
            above = torch.cat([torch.cat([own, -across.mT], 2), torch.cat([-across, outer], 2)], 1)


def _trees(bags: Bags) -> Iterator[tuple[list[Level], list[int]]]:
    """Yield the levels of each large bag, and of all small bags of each size, with the bags."""
    bounds = torch.searchsorted(bags.edges[0].contiguous(), bags.offsets).tolist()
    offsets, edges = bags.offsets.tolist(), bags.edges.cpu().numpy()
    coords = None if bags.coords is None else bags.coords.cpu().numpy()
    groups: dict[tuple[int, int], list[int]] = {}
    for b, n in enumerate(bags.sizes):
        groups.setdefault((n, b if n > DENSE else -1), []).append(b)
    for own in groups.values():
        n = bags.sizes[own[0]]
        at = np.concatenate([np.arange(bounds[b], bounds[b + 1]) for b in own])
        start = np.array([offsets[b] for b in own])
        if n <= DENSE:
            node = np.repeat(np.arange(len(own)), [bounds[b + 1] - bounds[b] for b in own])
            i, j = edges[:, at] - start[node]
            levels = [Level(
                pivots=start[:, None] + np.arange(n),
                boundary=np.empty((len(own), 0), np.int64),
                places=np.empty((len(own), 0), np.int64),
                diagonal=n * n * np.arange(len(own))[:, None] + np.arange(n) * (n + 1),
                edges=at, entries=(node * n + np.maximum(i, j)) * n + np.minimum(i, j),
            )]  # fmt: skip
        else:
            levels = dissect(
                edges[:, at] - start,
                n,
                coords=None if coords is None else coords[start[0] : start[0] + n].astype(float),
                leaf=LEAF,
            )
            elements = sum(len(v.pivots) * v.size**2 for v in levels)
            if elements > LARGEST:
                raise InputError(
                    f"bag {bags.names[own[0]]!r} of {n:,} instances needs {8e-9 * elements:.0f} GB "
                    "for a field posterior, because no small part of its graph separates the "
                    "rest. Use a posterior other than `field`, or edges between near instances"
                )
            levels = [
                v.packed(n, start=offsets[own[0]], first_edge=bounds[own[0]], filler=offsets[-1])
                for v in levels
            ]
        yield levels, own
