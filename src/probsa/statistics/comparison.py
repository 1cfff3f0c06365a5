"""Compare methods by paired differences with intervals, and decide whether there is a winner.

d_r is the difference of two methods in replicate r (seed, split) and d the mean over all R. Its
error has two parts: that of the patients (normal, from paired resamples) and that of the replicates
(Student's t with R - 1 degrees of freedom, because R is small). The interval is that of their sum,
as in the Behrens-Fisher problem. Among equally good methods the rule names a winner in at most 1 of
20 cohorts, which test_compare.py verifies.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import NormalDist, median
from typing import Literal, no_type_check

import numpy as np
from jaxtyping import Float, Shaped
from numpy.typing import ArrayLike
from scipy.optimize import root_scalar
from scipy.special import stdtr, stdtrit
from scipy.stats import rankdata

from .metric import f1_and_accuracy, require
from .resample import Draws, Flags, Groups, Labels

MetricName = Literal["auroc", "average_precision", "f1", "accuracy", "mean"]
"""`mean` averages values of the items, which are metrics themselves, such as the AP of each bag."""
Pooling = Literal["pooled", "within"]
"""Whether a metric is computed over the bags of all cross-validation folds, or within each fold."""
Replicated = Shaped[np.ndarray, "replicates items"]
Resampled = Float[np.ndarray, "replicates rows"]

ONE_REPLICATE = (
    "one replicate: the intervals describe these trained models on other patients; they do not "
    "include the variation between seeds"
)
ALPHA = 0.05
POWER = 0.80
ROUNDING = 1e-20
"""A variance below this (relative to 1, the largest metric) is a rounding error."""
QUANTILES = 4000
"""Number of points at which the smaller part of the error is evaluated."""
EXCHANGES = 999
"""Number of random exchanges of the two methods, used if the resamples do not vary."""
DETECTABLE = "Smallest detectable difference in"
TEST = "80 % power, two-sided 0.05"
NAMES = {"auroc": "AUROC", "average_precision": "average precision", "f1": "F1"}


@no_type_check  # called for every exchange: the tests' checks of shapes cost more than it does
def resampled_metric(
    y: Flags,
    score: Replicated,
    *,
    draws: Draws,
    metric: MetricName,
    folds: Replicated | None = None,
) -> Resampled:
    """Return the metric of each replicate in each row of the draws; nan where it is undefined.

    With `folds`, the metric is computed in each fold and averaged over the folds (nan as soon as
    one fold has a single class).
    """

    def of_items(items: np.ndarray, score: np.ndarray) -> np.ndarray:
        truth = y[items]
        resamples = draws.for_items(items)
        if metric == "auroc":
            return resamples.auroc(truth, score.astype(np.float64))
        if metric == "average_precision":
            return resamples.ranks(truth, score.astype(np.float64))[1]
        if metric == "mean":
            return resamples.ratio(score, np.ones(len(score)))
        f1, accuracy = f1_and_accuracy(truth, score.astype(bool), draws=resamples)
        return accuracy if metric == "accuracy" else f1

    if folds is None:
        folds = np.zeros(score.shape)
    replicates = []
    for scores, fold_of in zip(score, folds, strict=True):
        parts = [np.flatnonzero(fold_of == fold) for fold in np.unique(fold_of)]
        by_fold = [of_items(items, scores[items]) for items in parts]
        replicates.append(np.mean(by_fold, axis=0))
    return np.stack(replicates)


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodSample:
    """One method: its metric in the data (column 0) and in every resample, and its scores."""

    values: Resampled
    scores: Replicated


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedData:
    """The labels, groups and replicates on which two methods are compared."""

    y: Flags
    member: Labels
    """The group (patient) of each item."""
    freedom: int
    """Degrees of freedom of the patients, see `Draws.freedom`."""
    blocks: tuple[Hashable, ...]
    """The block of each replicate; replicates of a block are averaged."""
    metric: MetricName | Literal["other"]
    """`other` is a metric that only its values are known of: methods cannot be exchanged."""
    folds: Replicated | None = None
    higher_is_better: bool = True
    scale: float = 1.0
    """The size of a large difference: 1 for metrics between 0 and 1, else in the metric's unit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StandardError:
    """The standard error of a difference, in two parts."""

    patients: float
    freedom: int
    """Degrees of freedom of the patients' part."""
    replicates: float
    """0 with a single replicate."""
    count: int
    """Number of replicates, or of their blocks."""

    @classmethod
    def estimated(cls, values: Resampled, *, freedom: int) -> "StandardError":
        """Estimate V_g + max(V_s - V_gs, 0); with two replicates, max(V_g - V_gs, 0) + V_s.

        V_g, the variance over resamples of the patients, contains the effect of the patients and
        V_gs, that of the interaction of replicates and patients. V_s = var(d_r) / R contains the
        effect of the replicates and V_gs again. V_gs is estimated from many patients and V_s from
        R numbers, so V_gs is subtracted from V_s, unless V_s is estimated from two numbers only.
        """
        observed = values[:, 0]
        resamples = values[:, 1:]
        count = len(observed)
        mean = resamples.mean(0)
        patients = mean.var(ddof=1)
        replicates = 0.0
        if count > 1:
            replicates = observed.var(ddof=1) / count
            interaction = (resamples - mean).var(axis=1, ddof=1).sum() / (count * (count - 1))
            if count == 2:
                patients = max(patients - interaction, 0.0)
            else:
                replicates = max(replicates - interaction, 0.0)
        return cls(
            patients=float(np.sqrt(patients)),
            replicates=float(np.sqrt(replicates)),
            freedom=freedom,
            count=count,
        )

    @property
    def se(self) -> float:
        """The standard error of the sum of both parts."""
        return float(np.hypot(self.patients, self.replicates))

    def p(self, d: float) -> float:
        """Return the two-sided probability of an error at least as large as d.

        It is the mean over the errors of the smaller part, so that it is exact if that is 0.
        """
        parts = (self.patients, self.freedom), (self.replicates, self.count - 1)
        (smaller, freedom_of_smaller), (larger, freedom_of_larger) = sorted(parts)
        errors = np.zeros(1)
        if smaller:
            errors = smaller * _student_quantiles(freedom_of_smaller)
        return float(2 * stdtr(freedom_of_larger, (errors - abs(d)) / larger).mean())

    def half_width(self, alpha: float = ALPHA) -> float:
        """Return the d at which p is alpha."""
        upper = self.patients * -stdtrit(self.freedom, alpha / 8)
        if self.count > 1:
            upper += self.replicates * -stdtrit(self.count - 1, alpha / 8)
        return float(root_scalar(lambda d: self.p(d) - alpha, bracket=(0, 2 * upper)).root)


