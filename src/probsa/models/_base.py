"""The interface of every model: `Bags` in, `Output` out, named losses."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core import (
    Bag,
    Bags,
    ClassCount,
    NonNegativeFloat,
    Seed,
    draw_key,
    random_stream,
    without_autocast,
)
from ..errors import BagError, InputError
from ..variational import Likelihood, Posterior, Predictive, likelihood_of
from ._explanation import Explanation
from ._kinds import Family, ScoreKind


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """A model's output for each bag and, through its attention, for each instance."""

    logits: Float[Tensor, "bags samples classes"]
    """One row per posterior sample (one for a deterministic model); one column for one logit."""
    attention: Posterior
    likelihood: Likelihood | None = None
    """Turns logits into probabilities; None: Bernoulli for one column, Categorical for more."""
    extras: dict[str, Tensor] = field(default_factory=dict)
    explanation: Explanation | None = None
    """In prediction, what each instance contributes; None for models without a closed form."""

    @property
    def probability(self) -> Float[Tensor, "bags outputs"]:
        """The mean over samples of p(Y = c), not the probability of a mean logit: eq. (10).

        For other tasks than classes, the columns that `Likelihood.outputs` names.
        """
        return self.predicted.values

    @property
    def std(self) -> Float[Tensor, "bags outputs"]:
        """The standard deviation over samples of `probability`; 0 for a deterministic model."""
        return self.predicted.spread

    @property
    def predicted(self) -> Predictive:
        """The prediction of each bag, and its spread over the samples."""
        likelihood = self.likelihood or likelihood_of(self.logits.shape[2])
        return likelihood.predict(self.logits)


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """The origin of a method, in whole sentences, for `probsa models` and docs/models.md."""

    paper: str
    """Authors, title, venue, year and link."""
    code: str = "none published"
    """The authors' repository."""
    licence: str = "none"
    """The licence of that repository, and its consequences for this package."""
    follows_paper: str
    """Which parts follow the method's paper."""
    follows_code: str
    """Which parts follow the authors' code where it differs from the paper."""
    fair: str
    """What the ProbSA paper's comparison changed; these are the defaults here."""


