"""Which likelihood a target has: fitted on the training bags, and built from its specification."""

from torch import Tensor

from ...core import TaskName
from ...errors import InputError
from ..options import LikelihoodOptions
from .classes import CumulativeLink, Findings, Likelihood, LikelihoodSpec
from .gaussian import Gaussian
from .survival import Cox, Hazards

FittedLikelihood = CumulativeLink | Findings | Gaussian | Hazards | Cox
LIKELIHOODS: dict[str, type[FittedLikelihood]] = {
    **{cls.task: cls for cls in (CumulativeLink, Findings, Gaussian)},
    "hazards": Hazards,
    "cox": Cox,
}
"""By task; those of survival times by `LikelihoodSpec.kind`."""


def build_likelihood(spec: LikelihoodSpec) -> Likelihood:
    """Return the likelihood of a specification."""
    return _likelihood(spec.task, spec.kind)(spec)


def logits_of(spec: LikelihoodSpec) -> int:
    """Return how many logits a model must give for a likelihood."""
    return _likelihood(spec.task, spec.kind).n_logits(spec)


def fit_spec(
    task: TaskName,
    y: Tensor,
    *,
    n_classes: int,
    options: LikelihoodOptions,
    one_logit: bool = False,
) -> LikelihoodSpec:
    """Return the likelihood of a task, with the constants that follow from training targets.

    Args:
        task: the task, other than classes.
        y: targets of the training bags: (bags,) grades, (bags, findings) with NaN where unknown,
            (bags,) numbers in the user's unit, or (bags, 2) times and events.
        n_classes: number of grades or findings.
        options: the options of the run.
        one_logit: whether the model gives one logit where several could be used.

    Raises:
        InputError: the training bags do not determine the likelihood, or an option does not fit.
    """
    spec = LikelihoodSpec(task=task, n_classes=n_classes, one_logit=one_logit)
    return _likelihood(task, options.survival).fit(spec, y, options)


def _likelihood(task: TaskName, kind: str) -> type[FittedLikelihood]:
    key = kind if task == Hazards.task else task
    if key not in LIKELIHOODS:
        raise InputError(
            f"the likelihood states the task {task} and the kind {kind!r}; expected one of "
            f"{', '.join(LIKELIHOODS)}"
        )
    return LIKELIHOODS[key]
