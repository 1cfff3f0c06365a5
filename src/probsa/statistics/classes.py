"""The metrics of classes: binary, multiclass, ordinal, and several findings (multilabel).

A class is ranked against the rest by its own probability; a mean over classes is undefined if one
of them has no bag. Quadratic κ always counts with all grades, so that an absent one does not
shorten distances. Each finding of several is judged on the bags in which it was observed.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Num

from ..errors import InputError
from .calibration import calibration_error, equal_width_bins
from .metric import (
    Metric,
    TargetMetrics,
    areas,
    auroc,
    f1,
    mean_of_items,
    mean_over_classes,
    one_class_reason,
)
from .resample import Draws, Flags, Labels, Rows, Values

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
    labels: Labels, p: Values, *, threshold: float | None = None, draws: Draws | None = None
) -> TargetMetrics:
    """Return the metrics of two classes, of which 1 is the positive one.

    Without a threshold (the smallest probability of a positive call, chosen on validation bags),
    the metrics of calls are undefined, but for F1 at 0.5.

    Raises:
        InputError: a label is not 0 or 1, or a probability not in [0, 1].
    """
    _check_classes(labels, np.stack([1 - p, p], axis=1))
    y = labels == 1
    draws = Draws.of_data(len(y)) if draws is None else draws
    area, precision = areas(y, p, draws=draws)
    calls = dict.fromkeys(("f1", "balanced_accuracy", "accuracy"), Metric.undefined(NO_THRESHOLD))
    if threshold is not None:
        called = p >= threshold
        reason = one_class_reason(y, what="bags")
        balanced = Metric.undefined(f"{reason}: balanced accuracy is undefined")
        if reason is None:
            recall, specificity = draws.ratio(y & called, y), draws.ratio(~y & ~called, ~y)
            balanced = Metric.of((recall + specificity) / 2)
        calls = {
            "f1": f1(y, called, draws=draws),
            "balanced_accuracy": balanced,
            "accuracy": mean_of_items(y == called, draws=draws),
        }
    overall = {
        "auroc": area,
        "average_precision": precision,
        "f1": calls["f1"],
        "f1_at_0.5": f1(y, p >= 0.5, draws=draws),
        "balanced_accuracy": calls["balanced_accuracy"],
        "accuracy": calls["accuracy"],
        "brier": mean_of_items((p - y) ** 2, draws=draws),
        "ece": _ece(p, y, draws=draws),
        "nll": mean_of_items(_losses(np.where(y, p, 1 - p)), draws=draws),
    }
    return TargetMetrics(overall=overall, by_part={})


def multiclass_metrics(
    y: Labels,
    p: Probabilities,
    *,
    names: Sequence[str] | None = None,
    draws: Draws | None = None,
) -> TargetMetrics:
    """Return the metrics over all bags, and those of each class against the rest.

    The class with the highest probability is called. `auroc`, `average_precision`, `f1` and
    `balanced_accuracy` are means over classes; the Brier score is a sum over them, between 0 and 2.

    Raises:
        InputError: labels (from 0) and probabilities do not fit each other.
    """
    _check_classes(y, p)
    classes = p.shape[1]
    names = [str(c) for c in range(classes)] if names is None else names
    draws = Draws.of_data(len(y)) if draws is None else draws
    one_hot, top = y[:, None] == np.arange(classes), p.max(1)
    by_part = {
        name: _one_class(one_hot[:, c], p[:, c], name, draws) for c, name in enumerate(names)
    }
    matrix = confusion(y, p.argmax(1), classes=classes, draws=draws)
    right, true, called = np.diagonal(matrix, axis1=1, axis2=2), matrix.sum(2), matrix.sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        of_calls = {"f1": 2 * right / (true + called), "recall": right / true}
    for c, name in enumerate(names):
        reason = f"no bag of class {name} among {len(y)} bags"
        for key, rows in of_calls.items():
            defined = np.where(true[:, c] > 0, rows[:, c], np.nan)
            by_part[name][key] = Metric.of(defined, reason=reason)
    cells = draws.for_items(np.repeat(np.arange(len(y)), classes))
    micro_auroc, micro_precision = areas(one_hot.ravel(), p.ravel(), draws=cells)

    def mean(key: str, weights: Float[np.ndarray, "rows classes"] | None = None) -> Metric:
        return mean_over_classes([metrics[key] for metrics in by_part.values()], weights=weights)

    overall = {
        "auroc": mean("auroc"),
        "average_precision": mean("average_precision"),
        "f1": mean("f1"),
        "balanced_accuracy": mean("recall"),
        "accuracy": accuracy(matrix),
        "brier": mean_of_items(((p - one_hot) ** 2).sum(1), draws=draws),
        "ece": _ece(top, p.argmax(1) == y, draws=draws),
        "nll": mean_of_items(_losses(_of_label(y, p)), draws=draws),
        "weighted_auroc": mean("auroc", draws.totals(one_hot)),
        "micro_auroc": micro_auroc,
        "one_vs_one_auroc": _one_vs_one_auroc(y, p, names=names, draws=draws),
        "micro_average_precision": micro_precision,
        "kappa": cohen_kappa(matrix),
        "linear_kappa": cohen_kappa(matrix, weighting="linear"),
        "quadratic_kappa": cohen_kappa(matrix, weighting="quadratic"),
        "matthews": matthews(matrix),
        "classwise_ece": mean("ece"),
    }
    return TargetMetrics(overall=overall, by_part=by_part)


def _one_class(y: Flags, p: Values, name: str, draws: Draws) -> dict[str, Metric]:
    """Return the metrics of one class against the rest that need no calls."""
    if y.any() and not y.all():
        area, precision = areas(y, p, draws=draws)
    else:
        absent = f"no bag of class {name} among {len(y)}"
        all_of_it = f"all {len(y)} bags are of class {name}"
        area = precision = Metric.undefined(all_of_it if y.any() else absent)
    return {"auroc": area, "average_precision": precision, "ece": _ece(p, y, draws=draws)}


def _one_vs_one_auroc(y: Labels, p: Probabilities, *, names: Sequence[str], draws: Draws) -> Metric:
    """Return Hand and Till's M, the mean over pairs of classes a, b of (A(a|b) + A(b|a)) / 2.

    A(a|b) is the AUROC of p_a for telling bags of class a from bags of class b. It does not depend
    on the shares of the classes (Machine Learning 2001).
    """
    for c, name in enumerate(names):
        if not (y == c).any():
            reason = f"no bag of class {name} among {len(y)}: the mean over classes is undefined"
            return Metric.undefined(reason)
    pairs = combinations(range(p.shape[1]), 2)
    both = [(c, d) for a, b in pairs for c, d in ((a, b), (b, a))]
    return Metric.of(
        np.mean([draws.auroc(y == c, p[:, c], control=y == d) for c, d in both], axis=0)
    )


def ordinal_metrics(y: Labels, p: Probabilities, *, draws: Draws | None = None) -> TargetMetrics:
    """Return the metrics over all bags, and the AUROC at each cut between grades.

    `rps` is the ranked probability score (Epstein, Journal of Applied Meteorology 1969).

    Raises:
        InputError: grades (from 0) and probabilities do not fit each other.
    """
    _check_classes(y, p)
    draws = Draws.of_data(len(y)) if draws is None else draws
    call, grades = median_call(p), p.shape[1]
    matrix, error = confusion(y, call, classes=grades, draws=draws), np.abs(call - y)
    overall = {
        "quadratic_kappa": cohen_kappa(matrix, weighting="quadratic"),
        "linear_kappa": cohen_kappa(matrix, weighting="linear"),
        "mae": mean_of_items(error, draws=draws),
        "accuracy": accuracy(matrix),
        "within_one": mean_of_items(error <= 1, draws=draws),
        "rps": mean_of_items(ranked_probability_scores(y, p), draws=draws),
        "nll": mean_of_items(_losses(_of_label(y, p)), draws=draws),
    }
    at_least = np.cumsum(p[:, ::-1], axis=1)[:, ::-1].round(DIGITS)
    by_part = {}
    for k in range(1, grades):
        high = y >= k
        area = auroc(high, at_least[:, k], draws=draws)
        if area.value is None and len(y):
            side = "at least" if high.all() else "below"
            area = Metric.undefined(f"all {len(y)} bags are {side} grade {k}: AUROC is undefined")
        by_part[f"≥{k}"] = {"auroc": area}
    return TargetMetrics(overall=overall, by_part=by_part)


def median_call(p: Probabilities) -> Labels:
    """Return the smallest grade k with P(Y ≤ k) ≥ ½: the least expected absolute error."""
    return np.argmax(np.cumsum(p, axis=1) >= 0.5 - ROUNDING, axis=1)


def mean_grade(p: Probabilities) -> Values:
    """Return the expected grade Σ_k k P(Y = k)."""
    return p @ np.arange(p.shape[1], dtype=p.dtype)


def ranked_probability_scores(y: Labels, p: Probabilities) -> Values:
    """Return Σ_{k<K} (P(Y ≤ k) - 1[y ≤ k])² of each bag; lower is better, 0 is perfect."""
    below = y[:, None] <= np.arange(p.shape[1] - 1)
    return ((np.cumsum(p, axis=1)[:, :-1] - below) ** 2).sum(1)


def multilabel_metrics(
    y: Probabilities,
    p: Probabilities,
    *,
    names: Sequence[str],
    thresholds: Sequence[float] | None = None,
    draws: Draws | None = None,
) -> TargetMetrics:
    """Return the metrics over all findings, and those of each finding on its observed bags.

    If a finding has no value, `macro_…` is undefined, and the mean over the others has a name with
    their number, as `macro_auroc_3_of_5`. Metrics of whole rows use the bags in which every finding
    was observed.

    Args:
        y: 1 if a bag has the finding, 0 if not, nan if this was not observed.
        p: the probability of each finding.
        names: the name of each finding.
        thresholds: the smallest probability of a positive call of each finding, if known.

    Raises:
        InputError: labels and probabilities do not fit each other.
    """
    _check_findings(y, p, names=names, thresholds=thresholds)
    draws = Draws.of_data(len(y)) if draws is None else draws
    called = None if thresholds is None else p >= np.asarray(thresholds, dtype=np.float64)
    observed, findings = ~np.isnan(y), range(len(names))
    by_part = {
        name: _findings(
            y,
            p,
            called,
            cells=(rows := np.flatnonzero(observed[:, c]), rows * 0 + c),
            draws=draws,
            what="observed bags",
        )
        for c, name in zip(findings, names, strict=True)
    }
    overall, notes = dict[str, Metric](), list[str]()
    for key in ("auroc", "average_precision", "f1", "ece"):
        if key == "f1" and called is None:
            overall["macro_f1"] = Metric.undefined(NO_THRESHOLDS)
            continue
        defined = [m[key] for m in by_part.values() if m[key].rows is not None]
        reasons = {name: m[key].reason for name, m in by_part.items() if m[key].rows is None}
        mean = mean_over_classes(defined) if defined else None
        if reasons:
            detail = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
            left_out = f"{len(reasons)} of {len(names)} findings ({detail})"
            overall[f"macro_{key}"] = Metric.undefined(left_out)
            part = f"macro_{key}_{len(defined)}_of_{len(names)}"
            overall[part] = mean or Metric.undefined(left_out)
            notes.append(f"macro {key} over all findings leaves out {', '.join(reasons)}")
        elif mean is not None:
            overall[f"macro_{key}"] = mean
    micro = _findings(
        y, p, called, cells=np.nonzero(observed), draws=draws, what="observed findings"
    )
    overall |= {f"micro_{k}": micro[k] for k in ("auroc", "average_precision", "f1")}
    overall |= _whole_rows(y, p, called, draws=draws)
    some = np.flatnonzero(observed.any(1))
    losses = np.where(observed, _losses(np.where(y == 1, p, 1 - p)), 0.0).sum(1)[some]
    nll = losses / observed.sum(1)[some]
    overall["nll"] = mean_of_items(nll, draws=draws.for_items(some))
    return TargetMetrics(overall=overall, by_part=by_part, notes=tuple(notes))


def _findings(
    y: Probabilities,
    p: Probabilities,
    called: Bool[np.ndarray, "items classes"] | None,
    *,
    cells: tuple[np.ndarray, ...],
    draws: Draws,
    what: str,
) -> dict[str, Metric]:
    """Return the metrics of pairs of a bag and a finding, given by their rows and columns."""
    of_cells, present, score = draws.for_items(cells[0]), y[cells] == 1, p[cells]
    area, precision = areas(present, score, draws=of_cells, what=what)
    of_calls = Metric.undefined(NO_THRESHOLDS)
    if called is not None:
        of_calls = f1(present, called[cells], draws=of_cells, what=what)
    ece = _ece(score, present, draws=of_cells)
    return {"auroc": area, "average_precision": precision, "f1": of_calls, "ece": ece}


def _whole_rows(
    y: Probabilities,
    p: Probabilities,
    called: Bool[np.ndarray, "items classes"] | None,
    *,
    draws: Draws,
) -> dict[str, Metric]:
    """Return the metrics of bags in which every finding was observed."""
    rows = np.flatnonzero(~np.isnan(y).any(1))
    keys = ("subset_accuracy", "hamming_loss", "label_ranking_precision")
    if len(rows) == 0:
        reason = f"no bag among {len(y)} has all {y.shape[1]} findings observed"
        return {key: Metric.undefined(reason) for key in keys}
    complete, present, score = draws.for_items(rows), y[rows] == 1, p[rows]
    metrics = {key: Metric.undefined(NO_THRESHOLDS) for key in keys}
    if called is not None:
        wrong = called[rows] != present
        metrics["subset_accuracy"] = mean_of_items(~wrong.any(1), draws=complete)
        metrics["hamming_loss"] = mean_of_items(wrong.mean(1), draws=complete)
    # The mean over the findings of a bag of their precision at their own rank; as in scikit-learn,
    # it is 1 for a bag with no finding or with all of them.
    at_least = score[:, None, :] >= score[:, :, None]
    precision = (at_least & present[:, None, :]).sum(2) / at_least.sum(2)
    count = present.sum(1)
    ranked = np.where(count == 0, 1.0, (precision * present).sum(1) / np.maximum(count, 1))
    metrics["label_ranking_precision"] = mean_of_items(ranked, draws=complete)
    return metrics


def confusion(y: Labels, called: Labels, *, classes: int, draws: Draws) -> Matrix:
    """Return the confusion matrix of each row: truth in rows, calls in columns.

    Classes 0 to `classes` - 1 are always all there, even if one of them does not occur.
    """
    cell = np.eye(classes * classes)[y * classes + called]
    return draws.totals(cell).reshape(-1, classes, classes)


def accuracy(matrix: Matrix) -> Metric:
    """Return the share of bags with the right call."""
    with np.errstate(invalid="ignore"):
        rows = np.trace(matrix, axis1=1, axis2=2) / matrix.sum((1, 2))
    return Metric.of(rows, reason="no bags")


def cohen_kappa(
    matrix: Matrix, *, weighting: Literal["none", "linear", "quadratic"] = "none"
) -> Metric:
    """Return κ = 1 - Σ w_ij O_ij / Σ w_ij E_ij, with E the product of the two margins over n.

    w_ij is 1 off the diagonal (`none`), |i - j| or (i - j)². κ is undefined (0/0) if truth and
    calls are the same single class. Cohen, Psychological Bulletin 1968.
    """
    classes = np.arange(matrix.shape[1])
    distance = np.abs(classes[:, None] - classes).astype(np.float64)
    weight = {"none": np.sign(distance), "linear": distance, "quadratic": distance**2}[weighting]
    observed = (matrix * weight).sum((1, 2)) * matrix.sum((1, 2))
    expected = np.einsum("ri,ij,rj->r", matrix.sum(2), weight, matrix.sum(1))
    reason = "truth and calls are one and the same class, so kappa is 0/0"
    return Metric.of(1 - _quotient(observed, expected), reason=f"{_bags(matrix)}: {reason}")


def matthews(matrix: Matrix) -> Metric:
    """Return Matthews' correlation of truth and calls; undefined if either is a single class.

    Of several classes it is Gorodkin's (Computational Biology and Chemistry 2004).
    """
    truth, call, n = matrix.sum(2), matrix.sum(1), matrix.sum((1, 2))
    covariance = np.trace(matrix, axis1=1, axis2=2) * n - (truth * call).sum(1)
    # n² - Σ t² as Σ t (n - t), which is exactly 0 for a single class.
    spread = (truth * (n[:, None] - truth)).sum(1) * (call * (n[:, None] - call)).sum(1)
    reason = "truth or calls are a single class, so the correlation is 0/0"
    return Metric.of(_quotient(covariance, np.sqrt(spread)), reason=f"{_bags(matrix)}: {reason}")


def _quotient(above: Rows, below: Rows) -> Rows:
    return np.divide(above, below, out=np.full(len(below), np.nan), where=below > 0)


def _bags(matrix: Matrix) -> str:
    return f"{matrix[0].sum():.0f} bags"


def _of_label(y: Labels, p: Probabilities) -> Values:
    return np.take_along_axis(p, y[:, None], axis=1)[:, 0]


def _losses(p: np.ndarray) -> np.ndarray:
    return -np.log(np.maximum(p, SMALLEST))


def _ece(p: Values, hit: Flags, *, draws: Draws) -> Metric:
    return calibration_error(p, hit, bins=equal_width_bins(p), draws=draws)


def _check_classes(y: Labels, p: Num[np.ndarray, "items classes"]) -> None:
    if len(y) != len(p):
        raise InputError(f"{len(y)} labels for {len(p)} rows of probabilities: expected as many")
    _check_probabilities(p)
    if len(y) and not 0 <= y.min() <= y.max() < p.shape[1]:
        raise InputError(
            f"labels go from {y.min()} to {y.max()}, "
            f"but these probabilities are for classes 0 to {p.shape[1] - 1}"
        )


def _check_probabilities(p: np.ndarray) -> None:
    if not bool(((p >= 0) & (p <= 1)).all()):
        raise InputError("probabilities must lie in [0, 1]; some are outside, or nan")


def _check_findings(
    y: Probabilities,
    p: Probabilities,
    *,
    names: Sequence[str],
    thresholds: Sequence[float] | None,
) -> None:
    if not bool(np.isin(y[~np.isnan(y)], (0, 1)).all()):
        raise InputError("labels of findings must be 0, 1 or nan (not observed); some are not")
    _check_probabilities(p)
    for what, given in (("names", names), ("thresholds", thresholds)):
        if given is not None and len(given) != y.shape[1]:
            raise InputError(f"{len(given)} {what} for {y.shape[1]} findings: expected one each")
