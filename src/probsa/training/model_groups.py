"""Models that take a step together: the interface of the training loop, and a model on its own.

`model_stack` holds the other kind of group: a stack of models of one structure.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core import Bags, random_stream, seed_of
from ..models import Model, Output, arguments, build
from ..variational import objective
from .averaging import WeightAverage
from .config import RunConfig
from .devices import precision_context
from .preparation import PreparedData
from .progress import Run
from .validation import with_nll


def build_model(config: RunConfig, prepared: PreparedData) -> Model:
    """Return a run's model with the initial weights that follow from its seed."""
    torch.manual_seed(seed_of(config.seed, "weights"))
    values = {**prepared.model_arguments, **config.model_arguments}
    if "seed" in arguments(config.model):
        values.setdefault("seed", config.seed)
    return build(config.model, **values)


class ModelGroup(ABC):
    """The models of one or more runs, which see the same bags in one forward pass.

    Runs of a group are addressed by their place in `runs`.
    """

    runs: Sequence[Run]
    module: nn.Module
    """Holds the trained parameters of every run."""
    model: Model
    """The model of the run, or the stacked model of all runs."""
    average: WeightAverage | None = None
    """The average of `model`'s weights that is validated and kept instead of the weights; None
    for rules of `select` without one."""
    _seen: tuple[Output, Bags] | None = None
    """The last forward pass: the output and its bags."""

    def start_epoch(self, epoch: int, epochs: int) -> None:
        """Switch to training mode for an epoch (counted from 0)."""
        del epoch, epochs
        self.module.train()

    def backward(
        self, bags: Bags, *, step: int, kl_weights: Sequence[float], share: float
    ) -> dict[str, Tensor]:
        """Add the gradients of a step, and return the terms and the loss, times `share`.

        Args:
            bags: standardised bags on the device.
            step: number of the step since the start of training; seeds the noise.
            kl_weights: λ of each run.
            share: share of the batch's bags that are in `bags`.
        """
        with precision_context(self.runs[0].config.training.precision, bags.x.device):
            terms = self.terms(bags, step=step)
        loss = self.objective(terms, kl_weights=kl_weights)
        # runs share no parameters: the gradient of the sum is each run's own
        (loss * share).sum().backward()
        return {k: v.detach() * share for k, v in {**terms, "loss": loss}.items()}

    @abstractmethod
    def terms(self, bags: Bags, *, step: int) -> dict[str, Tensor]:
        """Return the named loss terms: scalars for one model, (runs,) for a stack."""

    @abstractmethod
    def objective(self, terms: Mapping[str, Tensor], *, kl_weights: Sequence[float]) -> Tensor:
        """Return the loss of each run, in the shape of its terms."""

    @abstractmethod
    def means(self, sums: Mapping[str, Tensor], count: int) -> list[dict[str, float]]:
        """Return each run's sums of terms divided by `count`."""

    @torch.no_grad()
    def batch_statistics(self, *, idle: bool) -> Float[Tensor, "runs m"] | None:
        """Return each model's sums over the bags of the last forward pass, or None.

        Args:
            idle: whether the bags do not count, because other processes have the whole batch.
        """
        assert self._seen is not None, "a step has a forward pass"
        output, bags = self._seen
        sums = self.model.batch_statistics(output, bags, models=len(self.runs))
        return torch.zeros_like(sums) if sums is not None and idle else sums

    @torch.no_grad()
    def update_statistics(self, total: Float[Tensor, "runs m"]) -> None:
        """Let the models update their statistics from the sums over the whole batch."""
        self.model.update_statistics(total)

    def monitored(self) -> list[dict[str, float]]:
        """Return each run's values of `Model.monitored`."""
        columns = {name: v.tolist() for name, v in self.model.monitored().items()}
        return [{name: v[k] for name, v in columns.items()} for k in range(len(self.runs))]

    def after_step(self) -> None:
        """Let the models react to the optimiser's step."""
        self._seen = None

    @abstractmethod
    def probability(self, bags: Bags) -> Float[Tensor, "runs bags outputs"]:
        """Return p(Y) of every bag by every run; the module must be in evaluation mode.

        For other tasks than classes: the prediction, and the NLL of each bag as the last column.
        """

    def weights(self, place: int) -> dict[str, Tensor]:
        """Return the state dict of one run's model."""
        return self.part_of(self.model.state_dict(), place)

    @abstractmethod
    def part_of(self, tensors: Mapping[str, Tensor], place: int) -> dict[str, Tensor]:
        """Return one run's part of tensors that have the names of `model`'s state dict."""

    def validated(self) -> AbstractContextManager[None]:
        """Return a context in which `model` has the weights that are validated and kept."""
        return nullcontext() if self.average is None else self.average.applied()

    def validated_weights(self, place: int) -> dict[str, Tensor]:
        """Return a copy of one run's weights that are validated and kept."""
        with self.validated():
            return {k: v.clone() for k, v in self.weights(place).items()}

    def average_tensors(self, place: int) -> dict[str, Tensor]:
        """Return one run's part of the average under its names in a checkpoint."""
        tensors = {} if self.average is None else self.part_of(self.average.tensors, place)
        return {f"average.{k}": v for k, v in tensors.items()}


class SingleModel(ModelGroup):
    """The model of one run, with the hooks that only a model on its own has."""

    def __init__(self, run: Run, model: Model, *, rank: int = 0) -> None:
        self.runs, self.module, self.rank = [run], model, rank
        self.model = model

    def start_epoch(self, epoch: int, epochs: int) -> None:
        super().start_epoch(epoch, epochs)
        self.model.start_epoch(epoch, epochs)

    def terms(self, bags: Bags, *, step: int) -> dict[str, Tensor]:
        seed, device = self.runs[0].config.seed, bags.x.device
        seed_dropout(seed_of(seed, "dropout", step, self.rank), device)
        output = self.model(bags, generator=random_stream(seed, "noise", step, device=device))
        self._seen = output, bags
        return self.model.losses(output, bags)

    def objective(self, terms: Mapping[str, Tensor], *, kl_weights: Sequence[float]) -> Tensor:
        (weight,) = kl_weights
        return objective(terms, weights=self.model.loss_weights, kl_weight=weight)

    def means(self, sums: Mapping[str, Tensor], count: int) -> list[dict[str, float]]:
        return [{k: float(v) / count for k, v in sums.items()}]

    def after_step(self) -> None:
        assert self._seen is not None, "a step has a forward pass"
        output, bags = self._seen
        super().after_step()
        self.model.after_step(output, bags)

    def probability(self, bags: Bags) -> Float[Tensor, "runs bags outputs"]:
        self.model.explains = False  # no one reads the explanations of an epoch
        try:
            return with_nll(self.model(bags), self.model.likelihood, bags)[None]
        finally:
            self.model.explains = True

    def part_of(self, tensors: Mapping[str, Tensor], place: int) -> dict[str, Tensor]:
        del place
        return dict(tensors)


def seed_dropout(seed: int, device: torch.device) -> None:
    """Seed torch's own generator of a device; `torch.manual_seed` would record a stack trace."""
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
