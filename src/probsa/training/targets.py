"""Stage 8: what a run learns from its labels: targets, likelihood, and the prior of the classes.

Class weights and balanced sampling make a model predict for a world in which all classes are
equally frequent; predictions are moved back to the training shares, or to those of deployment.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..core import read_record
from ..datasets import LabelTable, Split, check_training_part
from ..errors import InputError
from ..models import check_task, look_up
from ..statistics import choose_threshold
from ..tasks import Target
from ..variational import LikelihoodSpec, fit_spec
from .config import RunConfig
from .run_folder import ADVICE, RunFolder

MOST_WEIGHT = 20.0
"""Largest weight of the positive bags of a rare finding."""


def targets_of(table: LabelTable) -> dict[str, Target]:
    """Return the target of every labelled bag."""
    rows, labels = zip(table.bags, table.values, strict=True), table.of_task.labels
    return {bag: labels.model_target(value) for bag, value in rows if value is not None}


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
        weights = ((y == 0).sum(0) / (y == 1).sum(0)).clamp(max=MOST_WEIGHT)
        spec = replace(spec, positive_weights=tuple(weights.tolist()))
    return spec


def stack_targets(targets: Mapping[str, Target], names: Sequence[str]) -> Tensor:
    """Return the targets of some bags: (bags,) int64 or float64, or (bags, targets) float64."""
    y = torch.tensor([targets[name] for name in names])
    return y.double() if y.is_floating_point() else y


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
    training, task, prevalence = config.training, table.of_task, config.training.prevalence
    classes, sampled = task.unordered_classes, training.sampling == "balanced"
    if training.threshold != "f1":
        choose_threshold(np.array([True, False]), np.array([0.9, 0.1]), rule=training.threshold)
    deals_events = not classes and config.data.likelihood.survival == "cox"
    unsuitable = {
        f"threshold {training.threshold!r} is for two classes": (
            training.threshold != "f1" and not task.two_classes
        ),
        "sampling: balanced is for classes": sampled and not classes,
        "prevalence is for classes": prevalence is not None and not classes,
        "balanced weights the loss of classes": (
            training.balanced and not (classes or task.has_findings)
        ),
        "temperature_scaling scales the probabilities of classes": (
            training.temperature_scaling and not classes
        ),
        "max_instances closes batches early, but Cox's loss needs events in each": (
            training.max_instances is not None and deals_events
        ),
        "members above 1 average predictions, but quantiles cannot be averaged": (
            training.members > 1 and task.averages is None
        ),
    }
    for problem, applies in unsuitable.items():
        if applies:
            raise InputError(f"{problem}, and the task is {task.name}: leave it out")
    if sampled and training.balanced:
        raise InputError(
            "balanced weights the classes in the loss and sampling: balanced draws them equally "
            "often: choose one of them"
        )
    if sampled and look_up(config.model).model.fits_directly:
        raise InputError(
            f"sampling: balanced draws bags for gradient steps, but {config.model} is fitted in "
            "one go: leave it out"
        )
    shares, count = prevalence, max(2, len(table.classes))
    if shares is None:
        return
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
        values = [ratios[1] - ratios[0]] if one_logit else ratios
        return torch.tensor(values, dtype=torch.float64)

    def sentence(self) -> str:
        """Return what a report says of it."""
        if self.predicted is None:
            return "probabilities are those of equally frequent classes, as in the training loss"
        before, after = (
            ", ".join(f"{p:.3g}" for p in shares) for shares in (self.effective, self.predicted)
        )
        return f"probabilities are moved from the class shares {before} of the loss to {after}"


def class_prior(config: RunConfig, table: LabelTable, split: Split) -> ClassPrior | None:
    """Return the prior of a run whose loss treats all classes alike, or with a `prevalence`.

    It is None for other runs, and if a class has no training bag.
    """
    training, given = config.training, config.training.prevalence
    if not table.of_task.unordered_classes:
        return None
    count = max(2, len(table.classes))
    y = targets_of(table)
    counts = [sum(y[name] == c for name in split.train) for c in range(count)]
    if 0 in counts:
        return None
    shares = [n / len(split.train) for n in counts]
    alike = training.balanced or training.sampling == "balanced"
    effective = [1 / count] * count if alike else shares
    if given is None and effective == shares:
        return None
    wanted = list(given) if given is not None else shares if training.prior_correction else None
    return ClassPrior(training=shares, effective=effective, predicted=wanted)


def stored_prior(run: RunFolder) -> ClassPrior | None:
    """Return the prior of a run folder; None if it has none."""
    if not run.prior_file.is_file():
        return None
    return read_record(ClassPrior, run.prior_file, advice=ADVICE)
