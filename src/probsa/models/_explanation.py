"""Explanations of a bag's prediction by its instances, in closed form for attention pooling."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..layers import BagExplainer
from ..variational import Likelihood


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """What each instance says about each class; one column for a single logit (that of class 1).

    All tensors are means over the posterior samples.
    """

    scores: Float[Tensor, "n classes"]
    """g_n = uᵀh_n, the logit that the classifier without its bias gives the instance alone."""
    contributions: Float[Tensor, "n classes"]
    """E[a_n g_n], signed; they sum over the bag to the mean logit without its bias."""
    leave_one_out: Float[Tensor, "n classes"] | None
    """p(Y = c) minus p(Y = c) without the instance; positive if the instance speaks for c.

    The instance is removed from the pooling: the weights of the others are renormalised, and their
    attention logits and vectors keep their values. Without an encoder this equals the removal from
    the bag; where instances read each other (a transformer, a graph), it is exact at the pooling
    only. Removing the only instance leaves the empty bag, whose logit is the bias. None for a model
    with covariates.
    """
    probability: Float[Tensor, "n classes"] | None = None
    """P(f_n > 0), for models whose score is evidence (`score_kind`)."""
    at_least: Float[Tensor, "n steps"] | None = None
    """P(Y ≥ k), k = 1 … K, of a bag that consists of the instance alone, for grades. Where
    instances read each other, it keeps what it has read. None for a model with covariates."""


def explain(scores: Float[Tensor, "n classes"], explainers: Sequence[BagExplainer]) -> Explanation:
    """Return the explanation of a batch of bags whose samples have been added."""
    likelihood, bias = explainers[0].likelihood, explainers[0].bias
    return Explanation(
        scores=scores,
        contributions=torch.cat([bag.contributions for bag in explainers]),
        leave_one_out=torch.cat([bag.leave_one_out for bag in explainers]),
        at_least=likelihood.at_least(scores + bias),
    )


def explain_pooling(
    f: Float[Tensor, "*classes s n"],
    g: Float[Tensor, "n classes"],
    sizes: Sequence[int],
    *,
    bias: Float[Tensor, " classes"],
    likelihood: Likelihood,
) -> Explanation:
    """Explain the pooling of class scores by attention.

    Args:
        f: Samples of the attention logits; with classes, each has its own attention.
        g: uᵀh_n for each instance and class.
        sizes: Number of instances of each bag.
        bias: The bias of the logits.
        likelihood: Turns logits into probabilities.
    """
    explainers = []
    with torch.autocast(g.device.type, enabled=False):  # the sums need full precision
        for f_bag, g_bag in zip(f.split(list(sizes), -1), g.split(list(sizes)), strict=True):
            bag = BagExplainer(bias=bias.detach().to(g.dtype), likelihood=likelihood)
            bag.add(f_bag, g_bag.T)
            explainers.append(bag)
        return explain(g, explainers)
