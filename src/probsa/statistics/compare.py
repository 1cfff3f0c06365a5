"""Compare methods by paired differences with intervals, and decide whether there is a winner.

Every interval covers two sources of variation: the patients, by paired resamples, and the
replicates (seeds, splits), by their variance. Among equally good methods the rule names a winner in
at most 1 of 20 cohorts, which test_compare.py verifies.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, median
from typing import Literal

import numpy as np
from jaxtyping import Shaped
from numpy.typing import ArrayLike

from ..errors import InputError
from .paired import (
    ALPHA,
    Difference,
    MethodSample,
    MetricName,
    PairedData,
    Replicated,
    StandardError,
    compare_pair,
    resampled_metric,
)
from .resample import Flags, Groups, draw_patients

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
POWER = 0.80
NAMES = {
    "auroc": "AUROC",
    "average_precision": "average precision",
    "f1": "F1",
    "accuracy": "accuracy",
}


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
    y: ArrayLike | None,
    scores: Mapping[str, ArrayLike],
    *,
    groups: Groups | Shaped[np.ndarray, " items"] | None,
    metric: MetricName,
    baseline: str | None = None,
    pooling: Pooling = "pooled",
    folds: ArrayLike | None = None,
    blocks: Groups | Shaped[np.ndarray, " replicates"] | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> Comparison:
    """Compare all methods with a baseline (or the best), and decide whether there is a winner.

    The winner is the method with the highest value, if its paired difference to every other method
    has a Holm-adjusted two-sided p of at most 0.05. Otherwise there is none, `reason` says why, and
    `indistinguishable` names the methods that do not differ significantly from the best.

    Args:
        y: labels 0 or 1, (items,); None for the metric `mean`, which needs none.
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
    by_method = _checked(scores, metric=metric, baseline=baseline)
    count, items = next(iter(by_method.values())).shape
    labels = np.ones(items, dtype=bool) if y is None else _labels(y, metric=metric, items=items)
    within = None if pooling == "pooled" else _folds(labels, folds, replicates=count)
    patients = list(range(items)) if groups is None else np.asarray(groups).tolist()
    if len(patients) != items:
        raise InputError(f"{len(patients)} groups for {items} items: expected one group per item")
    names = list(range(count)) if blocks is None else np.asarray(blocks).tolist()
    if len(names) != count:
        raise InputError(f"{len(names)} blocks for {count} replicates: expected one per replicate")
    strata = labels.tolist()
    if within is not None:
        strata = list(zip(strata, within[0].tolist(), strict=True))
    draws, freedom = draw_patients(strata, groups=patients, resamples=resamples, seed=seed)
    if metric in ("average_precision", "f1"):
        # The positives dominate the variance: counting all patients makes the test too liberal
        # (6 % errors at a level of 5 % with 24 positives among 80 bags).
        freedom = min(freedom, len(np.unique(draws.member[labels])) - 1)
    data = PairedData(
        y=labels,
        member=draws.member,
        freedom=freedom,
        # With one split and several seeds, the seeds are the replicates.
        blocks=tuple(range(count) if len(set(names)) == 1 else names),
        metric=metric,
        folds=within,
    )
    samples = {
        name: MethodSample(
            values=resampled_metric(labels, s, draws=draws, metric=metric, folds=within), scores=s
        )
        for name, s in by_method.items()
    }
    return compared_samples(samples, baseline=baseline, data=data)


