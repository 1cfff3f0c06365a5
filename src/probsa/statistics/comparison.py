"""Which methods differ: paired differences with intervals, and who may be called the winner.

Two sources of chance are in every interval: the patients, by paired resamples (replicates.py), and
the replicates (seeds, splits), by their spread (difference.py). Among equally good methods the rule
names a winner in at most 1 of 20 cohorts, from one seed to five: tests/test_comparison.py.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from jaxtyping import Bool, Shaped
from numpy.typing import ArrayLike

from ..errors import InputError
from .bootstrap import Draws
from .paired_difference import ALPHA, Data, Difference, Sample, difference
from .replicates import MetricName, draw, resampled

Pooling = Literal["pooled", "within"]
"""Over the bags of all folds, or in each fold and then the mean.

`pooled` is what a table prints, and has most pairs of bags: scores of different folds must share a
scale, as probabilities do, and a method whose folds are shifted against each other pays for it.
`within` does not see such shifts, but compares a bag with the few of its own fold alone.
"""

ONE_REPLICATE = (
    "one replicate: the intervals are of these trained models on other patients; how much another "
    "seed would change is in none of them"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Every method against one of them, and against the best."""

    metric: MetricName
    values: dict[str, float]
    """Of each method, in the order given: the mean over its replicates."""
    best: str
    """The method with the highest value (the first of them)."""
    reference: str
    """What `differences` are against: the baseline, or the best."""
    differences: dict[str, Difference]
    """Each other method minus the reference."""
    adjusted: dict[str, float]
    """Holm's p of these differences; 1 where there is no p."""
    winner: str | None
    """The best, if it is told apart from every other method; see `compare`."""
    reason: str | None
    """Why there is no winner."""
    indistinguishable: tuple[str, ...]
    """The methods that are not told apart from the best (without the best itself)."""
    replicates: int
    groups: int
    """Patients, or what was resampled."""
    notes: tuple[str, ...] = field(default=())
    """What a reader of the table must know: one replicate only, say."""


