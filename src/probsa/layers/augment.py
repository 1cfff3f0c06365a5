"""SETMIL's augmentation of maps (Zhao et al., MICCAI 2022), each bag with its own generator.

A rotation by 0 to 3 quarter turns and, each with probability ½: two flips, nearest-neighbour
rescaling by 0.8 to 1.2 about the centre, and a square of an eighth of the side filled with the
map's mean. All of it is index arithmetic: each cell of the new map shows one cell of the old map.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from .cells import Cells, centred


def source_cells(cells: Cells, generators: Sequence[torch.Generator]) -> Int[Tensor, " t"]:
    """Return the old cell that each new cell shows; t means empty and t + 1 the map's mean.

    Args:
        cells: All t cells of square maps.
        generators: One generator per bag.
    """
    t, sources = len(cells), []
    parts = zip(*(v.split(list(cells.sizes)) for v in (cells.bag, cells.row, cells.col)),
                strict=True)  # fmt: skip
    for (bag, row, col), side, generator in zip(parts, cells.heights, generators, strict=True):
        u = torch.rand(8, generator=generator, device=generator.device).tolist()
        for _ in range(int(4 * u[0])):
            row, col = col, side - 1 - row
        hidden = _square(row, col, side=side, corner=(u[1], u[2])) if u[3] < 0.5 else None
        if u[4] < 0.5:
            scaled = round(side * (0.8 + 0.4 * u[5]))
            row, col = (_rescaled(v, side=side, scaled=scaled) for v in (row, col))
        if u[6] < 0.5:
            row = side - 1 - row
        if u[7] < 0.5:
            col = side - 1 - col
        source = cells.find(bag, row, col)
        sources.append(source if hidden is None else source.masked_fill(hidden, t + 1))
    return torch.cat(sources)


def _square(row: Tensor, col: Tensor, *, side: int, corner: tuple[float, float]) -> Tensor:
    cut = max(1, side // 8)
    top, left = (int(u * (side - cut + 1)) for u in corner)
    return (row >= top) & (row < top + cut) & (col >= left) & (col < left + cut)


def _rescaled(v: Tensor, *, side: int, scaled: int) -> Tensor:
    """Return the old row (or column) of each new one when `side` cells become `scaled` cells."""
    stretched = v - centred(scaled, side)
    return (stretched * side).div(max(scaled, 1), rounding_mode="floor")


def show_cells(
    g: Float[Tensor, "t d"], source: Int[Tensor, " t"], cells: Cells
) -> Float[Tensor, "t d"]:
    """Return the features of the new map, from the result of `source_cells`."""
    means = torch.stack([part.mean(0) for part in g.split(list(cells.sizes))])
    old = F.pad(g, (0, 0, 0, 1))
    return torch.where((source > len(g))[:, None], means[cells.bag], old[source.clamp_max(len(g))])
