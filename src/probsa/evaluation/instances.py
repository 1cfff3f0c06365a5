"""Instance-level metrics, where instance labels exist (they are never trained on).

The score of an instance is what its model calls attention (μ). Whether the variance finds wrong
calls is judged beside two scores that cost nothing: how near the call was, and 1/degree.
`authors_*` is the protocol of the paper's code, for comparison with its tables.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import logsumexp
from sklearn.metrics import accuracy_score, f1_score, roc_curve

from ..errors import BagError, InputError
from .bootstrap import Draws
from .metrics import NO_SPREAD, Metric, finds_errors, measured, rank_metrics, undefined
from .prediction import Prediction

ONE_DEGREE = "every instance has the same number of neighbours"

NAMES = (
    "auroc",
    "average_precision",
    "auroc_positive_bags",
    "average_precision_positive_bags",
    "error_rate",
    "error_auroc_variance",
    "error_auroc_margin",
    "error_auroc_degree",
    "authors_auroc",
    "authors_average_precision",
    "authors_f1",
    "authors_accuracy",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pool:
    """The labelled instances of several bags, one after another."""

    bag: Int[np.ndarray, " n"]
    """Index of the bag."""
    y: Bool[np.ndarray, " n"]
    score: Float[np.ndarray, " n"]
    """μ as the model gives it."""
    evidence: Float[np.ndarray, " n"]
    """Positive where the instance is called positive; see `evidence`."""
    variance: Float[np.ndarray, " n"]
    degree: Float[np.ndarray, " n"]

    def of(self, bags: Sequence[bool]) -> "_Pool":
        """The instances of the bags that are True."""
        kept = np.asarray(bags, dtype=bool)[self.bag]
        return _Pool(
            bag=self.bag[kept],
            y=self.y[kept],
            score=self.score[kept],
            evidence=self.evidence[kept],
            variance=self.variance[kept],
            degree=self.degree[kept],
        )


def evidence(score: Float[np.ndarray, " n"], *, kind: str) -> Float[np.ndarray, " n"]:
    """How far one bag's instances are on the positive side; an instance is called positive above 0.

    kind: `logit`: the log ratio to uniform attention, s_n = μ_n - logsumexp(μ) + log N;
    `weight`: the same of the weight itself, log(N w_n); `probability`: p_n - 0.5;
    `relevance` has no such point: nan.
    """
    value = score.astype(np.float64)
    if kind == "logit":
        return value - logsumexp(value) + np.log(len(value))
    if kind == "weight":
        return np.log(np.maximum(value, np.finfo(np.float64).tiny)) + np.log(len(value))
    if kind == "probability":
        return value - 0.5
    return np.full(len(value), np.nan)


def instance_metrics(
    predictions: Sequence[Prediction],
    *,
    positive: Mapping[str, bool],
    validation: Sequence[Prediction] | None = None,
    groups: Mapping[str, Hashable] | None = None,
    bootstrap: int = 500,
    seed: int = 0,
) -> dict[str, Metric]:
    """Every instance metric by name; bags without instance labels are left out.

    Labels above 0 are positive, below 0 unlabelled (dropped from the metrics, kept in a bag's N).
    `*_positive_bags` and `error_*` pool the instances of positive bags. Attention with one column a
    class: the column of the bag's most probable class above 0. Intervals resample bags (or `groups`
    of bags), positive and negative ones apart.

    Args:
        predictions: of the bags to judge.
        positive: whether a bag is positive (Y > 0); a bag that is missing here is not.
        validation: where the threshold of `authors_f1` and `authors_accuracy` is chosen.
        groups: patient of each bag; a bag that is missing here is its own.
        bootstrap: resamples; 0 gives no intervals.
        seed: of the resamples.

    Raises:
        InputError: the predictions do not have one score kind.
        BagError: a bag's attention is not finite.
    """
    kept = [p for p in predictions if p.instance_labels is not None]
    if not kept:
        return dict.fromkeys(NAMES, undefined("no bag has instance labels"))
    kind = _kind(kept)
    flags = [bool(positive.get(p.name, False)) for p in kept]
    names = None if groups is None else [groups.get(p.name, (p.name,)) for p in kept]
    draws = Draws.of(np.array(flags), groups=names, resamples=bootstrap, seed=seed)
    pool = _pool(kept)
    auroc, precision = rank_metrics(
        pool.y, pool.score, draws=draws.items(pool.bag), what="instances"
    )
    inside = pool.of(flags)
    within = draws.items(inside.bag)
    what = "instances of positive bags"
    auroc_in, precision_in = rank_metrics(inside.y, inside.score, draws=within, what=what)
    if validation is not None:
        validation = [p for p in validation if positive.get(p.name) and _labelled(p)]
        if validation and _kind(validation) != kind:
            raise InputError(
                f"test scores are of kind {kind!r}, validation's {_kind(validation)!r}: "
                "predict both with one model"
            )
    return {
        "auroc": auroc,
        "average_precision": precision,
        "auroc_positive_bags": auroc_in,
        "average_precision_positive_bags": precision_in,
        **_errors(inside, kind=kind, draws=within),
        "authors_auroc": auroc_in,
        "authors_average_precision": precision_in,
        **_authors(inside, validation=validation, draws=within),
    }


def balanced_threshold(y: Bool[np.ndarray, " n"], score: Float[np.ndarray, " n"]) -> float:
    """The score from which calls have the largest TPR · (1 - FPR); ties: the highest."""
    false, true, thresholds = roc_curve(y, score, drop_intermediate=False)
    p, n = y.sum(), (~y).sum()
    # Counts, because products of rates that are equal differ in their last digit.
    product = np.rint(true * p) * (n - np.rint(false * n))
    return float(thresholds[np.argmax(product)])


def _errors(pool: _Pool, *, kind: str, draws: Draws) -> dict[str, Metric]:
    what = "instances of positive bags"
    names = ("error_rate", "error_auroc_variance", "error_auroc_margin", "error_auroc_degree")
    if kind == "relevance":
        return dict.fromkeys(names, undefined("relevance has no point where calls change"))
    if len(pool.y) == 0:
        return dict.fromkeys(names, undefined(f"no {what}"))
    wrong = (pool.evidence > 0) != pool.y
    sums = draws.totals(np.stack([wrong, np.ones_like(wrong)], axis=1))

    def finds(score: Float[np.ndarray, " n"], *, constant: str | None) -> Metric:
        return finds_errors(wrong, score, draws=draws, constant=constant, what=what)

    with np.errstate(invalid="ignore"):  # a resample without a labelled instance
        rate = measured(float(wrong.mean()), sums[:, 0] / sums[:, 1])
    return {
        "error_rate": rate,
        "error_auroc_variance": finds(pool.variance, constant=NO_SPREAD)
        if pool.variance.any()
        else undefined(NO_SPREAD),
        "error_auroc_margin": finds(-np.abs(pool.evidence), constant=None),
        # In the order of 1/degree, finite for an isolated instance.
        "error_auroc_degree": finds(-pool.degree, constant=ONE_DEGREE),
    }


def _authors(
    pool: _Pool, *, validation: Sequence[Prediction] | None, draws: Draws
) -> dict[str, Metric]:
    names = ("authors_f1", "authors_accuracy")
    if validation is None:
        return dict.fromkeys(names, undefined("no validation predictions to choose a threshold on"))
    if not validation:
        reason = "no positive validation bag has instance labels to choose a threshold on"
        return dict.fromkeys(names, undefined(reason))
    held = _pool(validation)
    if held.y.all() or not held.y.any():
        reason = f"only one class among {len(held.y)} instances of positive validation bags"
        return dict.fromkeys(names, undefined(reason))
    if not pool.y.any():
        reason = f"no positive instance among {len(pool.y)} of positive bags"
        return dict.fromkeys(names, undefined(reason))
    y, called = pool.y, pool.score >= balanced_threshold(held.y, held.score)
    columns = np.stack([y & called, y, called, y == called, np.ones_like(y)], axis=1)
    both, true, claimed, right, n = draws.totals(columns).T
    with np.errstate(invalid="ignore", divide="ignore"):
        f1 = np.where(true > 0, 2 * both / (true + claimed), np.nan)
        accuracy = right / n
    return {
        "authors_f1": measured(f1_score(y, called), f1),
        "authors_accuracy": measured(accuracy_score(y, called), accuracy),
    }


def _kind(predictions: Sequence[Prediction]) -> str:
    kinds = sorted({p.score_kind for p in predictions})
    if len(kinds) > 1:
        raise InputError(
            f"scores of several kinds ({', '.join(kinds)}) cannot be judged together: "
            "predict all bags with one model"
        )
    return kinds[0]


def _labelled(p: Prediction) -> bool:
    return p.instance_labels is not None


def _pool(predictions: Sequence[Prediction]) -> _Pool:
    columns: dict[str, list[np.ndarray]] = {
        k: [] for k in ("bag", "y", "score", "evidence", "variance", "degree")
    }
    for b, p in enumerate(predictions):
        assert p.instance_labels is not None
        kept = p.instance_labels >= 0
        score, variance = one_column(p, p.attention_mean), one_column(p, p.attention_variance)
        if not (np.isfinite(score).all() and np.isfinite(variance).all()):
            raise BagError(
                f"bag {p.name!r} has attention that is nan or infinite: predict it again, and look "
                "at its features and the run's losses"
            )
        columns["bag"].append(np.full(int(kept.sum()), b, dtype=np.int64))
        columns["y"].append(p.instance_labels[kept] > 0)
        columns["score"].append(score[kept])
        columns["evidence"].append(evidence(score, kind=p.score_kind)[kept])
        columns["variance"].append(variance[kept])
        columns["degree"].append(p.degree.astype(np.float64)[kept])
    return _Pool(**{k: np.concatenate(v) for k, v in columns.items()})


def one_column(p: Prediction, value: np.ndarray) -> Float[np.ndarray, " n"]:
    """Of values with one column a class: that of the bag's most probable class above 0."""
    if value.ndim == 1:
        return value.astype(np.float64)
    if value.shape[1] == 1 or len(p.probability) != value.shape[1]:
        return value[:, -1].astype(np.float64)
    return value[:, 1 + int(np.argmax(p.probability[1:]))].astype(np.float64)
