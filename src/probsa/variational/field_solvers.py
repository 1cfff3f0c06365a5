"""Solvers for the precision matrices Q = P + diag τ of the bags of a batch.

Small bags of one size are solved together as dense matrices, larger ones as block tridiagonal
matrices, and those whose blocks would not fit in memory by conjugate gradients.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core import Bags
from .block_cholesky import BlockCholesky
from .block_ordering import DENSE, BlockOrder, block_order

LARGEST = 1 << 25
"""Largest number of elements of a bag's blocks; beyond, conjugate gradients take over."""


@runtime_checkable
class Solver(Protocol):
    """Solves systems of some bags of equal size n: rows (g, n) in the solver's own order."""

    bags: Sequence[int]
    """The bags' positions in the batch."""
    rows: Int[Tensor, "g n"]
    """The packed row of each instance, in the solver's order."""
    noise_size: int
    """How many standard normal numbers a sample takes."""

    def solve(self, b: Float[Tensor, "g n r"]) -> Float[Tensor, "g n r"]:
        """Return Q⁻¹ b."""
        ...

    def marginals(self) -> Float[Tensor, "g n"]:
        """Return diag Q⁻¹."""
        ...

    def marginals_along(self, d: Float[Tensor, "g n"]) -> Float[Tensor, "g n"]:
        """Return diag(Q⁻¹ diag(d) Q⁻¹)."""
        ...

    def log_determinant(self) -> Float[Tensor, " g"]:
        """Return log |Q|."""
        ...

    def deviations(self, noise: Float[Tensor, "g m r"]) -> Float[Tensor, "g n r"]:
        """Return samples of N(0, Q⁻¹), in the noise's precision.

        The noise of instances is in the order of the bag, not of the solver.
        """
        ...

    def one(self, g: int) -> "Solver":
        """Return the solver of bag number g of its bags."""
        ...


@torch.no_grad()
def solvers_of(
    tau: Float[Tensor, " n"],
    *,
    entries: tuple[Float[Tensor, " n"], Float[Tensor, " e"]],
    kappa: Float[Tensor, " bags"],
    bags: Bags,
) -> list[Solver]:
    """Return solvers that together cover all bags; nothing is recorded for gradients.

    Args:
        tau: The diagonal that is added to P.
        entries: Diagonal and off-diagonal entries of L + εI; see `Dirichlet.entries`.
        kappa: κ of each bag.
        bags: The bags, for their graphs.
    """
    own, coupling = entries
    factor = (2 * kappa).repeat_interleave(bags.offsets.diff())
    diagonal = factor * own
    pairs = factor[bags.edges[0]] * coupling
    small = [b for b, n in enumerate(bags.sizes) if n <= DENSE]
    solvers: list[Solver] = list(_dense_solvers(tau, diagonal, pairs, bags=bags, chosen=small))
    # pairs are stored bag by bag, so those of a bag are consecutive
    bounds = torch.searchsorted(bags.edges[0].contiguous(), bags.offsets)
    for b in sorted(set(range(len(bags))) - set(small)):
        start = int(bags.offsets[b])
        chosen = slice(int(bounds[b]), int(bounds[b + 1]))
        edges = bags.edges[:, chosen] - start
        solvers.append(
            _large_solver(
                tau[start : start + bags.sizes[b]],
                diagonal[start : start + bags.sizes[b]],
                pairs[chosen],
                edges=edges,
                coords=None if bags.coords is None else bags.coords[start : start + bags.sizes[b]],
                bag=b,
                start=start,
            )
        )
    return solvers


class DirectSolver:
    """Solves bags of one size by the Cholesky factors of their block tridiagonal matrices."""

    def __init__(
        self,
        factor: BlockCholesky,
        *,
        rows: Int[Tensor, "g n"],
        order: Int[Tensor, " n"],
        bags: Sequence[int],
    ) -> None:
        self.factor, self.rows, self.order, self.bags = factor, rows, order, bags
        self.noise_size = rows.shape[1]
        self._marginals: Tensor | None = None
        self._factors: dict[torch.dtype, BlockCholesky] = {}

    def solve(self, b: Float[Tensor, "g n r"]) -> Float[Tensor, "g n r"]:
        return self.factor.solve(b)

    def marginals(self) -> Float[Tensor, "g n"]:
        if self._marginals is None:
            self._marginals = self.factor.marginals()
        return self._marginals

    def marginals_along(self, d: Float[Tensor, "g n"]) -> Float[Tensor, "g n"]:
        return self.factor.marginals_along(d)

    def log_determinant(self) -> Float[Tensor, " g"]:
        return self.factor.log_determinant

    def deviations(self, noise: Float[Tensor, "g m r"]) -> Float[Tensor, "g n r"]:
        if noise.dtype not in self._factors:
            self._factors[noise.dtype] = self.factor.to(noise.dtype)
        return self._factors[noise.dtype].back(noise.index_select(1, self.order))

    def one(self, g: int) -> "DirectSolver":
        if len(self.bags) == 1:
            return self
        return DirectSolver(
            self.factor.one(g),
            rows=self.rows[g : g + 1],
            order=self.order,
            bags=[self.bags[g]],
        )


