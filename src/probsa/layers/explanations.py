"""What each instance adds to the logits of attention pooling, and the bag's probability without it.

With ℓ_sc = Σ_n a_sn v_nc + b_c, the weights of the other instances without n are a_sm / (1 − a_sn),
so removing n from the pooling gives (ℓ_sc − b_c − a_sn v_nc) / (1 − a_sn) + b_c: O(N) for all n.
The cancellation in 1 − a_sn is harmless unless a_sn is near 1; only the largest weight of a sample
can exceed 1/2, and that one is computed from the weights of the others.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ..variational import Categorical, Likelihood
from .deletion import new_record
from .pooling import Scores, Values

LARGEST = 0.5
"""Weight above which the removal of an instance is computed from the other weights."""
VANISHING = 1e-20
"""Sum of the other weights below which they may have underflowed."""


class BagExplainer:
    """Sums over the posterior samples of one bag, block by block.

    Args:
        bias: b_c, the logit of an empty bag.
        likelihood: Turns logits with the bias into probabilities.
    """

    def __init__(self, *, bias: Float[Tensor, " classes"], likelihood: Likelihood) -> None:
        self.bias, self.likelihood, self.samples = bias, likelihood, 0
        self._contributed = self._lost = bias.new_zeros(())
        self._record = new_record(bias=bias, likelihood=likelihood)

    def add(
        self,
        scores: Scores,
        values: Values,
        *,
        weights: Scores | None = None,
        offset: Float[Tensor, "s classes"] | None = None,
    ) -> None:
        """Add a block of samples.

        Args:
            scores: The logits of the weights, with or without an attention of its own per class.
            values: What the weights average, without the bias.
            weights: softmax(scores) over the instances, if it is known already.
            offset: What each sample adds to the logits, with any instance or without.
        """
        if self._record is not None:
            self._record.add(scores, values)
        a = scores.softmax(-1) if weights is None else weights
        v = values if values.ndim == 3 else values[:, None]
        part = a * v
        self._contributed = self._contributed + part.sum(1)
        whole = part.sum(-1)
        rest = part.sub_(whole[..., None]).div_(a - 1)
        self._mend_largest(rest, scores, a, v)
        base = self.bias[:, None] if offset is None else self.bias[:, None] + offset.T
        lost = _total_probability(self.likelihood, whole + base)[:, None]
        lost = lost - _total_probability(self.likelihood, rest.add_(base[..., None]))
        self._lost = self._lost + lost
        self.samples += a.shape[-2]

    @property
    def contributions(self) -> Float[Tensor, "n classes"]:
        """E[a_n v_nc]: they sum over the bag to the mean logit without its bias."""
        return self._contributed.T / self.samples

    @property
    def leave_one_out(self) -> Float[Tensor, "n classes"]:
        """p(Y = c) minus the probability without instance n."""
        return self._lost.T / self.samples

    @staticmethod
    def _mend_largest(
        rest: Float[Tensor, "classes s n"],
        scores: Scores,
        a: Scores,
        v: Float[Tensor, "classes _ n"],
    ) -> None:
        """Compute the logit without an instance of most weight from the weights of the others."""
        at = (a.amax(-1) > LARGEST).nonzero()
        if not len(at):
            return
        if a.shape[-1] == 1:  # an empty bag has the logit of the bias
            rest.zero_()
            return
        top = a[at.unbind(1)].argmax(1, keepdim=True)
        others = a[at.unbind(1)].scatter(1, top, 0.0)
        totals = others.sum(1)
        # the others' weights may underflow: then only their logits still tell them apart
        lost = totals < VANISHING
        again = scores[at[lost].unbind(1)].scatter(1, top[lost], -torch.inf)
        others = (others / totals[:, None]).index_put((lost,), again.softmax(1))
        sample = at[:, -1]
        for c in [at[:, 0]] if a.ndim == 3 else torch.arange(len(rest)).split(1):
            values = v[c, sample if v.shape[1] > 1 else 0]
            rest[c, sample, top[:, 0]] = (others * values).sum(1)


def _total_probability(
    likelihood: Likelihood, logits: Float[Tensor, "classes s *n"]
) -> Float[Tensor, "classes *n"]:
    """Return the sum over samples of p(Y = c).

    The classes stay first: a softmax over the last axis would cost twenty times as much.
    """
    if not isinstance(likelihood, Categorical):
        return likelihood.probability(logits.movedim(0, -1)).movedim(-1, 0).sum(1)
    if likelihood.prior_shift is not None:
        shift = likelihood.prior_shift.to(logits)
        logits = logits + shift.view(-1, *[1] * (logits.ndim - 1))
    if len(logits) == 2:
        second = (logits[1] - logits[0]).sigmoid_().sum(0)
        return torch.stack([logits.shape[1] - second, second])
    return logits.softmax(0).sum(1)