def paired_bootstrap(  # noqa: PLR0913 - each is a choice of its own
    y: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    *,
    groups: Sequence[Hashable] | Shaped[np.ndarray, " items"] | None,
    metric: MetricName,
    pooling: Pooling = "pooled",
    folds: ArrayLike | None = None,
    blocks: Sequence[Hashable] | Shaped[np.ndarray, " replicates"] | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> Difference:
    """Mean over replicates of metric(a) - metric(b), with its interval and two-sided p.

    Patients are resampled within strata of class, the same for both methods. For instances, give
    every instance as an item, with its bag (or patient) as its group: a bag's instances move
    together. `resamples`, `seed` and the others as for `compare`.

    Args:
        y: (items,) 0 or 1.
        a: (replicates, items) scores, or calls for `f1` and `accuracy`; (items,) for one.
        b: the same of the other method; row r has the seed (and split) of row r of `a`.
        groups: the patient of each item; None: each item is its own.
        metric: what is compared.

    Raises:
        InputError: as `compare`.
    """
    compared = compare(
        y,
        {"a": a, "b": b},
        groups=groups,
        metric=metric,
        baseline="b",
        pooling=pooling,
        folds=folds,
        blocks=blocks,
        resamples=resamples,
        seed=seed,
    )
    return compared.differences["a"]


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
    """All methods against a baseline (or the best), and whether there is a winner.

    The winner of a column is the method with the highest value, if its paired difference to every
    other method has a Holm-adjusted two-sided p of at most 0.05 (its intervals, widened as Holm's
    correction asks, exclude 0). Otherwise there is none, `reason` says why, and
    `indistinguishable` names the methods that cannot be told from the best.

    Args:
        y: (items,) 0 or 1.
        scores: by method: (replicates, items), or calls for `f1` and `accuracy`; row r is the same
            seed (and split) in every method.
        groups: the patient of each item; None: each item is its own.
        metric: what is compared.
        baseline: the method that differences are against; None: the best.
        pooling: see `Pooling`; `within` needs the folds, (items,) or (replicates, items).
        blocks: of each replicate, what it shares with others: the split, where a replicate is a
            split and a seed. Replicates of a block are averaged; more than one block, or none.
        resamples: of the patients.
        seed: of the resamples.

    Raises:
        InputError: shapes that do not fit, one class only, an unknown baseline, a nan.
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
        name: Sample(
            values=resampled(labels, s, draws=draws, metric=metric, folds=within), scores=s
        )
        for name, s in by_method.items()
    }
    data = Data(
        y=labels,
        member=draws.member,
        freedom=freedom,
        blocks=_blocks(blocks, replicates=count),
        metric=metric,
        folds=within,
    )
    return _compared(samples, baseline=baseline, data=data)


def _compared(samples: Mapping[str, Sample], *, baseline: str | None, data: Data) -> Comparison:
    values = {name: float(s.values[:, 0].mean()) for name, s in samples.items()}
    best = max(values, key=lambda name: values[name])
    differences, adjusted = _against(best, samples, data=data)
    winner, reason, level = _winner(best, differences, adjusted)
    reference = best if baseline is None else baseline
    if reference != best:
        differences, adjusted = _against(reference, samples, data=data)
    alone = len(set(data.blocks)) == 1
    return Comparison(
        metric=data.metric,
        values=values,
        best=best,
        reference=reference,
        differences=differences,
        adjusted=adjusted,
        winner=winner,
        reason=reason,
        indistinguishable=level,
        replicates=len(data.blocks),
        groups=int(data.member.max()) + 1,
        notes=(ONE_REPLICATE,) if alone else (),
    )


def _against(
    reference: str, samples: Mapping[str, Sample], *, data: Data
) -> tuple[dict[str, Difference], dict[str, float]]:
    """Each other method minus the reference, and Holm's p."""
    found = {
        name: difference(sample, samples[reference], data=data)
        for name, sample in samples.items()
        if name != reference
    }
    p = holm([1.0 if d.p is None else d.p for d in found.values()])
    return found, dict(zip(found, p, strict=True))


def holm(p: Sequence[float]) -> list[float]:
    """Holm's adjusted p, in the order given: the i-th smallest of m is multiplied by m - i + 1.

    No adjusted p is below that of a smaller p, or above 1. Scandinavian J. of Statistics 1979.
    """
    out, highest = [0.0] * len(p), 0.0
    for rank, i in enumerate(np.argsort(p, kind="stable")):
        highest = max(highest, min(1.0, (len(p) - rank) * p[i]))
        out[i] = highest
    return out


def _winner(
    best: str, differences: Mapping[str, Difference], adjusted: Mapping[str, float]
) -> tuple[str | None, str | None, tuple[str, ...]]:
    level = tuple(name for name in differences if adjusted[name] > ALPHA)
    if not differences:
        return None, "only one method", ()
    if not level:
        return best, None, ()
    nearest = max(level, key=lambda name: differences[name].difference)
    d = differences[nearest]
    if d.difference == 0:
        return None, f"{best} and {nearest} are level", level
    reason = (
        f"{best} is not told apart from {len(level)} of {len(differences)} other methods; "
        f"{nearest} is {-d.difference:.4f} below it, Holm-adjusted p = {adjusted[nearest]:.3g}"
    )
    return None, reason if d.reason is None else f"{reason} ({d.reason})", level


def _checked(
    y: ArrayLike, scores: Mapping[str, ArrayLike], *, metric: MetricName
) -> tuple[Bool[np.ndarray, " items"], dict[str, np.ndarray]]:
    labels = np.asarray(y)
    if not np.isin(labels, (0, 1)).all():
        raise InputError(f"labels are {np.unique(labels).tolist()}: {metric} is compared for 0/1")
    labels = labels == 1
    if len(labels) == 0 or labels.all() or not labels.any():
        raise InputError(f"only one class among {len(labels)} labels: nothing can be compared")
    if not scores:
        raise InputError("no methods to compare")
    out = {name: np.atleast_2d(np.asarray(s)) for name, s in scores.items()}
    shape = next(iter(out.values())).shape
    for name, s in out.items():
        if s.ndim != 2 or s.shape != shape or s.shape[1] != len(labels):
            raise InputError(
                f"{name} has scores of shape {np.shape(scores[name])}: (replicates, "
                f"{len(labels)}) is expected, with the replicates of the others ({shape[0]})"
            )
        if metric in ("f1", "accuracy") and not np.isin(s, (0, 1)).all():
            raise InputError(f"{name}: {metric} is of calls (True or False), not of scores")
        if np.isnan(s.astype(np.float64)).any():
            raise InputError(f"{name} has scores that are nan: leave those items out of all")
    return labels, out


def _draws(
    y: Bool[np.ndarray, " items"],
    folds: Shaped[np.ndarray, "replicates items"] | None,
    *,
    groups: Sequence[Hashable] | Shaped[np.ndarray, " items"] | None,
    metric: MetricName,
    resamples: int,
    seed: int,
) -> tuple[Draws, int]:
    """The resamples of the patients, and their degrees of freedom."""
    names = list(range(len(y))) if groups is None else np.asarray(groups).tolist()
    if len(names) != len(y):
        raise InputError(f"{len(y)} labels for {len(names)} groups: one an item is expected")
    strata = y.tolist()
    if folds is not None:
        strata = list(zip(strata, folds[0].tolist(), strict=True))
    draws, freedom = draw(strata, groups=names, resamples=resamples, seed=seed)
    if metric in ("average_precision", "f1"):
        # Most of what varies here is the positives: counting all, 24 of 80 bags err in 6 % for 5 %.
        freedom = min(freedom, len(np.unique(draws.member[y])) - 1)
    return draws, freedom


def _blocks(
    blocks: Sequence[Hashable] | Shaped[np.ndarray, " replicates"] | None, *, replicates: int
) -> tuple[Hashable, ...]:
    if blocks is None:
        return tuple(range(replicates))
    given = np.asarray(blocks).tolist()
    if len(given) != replicates:
        raise InputError(f"{len(given)} blocks for {replicates} replicates: one each is expected")
    # One split and several seeds: the seeds are what varies.
    return tuple(range(replicates)) if len(set(given)) == 1 else tuple(given)


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
            f"folds of shape {given.shape}: ({len(y)},) or ({replicates}, {len(y)}) is expected"
        )
    out = np.broadcast_to(given, (replicates, len(y)))
    for row in out:
        for f in np.unique(row):
            if len(np.unique(y[row == f])) < 2:
                raise InputError(f"fold {f} has one class: pool the folds instead")
    return out
