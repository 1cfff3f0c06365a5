"""What every model takes and gives: `Bags` in, `Output` out, losses by name."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core import Bags, draw_key, stream
from ..errors import BagError, InputError
from ..variational import Likelihood, Posterior, likelihood_of

ScoreKind = Literal["logit", "probability", "weight", "relevance"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """What a model says of each bag and, through its attention, of each instance."""

    logits: Float[Tensor, "bags samples classes"]
    """One row a posterior sample (a deterministic model has one); one column for one logit."""
    attention: Posterior
    likelihood: Likelihood | None = None
    """How logits become probabilities; None: Bernoulli for one column, Categorical for more."""
    extras: dict[str, Tensor] = field(default_factory=dict)

    @property
    def probability(self) -> Float[Tensor, "bags classes"]:
        """The mean over samples of p(Y = c), not the probability of a mean logit: eq. (10)."""
        return self._each().mean(1)

    @property
    def std(self) -> Float[Tensor, "bags classes"]:
        """Standard deviation over samples of p(Y = c); 0 for a deterministic model."""
        return self._each().std(1, correction=0)

    def _each(self) -> Float[Tensor, "bags samples classes"]:
        likelihood = self.likelihood or likelihood_of(self.logits.shape[2])
        return likelihood.probability(self.logits)


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Where a method comes from, for `probsa models` and docs/models.md. Whole sentences."""

    paper: str
    """Authors, title, place, year, link."""
    code: str = "none published"
    """The authors' repository."""
    licence: str = "none"
    """Of that repository, and what follows from it here."""
    follows_paper: str
    """What is built as the method's paper says."""
    follows_code: str
    """What is built as the authors' code does, where the two differ."""
    fair: str
    """What the ProbSA paper's comparison changed: the defaults here."""


class Model(nn.Module, ABC):
    """A method: one file, one class, registered by name.

    Subclasses take `in_dim` and `n_classes` and call `super().__init__`.
    """

    source: ClassVar[Source]

    score_kind: ClassVar[ScoreKind] = "logit"
    """What `attention.mean` is, so that maps and metrics treat it right."""
    needs: ClassVar[frozenset[Literal["edges", "coords"]]] = frozenset()
    """What a bag must carry for the method to mean anything."""
    order_matters: ClassVar[bool] = False
    min_instances: ClassVar[int] = 1
    without_effect: frozenset[str] = frozenset()
    """Parameters that the original has and no loss depends on, like a bias before a softmax.

    Of the class, or of one model where it depends on the arguments.
    """
    binary: ClassVar[bool] = False
    """The method tells two classes apart and no more: one logit, `n_classes=1`."""
    weighed_term: ClassVar[str] = "nll"
    """The term of `losses` that class weights multiply."""
    couples_bags: ClassVar[bool] = False
    """Training mixes the bags of a batch (batch statistics, a memory): one process only."""

    name: str = ""
    """The registered name, set by `build`."""
    arguments: dict[str, Any]
    """What `build` was called with, so that a checkpoint can build the model again."""

    def __init__(
        self,
        *,
        n_classes: int = 1,
        class_weights: tuple[float, ...] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if self.binary and n_classes != 1:
            raise InputError(
                f"n_classes is {n_classes}: {type(self).__name__} tells two classes apart, by one "
                "logit (n_classes=1)"
            )
        self.arguments = {}
        self.likelihood = likelihood_of(n_classes, class_weights=class_weights)
        self.n_classes, self.seed = n_classes, seed

    @abstractmethod
    def forward(
        self,
        bags: Bags,
        *,
        noise: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Output:
        """`noise` (n, samples) is used when given; see `streams` for where it comes from if not."""

    def losses(self, out: Output, bags: Bags) -> dict[str, Tensor]:
        """Named terms, each the mean over bags of what a bag gives alone."""
        return {"nll": self.likelihood.nll(out.logits, self.labels(bags)).mean()}

    @property
    def loss_weights(self) -> dict[str, float]:
        """The method's own weights of its terms; 1 where nothing is said."""
        return {}

    def streams(self, bags: Bags, generator: torch.Generator | None) -> list[torch.Generator]:
        """One source of noise for each bag, so that no bag's noise depends on its batch-mates.

        With a generator (and in training) the bags' streams follow from one number drawn from it;
        in `eval()` without one, from the model's seed: a bag's prediction is always the same.
        """
        fixed = generator is None and not self.training
        key = self.seed if fixed else draw_key(generator)
        return [stream(key, name, device=bags.x.device) for name in bags.names]

    def instance_scores(self, bags: Bags, out: Output) -> Posterior:
        """What evaluation and maps show of each instance; for methods whose scores cost more.

        Called in `eval()`, maybe without gradients: a method that needs them turns them on.
        """
        del bags
        return out.attention

    def start_epoch(self, epoch: int, epochs: int) -> None:
        """Called before each epoch (from 0); for methods with a warm-up or alternating steps.

        A parameter that a step's losses do not reach keeps its value, and its optimiser's state.
        """

    def after_step(self, out: Output, bags: Bags) -> None:
        """Called after the optimiser's step; for methods that keep a memory."""

    def memory(self) -> dict[str, Tensor]:
        """What must survive an interruption beside the state dict: its size may grow."""
        return {}

    def restore_memory(self, tensors: dict[str, Tensor]) -> None:
        """Takes back what `memory` gave."""

    def parameter_groups(self) -> Iterable[dict[str, Any]]:
        """What the optimiser is given; for methods with learning rates of their own.

        A group's own `clip_norm` clips the norm of its gradients by themselves.
        """
        return [{"params": [p for p in self.parameters() if p.requires_grad]}]

    def check_coords(self, bags: Bags) -> Tensor:
        """The coordinates, for a method that is nothing without them."""
        if bags.coords is None:
            raise BagError(
                f"{self.name or type(self).__name__} lays instances out by their coordinates, but "
                f"bag {bags.names[0]!r} (or another of its batch) has none"
            )
        return bags.coords

    @property
    def top_label(self) -> int:
        """The largest label that a bag may have; 0 is the smallest."""
        return max(self.n_classes - 1, 1)

    def labels(self, bags: Bags) -> Tensor:
        """The bags' labels, checked against the number of classes."""
        if bags.y is None:
            raise InputError("these bags have no labels: they can be predicted, not trained on")
        top = self.top_label
        if bool(((bags.y < 0) | (bags.y > top)).any()):
            raise InputError(
                f"labels go from {float(bags.y.min()):g} to {float(bags.y.max()):g}, "
                f"but n_classes={self.n_classes} means 0 to {top}"
            )
        return bags.y


def each_bag(bags: Bags) -> Iterator[slice]:
    """The rows of each bag."""
    start = 0
    for n in bags.sizes:
        yield slice(start, start + n)
        start += n