@cache
def _student_quantiles(freedom: int) -> Float[np.ndarray, " q"]:
    return stdtrit(freedom, (np.arange(QUANTILES) + 0.5) / QUANTILES)


def minimum_detectable(error: StandardError) -> float:
    """Return the true difference that a two-sided test at 0.05 finds in 80 % of all cohorts.

    It is (1.960 + 0.842) = 2.80 standard errors; with few replicates, Student's quantiles replace
    the normal ones.
    """
    return error.half_width(ALPHA) + error.half_width(2 * (1 - POWER))


SpecialCase = Literal[
    "equal scores", "equal metrics", "exchanged", "no variation", "few patients", "undefined"
]
"""How a difference was judged, if not by the variance of its resamples.

Both methods have the same scores, or the same metric in every resample; the difference is the same
in every resample, and p is from exchanging the methods, or there is none; there are too few
patients to resample; or the metric is undefined in most resamples.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Special:
    """Why a difference has no p, or how it was found if not from the resamples."""

    case: SpecialCase
    patients: int
    resamples: int
    left_out: int
    """Number of resamples in which the metric is undefined."""

    @property
    def sentence(self) -> str:
        """The reason in words."""
        same = "the difference is the same in every resample"
        return {
            "equal scores": "both give the same scores",
            "equal metrics": "the methods are equal in every resample",
            "exchanged": f"{same}: p is from exchanging the methods in random patients",
            "no variation": same,
            "few patients": f"{self.patients} patients are too few to resample",
            "undefined": f"the metric is undefined in {self.left_out} of {self.resamples} "
            f"resamples of {self.patients} patients",
        }[self.case]


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """The difference of two methods on the same bags."""

    difference: float
    """Mean over the replicates, or over the means of their blocks."""
    low: float | None
    """Lower limit of the 95 % interval; None if the resamples do not vary."""
    high: float | None
    p: float | None
    """Two-sided, before any correction; None if there are too few patients."""
    spread: StandardError | None = None
    """None if nothing varies."""
    special: Special | None = None
    """Why there is no p, or how it was found if not from the resamples."""


def block_means(values: Resampled, blocks: Sequence[Hashable]) -> Float[np.ndarray, "blocks rows"]:
    """Return the mean over the replicates of each block, which count the same."""
    rows_of: dict[Hashable, list[int]] = {}
    for row, block in enumerate(blocks):
        rows_of.setdefault(block, []).append(row)
    return np.stack([values[rows].mean(0) for rows in rows_of.values()])


def compare_pair(a: MethodSample, b: MethodSample, *, data: PairedData) -> Difference:
    """Return a - b, with its interval and p."""
    values = block_means(a.values - b.values, data.blocks)
    d = float(values[:, 0].mean())
    finite = np.asarray(np.isfinite(values[:, 1:]).all(0))
    resamples = len(finite)
    left_out = int((~finite).sum())

    def without_interval(
        case: SpecialCase, p: float | None = None, limit: float | None = None
    ) -> Difference:
        patients = int(data.member.max()) + 1
        special = Special(case=case, patients=patients, resamples=resamples, left_out=left_out)
        return Difference(difference=d, low=limit, high=limit, p=p, special=special)

    if np.array_equal(a.scores, b.scores):
        return without_interval("equal scores", 1.0, limit=0.0)
    if data.freedom < 1 or left_out == resamples:
        return without_interval("few patients")
    if resamples - left_out < max(2, left_out):
        return without_interval("undefined")
    error = StandardError.estimated(values[:, np.append(True, finite)], freedom=data.freedom)
    if error.se**2 < ROUNDING * data.scale**2:
        if abs(d) < np.sqrt(ROUNDING) * data.scale:
            return without_interval("equal metrics", 1.0)
        if data.metric == "other":
            return without_interval("no variation")
        return without_interval("exchanged", _exchange_test(a, b, data=data))
    half = error.half_width()
    # metrics lie in [0, 1], means of values and other metrics anywhere
    limit = np.inf if data.metric in ("mean", "other") else 1.0
    return Difference(
        difference=d,
        low=float(max(d - half, -limit)),
        high=float(min(d + half, limit)),
        p=min(1.0, error.p(d)),
        spread=error,
    )


def _exchange_test(a: MethodSample, b: MethodSample, *, data: PairedData) -> float:
    """Return p of |d| among the differences with the methods exchanged in random patients.

    Scores are exchanged as ranks, because two methods need not have the same scale.
    """
    name = data.metric
    assert name != "other", "only its values are known"
    scores_a = a.scores
    scores_b = b.scores
    if name in ("auroc", "average_precision"):
        scores_a = rankdata(scores_a, axis=1)
        scores_b = rankdata(scores_b, axis=1)
    patients = data.member.max() + 1
    draws = Draws(counts=np.ones((1, patients)), member=data.member)
    rng = np.random.default_rng(0)
    is_exchanged = np.zeros(len(data.member), dtype=bool)
    differences = []
    for _ in range(EXCHANGES + 1):  # the first one exchanges nothing
        metrics = []
        for scores in (
            np.where(is_exchanged, scores_b, scores_a),
            np.where(is_exchanged, scores_a, scores_b),
        ):
            values = resampled_metric(data.y, scores, draws=draws, metric=name, folds=data.folds)
            metrics.append(values.mean())
        differences.append(abs(metrics[0] - metrics[1]))
        is_exchanged = rng.random(patients)[data.member] < 0.5
    return float(np.mean(np.array(differences) >= differences[0] - np.sqrt(ROUNDING)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Undecided:
    """The methods from which the best one does not differ significantly."""

    best: str
    similar: tuple[str, ...]
    methods: int
    """Number of methods that were compared with the best."""
    nearest: str
    """The one of `similar` with the best metric."""
    difference: Difference
    """The nearest method minus the best."""
    adjusted: float
    """The Holm-adjusted p of this difference."""
    higher_is_better: bool

    @property
    def sentence(self) -> str:
        """Why there is no winner, in words."""
        d = self.difference
        if d.difference == 0:
            return f"{self.best} and {self.nearest} are equal"
        distance = f"{d.difference:.4g} above"
        if self.higher_is_better:
            distance = f"{-d.difference:.4f} below"
        origin = "" if d.special is None else f" ({d.special.sentence})"
        return (
            f"{self.best} does not differ significantly from {len(self.similar)} of {self.methods} "
            f"other methods; {self.nearest} is {distance} it, Holm-adjusted p = "
            f"{self.adjusted:.3g}{origin}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """All methods compared with a reference and with the best method."""

    metric: MetricName | Literal["other"]
    values: dict[str, float]
    """The mean of each method over the replicates, or over the means of their blocks, in the order
    of the input."""
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
    undecided: Undecided | None
    """Why there is no winner among several methods that have common replicates."""
    replicates: int
    groups: int
    """Number of patients, or of whatever was resampled."""
    notes: tuple[str, ...] = field(default=())
    """Caveats for readers of the table, for example that there is a single replicate."""

    @property
    def reason(self) -> str | None:
        """The reason why there is no winner, in words."""
        if self.winner is not None:
            return None
        if self.undecided is not None:
            return self.undecided.sentence
        if not self.replicates:
            return "there is no replicate that all methods have"
        return "only one method"


def compare(  # noqa: PLR0913 - each is a choice of its own
    y: ArrayLike | None,
    scores: Mapping[str, ArrayLike],
    *,
    groups: Groups | Shaped[np.ndarray, " items"] | None,
    metric: MetricName,
    baseline: str | None = None,
    folds: ArrayLike | None = None,
    blocks: Groups | Shaped[np.ndarray, " replicates"] | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> Comparison:
    """Compare all methods with a baseline (or the best), and decide whether there is a winner.

    The winner is the method with the highest value, if its paired difference to every other method
    has a Holm-adjusted two-sided p of at most 0.05. Otherwise there is none, and `undecided` says
    why.

    Args:
        y: labels 0 or 1, (items,); None for the metric `mean`, which needs none.
        scores: for each method, scores of shape (replicates, items), or calls for `f1` and
            `accuracy`; row r has the same seed (and split) in every method.
        groups: the patient of each item; None if each item is its own patient.
        metric: the metric to compare.
        baseline: the method that is subtracted from the others; None for the best.
        folds: the fold of each item, (items,) or (replicates, items), to average the metric of each
            fold. Shifts between the scores of different folds lower the metric of all items (None),
            but within folds each bag is compared only with those of its own fold.
        blocks: the block of each replicate, for example the split if replicates are pairs of a
            split and a seed. Replicates of a block are averaged, and each block counts the same. A
            single block is ignored.
        resamples: number of resamples of the patients.
        seed: seed of the resamples.

    Raises:
        InputError: the methods have scores of different shapes, there is one class only, also in a
            fold, or a score is nan.
    """
    by_method = {name: np.atleast_2d(np.asarray(s)) for name, s in scores.items()}
    shape = next(iter(by_method.values())).shape
    count, items = shape
    for name, s in by_method.items():
        are_calls = bool(np.isin(s, (0, 1)).all())
        has_nan = bool(np.isnan(s.astype(np.float64)).any())
        require(s.shape == shape, f"{name} has scores of shape {s.shape}: expected {shape}")
        require(
            are_calls or metric not in ("f1", "accuracy"),
            f"{name}: {metric} needs calls (True or False), not scores",
        )
        require(
            not has_nan,
            f"{name} has scores that are nan: leave those items out for all methods",
        )
    classes = [0, 1] if y is None else np.unique(y).tolist()
    require(classes == [0, 1], f"labels are {classes}: {metric} needs 0 and 1")
    labels = np.ones(items, dtype=bool) if y is None else np.asarray(y) == 1
    patients = range(items) if groups is None else list(groups)
    replicates = range(count) if blocks is None else list(blocks)
    strata: list[Hashable] = labels.tolist()
    fold_of = None
    if folds is not None:
        fold_of = np.broadcast_to(folds, shape)
        for replicate in fold_of:
            for fold in np.unique(replicate):
                has_both = len(np.unique(labels[replicate == fold])) == 2
                require(has_both, f"fold {fold} has one class: pool the folds instead")
        strata = list(zip(strata, fold_of[0].tolist(), strict=True))
    draws = Draws.patients(strata, groups=patients, resamples=resamples, seed=seed)
    freedom = draws.freedom
    if metric in ("average_precision", "f1"):
        # The positives dominate the variance: counting all patients makes the test too liberal
        # (6 % errors at a level of 5 % with 24 positives among 80 bags).
        freedom = min(freedom, draws.patients_with(labels) - 1)
    data = PairedData(
        y=labels,
        member=draws.member,
        freedom=freedom,
        # With one split and several seeds, the seeds are the replicates.
        blocks=tuple(replicates if len(set(replicates)) > 1 else range(count)),
        metric=metric,
        folds=fold_of,
    )
    samples = {}
    for name, s in by_method.items():
        values = resampled_metric(labels, s, draws=draws, metric=metric, folds=fold_of)
        samples[name] = MethodSample(values=values, scores=s)
    return compared_samples(samples, baseline=baseline, data=data)


def mean_interval(
    values: Replicated, *, groups: Groups, resamples: int, blocks: Groups | None = None
) -> Difference:
    """Return the mean with its interval over groups and replicates, as a difference to 0.

    Args:
        values: the value of each item in each replicate.
        groups: the patient of each item.
        resamples: number of resamples of the patients.
        blocks: the block of each replicate, see `compare`.
    """
    comparison = compare(
        None,
        {"zero": np.zeros_like(values), "values": values},
        baseline="zero",
        groups=groups,
        metric="mean",
        resamples=resamples,
        blocks=blocks,
    )
    return comparison.differences["values"]


def compared_samples(
    samples: Mapping[str, MethodSample], *, baseline: str | None, data: PairedData
) -> Comparison:
    """Compare methods whose metric has been computed in all resamples; see `compare`.

    Values and differences keep their sign if lower is better.
    """

    def compare_with(reference: str) -> tuple[dict[str, Difference], dict[str, float]]:
        """Return each other method minus the reference, and the Holm-adjusted p."""
        differences: dict[str, Difference] = {}
        for name, sample in samples.items():
            if name != reference:
                differences[name] = compare_pair(sample, samples[reference], data=data)
        p = holm([1.0 if d.p is None else d.p for d in differences.values()])
        return differences, dict(zip(differences, p, strict=True))

    values: dict[str, float] = {}
    for name, sample in samples.items():
        values[name] = float(block_means(sample.values[:, :1], data.blocks).mean())
    best_of = max if data.higher_is_better else min
    best = best_of(values, key=lambda name: values[name])
    differences, adjusted = compare_with(best)
    similar = tuple(name for name in differences if adjusted[name] > ALPHA)
    undecided = None
    if similar:
        nearest = best_of(similar, key=lambda name: differences[name].difference)
        undecided = Undecided(
            best=best,
            similar=similar,
            methods=len(differences),
            nearest=nearest,
            difference=differences[nearest],
            adjusted=adjusted[nearest],
            higher_is_better=data.higher_is_better,
        )
    winner = best if differences and undecided is None else None
    reference = best if baseline is None else baseline
    if reference != best:
        differences, adjusted = compare_with(reference)
    return Comparison(
        metric=data.metric,
        values=values,
        best=best,
        reference=reference,
        differences=differences,
        adjusted=adjusted,
        winner=winner,
        undecided=undecided,
        replicates=len(data.blocks),
        groups=int(data.member.max()) + 1,
        notes=(ONE_REPLICATE,) if len(set(data.blocks)) == 1 else (),
    )


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


def detectable_sentence(
    comparison: Comparison,
    *,
    within: bool = False,
    replicates: Collection[int] = (),
    title: str | None = None,
) -> str:
    """Return the sentence on the smallest detectable difference for the foot of a table.

    It is the median over the pairs of methods, before Holm's correction.

    Args:
        comparison: the comparison of the table.
        within: whether its differences are computed within folds.
        replicates: the number of replicates of each pair, if it differs between pairs.
        title: the metric in words; None for one of `NAMES`.
    """
    is_share = comparison.metric != "other"
    start = f"{DETECTABLE} {title or NAMES.get(comparison.metric, comparison.metric)}"
    if within:
        start += " within folds"
    errors = [d.spread for d in comparison.differences.values() if d.spread is not None]
    if not errors:
        return f"{start}: unknown, no pair of methods varies."
    least = median(map(minimum_detectable, errors))
    if least > 1 and is_share:
        return f"{start}: none (every difference is below 1)."
    counts = replicates or (comparison.replicates,)
    count_text = "one replicate" if max(counts) == 1 else f"{max(counts)} replicates"
    if min(counts) < max(counts):
        count_text = f"{min(counts)} to {count_text}"
    pairs = len(comparison.differences)
    summary = "" if pairs == 1 else f"; median of {pairs} pairs, each before Holm's correction"
    value = f"{least:.3f}" if is_share else f"{least:.3g}"
    return f"{start}: {value} ({TEST}, {comparison.groups} patients, {count_text}{summary})."


def detectable_from_intervals(
    intervals: Sequence[tuple[float | None, float | None]], *, what: str
) -> str:
    """Return the sentence for differences (`what`) of which only 95 % intervals are known.

    The half width of an interval is taken as 1.960 standard errors; unknown ends are left out.
    """
    widths = [(high - low) / 2 for low, high in intervals if low is not None and high is not None]
    if not widths:
        return f"{DETECTABLE} {what}: unknown, no difference has an interval."
    normal = NormalDist()
    least = median(widths) * (1 + normal.inv_cdf(POWER) / normal.inv_cdf(1 - ALPHA / 2))
    over = "" if len(widths) == 1 else f"; median of {len(widths)} differences"
    return f"{DETECTABLE} {what}: {least:.3f} ({TEST}, from 95 % intervals{over})."
