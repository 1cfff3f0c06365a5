"""Move predicted probabilities from the shares of the training loss to those that a run states."""

import torch

from ..training import RunFolder, stored_prior
from ..variational import Bernoulli, Categorical, Findings, Likelihood


def move_prior(likelihood: Likelihood, run: RunFolder) -> dict[str, str]:
    """Set the shift of a trained likelihood, and return what the metadata state of it.

    Args:
        likelihood: that of the run's model, or of one of its members.
        run: the folder of the run.

    Returns:
        A sentence under `prior`; empty if nothing is said of the shares of classes.
    """
    prior = stored_prior(run)
    if prior is not None:
        if not isinstance(likelihood, Bernoulli | Categorical):
            return {"prior": "probabilities stay as the loss, no likelihood of classes, left them"}
        likelihood.prior_shift = prior.shift(one_logit=isinstance(likelihood, Bernoulli))
        return {"prior": prior.sentence()}
    if not isinstance(likelihood, Findings) or likelihood.positive_weights is None:
        return {}
    if not run.config().training.prior_correction:
        return {"prior": "the probabilities of rare findings are those of their weighted loss"}
    likelihood.prior_shift = -torch.log(likelihood.positive_weights)
    return {"prior": "the probabilities of weighted findings are moved back to training shares"}
