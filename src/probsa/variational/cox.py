"""Cox's partial likelihood of a time to an event: the risk sets are those of the batch."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from .likelihoods import Likelihood, Predictive, in_float32


class Cox(Likelihood):
    """One logit r, the log hazard ratio; ties by Efron's method.

    The loss of a batch is minus the partial log-likelihood of its bags divided by their number. It
    is biased for that of the cohort, whose risk sets are larger. A batch without an event has loss
    0.

    Args:
        times: grid of times at which survival is predicted, rising.
        hazard: cumulative baseline hazard at these times, before `set_baseline`.
        horizon: τ of the risk; None for the last time.
    """

    task = "survival"
    couples_bags = True
    times: Tensor
    cumulative_hazard: Tensor

    def __init__(
        self,
        *,
        times: Sequence[float],
        hazard: Sequence[float],
        horizon: float | None = None,
    ) -> None:
        super().__init__()
        self.horizon = times[-1] if horizon is None else horizon
        self.names = tuple(f"s_{t:g}" for t in times)
        self.register_buffer("times", torch.tensor(times, dtype=torch.float64))
        self.register_buffer("cumulative_hazard", torch.tensor(hazard, dtype=torch.float64))

    def nll(
        self, logits: Float[Tensor, "bags samples 1"], y: Float[Tensor, "bags 2"]
    ) -> Float[Tensor, " bags"]:
        """Return the term of each bag with an event, 0 for the others; they sum to the batch's."""
        return partial_nll(in_float32(logits)[..., 0], y).mean(1)

    def score(
        self, logits: Float[Tensor, "bags samples 1"], y: Float[Tensor, "bags 2"]
    ) -> dict[str, Float[Tensor, " bags"]]:
        """Return nothing: the partial likelihood is no score of a single bag."""
        del logits, y
        return {}

    def predictive_nll(
        self, logits: Float[Tensor, "bags samples 1"], y: Float[Tensor, "bags 2"]
    ) -> Float[Tensor, " bags"]:
        """Return the loss, which is of the risk sets of these bags."""
        return self.nll(logits, y)

    def set_baseline(self, relative: Float[Tensor, " bags"], y: Float[Tensor, "bags 2"]) -> None:
        """Set the cumulative baseline hazard by Breslow's estimator.

        Args:
            relative: the mean over samples of e^r of each training bag.
            y: their times and events.
        """
        hazard = breslow_hazard(relative.double(), y, self.times)
        self.cumulative_hazard.copy_(hazard)

    def outputs(self, classes: Sequence[str]) -> tuple[str, ...]:
        del classes
        return ("risk", *self.names)

    def predict(self, logits: Float[Tensor, "bags samples 1"]) -> Predictive:
        """Return the risk τ − ∫_0^τ S(t) dt and S at the times, means over samples."""
        ratio = logits.double().exp()  # e^r
        survival = torch.exp(-self.cumulative_hazard * ratio)
        starts = torch.cat([self.times.new_zeros(1), self.times])
        ends = torch.cat([self.times, self.times.new_tensor([torch.inf])])
        width = (ends.clamp(max=self.horizon) - starts).clamp_min(0)
        steps = torch.cat([torch.ones_like(survival[..., :1]), survival], -1)
        risk = self.horizon - (steps * width).sum(-1, keepdim=True)
        sampled = torch.cat([risk, survival], -1).to(logits.dtype)
        return Predictive(sampled.mean(1), sampled.std(1, correction=0))

    def probability(self, logits: Float[Tensor, "*batch 1"]) -> Float[Tensor, "*batch 1"]:
        """Return r, which explanations differ: instances add up to it, not to e^r."""
        return logits


def partial_nll(
    r: Float[Tensor, "bags samples"], y: Float[Tensor, "bags 2"]
) -> Float[Tensor, "bags samples"]:
    """Return minus the partial log-likelihood of each sample, divided among the bags with events.

    Bags with an event at the same time share its term equally, apart from their own r.
    """
    time, event = y[:, 0], y[:, 1] > 0
    parts = 0 * r  # 0 with a gradient, for batches without an event
    for t in time[event].unique():
        dying = event & (time == t)
        d = int(dying.sum())
        at_risk = r[time >= t].logsumexp(0)
        share = (r[dying].logsumexp(0) - at_risk).exp()
        total = d * at_risk + sum(torch.log1p(-(k / d) * share) for k in range(1, d))
        parts = torch.where(dying[:, None], total / d - r, parts)
    return parts


def breslow_hazard(
    relative: Float[Tensor, " bags"], y: Float[Tensor, "bags 2"], times: Float[Tensor, " t"]
) -> Float[Tensor, " t"]:
    """Return H(t) = Σ_{events ≤ t} d / Σ_{at risk} e^r at some times.

    Args:
        relative: e^r of each bag; 1 for all gives the Nelson–Aalen estimator.
        y: times and events.
        times: rising times.
    """
    time, event = y[:, 0].double().contiguous(), y[:, 1] > 0
    distinct = time[event].unique()
    deaths = torch.stack([(event & (time == t)).sum() for t in distinct])
    at_risk = torch.stack([relative[time >= t].sum() for t in distinct])
    total = torch.cat([relative.new_zeros(1), (deaths / at_risk).cumsum(0)])
    return total[torch.searchsorted(distinct, times.to(distinct), right=True)]
