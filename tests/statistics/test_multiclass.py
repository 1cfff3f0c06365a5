"""Metrics of several classes against scikit-learn, with ties, absent classes and resamples."""

import numpy as np
import pytest
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    brier_score_loss,
    cohen_kappa_score,
    f1_score,
    log_loss,
    matthews_corrcoef,
    recall_score,
    roc_auc_score,
)
from support.target_metrics import assert_resamples_are_repeated_rows, refused, values

from probsa.statistics import Draws, cohen_kappa, confusion, multiclass_metrics

Y = np.array([0, 1, 2, 2, 1, 0, 2, 1])
P = np.array(
    [
        [0.7, 0.2, 0.1],
        [0.3, 0.4, 0.3],
        [0.1, 0.3, 0.6],
        [0.2, 0.5, 0.3],
        [0.1, 0.8, 0.1],
        [0.4, 0.5, 0.1],
        [0.3, 0.3, 0.4],
        [0.5, 0.2, 0.3],
    ]
)
GOLDEN = {
    "0: auroc": 0.9166667,
    "1: auroc": 0.5666667,
    "2: auroc": 0.9333333,
    "macro_auroc": 0.8055556,
    "weighted_auroc": 0.7916667,
    "micro_auroc": 0.8046875,
    "one_vs_one_auroc": 0.8101852,
    "balanced_accuracy": 0.6111111,
    "macro_f1": 0.6238095,
    "kappa": 0.4285714,
    "linear_kappa": 0.5384615,
    "quadratic_kappa": 0.6666667,
    "matthews": 0.4391550,
    "nll": 0.8316159,
    "brier": 0.49,
}


def _data(n, classes, *, seed):
    """Labels of all classes, and probabilities with ties."""
    rng = np.random.default_rng(seed)
    y = np.append(np.arange(classes), rng.integers(0, classes, n - classes))
    p = rng.multinomial(5, np.full(classes, 1 / classes), size=n) + 0.5 * np.eye(classes)[y] + 0.5
    return y, p / p.sum(1, keepdims=True)


def _one(y, called, *, classes):
    matrix = confusion(y, called, classes=classes, draws=Draws.of_data(len(y)))
    return [cohen_kappa(matrix, weighting=w) for w in ("none", "linear", "quadratic")]


def _reference(y, p):
    classes, called = range(p.shape[1]), p.argmax(1)
    one_hot = np.eye(p.shape[1], dtype=int)[y]
    auroc = {
        f"{a}_auroc": roc_auc_score(y, p, multi_class="ovr", average=a)
        for a in ("macro", "weighted", "micro")
    }
    recall = recall_score(y, called, average=None)
    return {
        **auroc,
        **{f"{c}: auroc": roc_auc_score(y == c, p[:, c]) for c in classes},
        **{f"{c}: recall": recall[c] for c in classes},
        "one_vs_one_auroc": roc_auc_score(y, p, multi_class="ovo", average="macro"),
        "macro_average_precision": average_precision_score(one_hot, p, average="macro"),
        "micro_average_precision": average_precision_score(one_hot, p, average="micro"),
        "macro_f1": f1_score(y, called, average="macro"),
        "balanced_accuracy": balanced_accuracy_score(y, called),
        "accuracy": np.mean(y == called),
        "kappa": cohen_kappa_score(y, called, labels=classes),
        "linear_kappa": cohen_kappa_score(y, called, labels=classes, weights="linear"),
        "quadratic_kappa": cohen_kappa_score(y, called, labels=classes, weights="quadratic"),
        "matthews": matthews_corrcoef(y, called),
        "nll": log_loss(y, p, labels=classes),
        "brier": brier_score_loss(y, p, labels=classes, scale_by_half=False),
        "classwise_ece": np.mean([_ece(p[:, c], y == c) for c in classes]),
        "ece": _ece(p.max(1), called == y),
    }


def _ece(p, hit):
    """The gaps between two means in 15 bins of equal width, weighted by their sizes."""
    bins = [min(int(value * 15), 14) for value in p]
    inside = [[i for i, b in enumerate(bins) if b == k] for k in set(bins)]
    return sum(len(i) / len(p) * abs(p[i].mean() - hit[i].mean()) for i in inside)


