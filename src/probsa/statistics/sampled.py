"""A metric with all its resamples, so that it can be averaged over replicates and compared.

Row 0 is the data as they are, the others resamples. Metrics whose rows come from the same draws
are paired: their difference is taken row by row.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from .bootstrap import Draws
from .metric import Metric, measured, one_class, undefined
from .replicates import resampled


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """The value of a metric in the data and in every resample, or why it has none."""

    rows: Float[np.ndarray, " rows"] | None
    """nan in a resample where the metric is undefined."""
    reason: str | None = None

    @property
    def value(self) -> float | None:
        """In the data."""
        return None if self.rows is None else float(self.rows[0])

    def metric(self) -> Metric:
        """The value with its interval."""
        if self.rows is None:
            return undefined(self.reason or "")
        return measured(self.rows[0], self.rows[1:])


def none(reason: str) -> Sampled:
    """A metric without a value."""
    return Sampled(rows=None, reason=reason)


def with_data(draws: Draws) -> Draws:
    """The same draws, headed by each group drawn once."""
    return Draws(
        counts=np.concatenate(
            [np.ones_like(draws.counts[:1], shape=(1, draws.counts.shape[1])), draws.counts]
        ),
        member=draws.member,
    )


def sampled_difference(a: Sampled, b: Sampled) -> Sampled:
    """a - b, paired; both must come from the same draws."""
    if a.rows is None or b.rows is None:
        return none((a.reason if a.rows is None else b.reason) or "")
    return Sampled(rows=a.rows - b.rows)


def mean_of(
    replicates: Sequence[Sampled], *, weights: Float[np.ndarray, "rows replicates"]
) -> Sampled:
    """The weighted mean over replicates, of those in which the metric is defined.

    weights: how often each replicate was drawn in each row.
    """
    there = [(s.rows, w) for s, w in zip(replicates, weights.T, strict=True) if s.rows is not None]
    if not there:
        return none(replicates[0].reason or "")
    value, weight = np.stack([r for r, _ in there]), np.stack([w for _, w in there])
    weight = np.where(np.isfinite(value), weight, 0.0)
    with np.errstate(invalid="ignore"):
        rows = (np.where(weight > 0, value, 0.0) * weight).sum(0) / weight.sum(0)
    return Sampled(rows=rows)


def replicate_weights(
    count: int, *, resamples: int, seed: int, blocks: Sequence[Hashable] | None = None
) -> Float[np.ndarray, "rows replicates"]:
    """How often each replicate is drawn in each row; in row 0 once.

    Of k replicates k - 1 are drawn, so that the variance of a mean over few of them is not too
    small (Rao & Wu, JASA 1988). One replicate is always there.

    blocks: of each replicate, what it shares with others (the split, of a split and a seed): whole
        blocks are drawn, and within one its replicates share its weight.
    """
    own = list(dict.fromkeys(range(count) if blocks is None else blocks))
    member = np.array([own.index(b) for b in (range(count) if blocks is None else blocks)])
    weights = np.ones((resamples + 1, len(own)))
    if len(own) > 1:
        rng = np.random.default_rng((seed, len(own)))
        weights[1:] = rng.multinomial(len(own) - 1, np.full(len(own), 1 / len(own)), size=resamples)
    return weights[:, member] / np.bincount(member)[member]


def auroc(
    y: Bool[np.ndarray, " n"], score: Float[np.ndarray, " n"], *, draws: Draws, what: str
) -> Sampled:
    """AUROC of instances; `draws` (of the instances) with the data as row 0."""
    reason = one_class(y, what=what)
    return (
        none(f"{reason}: AUROC is undefined")
        if reason
        else Sampled(rows=resampled(y, score[None], draws=draws, metric="auroc")[0])
    )


def share(
    part: Int[np.ndarray, " n"] | Float[np.ndarray, " n"] | Bool[np.ndarray, " n"],
    whole: Int[np.ndarray, " n"] | Float[np.ndarray, " n"] | Bool[np.ndarray, " n"],
    *,
    draws: Draws,
) -> Sampled:
    """Σ part / Σ whole over the items of each row."""
    above, below = draws.totals(np.stack([part, whole], axis=1).astype(np.float64)).T
    with np.errstate(invalid="ignore", divide="ignore"):
        return Sampled(rows=above / below)
