"""K models of one structure as one: the bags are shared, weights and noise each head's own."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core import Bags, draw_key, stream
from ..layers import stack
from ..models import AttentionModel, Model, Output


class Stack(nn.Module):
    """K models side by side.

    To everything without parameters K heads on B bags are K·B bags, head-major; only linear maps
    and norms are K-fold (`layers.stacked`).
    """

    def __init__(self, models: Sequence[Model]) -> None:
        super().__init__()
        assert isinstance(models[0], AttentionModel)
        self.heads = len(models)
        self.seeds = [m.seed for m in models]
        names = {n for n, m in models[0].embed.named_modules() if isinstance(m, nn.Linear)}
        self.embeds = bool(names)
        first = f"embed.{min(names, key=_position)}" if names else None
        model = stack(models, first=first)
        assert isinstance(model, AttentionModel)
        self.model = model
        self._generators: Sequence[torch.Generator] | None = None
        # an attribute of the instance goes before the method of its class
        object.__setattr__(model, "streams", self._streams)

    def forward(
        self, bags: Bags, *, generators: Sequence[torch.Generator] | None = None
    ) -> tuple[Output, Bags]:
        """What every head says, and the K·B bags that the output is of.

        generators: one a head, as a run alone is given its one; None in prediction.
        """
        self._generators = generators
        many = copies(bags, self.heads)
        h = self.model.embed.net(bags.x)  # n rows in, K·n out
        if not self.embeds:
            h = h.repeat(self.heads, 1)
        if self.model.encoder is not None:
            h = self.model.encoder(h, many.sizes)
        return self.model.attend(h, many, noise=None, generator=None), many

    def losses(self, out: Output, many: Bags) -> dict[str, Float[Tensor, " heads"]]:
        """Named terms of each head, means over its bags."""
        terms = self.model.bag_losses(out, many)
        return {k: v.unflatten(0, (self.heads, -1)).mean(1) for k, v in terms.items()}

    def probability(self, out: Output) -> Float[Tensor, "heads bags classes"]:
        """p(Y) of every bag by every head."""
        return out.probability.unflatten(0, (self.heads, -1))

    def state_of(self, head: int) -> dict[str, Tensor]:
        """The state dict of one head's model, cloned."""
        own = {n for n, _ in self.model.named_parameters()}
        state = self.model.state_dict()
        return {k: (v[head] if k in own else v).clone() for k, v in state.items()}

    def _streams(
        self, bags: Bags, generator: torch.Generator | None = None
    ) -> list[torch.Generator]:
        """As `Model.streams` of each head: bags are the K·B."""
        del generator  # heads have generators of their own
        names = bags.names[: len(bags) // self.heads]
        keys = self.seeds if self._generators is None else map(draw_key, self._generators)
        device = bags.x.device
        return [stream(key, name, device=device) for key in keys for name in names]


def copies(bags: Bags, heads: int) -> Bags:
    """The same bags once a head, without features: those are not copied."""
    n, e = len(bags.x), bags.edges.shape[1]
    shift = n * torch.arange(heads, device=bags.edges.device).repeat_interleave(e)
    starts = n * torch.arange(heads, device=bags.offsets.device)[:, None]
    offsets = (starts + bags.offsets[:-1]).flatten()
    end = offsets.new_tensor([n * heads])
    return replace(
        bags,
        x=bags.x.new_empty(n * heads, 0),
        offsets=torch.cat([offsets, end]),
        edges=bags.edges.repeat(1, heads) + shift,
        weights=bags.weights.repeat(heads),
        y=None if bags.y is None else bags.y.repeat(heads),
        names=bags.names * heads,
        coords=None,
        stride=None,
        arcs=None,
        arc_weights=None,
        instance_labels=None,
    )


def _position(name: str) -> int:
    return int(name.rpartition(".")[2])
