"""Compare methods by paired differences with intervals, and decide whether there is a winner.

Every interval covers two sources of variation: the patients, by paired resamples (replicates.py),
and the replicates (seeds, splits), by their variance (paired_difference.py). Among equally good
methods the rule names a winner in at most 1 of 20 cohorts, which test_comparison.py verifies.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from jaxtyping import Bool, Shaped
from numpy.typing import ArrayLike

from ..errors import InputError
from .bootstrap import Draws
from .paired_difference import ALPHA, Difference, MethodSample, PairedData, compare_pair
from .replicates import MetricName, draw_patients, resampled_metric

Pooling = Literal["pooled", "within"]
"""How a metric treats cross-validation folds.

`pooled` computes it over the bags of all folds, as tables print it. It has the most pairs of bags,
but the scores of different folds must share a scale, and shifts between folds lower the metric.
`within` averages the metric of each fold, which ignores such shifts but compares each bag only with
those of its own fold.
"""

ONE_REPLICATE = (
    "one replicate: the intervals describe these trained models on other patients; they do not "
    "include the variation between seeds"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """All methods compared with a reference and with the best method."""

    metric: MetricName | Literal["other"]
    values: dict[str, float]
    """The mean over the replicates of each method, in the order of the input."""
    best: str
    """The method with the highest value, or the lowest if lower is better (the first that ties)."""
    reference: str
    """The method that is subtracted in `differences`: the baseline, or the best."""
    differences: dict[str, Difference]
    """Each other method minus the reference."""
    adjusted: dict[str, float]
    """Holm-adjusted p of these differences; 1 if there is no p."""
    winner: str | None
    """The best method, if it differs significantly from every other; see `compare`."""
    reason: str | None
    """The reason why there is no winner."""
    indistinguishable: tuple[str, ...]
    """The other methods that do not differ significantly from the best."""
    replicates: int
    groups: int
    """Number of patients, or of whatever was resampled."""
    notes: tuple[str, ...] = field(default=())
    """Caveats for readers of the table, for example that there is a single replicate."""


def compare(  # noqa: PLR0913 - each is a choice of its own
    y: ArrayLike,
    scores: Mapping[str, ArrayLike],
    *,
    groups: Sequence[Hashable] | Shaped[np.ndarray, " items"] | None,
    metric: MetricName,
    baseline: str | None = None,
    pooling: Pooling = "pooled",
    folds: ArrayLike | None = None,
    blocks: Sequence[Hashable] | Shaped[np.ndarray, " replicates"] | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> Comparison:
    """Compare all methods with a baseline (or the best), and decide whether there is a winner.

    The winner is the method with the highest value, if its paired difference to every other method
    has a Holm-adjusted two-sided p of at most 0.05. Otherwise there is none, `reason` says why, and
    `indistinguishable` names the methods that do not differ significantly from the best.

    Args:
        y: labels 0 or 1, (items,).
        scores: for each method, scores of shape (replicates, items), or calls for `f1` and
            `accuracy`; row r has the same seed (and split) in every method.
        groups: the patient of each item; None if each item is its own patient.
        metric: the metric to compare.
        baseline: the method that is subtracted from the others; None for the best.
        pooling: see `Pooling`.
        folds: the fold of each item, (items,) or (replicates, items); `within` needs it.
        blocks: the block of each replicate, for example the split if replicates are pairs of a
            split and a seed. Replicates of a block are averaged. A single block is ignored.
        resamples: number of resamples of the patients.
        seed: seed of the resamples.

    Raises:
        InputError: the shapes do not fit, there is one class only, the baseline is unknown, or a
            score is nan.
    """
    labels, by_method = _checked(y, scores, metric=metric)
    if baseline is not None and baseline not in by_method:
        raise InputError(f"no baseline {baseline!r} among {', '.join(by_method)}")
    count = len(next(iter(by_method.values())))
    within = _folds(labels, folds, pooling=pooling, replicates=count)
    draws, freedom = _draws(
        labels, within, groups=groups, metric=metric, resamples=resamples, seed=seed
    )
    samples = {
        name: MethodSample(
            values=resampled_metric(labels, s, draws=draws, metric=metric, folds=within), scores=s
        )
        for name, s in by_method.items()
    }
    data = PairedData(
        y=labels,
        member=draws.member,
        freedom=freedom,
        blocks=_blocks(blocks, replicates=count),
        metric=metric,
        folds=within,
    )
    return compared_samples(samples, baseline=baseline, data=data)


def compared_samples(
    samples: Mapping[str, MethodSample], *, baseline: str | None, data: PairedData
) -> Comparison:
    """Compare methods whose metric has been computed in all resamples; see `compare`.

    Values and differences keep their sign if lower is better.
    """
    values = {name: float(s.values[:, 0].mean()) for name, s in samples.items()}
    best = (max if data.higher_is_better else min)(values, key=lambda name: values[name])
    differences, adjusted = _differences_to(best, samples, data=data)
    winner, reason, indistinguishable = _winner(
        best, differences, adjusted, higher_is_better=data.higher_is_better
    )
    reference = best if baseline is None else baseline
    if reference != best:
        differences, adjusted = _differences_to(reference, samples, data=data)
    one_replicate = len(set(data.blocks)) == 1
    return Comparison(
        metric=data.metric,
        values=values,
        best=best,
        reference=reference,
        differences=differences,
        adjusted=adjusted,
        winner=winner,
        reason=reason,
        indistinguishable=indistinguishable,
        replicates=len(data.blocks),
        groups=int(data.member.max()) + 1,
        notes=(ONE_REPLICATE,) if one_replicate else (),
    )


def _differences_to(
    reference: str, samples: Mapping[str, MethodSample], *, data: PairedData
) -> tuple[dict[str, Difference], dict[str, float]]:
    """Return each other method minus the reference, and the Holm-adjusted p."""
    differences = {
        name: compare_pair(sample, samples[reference], data=data)
        for name, sample in samples.items()
        if name != reference
    }
    p = holm([1.0 if d.p is None else d.p for d in differences.values()])
    return differences, dict(zip(differences, p, strict=True))


def holm(p: Sequence[float]) -> list[float]:
    """Return Holm-adjusted p-values, in the order of the input.

    The i-th smallest of m is multiplied by m - i + 1; the results are made monotone in p and at
    most 1. Holm, Scandinavian Journal of Statistics 1979.
    """
    adjusted, highest = [0.0] * len(p), 0.0
    for rank, i in enumerate(np.argsort(p, kind="stable")):
        highest = max(highest, min(1.0, (len(p) - rank) * p[i]))
        adjusted[i] = highest
    return adjusted


def _winner(
    best: str,
    differences: Mapping[str, Difference],
    adjusted: Mapping[str, float],
    *,
    higher_is_better: bool,
) -> tuple[str | None, str | None, tuple[str, ...]]:
    """Return the winner, the reason why there is none, and the indistinguishable methods."""
    similar = tuple(name for name in differences if adjusted[name] > ALPHA)
    if not differences:
        return None, "only one method", ()
    if not similar:
        return best, None, ()
    sign = 1 if higher_is_better else -1
    nearest = max(similar, key=lambda name: sign * differences[name].difference)
    d = differences[nearest]
    if d.difference == 0:
        return None, f"{best} and {nearest} are equal", similar
    apart = f"{-d.difference:.4f} below" if higher_is_better else f"{d.difference:.4g} above"
    reason = (
        f"{best} does not differ significantly from {len(similar)} of {len(differences)} other "
        f"methods; {nearest} is {apart} it, Holm-adjusted "
        f"p = {adjusted[nearest]:.3g}"
    )
    return None, reason if d.reason is None else f"{reason} ({d.reason})", similar


def _checked(
    y: ArrayLike, scores: Mapping[str, ArrayLike], *, metric: MetricName
) -> tuple[Bool[np.ndarray, " items"], dict[str, np.ndarray]]:
    labels = np.asarray(y)
    if not np.isin(labels, (0, 1)).all():
        raise InputError(f"labels are {np.unique(labels).tolist()}: {metric} needs 0 and 1")
    labels = labels == 1
    if len(labels) == 0 or labels.all() or not labels.any():
        raise InputError(f"only one class among {len(labels)} labels: nothing can be compared")
    if not scores:
        raise InputError("no methods to compare")
    by_method = {name: np.atleast_2d(np.asarray(s)) for name, s in scores.items()}
    shape = next(iter(by_method.values())).shape
    for name, s in by_method.items():
        if s.ndim != 2 or s.shape != shape or s.shape[1] != len(labels):
            raise InputError(
                f"{name} has scores of shape {np.shape(scores[name])}: expected (replicates, "
                f"{len(labels)}) with as many replicates as the first method ({shape[0]})"
            )
        if metric in ("f1", "accuracy") and not np.isin(s, (0, 1)).all():
            raise InputError(f"{name}: {metric} needs calls (True or False), not scores")
        if np.isnan(s.astype(np.float64)).any():
            raise InputError(
                f"{name} has scores that are nan: leave those items out for all methods"
            )
    return labels, by_method


def _draws(
    y: Bool[np.ndarray, " items"],
    folds: Shaped[np.ndarray, "replicates items"] | None,
    *,
    groups: Sequence[Hashable] | Shaped[np.ndarray, " items"] | None,
    metric: MetricName,
    resamples: int,
    seed: int,
) -> tuple[Draws, int]:
    """Return the resamples of the patients, and their degrees of freedom."""
    names = list(range(len(y))) if groups is None else np.asarray(groups).tolist()
    if len(names) != len(y):
        raise InputError(f"{len(y)} labels for {len(names)} groups: expected one group per item")
    strata = y.tolist()
    if folds is not None:
        strata = list(zip(strata, folds[0].tolist(), strict=True))
    draws, freedom = draw_patients(strata, groups=names, resamples=resamples, seed=seed)
    if metric in ("average_precision", "f1"):
        # The positives dominate the variance: counting all patients makes the test too liberal
        # (6 % errors at a level of 5 % with 24 positives among 80 bags).
        freedom = min(freedom, len(np.unique(draws.member[y])) - 1)
    return draws, freedom


def _blocks(
    blocks: Sequence[Hashable] | Shaped[np.ndarray, " replicates"] | None, *, replicates: int
) -> tuple[Hashable, ...]:
    if blocks is None:
        return tuple(range(replicates))
    names = np.asarray(blocks).tolist()
    if len(names) != replicates:
        raise InputError(
            f"{len(names)} blocks for {replicates} replicates: expected one per replicate"
        )
    # With one split and several seeds, the seeds are the replicates.
    return tuple(range(replicates)) if len(set(names)) == 1 else tuple(names)


def _folds(
    y: Bool[np.ndarray, " items"],
    folds: ArrayLike | None,
    *,
    pooling: Pooling,
    replicates: int,
) -> Shaped[np.ndarray, "replicates items"] | None:
    if pooling == "pooled":
        return None
    if folds is None:
        raise InputError("pooling 'within' needs the fold of each item")
    given = np.asarray(folds)
    if given.shape not in {(len(y),), (replicates, len(y))}:
        raise InputError(
            f"folds of shape {given.shape}: expected ({len(y)},) or ({replicates}, {len(y)})"
        )
    by_replicate = np.broadcast_to(given, (replicates, len(y)))
    for row in by_replicate:
        for fold in np.unique(row):
            if len(np.unique(y[row == fold])) < 2:
                raise InputError(f"fold {fold} has one class: pool the folds instead")
    return by_replicate
