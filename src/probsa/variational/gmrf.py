"""Gaussian Markov random fields N(0, Q⁻¹) on the graphs of a batch of bags, by Cholesky factors.

Q = LLᵀ is factorised along a nested dissection of the graph, all nodes of a level of the tree
together (the multifrontal method): about n log n numbers and n^1.5 operations for a lattice of n
instances. A small bag is a tree of one node; those of similar sizes are the nodes of one level.
Autograd records nothing of this.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core import Bags, JoinedLevel, Tree, is_on_cpu, without_autocast

SEVERAL = 100_000
"""Smallest number of instances whose products are computed by several threads."""
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
        self._n = len(diagonal)
        self._elimination = bags.elimination
        self._threads = 1 if len(diagonal) < SEVERAL else torch.get_num_threads()
        # the rows that fill up nodes have a 1 on the diagonal
        values = torch.cat([diagonal, torch.ones_like(diagonal[:1]), pairs])
        with self._context(values):
            trees = self._elimination.trees(values.device)
            self._factors = [Factor(values, tree) for tree in trees]

    @contextmanager
    def _context(self, like: Tensor) -> Iterator[None]:
        """Compute without autocast, which would reach float32, and few instances on one thread.

        Beside other jobs, threads wait for one another longer than such products take.
        """
        threads = torch.get_num_threads()
        if is_on_cpu(like):
            torch.set_num_threads(self._threads)
        try:
            with without_autocast(like):
                yield
        finally:
            torch.set_num_threads(threads)

    def _apply(
        self, b: Float[Tensor, "r n"], *steps: "Callable[[Factor, Tensor], None]"
    ) -> Float[Tensor, "r n"]:
        """Return b after these steps, each of which changes the rows of a matrix (n + 2, r)."""
        x = torch.cat([b.T, b.new_zeros(2, len(b))])
        with self._context(x):
            for factor in self._factors:
                for step in steps:
                    step(factor, x)
        return x[:-2].T.contiguous()

    def solve(self, b: Float[Tensor, "r n"]) -> Float[Tensor, "r n"]:
        """Return S b for each row b."""
        return self._apply(b, Factor.forth, Factor.back)

    def deviations(self, noise: Float[Tensor, "r n"]) -> Float[Tensor, "r n"]:
        """Return samples of N(0, S) from standard normal noise, in the noise's precision."""
        return self._apply(noise, Factor.back)

    def marginals(self) -> Float[Tensor, " n"]:
        """Return diag S."""
        like = self._factors[0].log_determinant
        return self._apply(like.new_empty(1, self._n), Factor.marginals)[0]

    def probed(self, d: Float[Tensor, " n"]) -> Float[Tensor, "two n"]:
        """Return diag S and diag(S diag(d) S): exact for small bags, otherwise estimates.

        With random signs z, E[z ⊙ Sz] = diag S and E[Sz ⊙ S(d ⊙ z)] = diag(S diag(d) S). The signs
        are new in each call.
        """
        return self.solve_and_probe(d.new_empty(0, len(d)), d)[1]

    def solve_and_probe(
        self, b: Float[Tensor, "r n"], d: Float[Tensor, " n"]
    ) -> tuple[Float[Tensor, "r n"], Float[Tensor, "two n"]]:
        """Return S b for each row b, and `probed` for d, by one sweep."""
        out = d.new_empty(2, len(d) + 2)
        if any(len(factor.fronts) > 1 for factor in self._factors):
            z = torch.empty(PROBES, len(d), dtype=d.dtype, device=d.device).bernoulli_(0.5)
            z.mul_(2).sub_(1)
            solutions, x, y = self.solve(torch.cat([b, z, d * z])).split([len(b), PROBES, PROBES])
            out[:, :-2] = torch.stack([(z * x).mean(0), (x * y).mean(0)])
        else:
            solutions = self.solve(b) if len(b) else b
        filled = torch.cat([d, d.new_zeros(1)])
        for factor in self._factors:
            if len(factor.fronts) > 1:
                continue
            front = factor.fronts[0]  # of small bags: S has no further entries
            s = front.inverse.mT @ front.inverse
            d_p = filled[front.level.pivots]
            out[0, front.level.pivots_to] = s.diagonal(dim1=1, dim2=2)
            out[1, front.level.pivots_to] = (s.square() @ d_p[:, :, None])[:, :, 0]
        return solutions, out[:, :-2]

    def log_determinants(self) -> Float[Tensor, " bags"]:
        """Return log |Q| of each bag."""
        values = torch.cat([factor.log_determinant for factor in self._factors])
        return self._elimination.in_order(values)


class Front(NamedTuple):
    """The nodes of a level of the tree, with their parts of L."""

    level: JoinedLevel
    source: Int[Tensor, "nodes b b"]
    """Where the entries of the boundaries lie in the matrices of the level above."""
    inverse: Float[Tensor, "nodes p p"]
    """L_pp⁻¹."""
    border: Float[Tensor, "nodes b p"]
    """L_bp."""


