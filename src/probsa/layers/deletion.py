"""The probability of a bag after instances are removed from its pooling, for all steps at once.

If the instances K are kept, a sample's logits are Σ_K e_n v_nc / Σ_K e_n + b_c with e_n = exp(f_n).
Instances that are removed in the same step are summed once, so the steps of an order cost O(N·S).
Sums are in float64 and over kept instances only, so that nothing cancels. f and v keep their
values: where instances read each other (a graph, a transformer), the removal is from the pooling.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import InputError
from ..variational import Likelihood

VANISHING = 1e-250
"""Sum of the kept weights below which they may have underflowed."""


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
        self.bias, self.likelihood, self.most = bias, likelihood, samples
        self.count = 0
        self._scores: list[Tensor] = []
        self._values: list[Tensor] = []

    def add(
        self,
        scores: Float[Tensor, "*classes s n"],
        values: Float[Tensor, "classes n"] | Float[Tensor, "classes s n"],
    ) -> None:
        """Add a block of samples, with the arguments of `BagExplainer.add`."""
        taken = min(scores.shape[-2], self.most - self.count)
        if taken == 0:
            return
        self.count += taken
        block = scores if scores.ndim == 3 else scores[None]
        self._scores.append(block[:, :taken].double())
        if values.ndim == 3:
            self._values.append(values[:, :taken].double())
        elif not self._values:
            self._values.append(values[:, None].double())

    def after_removal(
        self, orders: Int[Tensor, "orders n"], counts: Sequence[int]
    ) -> Float[Tensor, "2 orders steps classes"]:
        """Return p(Y = c), averaged over the samples, without the first instances of each order.

        The second half is without the last instances of each order.

        Args:
            orders: Each row holds all instances once.
            counts: How many are removed at each step, ascending from 0 to n; without any instance,
                the logits are the bias.

        Raises:
            InputError: The counts do not ascend, or lie outside 0 to n.
        """
        f_csn, v_csn = torch.cat(self._scores, 1), torch.cat(self._values, 1)
        n, steps = f_csn.shape[2], [*counts]
        if steps != sorted(steps) or not steps or steps[0] < 0 or steps[-1] > n:
            raise InputError(f"counts are {steps}: expected ascending numbers from 0 to {n}")
        e_cns = (f_csn - f_csn.amax(2, keepdim=True)).exp_().transpose(1, 2).contiguous()
        ev_cns = e_cns * v_csn.transpose(1, 2)
        # instances between two bounds of an order are removed together, from either end
        bounds = sorted({0, n, *steps, *(n - count for count in steps)})
        index = {bound: k for k, bound in enumerate(bounds)}
        lengths = torch.tensor(bounds, device=orders.device).diff()
        places = torch.arange(len(lengths), device=orders.device).repeat_interleave(lengths)
        after = []
        for order in orders:
            group = torch.empty_like(order)
            group[order] = places
            sums = [
                v.new_zeros(len(v), len(lengths), v.shape[2]).index_add_(1, group, v)
                for v in (e_cns, ev_cns)
            ]
            first = [index[count] for count in steps]
            last = [index[n - count] for count in steps]
            for from_end, rows in ((False, first), (True, last)):
                kept, values = (_totals(v, before=from_end)[:, rows] for v in sums)
                logits = values / kept.clamp_min(VANISHING) + self.bias.double()[:, None, None]
                for k in (kept < VANISHING).any(2).any(0).nonzero().flatten().tolist():
                    rest = order[: n - steps[k]] if from_end else order[steps[k] :]
                    logits[:, k] = self._exactly(f_csn, v_csn, rest)
                after.append(self.likelihood.probability(logits.movedim(0, -1)).mean(1))
        return torch.stack(after).unflatten(0, (-1, 2)).transpose(0, 1)

    def _exactly(
        self, f_csn: Tensor, v_csn: Tensor, rest: Int[Tensor, " kept"]
    ) -> Float[Tensor, "classes s"]:
        """Return the logits of some instances, from their softmax; those of none are the bias."""
        bias = self.bias.double()[:, None]
        if len(rest) == 0:
            return bias.expand(-1, f_csn.shape[1])
        return (f_csn[:, :, rest].softmax(2) * v_csn[:, :, rest]).sum(2) + bias


def _totals(
    groups: Float[Tensor, "classes groups s"], *, before: bool
) -> Float[Tensor, "classes bounds s"]:
    """Return, for each bound, the sum of the groups before it, or of those after it."""
    zero = torch.zeros_like(groups[:, :1])
    if before:
        return torch.cat([zero, groups.cumsum(1)], 1)
    return torch.cat([groups.flip(1).cumsum(1).flip(1), zero], 1)


_records: ContextVar[tuple[int, list[PoolingRecord]] | None] = ContextVar("records", default=None)


@contextmanager
def recorded_pooling(*, samples: int) -> Iterator[list[PoolingRecord]]:
    """Record the pooling of every bag that is explained meanwhile, in the order of the bags.

    Models whose explanation has a closed form are recorded, also those of other classes.
    """
    records: list[PoolingRecord] = []
    token = _records.set((samples, records))
    try:
        yield records
    finally:
        _records.reset(token)


def new_record(*, bias: Float[Tensor, " classes"], likelihood: Likelihood) -> PoolingRecord | None:
    """Return a record of the next bag, or None outside of `recorded_pooling`."""
    current = _records.get()
    if current is None:
        return None
    samples, records = current
    records.append(PoolingRecord(bias=bias, likelihood=likelihood, samples=samples))
    return records[-1]
