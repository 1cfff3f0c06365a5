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

from ..core import Bags, without_autocast
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
            with without_autocast(like):
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
        for factor in self._factors:
            if len(factor.fronts) > 1:
                continue
            front = factor.fronts[0]  # of small bags: S has no further entries
            s = front.inverse.mT @ front.inverse
            out[0, front.pivots] = s.diagonal(dim1=1, dim2=2)
            out[1, front.pivots] = (s.square() @ filled[front.pivots][:, :, None])[:, :, 0]
        return out[:, :-1]

    def log_determinants(self) -> Float[Tensor, " bags"]:
        """Return log |Q| of each bag."""
        numbers = torch.tensor([bag for factor in self._factors for bag in factor.bags])
        values = torch.cat([factor.log_determinant for factor in self._factors])
        return values[numbers.argsort().to(values.device)]


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
        device = diagonal.device
        self.bags = tree.bags
        self.log_determinant = diagonal.new_zeros(len(tree.bags))
        rows = tree.rows.to(device)
        tree_pairs = pairs[tree.edges.to(device)]
        # what the level below adds to the matrices of this one, and where
        update = diagonal[:0]
        source = torch.empty(0, dtype=torch.long, device=device)
        fronts: list[Front] = []
        parents = [*tree.levels[-2::-1], None]
        for level, parent in zip(tree.levels[::-1], parents, strict=True):
            pivots = rows[torch.from_numpy(level.pivots).to(device)]
            boundary = rows[torch.from_numpy(level.boundary).to(device)]
            above = torch.from_numpy(level.above).to(device)
            edges = torch.from_numpy(level.edges).to(device)
            entries = torch.from_numpy(level.entries).to(device)
            nodes, p = pivots.shape
            # assemble Q of the level's pivots, with the updates of the nodes below
            matrices = diagonal.new_zeros(nodes, level.size, level.size)
            matrices.diagonal(dim1=1, dim2=2)[:, :p] = diagonal[pivots]
            matrices[tuple(entries)] = tree_pairs[edges]
            matrices.view(-1).index_add_(0, source.flatten(), update.flatten())
            root, failed = torch.linalg.cholesky_ex(matrices[:, :p, :p])
            # no error: a diverged model gives NaN here, which the training loop reports
            root = root.masked_fill(failed[:, None, None] > 0, torch.nan)
            logs = root.diagonal(dim1=1, dim2=2).log()
            self.log_determinant += 2 * logs.reshape(len(tree.bags), -1).sum(1)
            eye = torch.eye(p, dtype=root.dtype, device=root.device).expand_as(root)
            inverse = torch.linalg.solve_triangular(root, eye, upper=False)
            border = matrices[:, p:, :p] @ inverse.mT
            # the Schur complement of the pivots
            update = torch.baddbmm(matrices[:, p:, p:], border, border.mT, alpha=-1)
            # the children 2m and 2m + 1 add to the matrix m of the level above, in flat indices
            size = 0 if parent is None else parent.size
            first = torch.arange(nodes, device=device)[:, None, None] // 2 * size
            source = (first + above[:, :, None]) * size + above[:, None]
            fronts.append(Front(pivots, boundary, source, inverse, border))
        self.fronts = fronts[::-1]  # the root first
        self._fronts = {diagonal.dtype: self.fronts}

    def fronts_in(self, dtype: torch.dtype) -> list[Front]:
        """Return the fronts in a precision."""
        if dtype not in self._fronts:
            self._fronts[dtype] = [
                front._replace(inverse=front.inverse.to(dtype), border=front.border.to(dtype))
                for front in self.fronts
            ]
        return self._fronts[dtype]

    def forth(self, x: Float[Tensor, "n_plus_1 r"]) -> None:
        """Replace x by L⁻¹x, in the bags' rows."""
        for front in reversed(self.fronts_in(x.dtype)):
            x_p = front.inverse @ x[front.pivots]
            x[front.pivots] = x_p
            x.index_add_(0, front.boundary.flatten(), (front.border @ x_p).flatten(0, 1), alpha=-1)

    def back(self, x: Float[Tensor, "n_plus_1 r"]) -> None:
        """Replace x by L⁻ᵀx, whose covariance is S if x is standard normal."""
        for front in self.fronts_in(x.dtype):
            rest = torch.baddbmm(x[front.pivots], front.border.mT, x[front.boundary], alpha=-1)
            x[front.pivots] = front.inverse.mT @ rest

    def marginals(self, x: Float[Tensor, "n_plus_1 1"]) -> None:
        """Replace x by diag S, by selected inversion (Takahashi's equations) from the root down."""
        above = x  # S of the level above; the root has no boundary and reads nothing of it
        for front in self.fronts:
            # with G = L_bp L_pp⁻¹: S_bp = −S_bb G and S_pp = L_pp⁻ᵀ L_pp⁻¹ + Gᵀ S_bb G
            gain = front.border @ front.inverse
            s_bb = above.flatten()[front.source]
            s_gain = s_bb @ gain
            s_pp = torch.baddbmm(front.inverse.mT @ front.inverse, gain.mT, s_gain)
            x[front.pivots, 0] = s_pp.diagonal(dim1=1, dim2=2)
            top = torch.cat([s_pp, -s_gain.mT], 2)
            bottom = torch.cat([-s_gain, s_bb], 2)
            above = torch.cat([top, bottom], 1)


