"""Stage 8: what the bags of a run are trained on, and the likelihood that follows from it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..datasets import LabelTable, Split, check_training_part
from ..errors import InputError
from ..models import check_task, fixed
from ..statistics import choose_threshold
from ..tasks import Target
from ..variational import LikelihoodSpec, fit_spec
from .config import RunConfig

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
            bags do not determine the likelihood.
        TableError: training has a single class, or lacks a class, finding or event of other parts.
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
        one_logit=fixed(config.model)[0].one_field,
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

    Args:
        table: the targets.
        train: the training bags.
    """
    names = [bag for bag, value in zip(table.bags, table.values, strict=True) if value is not None]
    classes = table.of_task.labels.as_two_classes(table.y(names), table.y(train))
    return dict(zip(names, classes.tolist(), strict=True))


def _check_options(config: RunConfig, table: LabelTable) -> None:
    training, task = config.training, table.of_task
    if training.threshold != "f1":
        choose_threshold(np.array([True, False]), np.array([0.9, 0.1]), rule=training.threshold)
        if not task.two_classes:
            raise InputError(
                f"threshold is {training.threshold!r}, which is for two classes, but the task is "
                f"{task.name}: leave it out"
            )
    if task.unordered_classes:
        return
    problem = ""
    if training.balanced and not task.has_findings:
        problem = "balanced weights the loss of classes"
    elif training.temperature_scaling:
        problem = "temperature_scaling scales the probabilities of classes"
    elif config.data.likelihood.survival == "cox" and training.max_instances is not None:
        problem = "max_instances closes batches early, but Cox's loss needs events in each"
    elif task.averages is None and training.members > 1:
        problem = "members above 1 average predictions, but quantiles cannot be averaged"
    if problem:
        raise InputError(f"{problem}, and the task is {task.name}: leave it out")
