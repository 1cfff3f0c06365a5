"""Explanations of a bag's prediction by its instances, in closed form for attention pooling."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from ..layers import BagExplainer, PooledExplanation, explain_samples, joined
from ..variational import Likelihood, PooledBags


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


class Explainer:
    """Explains the pooling of a batch of bags, while or after their samples are drawn.

    Args:
        g: g_n of all instances.
        sizes: Number of instances of each bag.
        bias: The bias of the logits, one per class.
        likelihood: Turns logits into probabilities.
    """

    def __init__(
        self,
        g: Float[Tensor, "n classes"],
        sizes: Sequence[int],
        *,
        bias: Float[Tensor, " classes"],
        likelihood: Likelihood,
    ) -> None:
        self.g, self.sizes, self.likelihood = g, sizes, likelihood
        self.bias = bias.detach().to(g.dtype)
        self._values = [part.T.contiguous() for part in g.split(list(sizes))]
        self._bags: list[BagExplainer] = []

    def watch(
        self, bag: int, f_sn: Tensor, a_sn: Tensor, offset: Float[Tensor, "s classes"] | None = None
    ) -> None:
        """Add a block of samples f and their weights; bags come in order.

        The arguments are those of `BagExplainer.add`.
        """
        if bag == len(self._bags):
            n = self.sizes[bag]
            self._bags.append(BagExplainer(n, bias=self.bias, likelihood=self.likelihood))
        self._bags[bag].add(f_sn, a_sn, self._values[bag], offset=offset)

    def of_points(self, pooled: PooledBags) -> Explanation:
        """Return the explanation of bags at the points that they were pooled at."""
        for bag in range(len(self.sizes)):
            for block in pooled.blocks(bag):
                self.watch(bag, block.scores, block.scores.softmax(1), block.offset)
        return self.result()

    def result(self) -> Explanation:
        """Return the explanation of all bags whose blocks were added."""
        return self._from(joined([bag.result() for bag in self._bags]))

    def of_samples(self, f: Float[Tensor, "n samples *classes"]) -> Explanation:
        """Return the explanation given all samples of the attention logits."""
        return self._from(
            explain_samples(f, self.g, self.sizes, bias=self.bias, likelihood=self.likelihood)
        )

    def _from(self, pooled: PooledExplanation) -> Explanation:
        return Explanation(
            scores=self.g,
            contributions=pooled.contributions,
            leave_one_out=pooled.leave_one_out,
            at_least=self.likelihood.at_least(self.g + self.bias),
        )
