"""Stage 8: classes of unequal frequency: weights, balanced sampling, and the prior they imply.

Both make a model predict for a world in which all classes are equally frequent; predictions are
moved back to the training shares, or to those of deployment.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import read_record, write_json
from ..datasets import LabelTable, Split, balanced_epoch, deal_events
from ..errors import InputError
from ..models import fixed
from .config import RunConfig
from .run_folder import RunFolder
from .targets import targets_of


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

    Raises:
        InputError: weights and balanced sampling are both asked for, the task has no classes, or
            the prevalence does not give a share above 0 to each class.
    """
    training = config.training
    sampled, given = training.sampling == "balanced", training.prevalence
    if sampled and training.balanced:
        raise InputError(
            "balanced weights the classes in the loss and sampling: balanced draws them equally "
            "often: choose one of them"
        )
    if sampled and fixed(config.model)[0].fits_directly:
        raise InputError(
            f"sampling: balanced draws bags for gradient steps, but {config.model} is fitted in "
            "one go: leave it out"
        )
    if not table.of_task.unordered_classes:
        if sampled or given is not None:
            key = "sampling: balanced" if sampled else "prevalence"
            raise InputError(f"{key} is for classes, but the task is {table.task}: leave it out")
        return None
    count = max(2, len(table.classes))
    if given is not None and (len(given) != count or min(given) <= 0 or abs(sum(given) - 1) > 1e-6):
        raise InputError(
            f"prevalence is {list(given)}: expected {count} shares above 0 that add up to 1"
        )
    y = targets_of(table)
    counts = [sum(y[name] == c for name in split.train) for c in range(count)]
    if 0 in counts:
        return None
    shares = [n / len(split.train) for n in counts]
    effective = [1 / count] * count if sampled or training.balanced else shares
    if given is None and effective == shares:
        return None
    wanted = list(given) if given is not None else shares if training.prior_correction else None
    return ClassPrior(training=shares, effective=effective, predicted=wanted)


def stored_prior(run: RunFolder) -> ClassPrior | None:
    """Return the prior of a run folder; None if it has none.

    Raises:
        InputError: its file is damaged.
    """
    if not run.prior_file.is_file():
        return None
    return read_record(ClassPrior, run.prior_file, advice="copy the run again, or train it again")


def store_prior(run: RunFolder, prior: ClassPrior | None) -> None:
    """Write the prior of a run into its folder, if it has one."""
    if prior is not None:
        write_json(run.prior_file, {name: getattr(prior, name) for name in ClassPrior.__slots__})


def epoch_order(
    config: RunConfig, table: LabelTable, train: Sequence[str], *, epoch: int
) -> list[str] | None:
    """Return the bags of an epoch in their order for balanced sampling; None for shuffled bags."""
    if config.training.sampling != "balanced":
        return None
    y = targets_of(table)
    labels = [value for name in train if isinstance(value := y[name], int)]
    drawn = balanced_epoch(labels, seed=config.order_seed, epoch=epoch)
    return [train[k] for k in drawn]


def dealt_batches(
    config: RunConfig, table: LabelTable, train: Sequence[str], *, epoch: int
) -> list[tuple[str, ...]]:
    """Return the batches of an epoch for a loss that compares bags: events are spread over them.

    Raises:
        InputError: the batches are too small, or there are too few events.
    """
    y = targets_of(table)
    events = [int(value[1]) for name in train if isinstance(value := y[name], tuple)]
    batches = deal_events(
        events, batch_size=config.training.batch_size, seed=config.order_seed, epoch=epoch
    )
    return [tuple(train[k] for k in batch) for batch in batches]