def mean_interval(
    values: Replicated,
    *,
    groups: Groups,
    blocks: Groups | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> Difference:
    """Return the mean with its interval over groups and replicates, as a difference to 0."""
    both = {"zero": np.zeros_like(values), "values": values}
    found = compare(
        None,
        both,
        groups=groups,
        metric="mean",
        baseline="zero",
        blocks=blocks,
        resamples=resamples,
        seed=seed,
    )
    return found.differences["values"]


def _checked(
    scores: Mapping[str, ArrayLike], *, metric: MetricName, baseline: str | None
) -> dict[str, np.ndarray]:
    """Return the scores of each method, (replicates, items)."""
    if not scores:
        raise InputError("no methods to compare")
    if baseline is not None and baseline not in scores:
        raise InputError(f"no baseline {baseline!r} among {', '.join(scores)}")
    by_method = {name: np.atleast_2d(np.asarray(s)) for name, s in scores.items()}
    shape = next(iter(by_method.values())).shape
    for name, s in by_method.items():
        if s.ndim != 2 or s.shape != shape:
            raise InputError(
                f"{name} has scores of shape {np.shape(scores[name])}: expected (replicates, "
                f"items) as of the first method, {shape}"
            )
        if metric in ("f1", "accuracy") and not np.isin(s, (0, 1)).all():
            raise InputError(f"{name}: {metric} needs calls (True or False), not scores")
        if np.isnan(s.astype(np.float64)).any():
            raise InputError(
                f"{name} has scores that are nan: leave those items out for all methods"
            )
    return by_method


def _labels(y: ArrayLike, *, metric: MetricName, items: int) -> Flags:
    labels = np.asarray(y)
    if labels.shape != (items,):
        raise InputError(f"labels of shape {labels.shape} for scores of {items} items")
    if not np.isin(labels, (0, 1)).all():
        raise InputError(f"labels are {np.unique(labels).tolist()}: {metric} needs 0 and 1")
    if items == 0 or labels.all() or not labels.any():
        raise InputError(f"only one class among {items} labels: nothing can be compared")
    return labels == 1


def _folds(y: Flags, folds: ArrayLike | None, *, replicates: int) -> Replicated:
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


def compared_samples(
    samples: Mapping[str, MethodSample], *, baseline: str | None, data: PairedData
) -> Comparison:
    """Compare methods whose metric has been computed in all resamples; see `compare`.

    Values and differences keep their sign if lower is better.
    """

    def to(reference: str) -> tuple[dict[str, Difference], dict[str, float]]:
        """Return each other method minus the reference, and the Holm-adjusted p."""
        others = {name: s for name, s in samples.items() if name != reference}
        found = {n: compare_pair(s, samples[reference], data=data) for n, s in others.items()}
        p = holm([1.0 if d.p is None else d.p for d in found.values()])
        return found, dict(zip(found, p, strict=True))

    values = {name: float(s.values[:, 0].mean()) for name, s in samples.items()}
    best = (max if data.higher_is_better else min)(values, key=lambda name: values[name])
    differences, adjusted = to(best)
    similar = tuple(name for name in differences if adjusted[name] > ALPHA)
    reason = _no_winner(best, differences, adjusted, similar, higher=data.higher_is_better)
    reference = best if baseline is None else baseline
    if reference != best:
        differences, adjusted = to(reference)
    return Comparison(
        metric=data.metric,
        values=values,
        best=best,
        reference=reference,
        differences=differences,
        adjusted=adjusted,
        winner=best if reason is None else None,
        reason=reason,
        indistinguishable=similar,
        replicates=len(data.blocks),
        groups=int(data.member.max()) + 1,
        notes=(ONE_REPLICATE,) if len(set(data.blocks)) == 1 else (),
    )


def _no_winner(
    best: str,
    differences: Mapping[str, Difference],
    adjusted: Mapping[str, float],
    similar: Sequence[str],
    *,
    higher: bool,
) -> str | None:
    """Return the reason why the best method is no winner, or None if it is."""
    if not differences:
        return "only one method"
    if not similar:
        return None
    sign = 1 if higher else -1
    nearest = max(similar, key=lambda name: sign * differences[name].difference)
    d = differences[nearest]
    if d.difference == 0:
        return f"{best} and {nearest} are equal"
    apart = f"{-d.difference:.4f} below" if higher else f"{d.difference:.4g} above"
    reason = (
        f"{best} does not differ significantly from {len(similar)} of {len(differences)} other "
        f"methods; {nearest} is {apart} it, Holm-adjusted p = {adjusted[nearest]:.3g}"
    )
    return reason if d.reason is None else f"{reason} ({d.reason})"


def holm(p: Sequence[float]) -> list[float]:
    """Return Holm-adjusted p-values, in the order of the input.

    The i-th smallest of m is multiplied by m - i + 1; the results are made monotone in p and at
    most 1. Holm, Scandinavian Journal of Statistics 1979.
    """
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    factors = np.arange(len(p), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(np.asarray(p)[order] * factors), 1.0)
    return adjusted.tolist()


def minimum_detectable(error: StandardError) -> float:
    """Return the true difference that a two-sided test at 0.05 finds in 80 % of all cohorts.

    It is (1.960 + 0.842) = 2.80 standard errors; with few replicates, Student's quantiles replace
    the normal ones.
    """
    return error.half_width(ALPHA) + error.half_width(2 * (1 - POWER))


def smallest_detectable(comparison: Comparison) -> float | None:
    """Return the median over the pairs of methods, before Holm's correction.

    The result is None if no pair varies over the resamples: then nothing was measured.
    """
    errors = [d.spread for d in comparison.differences.values() if d.spread is not None]
    return median(map(minimum_detectable, errors)) if errors else None


def detectable_sentence(
    comparison: Comparison,
    *,
    within: bool = False,
    replicates: Collection[int] = (),
    title: str | None = None,
) -> str:
    """Return the sentence on the smallest detectable difference for the foot of a table.

    Args:
        comparison: the comparison of the table.
        within: whether its differences are computed within folds.
        replicates: the number of replicates of each pair, if it differs between pairs.
        title: the metric in words; None for one of `NAMES`.
    """
    least, other = smallest_detectable(comparison), comparison.metric == "other"
    name = (title or NAMES[comparison.metric]) + (" within folds" if within else "")
    metric = f"Smallest detectable difference in {name}"
    if least is None:
        return f"{metric}: unknown, no pair of methods varies."
    if least > 1 and not other:
        return f"{metric}: none (every difference is below 1)."
    counts, pairs = replicates or (comparison.replicates,), len(comparison.differences)
    fewest, most = min(counts), max(counts)
    trained = "one replicate" if most == 1 else f"{most} replicates"
    trained = f"{fewest} to {trained}" if fewest < most else trained
    over_pairs = "" if pairs == 1 else f"; median of {pairs} pairs, each before Holm's correction"
    shown = f"{least:.3g}" if other else f"{least:.3f}"
    return (
        f"{metric}: {shown} (80 % power, two-sided 0.05, {comparison.groups} patients, "
        f"{trained}{over_pairs})."
    )


def detectable_from_intervals(
    intervals: Sequence[tuple[float | None, float | None]], *, what: str
) -> str:
    """Return the sentence for differences (`what`) of which only 95 % intervals are known.

    The half width of an interval is taken as 1.960 standard errors; unknown ends are left out.
    """
    widths = [(high - low) / 2 for low, high in intervals if low is not None and high is not None]
    if not widths:
        return f"Smallest detectable difference in {what}: unknown, no difference has an interval."
    normal = NormalDist()
    least = median(widths) * (1 + normal.inv_cdf(POWER) / normal.inv_cdf(1 - ALPHA / 2))
    over = "" if len(widths) == 1 else f"; median of {len(widths)} differences"
    return (
        f"Smallest detectable difference in {what}: {least:.3f} (80 % power, two-sided 0.05, from "
        f"95 % intervals{over})."
    )