def _dense_solvers(
    tau: Tensor, diagonal: Tensor, pairs: Tensor, *, bags: Bags, chosen: Sequence[int]
) -> list[DirectSolver]:
    """Return a solver for each size of the chosen bags; all matrices are filled at once."""
    by_size: dict[int, list[int]] = {}
    for b in chosen:
        by_size.setdefault(bags.sizes[b], []).append(b)
    if not by_size:
        return []
    device = tau.device
    base = np.full(len(bags), -1)
    total = 0
    for n, members in by_size.items():
        base[members] = total + n * n * np.arange(len(members))
        total += n * n * len(members)
    bases, starts = torch.from_numpy(base).to(device), bags.offsets[:-1]
    sizes = bags.offsets.diff()
    own = _Positions(bases, starts, sizes)
    edge_bag = bags.bag[bags.edges[0]]
    values = pairs.new_zeros(total)
    for i, j in (bags.edges, bags.edges.flip(0)):
        inside = bases[edge_bag] >= 0
        at = own.of(edge_bag[inside], i[inside], j[inside])
        values.index_copy_(0, at, pairs[inside])
    every = torch.arange(len(tau), device=device)
    inside = bases[bags.bag] >= 0
    at = own.of(bags.bag[inside], every[inside], every[inside])
    values = values.index_add(0, at, (diagonal + tau)[inside])
    solvers, first = [], 0
    for n, members in by_size.items():
        count = n * n * len(members)
        matrix = values[first : first + count].view(len(members), n, n)
        local = torch.arange(n, device=device)
        rows = starts[torch.tensor(members, device=device)][:, None] + local
        factor = BlockCholesky([matrix], [])
        solvers.append(DirectSolver(factor, rows=rows, order=local, bags=members))
        first += count
    return solvers


class _Positions:
    """Where the entry (i, j) of a bag's matrix lies in the memory of all matrices."""

    def __init__(self, bases: Tensor, starts: Tensor, sizes: Tensor) -> None:
        self.bases, self.starts, self.sizes = bases, starts, sizes

    def of(self, bag: Tensor, i: Tensor, j: Tensor) -> Tensor:
        start = self.starts[bag]
        return self.bases[bag] + (i - start) * self.sizes[bag] + (j - start)


def _large_solver(
    tau: Tensor,
    diagonal: Tensor,
    pairs: Tensor,
    *,
    edges: Tensor,
    coords: Tensor | None,
    bag: int,
    start: int,
) -> Solver:
    corners = None if coords is None else coords.cpu().numpy().astype(np.float64)
    order = block_order(edges.cpu().numpy(), len(tau), coords=corners)
    if order.stored > LARGEST:
        from .iterative_solver import IterativeSolver

        return IterativeSolver(tau, diagonal, pairs, edges=edges, bag=bag, start=start)
    permutation = torch.from_numpy(order.order).to(tau.device)
    blocks, below = _blocks(
        (diagonal + tau).index_select(0, permutation), pairs, edges=edges, order=order
    )
    return DirectSolver(
        BlockCholesky(blocks, below),
        rows=(permutation + start)[None],
        order=permutation,
        bags=[bag],
    )


def _blocks(
    diagonal: Tensor, pairs: Tensor, *, edges: Tensor, order: BlockOrder
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the diagonal and subdiagonal blocks of a matrix in the order of its blocks."""
    sizes = np.asarray(order.sizes)
    place = np.empty(len(order.order), dtype=np.int64)
    place[order.order] = np.arange(len(place))
    i, j = place[edges.cpu().numpy()]
    i, j = np.maximum(i, j), np.minimum(i, j)
    starts = np.cumsum(sizes) - sizes
    block = np.repeat(np.arange(len(sizes)), sizes)
    own_base = np.cumsum(sizes**2) - sizes**2
    between = sizes[1:] * sizes[:-1]
    below_base = (sizes**2).sum() + np.cumsum(between) - between
    same = block[i] == block[j]

    def inside(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        k = block[a]
        return own_base[k] + (a - starts[k]) * sizes[k] + (b - starts[k])

    a, b = i[~same], j[~same]
    k = block[b]
    crossing = below_base[k] + (a - starts[k + 1]) * sizes[k] + (b - starts[k])
    every = np.arange(len(place))
    device = diagonal.device
    values = pairs.new_zeros(int((sizes**2).sum() + between.sum()))
    kept = torch.from_numpy(same).to(device)
    for at, entry in (
        (inside(i[same], j[same]), pairs[kept]),
        (inside(j[same], i[same]), pairs[kept]),
        (crossing, pairs[~kept]),
    ):
        values.index_copy_(0, torch.from_numpy(at).to(device), entry)
    values = values.index_add(0, torch.from_numpy(inside(every, every)).to(device), diagonal)
    lengths = [*(sizes**2).tolist(), *between.tolist()]
    parts = values.split(lengths)
    blocks = [parts[k].view(1, n, n) for k, n in enumerate(order.sizes)]
    below = [
        parts[len(sizes) + k].view(1, order.sizes[k + 1], order.sizes[k])
        for k in range(len(sizes) - 1)
    ]
    return blocks, below
