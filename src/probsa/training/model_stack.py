"""K models of one structure as one module: they share the bags, not the weights or the noise."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core import Bags, draw_key, random_stream, repeat_bags
from ..layers import per_model_names, stack
from ..models import AttentionModel, Model, Output
from ..variational import SCHEDULED
from .model_groups import ModelGroup
from .progress import Run


class Stack(nn.Module):
    """K models side by side.

    Modules without parameters see K·B bags, those of the first model first; only linear maps and
    norms are K-fold (`layers.stack`).
    """

    def __init__(self, models: Sequence[Model]) -> None:
        super().__init__()
        assert isinstance(models[0], AttentionModel)
        self.count = len(models)
        self.seeds = [m.seed for m in models]
        names = {n for n, m in models[0].embed.named_modules() if isinstance(m, nn.Linear)}
        self.embeds = bool(names)
        first = f"embed.{min(names, key=_position)}" if names else None
        model = stack(models, first=first)
        assert isinstance(model, AttentionModel)
        self.model = model
        self.per_model = per_model_names(model)
        self._generators: Sequence[torch.Generator] | None = None
        # an attribute of the instance takes precedence over the method of its class
        object.__setattr__(model, "streams", self._streams)

    def forward(
        self, bags: Bags, *, generators: Sequence[torch.Generator] | None = None
    ) -> tuple[Output, Bags]:
        """Return the outputs of all models and the K·B bags that they belong to.

        Args:
            bags: the B bags that every model sees.
            generators: one generator of noise per model, as a model on its own is given; None for
                prediction.
        """
        self._generators = generators
        many = repeat_bags(bags, self.count)
        h = self.model.embed.net(bags.x)  # (n, features) to (K·n, width)
        if not self.embeds:
            h = h.repeat(self.count, 1)
        if self.model.encoder is not None:
            h = self.model.encoder(h, many.sizes)
        return self.model.attend(h, many, noise=None, generator=None), many

    def losses(self, out: Output, many: Bags) -> dict[str, Float[Tensor, " models"]]:
        """Return the named terms of each model, as means over its bags."""
        terms = self.model.bag_losses(out, many)
        return {k: v.unflatten(0, (self.count, -1)).mean(1) for k, v in terms.items()}

    def probability(self, out: Output) -> Float[Tensor, "models bags classes"]:
        """Return p(Y) of every bag by every model."""
        return out.probability.unflatten(0, (self.count, -1))

    def part_of(self, tensors: Mapping[str, Tensor], place: int) -> dict[str, Tensor]:
        """Return a copy of one model's part of tensors named as in the stacked state dict."""
        return {k: (v[place] if k in self.per_model else v).clone() for k, v in tensors.items()}

    def _streams(
        self, bags: Bags, generator: torch.Generator | None = None
    ) -> list[torch.Generator]:
        """Stand in for `Model.streams`, for the K·B bags."""
        del generator  # each model has its own
        names = bags.names[: len(bags) // self.count]
        keys = self.seeds if self._generators is None else map(draw_key, self._generators)
        device = bags.x.device
        return [random_stream(key, name, device=device) for key in keys for name in names]


class StackedModels(ModelGroup):
    """The models of several runs of one structure, as a `Stack`."""

    def __init__(self, runs: Sequence[Run], *, device: torch.device) -> None:
        self.stack = Stack([run.model for run in runs]).to(device)
        self.runs, self.module, self.model = runs, self.stack, self.stack.model

    def terms(self, bags: Bags, *, step: int) -> dict[str, Tensor]:
        generators = [
            random_stream(run.config.seed, "noise", step, device=bags.x.device) for run in self.runs
        ]
        output, many = self.stack(bags, generators=generators)
        self._seen = output, many
        return self.stack.losses(output, many)

    def objective(self, terms: Mapping[str, Tensor], *, kl_weights: Sequence[float]) -> Tensor:
        return objectives(terms, weights=self.stack.model.loss_weights, kl_weights=kl_weights)

    def means(self, sums: Mapping[str, Tensor], count: int) -> list[dict[str, float]]:
        columns = {name: (v / count).tolist() for name, v in sums.items()}
        return [{name: v[k] for name, v in columns.items()} for k in range(len(self.runs))]

    def probability(self, bags: Bags) -> Float[Tensor, "runs bags classes"]:
        output, _ = self.stack(bags)
        return self.stack.probability(output)

    def part_of(self, tensors: Mapping[str, Tensor], place: int) -> dict[str, Tensor]:
        return self.stack.part_of(tensors, place)


def objectives(
    terms: Mapping[str, Float[Tensor, " models"]],
    *,
    weights: Mapping[str, float],
    kl_weights: Sequence[float],
) -> Float[Tensor, " models"]:
    """Return the `objective` of every model.

    Args:
        terms: named terms, one value per model.
        weights: weights of the terms, as `Model.loss_weights` gives them.
        kl_weights: λ of each model.
    """
    total = None
    for name, value in terms.items():
        w = weights.get(name, 1.0)
        if name == SCHEDULED:
            each = value.new_tensor(kl_weights) * w
            # λ = 0 must not turn an infinite KL into NaN, in the loss or in a gradient
            on = each > 0
            term = torch.zeros_like(value).masked_scatter(on, value[on] * each[on])
        else:
            term = value * w
        total = term if total is None else total + term
    assert total is not None, "a model gives at least one term"
    return total


def _position(name: str) -> int:
    return int(name.rpartition(".")[2])
