"""The metrics of classes: binary, multiclass, ordinal, and several findings (multilabel).

A class is ranked against the rest by its own probability; a mean over classes is undefined if one
of them has no bag. Quadratic κ always counts with all grades, so that an absent one does not
shorten distances. Each finding of several is judged on the bags in which it was observed.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float

from .calibration import calibration_error, equal_width_bins
from .intervals import CORRELATION, LOSS, MEAN_SHARE, SHARE, Scale
from .metric import (
    CLASSES,
    ClassNames,
    Metric,
    PartialMean,
    TargetMetrics,
    areas,
    call_support,
    class_support,
    f1,
    mean_of_items,
    mean_over_classes,
    of_several_classes,
    one_class_reason,
    require,
)
from .resample import Draws, Flags, Labels, Rows, Support, Values

Matrix = Float[np.ndarray, "rows truth call"]
Probabilities = Float[np.ndarray, "items classes"]

SMALLEST = float(np.finfo(np.float32).eps)
"""Lower limit of the probabilities in the NLL, because predictions are stored as float32."""
ROUNDING = 1e-9
"""A cumulative probability this little below ½ counts as ½."""
DIGITS = 12
"""Sums of probabilities that agree to so many decimals are tied when bags are ranked."""
NO_THRESHOLD = "no threshold was given: choose one on validation bags"
NO_THRESHOLDS = "no thresholds were given: choose them on validation bags"


def binary_metrics(
    labels: Labels,
    p: Values,
    *,
    threshold: float | Values | None = None,
    names: ClassNames = CLASSES,
    draws: Draws,
) -> TargetMetrics:
    """Return the metrics of two classes, of which 1 is the positive one.

    Without a threshold (the smallest probability of a positive call, chosen on validation bags),
    the metrics of calls are undefined, but for F1 at 0.5. `names` are those of
    the classes' patients.

    Raises:
        InputError: a label is not 0 or 1.
    """
    _check_classes(labels, classes=2)
    y = labels == 1
    f1_of_calls = balanced_accuracy = accuracy = Metric.undefined(NO_THRESHOLD)
    if threshold is not None:
        called = p >= threshold
        f1_of_calls = f1(y, called, draws=draws, names=names)
        f1_of_calls = of_several_classes(f1_of_calls, y, called="F1")
        recalls = draws.ratio(y & called, y) + draws.ratio(~y & ~called, ~y)
        balanced_accuracy = Metric.of(
            recalls / 2,
            support=class_support(y, draws=draws, names=names),
            reason=f"{one_class_reason(y, what='bags')}: balanced accuracy is undefined",
        )
        accuracy = _accuracy(y, called, draws=draws)
    losses = _losses(np.where(y, p, 1 - p))
    overall = {
        **areas(y, p, draws=draws, names=names),
        "f1": f1_of_calls,
        "f1_at_0.5": of_several_classes(f1(y, p >= 0.5, draws=draws, names=names), y, called="F1"),
        "balanced_accuracy": balanced_accuracy,
        "accuracy": accuracy,
        "brier": mean_of_items((p - y) ** 2, draws=draws, scale=MEAN_SHARE),
        "ece": _ece(p, y, draws=draws),
        "nll": mean_of_items(losses, draws=draws, scale=LOSS),
    }
    return TargetMetrics(overall=overall, by_part={})


def multiclass_metrics(
    y: Labels, p: Probabilities, *, names: Sequence[str], draws: Draws
) -> TargetMetrics:
    """Return the metrics over all bags, and those of each class (`names`) against the rest.

    The class with the highest probability is called. `auroc`, `average_precision`, `f1` and
    `balanced_accuracy` are means over classes; the Brier score is a sum over them, between 0 and 2.

    Raises:
        InputError: there are labels without a probability.
    """
    _check_classes(y, classes=p.shape[1])
    call = p.argmax(1)
    one_hot = y[:, None] == np.arange(p.shape[1])
    matrix = confusion(y, call, classes=p.shape[1], draws=draws)
    support = _agreement_support(y, call, draws=draws, names=names)
    by_part = {}
    for c, (name, of_class) in enumerate(zip(names, one_hot.T, strict=True)):
        called = call == c
        none_of_class = f"no bag of class {name} among {len(y)} bags"
        one_sided = f"all {len(y)} bags are of class {name}" if of_class.any() else none_of_class
        against = (f"of other classes than {name}", f"of class {name}")
        by_part[name] = {
            **areas(of_class, p[:, c], draws=draws, names=against, reason=one_sided),
            "f1": f1(of_class, called, draws=draws, names=against, reason=none_of_class),
            "recall": Metric.of(
                draws.ratio(of_class & called, of_class),
                support=draws.support({f"of class {name}": of_class}),
                reason=none_of_class,
            ),
        }

    def mean(key: str) -> Metric:
        return mean_over_classes([metrics[key] for metrics in by_part.values()])

    overall = {
        "auroc": mean("auroc"),
        "average_precision": mean("average_precision"),
        "f1": mean("f1"),
        "balanced_accuracy": mean("recall"),
        "accuracy": _accuracy(y, call, draws=draws),
        "brier": mean_of_items(
            ((p - one_hot) ** 2).sum(1), draws=draws, scale=Scale(0.0, 2.0, is_share=False)
        ),
        "ece": _ece(p.max(1), call == y, draws=draws),
        "nll": mean_of_items(_losses(p[one_hot]), draws=draws, scale=LOSS),
        "kappa": cohen_kappa(matrix, support=support),
        "linear_kappa": cohen_kappa(matrix, support=support, weighting="linear"),
        "quadratic_kappa": cohen_kappa(matrix, support=support, weighting="quadratic"),
    }
    return TargetMetrics(overall=overall, by_part=by_part)


def ordinal_metrics(
    y: Labels, p: Probabilities, *, names: Sequence[str], draws: Draws
) -> TargetMetrics:
    """Return the metrics over all bags, and the AUROC at each cut between grades (`names`).

    `rps` is the ranked probability score Σ_{k<K} (P(Y ≤ k) - 1[y ≤ k])², 0 for a perfect prediction
    (Epstein, Journal of Applied Meteorology 1969).

    Raises:
        InputError: there are grades without a probability.
    """
    _check_classes(y, classes=p.shape[1])
    call = median_call(p)
    grades = np.arange(p.shape[1])
    matrix = confusion(y, call, classes=len(grades), draws=draws)
    support = _agreement_support(y, call, draws=draws, names=names)
    error = np.abs(call - y)
    farthest = Scale(0.0, float(len(grades) - 1), is_share=False)
    within_one = mean_of_items(error <= 1, draws=draws, scale=SHARE)
    steps = np.cumsum(p, axis=1)[:, :-1] - (y[:, None] <= grades[:-1])
    overall = {
        "quadratic_kappa": cohen_kappa(matrix, support=support, weighting="quadratic"),
        "linear_kappa": cohen_kappa(matrix, support=support, weighting="linear"),
        "mae": mean_of_items(error, draws=draws, scale=farthest),
        "accuracy": _accuracy(y, call, draws=draws),
        "within_one": of_several_classes(
            within_one, y, called="the share of calls within one grade"
        ),
        "rps": mean_of_items((steps**2).sum(1), draws=draws, scale=farthest),
        "nll": mean_of_items(_losses(p[y[:, None] == grades]), draws=draws, scale=LOSS),
    }
    # P(Y ≥ k) in column k: sums from the last grade on
    at_least = np.cumsum(p[:, ::-1], axis=1)[:, ::-1].round(DIGITS)
    by_part = {}
    for k in range(1, len(grades)):
        is_at_least = y >= k
        side = "at least" if is_at_least.any() else "below"
        area = draws.auroc(is_at_least, at_least[:, k])
        sides = class_support(is_at_least, draws=draws, names=(f"below {k}", f"of at least {k}"))
        reason = f"all {len(y)} bags are {side} grade {k}: AUROC is undefined"
        by_part[f"≥{k}"] = {"auroc": Metric.of(area, support=sides, reason=reason)}
    return TargetMetrics(overall=overall, by_part=by_part)


def median_call(p: Probabilities) -> Labels:
    """Return the smallest grade k with P(Y ≤ k) ≥ ½: the least expected absolute error."""
    return np.argmax(np.cumsum(p, axis=1) >= 0.5 - ROUNDING, axis=1)


def multilabel_metrics(
    y: Probabilities,
    p: Probabilities,
    *,
    names: Sequence[str],
    thresholds: Sequence[float] | None = None,
    draws: Draws,
) -> TargetMetrics:
    """Return the metrics over all findings, and those of each finding on its observed bags.

    If a finding has no value, `macro_…` is undefined, and the mean over the others has a name with
    their number, as `macro_auroc_3_of_5`; there is no such mean if no finding has a value.

    Args:
        y: 1 if a bag has the finding, 0 if not, nan if this was not observed.
        p: the probability of each finding.
        names: the name of each finding.
        thresholds: the smallest probability of a positive call of each finding, if known.
        draws: resamples of the bags.

    Raises:
        InputError: a label has another value, or there are not as many thresholds as findings.
    """
    n = y.shape[1]
    is_observed = ~np.isnan(y)
    is_present = y == 1
    require(
        np.isin(y[is_observed], (0, 1)).all(),
        "labels of findings must be 0, 1 or nan (not observed); some are not",
    )
    called = None
    if thresholds is not None:
        require(
            len(thresholds) == n,
            f"{len(thresholds)} thresholds for {n} findings: expected one each",
        )
        called = p >= np.asarray(thresholds, dtype=np.float64)
    no_calls = Metric.undefined(NO_THRESHOLDS)
    by_part: dict[str, dict[str, Metric]] = {}
    for c, name in enumerate(names):
        rows = np.flatnonzero(is_observed[:, c])
        truth = is_present[rows, c]
        finding_draws = draws.for_items(rows)
        words = {"what": "observed bags", "names": (f"without {name}", f"with {name}")}
        by_part[name] = {
            **areas(truth, p[rows, c], draws=finding_draws, **words),
            "f1": no_calls,
            "ece": _ece(p[rows, c], truth, draws=finding_draws),
        }
        if called is not None:
            by_part[name]["f1"] = f1(truth, called[rows, c], draws=finding_draws, **words)
    overall: dict[str, Metric] = {}
    notes: list[str] = []
    for key in ("auroc", "average_precision", "f1", "ece"):
        macro = f"macro_{key}"
        if key == "f1" and called is None:
            overall[macro] = no_calls
            continue
        defined: list[Metric] = []
        reasons: dict[str, str | None] = {}
        for name, metrics in by_part.items():
            metric = metrics[key]
            if metric.value is None:
                reasons[name] = metric.reason
            else:
                defined.append(metric)
        if not reasons:
            overall[macro] = mean_over_classes(defined)
            continue
        detail = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        overall[macro] = Metric.undefined(f"{len(reasons)} of {n} findings ({detail})")
        if defined:
            partial = PartialMean(macro, defined=len(defined), findings=n)
            mean = replace(mean_over_classes(defined), partial=partial)
            overall[f"{macro}_{len(defined)}_of_{n}"] = mean
            title = macro.replace("_", " ")
            notes.append(f"{title} over all findings leaves out {', '.join(reasons)}")
    # the NLL of a bag is the mean over its observed findings
    finding_losses = _losses(np.where(is_present, p, 1 - p))
    bag_losses = np.where(is_observed, finding_losses, 0.0).sum(1)
    rows = np.flatnonzero(is_observed.any(1))
    bag_losses = bag_losses[rows] / is_observed.sum(1)[rows]
    overall["nll"] = mean_of_items(bag_losses, draws=draws.for_items(rows), scale=LOSS)
    return TargetMetrics(overall=overall, by_part=by_part, notes=tuple(notes))


def confusion(y: Labels, called: Labels, *, classes: int, draws: Draws) -> Matrix:
    """Return a confusion matrix for the data and for each resample: truth by calls.

    It has a row and a column for each of the classes 0 to `classes` - 1, also for one that does not
    occur.
    """
    cell = np.eye(classes * classes)[y * classes + called]
    return draws.totals(cell).reshape(-1, classes, classes)


def _agreement_support(y: Labels, called: Labels, *, draws: Draws, names: Sequence[str]) -> Support:
    """Return the support of an agreement of truth and calls.

    An agreement is undefined if all patients are of one class. Therefore it rests on those outside
    the most frequent class, which are contrasted with those of that class.
    """
    frequent = int(np.bincount(y, minlength=len(names)).argmax()) if len(y) else 0
    against = (f"of class {names[frequent]}", f"of other classes than {names[frequent]}")
    return call_support(y != frequent, called != frequent, draws=draws, names=against)


def cohen_kappa(
    matrix: Matrix, *, support: Support, weighting: Literal["none", "linear", "quadratic"] = "none"
) -> Metric:
    """Return κ = 1 - Σ w_ij O_ij / Σ w_ij E_ij, with E the product of the two margins over n.

    w_ij is 1 off the diagonal (`none`), |i - j| or (i - j)². κ is undefined (0/0) if truth and
    calls are the same single class. Cohen, Psychological Bulletin 1968.
    """
    # w_ij O_ij and w_ij E_ij are summed over classes; both are multiplied by n, so that E is the
    # product of the margins
    classes = np.arange(matrix.shape[1])
    distance = np.abs(classes[:, None] - classes).astype(np.float64)
    weight = {"none": np.sign(distance), "linear": distance, "quadratic": distance**2}[weighting]
    observed = (matrix * weight).sum((1, 2)) * matrix.sum((1, 2))
    expected = np.einsum("ri,ij,rj->r", matrix.sum(2), weight, matrix.sum(1))
    rows = 1 - _quotient(observed, expected, where=expected > 0)
    bag_count = f"{matrix[0].sum():.0f} bags"
    reason = f"{bag_count}: truth and calls are one and the same class, so kappa is 0/0"
    return Metric.of(rows, support=support, scale=CORRELATION, reason=reason)


def _quotient(above: Rows, below: Rows, *, where: Bool[np.ndarray, " rows"]) -> Rows:
    """Return above / below, and nan elsewhere than `where`."""
    return np.divide(above, below, out=np.full(len(below), np.nan), where=where)


def _losses(p: np.ndarray) -> np.ndarray:
    return -np.log(np.maximum(p, SMALLEST))


def _accuracy(y: Labels | Flags, called: Labels | Flags, *, draws: Draws) -> Metric:
    """Return the share of calls that are right; undefined if all bags are of one class."""
    share = mean_of_items(y == called, draws=draws, scale=SHARE)
    return of_several_classes(share, y, called="accuracy")


def _ece(p: Values, hit: Flags, *, draws: Draws) -> Metric:
    return calibration_error(p, hit, bins=equal_width_bins(p), draws=draws)


def _check_classes(y: Labels, *, classes: int) -> None:
    """Refuse labels other than 0 to `classes` - 1."""
    require(
        ((y >= 0) & (y < classes)).all(),
        f"labels go from {min(y, default=0)} to {max(y, default=0)}, but these probabilities are "
        f"for classes 0 to {classes - 1}",
    )
