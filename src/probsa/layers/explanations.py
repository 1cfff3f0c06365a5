"""What each instance adds to the logits of attention pooling, and the bag without some instances.

With ℓ_sc = Σ_n a_sn v_nc + b_c, the weights of the other instances without n are a_sm / (1 − a_sn),
so removing n from the pooling gives (ℓ_sc − b_c − a_sn v_nc) / (1 − a_sn) + b_c: O(N) for all n.
f and v keep their values: where instances read each other, the removal is from the pooling alone.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ..core import is_on_cpu
from ..errors import InputError
from ..variational import Categorical, Likelihood
from .pooling import Scores, Values, Weights

LARGEST = 0.5
"""Weight above which the removal of an instance is computed from the other weights."""
VANISHING = 1e-20
"""Sum of the other weights, in float32, below which they may have underflowed."""
VANISHING_DOUBLE = 1e-250
"""The same of the kept weights, in float64."""


class PoolingRecord:
    """The first posterior samples of one bag's pooling.

    Args:
        bias: b_c, the logit of an empty bag.
        likelihood: Turns logits with the bias into probabilities.
        samples: Largest number of samples that are kept; further ones are passed over.
    """

    def __init__(
        self, *, bias: Float[Tensor, " classes"], likelihood: Likelihood, samples: int
    ) -> None:
        self.bias = bias
        self.likelihood = likelihood
        self.most = samples
        self.count = 0
        self._scores: list[Tensor] = []
        self._values: list[Tensor] = []

    def add(self, scores: Scores, values: Values) -> None:
        """Add a block of samples, with the arguments of `BagExplainer.add`."""
        count = min(scores.shape[-2], self.most - self.count)
        if count == 0:
            return
        self.count += count
        block = scores if scores.ndim == 3 else scores[None]
        self._scores.append(block[:, :count].double())
        if values.ndim == 3:
            self._values.append(values[:, :count].double())
        elif not self._values:  # the same values for all samples
            self._values.append(values[:, None].double())

    def after_removal(
        self, orders: Int[Tensor, "orders n"], counts: Sequence[int]
    ) -> Float[Tensor, "2 orders steps classes"]:
        """Return p(Y = c), averaged over the samples, without the first instances of each order.

        The second half is without the last instances of each order. Instances that are removed in
        the same step are summed once, so the steps of an order cost O(N·S). Sums are in float64 and
        over kept instances only, so that nothing cancels.

        Args:
            orders: Each row holds all instances once.
            counts: How many are removed at each step, ascending from 0 to n; without any instance,
                the logits are the bias.

        Raises:
            InputError: The counts do not ascend, or lie outside 0 to n.
        """
        f_csn = torch.cat(self._scores, 1)
        v_csn = torch.cat(self._values, 1)
        n = f_csn.shape[2]
        steps = [*counts]
        bias = self.bias.double()[:, None]
        if steps != sorted(steps) or not steps or steps[0] < 0 or steps[-1] > n:
            raise InputError(f"counts are {steps}: expected ascending numbers from 0 to {n}")
        e_cns = (f_csn - f_csn.amax(2, keepdim=True)).exp_().transpose(1, 2).contiguous()
        ev_cns = e_cns * v_csn.transpose(1, 2)
        # instances between two bounds of an order are removed together, from either end
        bounds = sorted({0, n, *steps, *(n - count for count in steps)})
        first = [bounds.index(count) for count in steps]
        last = [bounds.index(n - count) for count in steps]
        lengths = torch.tensor(bounds, device=orders.device).diff()
        places = torch.arange(len(lengths), device=orders.device).repeat_interleave(lengths)
        after = []
        for order in orders:
            group = torch.empty_like(order)
            group[order] = places
            totals: list[list[Tensor]] = [[], []]  # after each bound, and before it
            for v in (e_cns, ev_cns):
                sums = v.new_zeros(len(v), len(lengths), v.shape[2]).index_add_(1, group, v)
                behind = F.pad(sums.flip(1).cumsum(1), (0, 0, 1, 0)).flip(1)
                totals[0].append(behind[:, first])
                totals[1].append(F.pad(sums.cumsum(1), (0, 0, 1, 0))[:, last])
            for end, (weights, values) in enumerate(totals):
                logits = values / weights.clamp_min(VANISHING_DOUBLE) + bias[:, None]
                underflowed = (weights < VANISHING_DOUBLE).any(2).any(0)
                for k in underflowed.nonzero().flatten().tolist():
                    # from the softmax of the instances that are left
                    rest = order[: n - steps[k]] if end else order[steps[k] :]
                    a = f_csn[:, :, rest].softmax(2)
                    logits[:, k] = (a * v_csn[:, :, rest]).sum(2) + bias
                after.append(self.likelihood.probability(logits.movedim(0, -1)).mean(1))
        return torch.stack(after).unflatten(0, (-1, 2)).transpose(0, 1)


_recording: ContextVar[tuple[int, list[PoolingRecord]] | None] = ContextVar(
    "recording", default=None
)


@contextmanager
def recorded_pooling(*, samples: int) -> Iterator[list[PoolingRecord]]:
    """Record the pooling of every bag that is explained meanwhile, in the order of the bags.

    Models whose explanation has a closed form are recorded, also those of other classes.
    """
    records: list[PoolingRecord] = []
    token = _recording.set((samples, records))
    try:
        yield records
    finally:
        _recording.reset(token)


class BagExplainer:
    """Sums over the posterior samples of one bag, block by block.

    Args:
        bias: b_c, the logit of an empty bag.
        likelihood: Turns logits with the bias into probabilities.
    """

    def __init__(self, *, bias: Float[Tensor, " classes"], likelihood: Likelihood) -> None:
        self.bias = bias
        self.likelihood = likelihood
        self.samples = 0
        self._contributed = bias.new_zeros(())
        self._lost = bias.new_zeros(())
        self._record: PoolingRecord | None = None
        recording = _recording.get()
        if recording is not None:
            samples, records = recording
            self._record = PoolingRecord(bias=bias, likelihood=likelihood, samples=samples)
            records.append(self._record)

    def add(
        self,
        scores: Scores,
        values: Values,
        *,
        weights: Weights | None = None,
    ) -> None:
        """Add a block of samples.

        Args:
            scores: The logits of the weights, with or without an attention of its own per class.
            values: What the weights average, without the bias.
            weights: softmax(scores) over the instances, if it is known already.
        """
        if self._record is not None:
            self._record.add(scores, values)
        a = scores.softmax(-1) if weights is None else weights
        v = values if values.ndim == 3 else values[:, None]
        part = a * v
        self._contributed = self._contributed + part.sum(1)
        whole = part.sum(-1)
        # (ℓ − b − a_n v_n) / (1 − a_n), in place; both signs are changed
        rest = part.sub_(whole[..., None]).div_(a - 1)
        self._mend_largest(rest, scores, a, v)
        bias = self.bias[:, None]
        p_whole = _total_probability(self.likelihood, whole + bias)[:, None]
        p_rest = _total_probability(self.likelihood, rest.add_(bias[..., None]))
        self._lost = self._lost + (p_whole - p_rest)
        self.samples += a.shape[-2]

    @property
    def contributions(self) -> Float[Tensor, "n classes"]:
        """E[a_n v_nc]: they sum over the bag to the mean logit without its bias."""
        return self._contributed.T / self.samples

    @property
    def leave_one_out(self) -> Float[Tensor, "n classes"]:
        """p(Y = c) minus the probability without instance n."""
        return self._lost.T / self.samples

    def _mend_largest(
        self,
        rest: Float[Tensor, "classes s n"],
        scores: Scores,
        a: Weights,
        v: Float[Tensor, "classes _ n"],
    ) -> None:
        """Compute the logit without an instance of most weight from the weights of the others."""
        if a.shape[-1] == 1:  # an empty bag has the logit of the bias
            rest.zero_()
            return
        if not is_on_cpu(a):
            _mend_tops(rest, scores, a, v)
            return
        at = (a.amax(-1) > LARGEST).nonzero()
        if not len(at):
            return
        top = a[at.unbind(1)].argmax(1, keepdim=True)
        others = a[at.unbind(1)].scatter(1, top, 0.0)
        totals = others.sum(1)
        # the others' weights may underflow: then only their logits still tell them apart
        underflowed = totals < VANISHING
        logits = scores[at[underflowed].unbind(1)].scatter(1, top[underflowed], -torch.inf)
        others = (others / totals[:, None]).index_put((underflowed,), logits.softmax(1))
        sample = at[:, -1]
        for c in [at[:, 0]] if a.ndim == 3 else torch.arange(len(rest)).split(1):
            values = v[c, sample if v.shape[1] > 1 else 0]
            rest[c, sample, top[:, 0]] = (others * values).sum(1)


def _mend_tops(
    rest: Float[Tensor, "classes s n"],
    scores: Scores,
    a: Weights,
    v: Float[Tensor, "classes _ n"],
) -> None:
    """Do the same for the instance of most weight of every sample, without asking which need it."""
    weight, top = a.max(-1, keepdim=True)
    others = scores.scatter(-1, top, -torch.inf).softmax(-1)
    logit = (others * v).sum(-1, keepdim=True)
    places = top.expand_as(logit)
    mended = torch.where(weight > LARGEST, logit, rest.gather(-1, places))
    rest.scatter_(-1, places, mended)


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