class Model(nn.Module, ABC):
    """Base class of the models: one file and one class per method, registered by name.

    Subclasses call `super().__init__`; these arguments mean the same in all of them.

    Args:
        in_dim: number of features per instance.
        n_classes: 1 (one logit) or the number of classes.
        embed: width or widths of the first layers; None uses the features unchanged.
        class_weights: class weights of the likelihood, one per class.
        seed: seed of all randomness in prediction; no effect on a deterministic model.
    """

    provenance: ClassVar[Provenance]

    family: Family = "local"
    """The family in which the ProbSA paper compares the method; `register` can override it."""
    baseline: str | None = None
    """Registered name of the plain model that λ = 0 stands for; `register` can override it."""
    has_kl: ClassVar[bool] = False
    """Whether the losses have a term named `kl`."""
    score_kind: ClassVar[ScoreKind] = "logit"
    """How maps and metrics interpret `attention.mean`."""
    needs: ClassVar[frozenset[Literal["edges", "coords"]]] = frozenset()
    """What each bag must contain for the method to be meaningful."""
    order_matters: ClassVar[bool] = False
    """Whether the output depends on the order of instances, if each keeps its own noise.

    This is not about random numbers. In prediction, those of a stochastic model and the random
    groups of `dtfdmil` are seeded by the bag's name and drawn in the order of its instances, so
    another name or order changes p of any such model, by Monte Carlo error: the difference has the
    standard deviation `std` · √(2 / samples).
    """
    needs_whole_bags: ClassVar[bool] = False
    """Whether training needs every instance of a bag at each step, so that windows are refused."""
    min_instances: ClassVar[int] = 1
    without_effect: frozenset[str] = frozenset()
    """Parameters of the original on which no loss depends, such as a bias before a softmax.

    Set on an instance where it depends on the arguments.
    """
    binary: ClassVar[bool] = False
    """Whether the method handles two classes only, with one logit (`n_classes=1`)."""
    needs_classes: ClassVar[bool] = False
    """Whether the method's own losses need the class of a bag, one of several without an order."""
    one_field: ClassVar[bool] = False
    """Whether the model has one logit, and so one map, for every task with ordered outcomes
    (grades, intervals of time); the thresholds between outcomes are then the likelihood's."""
    weighted_term: ClassVar[str] = "nll"
    """The term of `losses` that class weights multiply."""
    couples_bags: ClassVar[bool] = False
    """Whether training mixes the bags of a batch (batch statistics, a memory): one process only."""

    fits_directly: ClassVar[bool] = False
    """Whether `fit_bags` trains the model in one go, instead of gradient steps."""

    explains: bool = True
    """Whether prediction also computes `Output.explanation`; validation in training does not."""

    name: str = ""
    """The registered name, set by `build`."""
    arguments: dict[str, Any]
    """The arguments passed to `build`, from which a checkpoint can rebuild the model."""

    def __init__(
        self,
        *,
        n_classes: ClassCount = 1,
        class_weights: tuple[NonNegativeFloat, ...] | None = None,
        seed: Seed = 0,
    ) -> None:
        super().__init__()
        if self.binary and n_classes != 1:
            raise InputError(
                f"n_classes is {n_classes}: {type(self).__name__} supports only two classes, "
                "with one logit (n_classes=1)"
            )
        self.arguments = {}
        self.likelihood = likelihood_of(n_classes, class_weights=class_weights)
        self.n_classes = n_classes
        self.seed = seed
        self.covariates: nn.Linear | None = None
        """The additive effect B of clinical covariates on the logits; None for images alone."""

    @abstractmethod
    def forward(
        self,
        bags: Bags,
        *,
        noise: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Output:
        """Run the model; `noise` (n, samples), if given, replaces the noise from `streams`."""

    def __call__(self, bags: Bags, **options: Any) -> Output:
        """Run the model, and add the effect Bᵀx of the covariates to the logits of the image."""
        out: Output = super().__call__(bags, **options)
        count = 0 if bags.covariates is None else bags.covariates.shape[1]
        expected = 0 if self.covariates is None else self.covariates.in_features
        if count != expected:
            raise InputError(
                f"bag {bags.names[0]!r} has {count} covariates, but the model was built for "
                f"{expected}: encode them as the run's covariates.json states"
            )
        if self.covariates is None:
            return out
        with without_autocast(out.logits):
            effect = self.covariates(bags.covariates).to(out.logits.dtype)[:, None]
        explanation = out.explanation
        if explanation is not None:
            # the probability without an instance would need the covariates as well
            explanation = replace(explanation, leave_one_out=None, at_least=None)
        return replace(out, logits=out.logits + effect, explanation=explanation)

    def add_covariates(self, count: int) -> None:
        """Give the model an effect of covariates on its logits, which starts at 0.

        Raises:
            InputError: the method's losses or its training do not read the logits alone.
        """
        if self.needs_classes or self.fits_directly:
            raise InputError(
                f"{self.name or type(self).__name__} takes no covariates, as its losses do not "
                "depend on the logits of the bag alone: choose another model"
            )
        self.covariates = nn.Linear(count, self.n_classes, bias=False)
        nn.init.zeros_(self.covariates.weight)

    def losses(self, out: Output, bags: Bags) -> dict[str, Tensor]:
        """Return named terms, each the mean over bags of the value that a bag has on its own."""
        return {"nll": self.likelihood.nll(out.logits, self.labels(bags)).mean()}

    @property
    def loss_weights(self) -> dict[str, float]:
        """The method's own weights of its loss terms; terms left out have weight 1."""
        return {}

    def fit_bags(self, train: Collection[Bag], validation: Collection[Bag]) -> None:
        """Set the weights from labelled bags, for models with `fits_directly`.

        Bags are read one at a time while they are iterated over: keep none of them.

        Raises:
            InputError: the bags do not suffice.
        """
        del train, validation
        raise NotImplementedError(f"{type(self).__name__} is trained by gradient steps")

    def streams(self, bags: Bags, generator: torch.Generator | None) -> list[torch.Generator]:
        """Return one noise generator per bag, so that a bag's noise is independent of its batch.

        With a generator, and in training, the bags' streams derive from one number drawn from it.
        In `eval()` without one they derive from the model's seed: predictions are deterministic.
        """
        is_deterministic = generator is None and not self.training
        key = self.seed if is_deterministic else draw_key(generator)
        return [random_stream(key, name) for name in bags.names]

    def instance_scores(self, bags: Bags, out: Output) -> Posterior:
        """Return the instance scores that evaluation and maps show, by default the attention.

        Called in `eval()`, possibly without gradients; a method that needs them enables them.
        """
        del bags
        return out.attention

    def monitored(self) -> dict[str, float]:
        """Return values that training changes by itself and metrics.csv shows, by name."""
        return {}

    def start_epoch(self, epoch: int, epochs: int) -> None:
        """Prepare for an epoch (the first is 0), for methods with a warm-up or alternating steps.

        A parameter that a step's losses do not reach keeps its value and its optimiser state.
        """

    def after_step(self, out: Output, bags: Bags) -> None:
        """Update the method's memory after an optimiser step."""

    def batch_statistics(self, out: Output, bags: Bags) -> Float[Tensor, " m"] | None:
        """Return sums over the bags that `update_statistics` needs of the whole batch, or None.

        Called without gradients before the optimiser's step. Training adds up the sums of all
        processes that share the batch; each must return a tensor of the same shape, or None.
        """
        del out, bags
        return None

    def update_statistics(self, total: Float[Tensor, " m"]) -> None:
        """Update running statistics (buffers) from the sums over the batch, after the step."""

    def memory(self) -> dict[str, Tensor]:
        """Return the tensors of variable size that a checkpoint stores beside the state dict."""
        return {}

    def restore_memory(self, tensors: dict[str, Tensor]) -> None:
        """Restore the tensors that `memory` returned."""

    def parameter_groups(self) -> Iterable[dict[str, Any]]:
        """Return the optimiser's parameter groups, for methods with several learning rates.

        If a group has a `clip_norm`, the norm of its gradients is clipped separately.
        """
        return [{"params": [p for p in self.parameters() if p.requires_grad]}]

    def pooling_scalars(self) -> Iterable[nn.Parameter]:
        """Return parameters that are single numbers, such as α of a pooling.

        The option `scalar_rate` multiplies their learning rate, by default for other targets than
        classes: an optimiser moves a number by about its learning rate per step, however far it has
        to go.
        """
        return ()

    @classmethod
    def check_bag(cls, bag: Bag, *, name: str = "") -> None:
        """Refuse a complete bag that lacks what the method `needs`.

        Training and prediction check every bag that they read. A bag of several instances with
        neither coordinates nor edges has no graph; patches that have coordinates may be isolated.
        `name` is the registered name of the model, for the message.

        Raises:
            BagError: the bag has no coordinates, no graph, or too few instances.
        """
        needs_coords = "coords" in cls.needs
        needs_stored_edges = "edges" in cls.needs and bag.coords is None and len(bag) > 1
        if needs_coords and bag.coords is None:
            problem = "lays instances out by their coordinates, but the bag has none"
            remedy = "store them with the features, or use a model without this need"
        elif needs_coords and len(bag.slides) > 1:
            problem = f"lays out the grid of one slide, but the bag has {len(bag.slides)} slides"
            remedy = "train with the unit 'bag', or use another model"
        elif needs_stored_edges and not bag.edges.numel():
            problem = "needs neighbours, but the bag has no coordinates to find them by"
            remedy = "store them with the features, or use a model without this need"
        elif len(bag) < cls.min_instances:
            problem = f"needs {cls.min_instances} instances or more, but the bag has {len(bag)}"
            remedy = "leave the bag out"
        else:
            return
        raise BagError(f"bag {bag.name!r}: {name or cls.__name__} {problem}: {remedy}")

    def check_coords(self, bags: Bags) -> Tensor:
        """Return the coordinates; raise a BagError if a bag of the batch has none."""
        if bags.coords is None:
            raise BagError(
                f"{self.name or type(self).__name__} lays instances out by their coordinates, but "
                f"bag {bags.names[0]!r} (or another of its batch) has none"
            )
        return bags.coords

    @property
    def top_label(self) -> int:
        """The largest label that a bag may have; the smallest is 0."""
        return max(self.n_classes - 1, 1)

    def labels(self, bags: Bags) -> Tensor:
        """Return the bags' labels, checked against the number of classes.

        For other tasks than classes: their targets, (bags,) or (bags, targets).
        """
        if bags.y is None:
            raise InputError("these bags have no labels: they can be predicted, not trained on")
        if not self.likelihood.of_classes:
            return bags.y
        top = self.top_label
        lowest, highest = bags.label_range or (0, 0)
        if lowest < 0 or highest > top:
            raise InputError(
                f"labels go from {lowest:g} to {highest:g}, but n_classes={self.n_classes} means "
                f"0 to {top}"
            )
        return bags.y


def bag_rows(bags: Bags) -> Iterator[slice]:
    """Iterate over the rows of each bag."""
    start = 0
    for n in bags.sizes:
        yield slice(start, start + n)
        start += n
