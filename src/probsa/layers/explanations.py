"""What each instance adds to the logits of attention pooling, and the bag's probability without it.

With ℓ_sc = Σ_n a_sn v_nc + b_c, the weights of the other instances without n are a_sm / (1 − a_sn),
so removing n from the pooling gives (ℓ_sc − b_c − a_sn v_nc) / (1 − a_sn) + b_c: O(N) for all n.
The cancellation in 1 − a_sn is harmless unless a_sn is near 1; only the largest weight of a sample
can exceed 1/2, and that one is computed from the weights of the others.
Shapes: n instances, s samples of a block, classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..variational import BLOCK, Categorical, Likelihood
from .deletion import new_record

LARGEST = 0.5
"""Weight above which the removal of an instance is computed from the other weights."""
VANISHING = 1e-20
"""Sum of the other weights below which they may have underflowed."""


@dataclass(frozen=True, slots=True)
class PooledExplanation:
    """Means over posterior samples for each instance and class."""

    contributions: Float[Tensor, "n classes"]
    """E[a_n v_nc]: they sum over the bag to the mean logit without its bias."""
    leave_one_out: Float[Tensor, "n classes"]
    """p(Y = c) minus the probability without instance n."""


class BagExplainer:
    """Sums over the posterior samples of one bag, block by block.

    Args:
        n: Number of instances.
        bias: b_c, the logit of an empty bag.
        likelihood: Turns logits with the bias into probabilities.
    """

    def __init__(self, n: int, *, bias: Float[Tensor, " classes"], likelihood: Likelihood) -> None:
        self.bias, self.likelihood, self.samples = bias, likelihood, 0
        self.contributed = bias.new_zeros(len(bias), n)
        self.lost = torch.zeros_like(self.contributed)
        self._memory: list[Tensor] = []
        self._record = new_record(bias=bias, likelihood=likelihood)

    def add(
        self,
        scores: Float[Tensor, "*classes s n"],
        weights: Float[Tensor, "*classes s n"],
        values: Float[Tensor, "classes n"] | Float[Tensor, "classes s n"],
        *,
        offset: Float[Tensor, "s classes"] | None = None,
    ) -> None:
        """Add a block of samples.

        Args:
            scores: The logits of the weights, with or without an attention of its own per class.
            weights: softmax(scores) over the instances.
            values: v_nc, which the weights average, without the bias: one per instance, or one
                per sample and instance.
            offset: What each sample adds to the logits, with any instance or without.
        """
        s, n = weights.shape[-2:]
        classes = len(self.bias)
        if self._record is not None:
            self._record.add(scores, values)
        if not self._memory or self._memory[0].shape[1] < s:
            self._memory = [weights.new_empty(classes, s, n), weights.new_empty(s, n)]
        rest_csn, room_sn = self._memory[0][:, :s], self._memory[1][:s]
        whole_cs = weights.new_empty(classes, s)
        largest = [_largest(a_sn) for a_sn in weights.view(-1, s, n)]
        for c in range(classes):
            f_sn, a_sn = (v if v.ndim == 2 else v[c] for v in (scores, weights))
            if values.ndim == 2:
                self.contributed[c] += a_sn.sum(0).mul_(values[c])
                v = values[c] + self.bias[c]  # Σ_n a_n = 1, so the bias can be part of the values
                whole_cs[c] = a_sn @ v
            else:
                product = a_sn * values[c]
                self.contributed[c] += product.sum(0)
                v = values[c] + self.bias[c]
                whole_cs[c] = product.sum(1) + self.bias[c]
            torch.addcmul(-whole_cs[c][:, None], a_sn, v, out=rest_csn[c])
            if c == 0 or weights.ndim == 3:
                torch.sub(a_sn, 1, out=room_sn)
            rest_csn[c].div_(room_sn)
            rows, columns = largest[c if weights.ndim == 3 else 0]
            if len(rows):
                rest_csn[c, rows, columns] = _without(
                    f_sn, a_sn, v, at=(rows, columns), bias=self.bias[c]
                )
        if offset is not None:
            whole_cs += offset.T
            rest_csn += offset.T[:, :, None]
        self.lost += _total_probability(self.likelihood, whole_cs)[:, None]
        self.lost -= _total_probability(self.likelihood, rest_csn)
        self.samples += s

    def result(self) -> PooledExplanation:
        """Return the means over all samples."""
        return PooledExplanation(self.contributed.T / self.samples, self.lost.T / self.samples)


def explain_samples(
    f: Float[Tensor, "n samples *classes"],
    g: Float[Tensor, "n classes"],
    sizes: Sequence[int],
    *,
    bias: Float[Tensor, " classes"],
    likelihood: Likelihood,
) -> PooledExplanation:
    """Explain the pooling of class scores g by samples f that are already drawn.

    Args:
        f: Attention logits; with a column per class, each class has its own attention.
        g: uᵀh_n for each instance and class.
        sizes: Number of instances of each bag.
        bias: The bias of the logits.
        likelihood: Turns logits into probabilities.
    """
    with torch.autocast(g.device.type, enabled=False):  # the sums need full precision
        return _explain_each(f, g, sizes, bias=bias, likelihood=likelihood)


def _explain_each(
    f: Tensor, g: Tensor, sizes: Sequence[int], *, bias: Tensor, likelihood: Likelihood
) -> PooledExplanation:
    parts = []
    for f_bag, g_bag in zip(f.split(list(sizes)), g.split(list(sizes)), strict=True):
        explainer = BagExplainer(len(g_bag), bias=bias, likelihood=likelihood)
        values = g_bag.T.contiguous()
        for block in f_bag.split(max(1, BLOCK // len(g_bag)), 1):
            f_sn = (block.T if block.ndim == 2 else block.permute(2, 1, 0)).contiguous()
            explainer.add(f_sn, f_sn.softmax(-1), values)
        parts.append(explainer.result())
    return joined(parts)


def joined(parts: Sequence[PooledExplanation]) -> PooledExplanation:
    """Concatenate the explanations of several bags."""
    return PooledExplanation(
        torch.cat([p.contributions for p in parts]), torch.cat([p.leave_one_out for p in parts])
    )


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


def _largest(a_sn: Tensor) -> tuple[Tensor, Tensor]:
    """Return the samples with a weight above `LARGEST`, and which instance has it."""
    rows = (a_sn.amax(1) > LARGEST).nonzero().flatten()
    return rows, a_sn[rows].argmax(1) if len(rows) else rows


def _without(
    f_sn: Float[Tensor, "s n"],
    a_sn: Float[Tensor, "s n"],
    v: Tensor,
    *,
    at: tuple[Tensor, Tensor],
    bias: Tensor,
) -> Float[Tensor, " k"]:
    """Return the logit of k samples, each without one instance; an empty bag's is the bias."""
    rows, columns = at
    if f_sn.shape[1] == 1:
        return bias.expand(len(rows))
    others = a_sn[rows].scatter_(1, columns[:, None], 0.0)
    totals = others.sum(1)
    logits = (others @ v if v.ndim == 1 else (others * v[rows]).sum(1)) / totals
    vanished = (totals < VANISHING).nonzero().flatten()
    if len(vanished):  # the others' weights underflow: only their logits still tell them apart
        rows = rows[vanished]
        rest = f_sn[rows].scatter_(1, columns[vanished, None], -torch.inf)
        logits[vanished] = (rest.softmax(1) * (v if v.ndim == 1 else v[rows])).sum(1)
    return logits