def test_the_values_of_the_worked_example():
    got = values(multiclass_metrics(Y, P))
    for name, expected in GOLDEN.items():
        assert got[name] == pytest.approx(expected, abs=6e-8), name


@pytest.mark.parametrize("seed", range(8))
def test_metrics_are_those_of_scikit_learn(seed):
    y, p = _data(14 + seed, 3 + seed % 3, seed=seed)
    got, expected = values(multiclass_metrics(y, p)), _reference(y, p)
    for name, value in expected.items():
        assert got[name] == pytest.approx(value, abs=1e-12), name


def test_resamples_are_those_of_repeated_rows():
    y, p = _data(24, 3, seed=1)
    groups = [i // 2 for i in range(24)]
    draws = Draws.stratified(np.zeros(24), groups=groups, resamples=5, seed=3)
    undefined = assert_resamples_are_repeated_rows(
        lambda rows, d: multiclass_metrics(y[rows], p[rows], draws=d), draws
    )
    assert undefined == 0
    few = Draws.stratified(np.zeros(8), groups=None, resamples=10, seed=0)
    undefined = assert_resamples_are_repeated_rows(
        lambda rows, d: multiclass_metrics(Y[rows], P[rows], draws=d), few
    )
    assert undefined > 0


def test_an_absent_class_leaves_the_means_undefined_and_the_others_their_values():
    keep = Y != 1
    metrics = multiclass_metrics(Y[keep], P[keep], names=["lepidic", "acinar", "solid"])
    for name in ("macro_auroc", "weighted_auroc", "one_vs_one_auroc", "macro_f1"):
        assert metrics.overall[name].reason == (
            "no bag of class acinar among 5 bags: the mean over classes is undefined"
            if name == "macro_f1"
            else "no bag of class acinar among 5: the mean over classes is undefined"
        )
    got = values(metrics)
    assert got["acinar: auroc"] is None and got["acinar: f1"] is None
    for c, name in ((0, "lepidic"), (2, "solid")):
        assert got[f"{name}: auroc"] == pytest.approx(roc_auc_score(Y[keep] == c, P[keep][:, c]))
    one_hot = np.eye(3)[Y[keep]]
    assert got["micro_auroc"] == pytest.approx(roc_auc_score(one_hot.ravel(), P[keep].ravel()))


def test_one_class_alone_and_no_bags_have_reasons():
    y = np.zeros(4, dtype=np.int64)
    metrics = multiclass_metrics(y, P[:4])
    assert metrics.by_part["0"]["auroc"].reason == "all 4 bags are of class 0"
    none = multiclass_metrics(y[:0], P[:0])
    assert all(v is None for v in values(none).values())


def test_kappa_counts_with_all_classes_and_is_undefined_for_a_single_one():
    truth, call = np.array([0, 1, 3, 3, 5, 1]), np.array([0, 1, 3, 5, 5, 0])
    assert _one(truth, call, classes=6)[2].value == pytest.approx(0.8872180, abs=6e-8)
    assert cohen_kappa_score(truth, call, weights="quadratic") == pytest.approx(0.8666667, abs=1e-7)
    same = np.full(5, 3)
    for metric in _one(same, same, classes=6):
        assert metric.value is None and "5 bags" in (metric.reason or "")
    for metric in _one(np.array([0, 1, 2, 2, 5]), same, classes=6):
        assert metric.value == 0


def test_matthews_of_constant_calls_is_undefined():
    p = np.tile([0.6, 0.3, 0.1], (8, 1))
    metric = multiclass_metrics(Y, p).overall["matthews"]
    assert metric.value is None and "single class" in (metric.reason or "")


def test_what_does_not_fit_is_refused():
    with refused("8 labels for 7 rows"):
        multiclass_metrics(Y, P[:7])
    with refused("labels go from 0 to 3"):
        multiclass_metrics(np.append(Y[:7], 3), P)
    with refused("nan"):
        multiclass_metrics(Y, np.where(P > 0.7, np.nan, P))