class Factor:
    """The Cholesky factor L of a tree.

    Args:
        values: The diagonal of Q of all bags, 1, and the entry of Q for each edge of all bags.
        tree: The order of elimination.
    """

    def __init__(self, values: Float[Tensor, " n_plus_1_plus_e"], tree: Tree) -> None:
        self.bags = tree.bags
        logs: list[Tensor] = []
        # what the level below adds to the matrices of this one, and where
        update = values[:0]
        source = torch.empty(0, dtype=torch.long, device=values.device)
        fronts: list[Front] = []
        for level in reversed(tree.levels):
            nodes, p = level.pivots.shape
            size = level.size
            # assemble Q of the level's pivots, with the updates of the nodes below
            entries = values.index_select(0, level.values)
            flat = values.new_zeros(nodes * size * size).index_copy_(0, level.places, entries)
            matrices = flat.index_add_(0, source.flatten(), update.flatten())
            matrices = matrices.view(nodes, size, size)
            root, failed = torch.linalg.cholesky_ex(matrices[:, :p, :p])
            # no error: a diverged model gives NaN here, which the training loop reports
            root = root.masked_fill(failed[:, None, None] > 0, torch.nan)
            logs.append(root.diagonal(dim1=1, dim2=2).reshape(len(tree.bags), -1))
            eye = torch.eye(p, dtype=root.dtype, device=root.device).expand_as(root)
            inverse = torch.linalg.solve_triangular(root, eye, upper=False)
            border = matrices[:, p:, :p] @ inverse.mT
            # the Schur complement of the pivots
            update = torch.baddbmm(matrices[:, p:, p:], border, border.mT, alpha=-1)
            source = level.base[:, :, None] + level.above[:, None]
            fronts.append(Front(level, source, inverse, border))
        self.log_determinant: Float[Tensor, " bags"] = 2 * torch.cat(logs, 1).log().sum(1)
        self.fronts = fronts[::-1]  # the root first
        self._fronts = {values.dtype: self.fronts}

    def fronts_in(self, dtype: torch.dtype) -> list[Front]:
        """Return the fronts in a precision."""
        if dtype not in self._fronts:
            self._fronts[dtype] = [
                front._replace(inverse=front.inverse.to(dtype), border=front.border.to(dtype))
                for front in self.fronts
            ]
        return self._fronts[dtype]

    def forth(self, x: Float[Tensor, "n_plus_2 r"]) -> None:
        """Replace x by L⁻¹x, in the bags' rows."""
        for front in reversed(self.fronts_in(x.dtype)):
            level = front.level
            x_p = front.inverse @ _rows(x, level.pivots)
            x.index_copy_(0, level.pivots_to.flatten(), x_p.flatten(0, 1))
            if level.boundary.shape[1]:
                change = (front.border @ x_p).flatten(0, 1)
                x.index_add_(0, level.boundary_to.flatten(), change, alpha=-1)

    def back(self, x: Float[Tensor, "n_plus_2 r"]) -> None:
        """Replace x by L⁻ᵀx, whose covariance is S if x is standard normal."""
        for front in self.fronts_in(x.dtype):
            level = front.level
            rest = _rows(x, level.pivots)
            if level.boundary.shape[1]:
                known = _rows(x, level.boundary)
                rest = torch.baddbmm(rest, front.border.mT, known, alpha=-1)
            x_p = front.inverse.mT @ rest
            x.index_copy_(0, level.pivots_to.flatten(), x_p.flatten(0, 1))

    def marginals(self, x: Float[Tensor, "n_plus_2 1"]) -> None:
        """Replace x by diag S, by selected inversion (Takahashi's equations) from the root down."""
        above = x  # S of the level above; the root has no boundary and reads nothing of it
        for front in self.fronts:
            # with G = L_bp L_pp⁻¹: S_bp = −S_bb G and S_pp = L_pp⁻ᵀ L_pp⁻¹ + Gᵀ S_bb G
            gain = front.border @ front.inverse
            s_bb = above.flatten()[front.source]
            s_gain = s_bb @ gain
            s_pp = torch.baddbmm(front.inverse.mT @ front.inverse, gain.mT, s_gain)
            x[front.level.pivots_to, 0] = s_pp.diagonal(dim1=1, dim2=2)
            top = torch.cat([s_pp, -s_gain.mT], 2)
            bottom = torch.cat([-s_gain, s_bb], 2)
            above = torch.cat([top, bottom], 1)


def _rows(
    x: Float[Tensor, "n_plus_2 r"], rows: Int[Tensor, "nodes p"]
) -> Float[Tensor, "nodes p r"]:
    """Return the rows of each node."""
    return x.index_select(0, rows.flatten()).unflatten(0, rows.shape)
