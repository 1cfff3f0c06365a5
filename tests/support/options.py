"""Check that every option of a model changes its result; the tests of every family use this."""

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
"""Arguments of all models, which the contract tests check."""


def options_of(name: str, *, without: Iterable[str] = ()) -> list[str]:
    """Return the sorted arguments of a model, except those that the contract tests check."""
    return sorted(set(arguments(name)) - ELSEWHERE - set(without))


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
                name=f"bag{k}", x=x, edges=edges, weights=weights, y=1 - k, coords=coords,
                stride=10.0,
            )
        )  # fmt: skip
    return pack(bags)


def results(model: Model, bags: Bags) -> Tensor:
    """Return the weighted losses of six epochs, logits and scores of a prediction, and the memory.

    Noise is added to initial values, some of which are 0. No optimiser takes a step.
    """
    model.double().train()
    generator = torch.Generator().manual_seed(3)
    for p in model.parameters():
        p.data += 0.3 * torch.randn(p.shape, generator=generator, dtype=F64)
    torch.manual_seed(1)
    parts = []
    for epoch in range(6):
        model.start_epoch(epoch, 6)
        out = model(bags, generator=torch.Generator().manual_seed(epoch))
        weights = model.loss_weights
        parts += [v * weights.get(k, 1.0) for k, v in sorted(model.losses(out, bags).items())]
        model.after_step(out, bags)
    model.eval()
    out = model(bags)
    parts += [out.logits.mean(1), model.instance_scores(bags, out).mean, *model.memory().values()]
    return torch.cat([p.detach().flatten() for p in parts])


def made(name: str, /, **options: object) -> Model:
    """Build a model, with the same initial weights each time as far as the shapes allow."""
    torch.manual_seed(0)
    return build(name, in_dim=6, **options)


def changes(name: str, key: str, value: object, /, **base: object) -> float:
    """Return the largest change of any result if one option is set to a non-default value."""
    default = arguments(name)[key].default
    assert default is inspect.Parameter.empty or value != base.get(key, default), key
    plain = results(made(name, **base), some_bags())
    other = results(made(name, **{**base, key: value}), some_bags())
    if plain.shape != other.shape:
        return float("inf")
    return (plain - other).abs().max().item()