def _trees(bags: Bags) -> Iterator[Tree]:
    """Yield the tree of each large bag, and one for the small bags of similar sizes."""
    offsets = bags.offsets.tolist()
    edges = bags.edges.cpu().numpy()
    # edges are sorted bag by bag: those of bag b are edges[:, bounds[b]:bounds[b + 1]]
    bounds = torch.searchsorted(bags.edges[0].contiguous(), bags.offsets).tolist()
    coords = None if bags.coords is None else bags.coords.cpu().numpy().astype(float)
    place = np.empty(offsets[-1], np.int64)  # of each row within its tree
    for tree_bags in _bags_of_trees(bags.sizes):
        rows = np.concatenate([np.arange(offsets[b], offsets[b + 1]) for b in tree_bags])
        tree_edges = np.concatenate([np.arange(bounds[b], bounds[b + 1]) for b in tree_bags])
        n = len(rows)
        place[rows] = np.arange(n)
        local = place[edges[:, tree_edges]]
        if bags.sizes[tree_bags[0]] <= DENSE:
            # every bag is a root without children
            node = np.arange(len(tree_bags)).repeat([bags.sizes[b] for b in tree_bags])
            depth = np.zeros(n, np.int64)
            levels = levels_of(local, depth, node, roots=len(tree_bags), multiple=STEP)
        else:
            levels = dissect(local, n, coords=None if coords is None else coords[rows], leaf=LEAF)
            elements = sum(len(level.pivots) * level.size**2 for level in levels)
            if elements > LARGEST:
                raise InputError(
                    f"bag {bags.names[tree_bags[0]]!r} of {n:,} instances needs "
                    f"{8e-9 * elements:.0f} GB for a field posterior, because no small part of its "
                    "graph separates the rest. Use a posterior other than `field`, or edges "
                    "between near instances"
                )
        filled = np.append(rows, offsets[-1])
        yield Tree(levels, torch.from_numpy(filled), torch.from_numpy(tree_edges), tree_bags)


def _bags_of_trees(sizes: Sequence[int]) -> list[list[int]]:
    """Return the bags of each tree: one large bag, or all small bags of similar sizes.

    Trees are in the order of their first bags.
    """
    groups: list[list[int]] = []
    small: dict[int, list[int]] = {}
    for b, n in enumerate(sizes):
        steps = -(-n // STEP)
        if n > DENSE:
            groups.append([b])
        elif steps in small:
            small[steps].append(b)
        else:
            small[steps] = [b]
            groups.append(small[steps])
    return groups
