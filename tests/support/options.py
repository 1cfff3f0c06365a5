"""Small models with the same initial weights each time, and two bags that every model reads."""

import torch
from support.random_bags import F64

from probsa import Bag, pack
from probsa.core import Bags, graphs
from probsa.models import Model, build


def some_bags(*, features: int = 6, dtype: torch.dtype = F64) -> Bags:
    """Return two labelled bags on a grid, with a graph, weights and coordinates."""
    bags = []
    for k, n in enumerate((12, 7)):
        g = torch.Generator().manual_seed(k)
        cells = torch.randperm(2 * n, generator=g)[:n].sort().values
        coords = torch.stack([cells % 4, cells // 4], 1) * 10
        edges = graphs.grid(coords, stride=10.0)
        x = torch.randn(n, features, generator=g, dtype=F64).to(dtype)
        weights = (0.5 + torch.rand(edges.shape[1], generator=g, dtype=F64)).to(dtype)
        bags.append(
            Bag(
                name=f"bag{k}",
                x=x,
                edges=edges,
                weights=weights,
                y=1 - k,
                coords=coords,
                stride=10.0,
            )
        )
    return pack(bags)


def made(name: str, /, **options: object) -> Model:
    """Build a model, with the same initial weights each time as far as the shapes allow."""
    torch.manual_seed(0)
    return build(name, in_dim=6, **options)
