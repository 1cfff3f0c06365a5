"""No option without a test that it changes the result: the check that every family's tests run."""

import inspect
from collections.abc import Iterable

import torch
from support.random_bags import F64
from torch import Tensor

from probsa import Bag, pack
from probsa.core import graphs
from probsa.core.bags import Bags
from probsa.models import Model, arguments, build

ELSEWHERE = {"in_dim", "n_classes", "class_weights", "seed", "preset"}
"""Of every model: in the contract."""


def options_of(name: str, *, without: Iterable[str] = ()) -> list[str]:
    """Every argument that a name offers but those that the contract tests, sorted."""
    return sorted(set(arguments(name)) - ELSEWHERE - set(without))


def some_bags(*, features: int = 6, dtype: torch.dtype = F64) -> Bags:
    """Two labelled bags on a grid with weights, a graph and coordinates."""
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
                name=f"bag{k}", x=x, edges=edges, weights=weights, y=1 - k, coords=coords,
                stride=10.0,
            )
        )  # fmt: skip
    return pack(bags)


def results(model: Model, bags: Bags) -> Tensor:
    """Weighted training losses, logits and scores of a prediction, in one row."""
    model.double().train()
    torch.manual_seed(1)
    out = model(bags, generator=torch.Generator().manual_seed(0))
    weights = model.loss_weights
    losses = [v.detach() * weights.get(k, 1.0) for k, v in model.losses(out, bags).items()]
    model.eval()
    out = model(bags)
    scores = model.instance_scores(bags, out).mean
    parts = [torch.stack(losses), out.logits.mean(1).flatten(), scores.flatten()]
    return torch.cat([p.detach() for p in parts])


def made(name: str, /, **options: object) -> Model:
    """The same weights each time, as far as the shapes allow."""
    torch.manual_seed(0)
    return build(name, in_dim=6, **options)


def changes(name: str, key: str, value: object, /, **base: object) -> float:
    """The largest change of any result when one option is set to another value than its default."""
    default = arguments(name)[key].default
    assert default is inspect.Parameter.empty or value != base.get(key, default), key
    plain = results(made(name, **base), some_bags())
    other = results(made(name, **{**base, key: value}), some_bags())
    if plain.shape != other.shape:
        return float("inf")
    return (plain - other).abs().max().item()
