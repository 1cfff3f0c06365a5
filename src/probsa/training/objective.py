"""What a run learns: targets, their likelihood, and the shares of the classes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..core import (
    read_record,
)
from ..datasets import (
    LabelTable,
    Split,
    check_training_part,
)
from ..errors import InputError
from ..models import check_task, look_up
from ..statistics import choose_threshold
from ..tasks import Target, Task
from ..variational import LikelihoodSpec, fit_spec
from .config import DEFAULT_RULE, RunConfig, TrainingConfig
from .run_folder import ADVICE, RunFolder

MOST_WEIGHT = 20.0
"""Largest weight of the positive bags of a rare finding."""


def targets_of(table: LabelTable) -> dict[str, Target]:
    """Return the target of every labelled bag."""
    labels = table.of_task.labels
    targets: dict[str, Target] = {}
    for bag, value in zip(table.bags, table.values, strict=True):
        if value is not None:
            targets[bag] = labels.model_target(value)
    return targets


def fit_likelihood(config: RunConfig, table: LabelTable, split: Split) -> LikelihoodSpec | None:
    """Return the likelihood of a run, fitted on its training bags; None for classes.

    Raises:
        InputError: the model cannot learn the task, an option does not suit it, or the training
            bags do not determine the likelihood or lack a class, finding or event (`TableError`).
    """
    check_task(config.model, table.task)
    _check_options(config, table)
    check_training_part(table, split)
    if table.of_task.unordered_classes:
        return None
    train = split.train
    y = stack_targets(targets_of(table), train)
    spec = fit_spec(
        table.task,
        y,
        n_classes=len(table.classes),
        options=config.data.likelihood,
        one_logit=look_up(config.model).model.one_field,
    )
    if table.of_task.has_findings and config.training.balanced:
        negative_bags = (y == 0).sum(0)
        positive_bags = (y == 1).sum(0)
        weights = (negative_bags / positive_bags).clamp(max=MOST_WEIGHT)
        spec = replace(spec, positive_weights=tuple(weights.tolist()))
    return spec


def stack_targets(targets: Mapping[str, Target], names: Sequence[str]) -> Tensor:
    """Return the targets of some bags: (bags,) int64 or float64, or (bags, targets) float64."""
    values = [targets[name] for name in names]
    y = torch.tensor(values)
    # converted anew, since PyTorch rounds numbers of Python to float32
    return torch.tensor(values, dtype=torch.float64) if y.is_floating_point() else y


def as_two_classes(table: LabelTable, train: Sequence[str]) -> dict[str, int]:
    """Return classes in place of the targets of all labelled bags, to fit null maps on.

    Classes and grades stay. Otherwise class 1 has any finding, the event, or a number above the
    median of the training bags.
    """
    names = [bag for bag, value in zip(table.bags, table.values, strict=True) if value is not None]
    classes = table.of_task.labels.as_two_classes(table.y(names), table.y(train))
    return dict(zip(names, classes.tolist(), strict=True))


def _check_options(config: RunConfig, table: LabelTable) -> None:
    """Refuse options that do not suit the task or the model, or contradict each other."""
    training = config.training
    task = table.of_task
    if training.threshold != DEFAULT_RULE:
        # a rule that cannot be read is refused before the run trains
        choose_threshold(np.array([True, False]), np.array([0.9, 0.1]), rule=training.threshold)
    problem = next(_unsuitable_options(training, task), None)
    if problem is not None:
        raise InputError(f"{problem}, and the task is {task.name}: leave it out")
    if training.sampling == "balanced":
        if training.balanced:
            raise InputError(
                "both `balanced` (weights in the loss) and `sampling: balanced` (draws every class "
                "equally often) are set, but each corrects the class shares alone: remove one"
            )
        if look_up(config.model).model.fits_directly:
            raise InputError(
                f"sampling: balanced draws bags for gradient steps, but {config.model} is fitted "
                "in one go: leave it out"
            )
    if training.prevalence is not None:
        _check_prevalence(training.prevalence, count=max(2, len(table.classes)))


def _unsuitable_options(training: TrainingConfig, task: Task) -> Iterator[str]:
    """Yield a sentence for each option that has no meaning for the task."""
    has_classes = task.unordered_classes
    if training.threshold != DEFAULT_RULE and not task.two_classes:
        yield f"threshold {training.threshold!r} is for two classes"
    if training.sampling == "balanced" and not has_classes:
        yield "sampling: balanced is for classes"
    if training.prevalence is not None and not has_classes:
        yield "prevalence is for classes"
    if training.balanced and not (has_classes or task.has_findings):
        yield "balanced weights the loss of classes"
    if training.temperature_scaling and not has_classes:
        yield "temperature_scaling scales the probabilities of classes"
    if training.members > 1 and task.averages is None:
        yield "members above 1 average predictions, but quantiles cannot be averaged"


def _check_prevalence(shares: Sequence[float], *, count: int) -> None:
    """Refuse shares that are not one for each class, positive, with the sum 1."""
    if len(shares) != count or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
        raise InputError(
            f"prevalence is {list(shares)}: expected {count} shares above 0 that add up to 1"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassPrior:
    """The shares of the classes in training, in the loss, and in the predictions (`prior.json`)."""

    training: list[float]
    """π: the shares of the training bags."""
    effective: list[float]
    """π': those that weights or sampling imply."""
    predicted: list[float] | None
    """Those that predictions are moved to; None to leave them at the effective ones."""

    def shift(self, *, one_logit: bool) -> Tensor | None:
        """Return what is added to the logits: log π*_c/π'_c; for one logit, the log odds ratio."""
        if self.predicted is None:
            return None
        ratios = [math.log(p / q) for p, q in zip(self.predicted, self.effective, strict=True)]
        # one logit is the log odds of class 1
        shifts = [ratios[1] - ratios[0]] if one_logit else ratios
        return torch.tensor(shifts, dtype=torch.float64)

    def sentence(self) -> str:
        """Return what a report says of it."""
        if self.predicted is None:
            return "probabilities refer to equally frequent classes, as in the training loss"
        before = ", ".join(f"{share:.3g}" for share in self.effective)
        after = ", ".join(f"{share:.3g}" for share in self.predicted)
        return f"probabilities are adjusted from class shares {before} (in the loss) to {after}"


def class_prior(config: RunConfig, table: LabelTable, split: Split) -> ClassPrior | None:
    """Return the prior of a run whose loss treats all classes alike, or with a `prevalence`.

    It is None for other runs, and if a class has no training bag.
    """
    if not table.of_task.unordered_classes:
        return None
    training = config.training
    classes = max(2, len(table.classes))
    y = stack_targets(targets_of(table), split.train).numpy()
    counts = np.bincount(y, minlength=classes)
    if not counts.all():
        return None
    shares = (counts / len(split.train)).tolist()
    effective = shares
    if training.balanced or training.sampling == "balanced":
        effective = [1 / classes] * classes
    if training.prevalence is None and effective == shares:
        return None  # the loss weighs the classes as they are
    predicted = None
    if training.prevalence is not None:
        predicted = list(training.prevalence)
    elif training.prior_correction:
        predicted = shares
    return ClassPrior(training=shares, effective=effective, predicted=predicted)


def stored_prior(run: RunFolder) -> ClassPrior | None:
    """Return the prior of a run folder; None if it has none."""
    if not run.prior_file.is_file():
        return None
    return read_record(ClassPrior, run.prior_file, advice=ADVICE)
