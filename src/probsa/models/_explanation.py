"""Explanations of a bag's prediction by its instances, in closed form for attention pooling."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import without_autocast
from ..layers import BagExplainer
from ..variational import Categorical, Findings, Likelihood, Posterior

REACH = 8.0
"""Largest node of the trapezoidal rule, in standard deviations."""
STEP = 0.125
"""Distance between its nodes."""
POINTS = 255
"""Points of the Sobol sequence for several columns of f."""


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
    """E_q[p(Y = c)] of a bag that consists of the instance alone, for models whose score is
    evidence; of grades, P(Y ≥ 1). See `predicted_alone`."""
    positive_mass: Float[Tensor, "n classes"] | None = None
    """P(f_n > 0), the posterior mass above 0, for models whose score is evidence (`score_kind`)."""
    at_least: Float[Tensor, "n steps"] | None = None
    """P(Y ≥ k), k = 1 … K, of a bag that consists of the instance alone, for grades. Where
    instances read each other, it keeps what it has read. None for a model with covariates."""


def explain(scores: Float[Tensor, "n classes"], explainers: Sequence[BagExplainer]) -> Explanation:
    """Return the explanation of a batch of bags whose samples have been added."""
    likelihood = explainers[0].likelihood
    bias = explainers[0].bias
    return Explanation(
        scores=scores,
        contributions=torch.cat([explainer.contributions for explainer in explainers]),
        leave_one_out=torch.cat([explainer.leave_one_out for explainer in explainers]),
        at_least=likelihood.at_least(scores + bias),
    )


def predicted_alone(
    q: Posterior,
    likelihood: Likelihood,
    *,
    alpha: Float[Tensor, " classes"],
    bias: Float[Tensor, "*n classes"],
) -> tuple[Float[Tensor, "n columns"] | None, Float[Tensor, "n steps"] | None]:
    """Return what is predicted of a bag that consists of each instance alone.

    Its logit is α f_n + b. The expectation over q(f_n) is a trapezoidal rule where each probability
    depends on one column of f, and else a mean over points of a Sobol sequence.

    Args:
        q: Posterior of the evidence f, (n,) or (n, classes).
        likelihood: Turns logits into probabilities.
        alpha: The scale of the logits.
        bias: The logit of an instance without evidence, one for all instances or one for each.

    Returns:
        The probability of each class (that of class 1 for one logit; of grades, P(Y ≥ 1)), and for
        grades P(Y ≥ k), k = 1 … K. None for targets that are neither classes, findings nor grades.
    """
    mean = q.mean.view(len(q.mean), -1)
    deviation = q.variance.view_as(mean).sqrt()
    has_grades = likelihood.at_least(mean[:1]) is not None
    if not (has_grades or likelihood.of_classes or isinstance(likelihood, Findings)):
        return None, None
    # a softmax depends on all columns of f, the other probabilities on one each
    columns = mean.shape[1] if isinstance(likelihood, Categorical) else 1
    nodes, weights = normal_points(columns)
    probability = likelihood.at_least if has_grades else likelihood.probability
    total: Tensor | None = None
    for node, weight in zip(nodes.to(mean), weights.tolist(), strict=True):
        p = probability(alpha * (mean + node * deviation) + bias)
        assert p is not None
        total = weight * p if total is None else total + weight * p
    assert total is not None
    if has_grades:
        return total[:, :1], total
    return total, None


@cache
def normal_points(columns: int) -> tuple[Float[Tensor, "points columns"], Float[Tensor, " points"]]:
    """Return points and weights whose weighted sums are expectations of standard normals.

    Several columns are independent.
    """
    if columns == 1:
        # the error of this rule for analytic functions falls exponentially with 1 / step: it is
        # below 2 · 10⁻⁴ for the sigmoid of a normal with a deviation of 10
        z = torch.arange(-REACH, REACH + STEP, STEP, dtype=torch.float64)
        density = torch.exp(-z.square() / 2)
        return z[:, None], density / density.sum()
    # the first point of a Sobol sequence is 0, whose normal quantile is infinite
    uniform = torch.quasirandom.SobolEngine(columns).draw(POINTS + 1, dtype=torch.float64)[1:]
    return torch.special.ndtri(uniform), torch.full((POINTS,), 1 / POINTS, dtype=torch.float64)


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
    with without_autocast(g):  # the sums need full precision
        for f_bag, g_bag in zip(f.split(list(sizes), -1), g.split(list(sizes)), strict=True):
            explainer = BagExplainer(bias=bias.detach().to(g.dtype), likelihood=likelihood)
            explainer.add(f_bag, g_bag.T)
            explainers.append(explainer)
        return explain(g, explainers)
