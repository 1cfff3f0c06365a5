"""The likelihood of a time to an event by discrete hazards, one per interval of time.

The loss of a bag is its own: it depends neither on the batch nor on a baseline.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from .likelihoods import Likelihood, Predictive, in_float32

SMALL = 1e-6


class Hazards(Likelihood):
    """The hazard of interval k is h_k = σ(ℓ_k), with K logits, or σ(η + b_k) with one.

    Interval k is (c_k, c_{k+1}]. An event has the index of its interval, beyond the last cut that
    of the last. A censored bag counts the intervals that it has left behind.

    Args:
        cuts: ends of the intervals, rising; the first one begins at 0.
        starts: of a model with one logit, the initial biases; None for K logits.
        horizon: τ of the risk, at most the last cut; None for the last cut.
    """

    task = "survival"
    cuts: Tensor

    def __init__(
        self,
        *,
        cuts: Sequence[float],
        starts: Sequence[float] | None = None,
        horizon: float | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("cuts", torch.tensor(cuts, dtype=torch.float64))
        self.names = tuple(f"s_{cut:g}" for cut in cuts)
        self.horizon = cuts[-1] if horizon is None else horizon
        self.biases = None if starts is None else nn.Parameter(torch.tensor(starts))

    def intervals(
        self, y: Float[Tensor, "bags 2"]
    ) -> tuple[Int[Tensor, " bags"], Float[Tensor, " bags"]]:
        """Return the index of each bag for `hazard_nll`, and whether its event was seen."""
        time, event = y[:, 0].double().contiguous(), y[:, 1]
        within = torch.searchsorted(self.cuts, time).clamp(max=len(self.cuts) - 1)
        passed = torch.searchsorted(self.cuts, time, right=True)
        return torch.where(event > 0, within, passed - 1), event

    def nll(
        self, logits: Float[Tensor, "bags samples columns"], y: Float[Tensor, "bags 2"]
    ) -> Float[Tensor, " bags"]:
        index, event = self.intervals(y)
        return hazard_nll(self._hazards(in_float32(logits)), index, event).mean(1)

    def outputs(self, classes: Sequence[str]) -> tuple[str, ...]:
        del classes
        return ("risk", *self.names)

    def predict(self, logits: Float[Tensor, "bags samples columns"]) -> Predictive:
        """Return the risk τ − ∫_0^τ S(t) dt and S at the cuts, means over samples."""
        sampled = self._sampled(logits)
        return Predictive(sampled.mean(1), sampled.std(1, correction=0))

    def probability(
        self, logits: Float[Tensor, "*batch columns"]
    ) -> Float[Tensor, "*batch columns"]:
        """Return the hazards of the intervals; of a model with one logit, the risk."""
        if self.biases is None:
            return logits.sigmoid()
        return self._sampled(logits)[..., :1]

    def _hazards(self, logits: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*batch k"]:
        return logits if self.biases is None else logits + self.biases.to(logits.dtype)

    def _sampled(self, logits: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*batch outputs"]:
        passed = log_survival(self._hazards(in_float32(logits)))
        survival = passed.exp()
        before = torch.cat([torch.zeros_like(passed[..., :1]), passed[..., :-1]], -1)
        zero = self.cuts.new_zeros(1)
        starts = torch.cat([zero, self.cuts[:-1]])
        width = self.cuts - starts
        counted = (self.horizon - starts).clamp_min(0).minimum(width)
        # log S is linear within an interval: S falls at the rate (before − passed) / width
        fall = (before - passed) * (counted / width).to(passed.dtype)
        mean = torch.where(fall > SMALL, -torch.expm1(-fall) / fall.clamp_min(SMALL), 1 - fall / 2)
        area = (before.exp() * mean * counted.to(passed.dtype)).sum(-1, keepdim=True)
        return torch.cat([self.horizon - area, survival], -1)


def log_survival(stop: Float[Tensor, "*batch steps"]) -> Float[Tensor, "*batch steps"]:
    """Return log Π_{j ≤ k} (1 − h_j), the log-probability of passing interval k, h = σ(stop)."""
    return F.logsigmoid(-stop).cumsum(-1)


def hazard_nll(
    stop: Float[Tensor, "bags samples k"], index: Int[Tensor, " bags"], event: Tensor
) -> Float[Tensor, "bags samples"]:
    """Return −Σ_{j<k} log(1 − h_j) − e log h_k − (1 − e) log(1 − h_k), with h = σ(stop).

    Args:
        stop: logits of the hazards.
        index: interval k of an event, or the last interval that a censored bag has left behind;
            −1 for none, which has loss 0.
        event: 1 if the event was seen, 0 if censored.
    """
    passed = log_survival(stop)
    before = torch.cat([torch.zeros_like(passed[..., :1]), passed[..., :-1]], -1)
    stops = before + F.logsigmoid(stop)
    place = index.clamp_min(0)[:, None, None].expand(-1, stop.shape[1], 1)
    seen, censored = stops.gather(2, place)[..., 0], passed.gather(2, place)[..., 0]
    log_p = torch.where((event > 0)[:, None], seen, censored)
    return -torch.where((index >= 0)[:, None], log_p, torch.zeros_like(log_p))
