"""Gaussian Markov random fields N(0, Q⁻¹) on the graphs of a batch of bags, by Cholesky factors.

Q = LLᵀ is factorised along a nested dissection of the graph, all nodes of a level of the tree
together (the multifrontal method): about n log n numbers and n^1.5 operations for a lattice of n
instances. A small bag is a tree of one node; those of similar sizes are the nodes of one level.
Autograd records nothing of this.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core import Bags
from ..errors import InputError
from .dissection import Level, dissect, levels_of

DENSE = 256
"""Bags of at most this many instances are not dissected."""
STEP = 16
"""Small bags are filled up to a multiple of this many instances, and computed together."""
LEAF = 80
"""Largest number of instances of a leaf of larger bags."""
SEVERAL = 100_000
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
        self._offsets = bags.offsets.tolist()
        self._threads = 1 if len(diagonal) < SEVERAL else torch.get_num_threads()
        filled = torch.cat([diagonal, torch.ones_like(diagonal[:1])])
        with self._context(filled):
            self._factors = [Factor(filled, pairs, tree) for tree in _trees(bags)]

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
        like = self._factors[0].log_determinant
        return self._apply(like.new_empty(1, self._offsets[-1]), Factor.marginals)[0]

    def probed(self, d: Float[Tensor, " n"]) -> Float[Tensor, "two n"]:
        """Return diag S and diag(S diag(d) S): exact for small bags, otherwise estimates.

        With random signs z, E[z ⊙ Sz] = diag S and E[Sz ⊙ S(d ⊙ z)] = diag(S diag(d) S). The signs
        are new in each call.
        """
        out = d.new_empty(2, len(d) + 1)
        if any(len(factor.fronts) > 1 for factor in self._factors):
            z = torch.empty(PROBES, len(d), dtype=d.dtype, device=d.device).bernoulli_(0.5)
            z.mul_(2).sub_(1)
            x, y = self.solve(torch.cat([z, d * z])).chunk(2)
            out[:, :-1] = torch.stack([(z * x).mean(0), (x * y).mean(0)])
        filled = torch.cat([d, d.new_zeros(1)])
        for front in (factor.fronts[0] for factor in self._factors if len(factor.fronts) == 1):
            s = front.inverse.mT @ front.inverse
            out[0, front.pivots] = s.diagonal(dim1=1, dim2=2)
            out[1, front.pivots] = (s.square() @ filled[front.pivots][:, :, None])[:, :, 0]
        return out[:, :-1]

    def log_determinants(self) -> Float[Tensor, " bags"]:
        """Return log |Q| of each bag."""
        bags = torch.tensor([b for factor in self._factors for b in factor.bags])
        joined = torch.cat([factor.log_determinant for factor in self._factors])
        return joined[bags.argsort().to(joined.device)]


class Tree(NamedTuple):
    """The levels of a large bag, the root first, or the one level of small bags."""

    levels: Sequence[Level]
    rows: Int[Tensor, " m_plus_1"]
    """The packed rows of the instances; the row after the last one of the batch for fillers."""
    edges: Int[Tensor, " e"]
    """The edges of the batch that belong to these bags."""
    bags: Sequence[int]
    """The bags' numbers, one for each root."""


class Front(NamedTuple):
    """The nodes of a level of the tree, with their parts of L."""

    pivots: Int[Tensor, "nodes p"]
    """The packed rows of the nodes' instances."""
    boundary: Int[Tensor, "nodes b"]
    source: Int[Tensor, "nodes b b"]
    """Where the entries of the boundaries lie in the matrices of the level above."""
    inverse: Float[Tensor, "nodes p p"]
    """L_pp⁻¹."""
    border: Float[Tensor, "nodes b p"]
    """L_bp."""


class Factor:
    """The Cholesky factor L of a tree.

    Args:
        diagonal: The diagonal of Q of all bags, and 1 for fillers.
        pairs: The entry of Q for each edge of all bags.
        tree: The order of elimination.
    """

    def __init__(
        self, diagonal: Float[Tensor, " n_plus_1"], pairs: Float[Tensor, " e"], tree: Tree
    ) -> None:
        self.bags, fronts, device = tree.bags, [], diagonal.device
        self.log_determinant = diagonal.new_zeros(len(tree.bags))
        rows, own_pairs = tree.rows.to(device), pairs[tree.edges.to(device)]
        update, source = diagonal[:0], torch.empty(0, dtype=torch.long, device=device)
        for level, parent in zip(tree.levels[::-1], [*tree.levels[-2::-1], None], strict=True):
            of_level = (level.above, level.edges, level.entries, level.pivots, level.boundary)
            above, edges, entries, *at = (torch.from_numpy(v).to(device) for v in of_level)
            pivots, boundary = (rows[v] for v in at)
            nodes, p = pivots.shape
            matrices = diagonal.new_zeros(nodes, level.size, level.size)
            matrices.diagonal(dim1=1, dim2=2)[:, :p] = diagonal[pivots]
            matrices[tuple(entries)] = own_pairs[edges]
            matrices.view(-1).index_add_(0, source.flatten(), update.flatten())
            root, failed = torch.linalg.cholesky_ex(matrices[:, :p, :p])
            # no error: a diverged model gives NaN here, which the training loop reports
            root = root.masked_fill(failed[:, None, None] > 0, torch.nan)
            logs = root.diagonal(dim1=1, dim2=2).log()
            self.log_determinant += 2 * logs.reshape(len(tree.bags), -1).sum(1)
            eye = torch.eye(p, dtype=root.dtype, device=root.device).expand_as(root)
            inverse = torch.linalg.solve_triangular(root, eye, upper=False)
            border = matrices[:, p:, :p] @ inverse.mT
            update = torch.baddbmm(matrices[:, p:, p:], border, border.mT, alpha=-1)
            size = 0 if parent is None else parent.size
            first = torch.arange(nodes, device=device)[:, None, None] // 2 * size
            source = (first + above[:, :, None]) * size + above[:, None]
            fronts.append(Front(pivots, boundary, source, inverse, border))
        self.fronts: list[Front] = fronts[::-1]
        self._fronts = {diagonal.dtype: self.fronts}

    def fronts_in(self, dtype: torch.dtype) -> list[Front]:
        """Return the fronts in a precision."""
        if dtype not in self._fronts:
            self._fronts[dtype] = [
                Front(*f[:3], f.inverse.to(dtype), f.border.to(dtype)) for f in self.fronts
            ]
        return self._fronts[dtype]

    def forth(self, x: Float[Tensor, "n_plus_1 r"]) -> None:
        """Replace x by L⁻¹x, in the bags' rows."""
        for front in reversed(self.fronts_in(x.dtype)):
            own = front.inverse @ x[front.pivots]
            x[front.pivots] = own
            x.index_add_(0, front.boundary.flatten(), (front.border @ own).flatten(0, 1), alpha=-1)

    def back(self, x: Float[Tensor, "n_plus_1 r"]) -> None:
        """Replace x by L⁻ᵀx, whose covariance is S if x is standard normal."""
        for front in self.fronts_in(x.dtype):
            rest = torch.baddbmm(x[front.pivots], front.border.mT, x[front.boundary], alpha=-1)
            x[front.pivots] = front.inverse.mT @ rest

    def marginals(self, x: Float[Tensor, "n_plus_1 1"]) -> None:
        """Replace x by diag S, by selected inversion (Takahashi's equations) from the root down."""
        above = x
        for front in self.fronts:
            gain = front.border @ front.inverse
            outer = above.flatten()[front.source]  # the root has no boundary
            across = outer @ gain
            own = torch.baddbmm(front.inverse.mT @ front.inverse, gain.mT, across)
            x[front.pivots, 0] = own.diagonal(dim1=1, dim2=2)
            above = torch.cat([torch.cat([own, -across.mT], 2), torch.cat([-across, outer], 2)], 1)


def _trees(bags: Bags) -> Iterator[Tree]:
    """Yield the tree of each large bag, and one for the small bags of similar sizes."""
    bounds = torch.searchsorted(bags.edges[0].contiguous(), bags.offsets).tolist()
    offsets, edges = bags.offsets.tolist(), bags.edges.cpu().numpy()
    coords = None if bags.coords is None else bags.coords.cpu().numpy().astype(float)
    place = np.empty(offsets[-1], np.int64)  # of each row within its tree
    groups: dict[tuple[bool, int], list[int]] = {}
    for b, n in enumerate(bags.sizes):
        groups.setdefault((True, b) if n > DENSE else (False, -(-n // STEP)), []).append(b)
    for (large, _), own in groups.items():
        rows = np.concatenate([np.arange(offsets[b], offsets[b + 1]) for b in own])
        at = np.concatenate([np.arange(bounds[b], bounds[b + 1]) for b in own])
        n = len(rows)
        place[rows] = np.arange(n)
        local = place[edges[:, at]]
        if not large:
            node = np.arange(len(own)).repeat([bags.sizes[b] for b in own])
            flat = np.zeros(n, np.int64)
            levels = levels_of(local, flat, node, roots=len(own), multiple=STEP)
        else:
            levels = dissect(local, n, coords=None if coords is None else coords[rows], leaf=LEAF)
            elements = sum(len(level.pivots) * level.size**2 for level in levels)
            if elements > LARGEST:
                raise InputError(
                    f"bag {bags.names[own[0]]!r} of {n:,} instances needs {8e-9 * elements:.0f} GB "
                    "for a field posterior, because no small part of its graph separates the "
                    "rest. Use a posterior other than `field`, or edges between near instances"
                )
        filled = np.append(rows, offsets[-1])
        yield Tree(levels, torch.from_numpy(filled), torch.from_numpy(at), own)
