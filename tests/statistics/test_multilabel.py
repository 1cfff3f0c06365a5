"""Metrics of several findings with missing labels, against scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    f1_score,
    hamming_loss,
    label_ranking_average_precision_score,
    log_loss,
    roc_auc_score,
)
from support.target_metrics import assert_resamples_are_repeated_rows, refused, values

from probsa.statistics import Draws, multilabel_metrics

NAN = np.nan
Y = np.array([[1, 0, 1], [0, NAN, 1], [1, 1, 0], [0, 1, NAN], [1, 0, 0]])
P = np.array([[0.9, 0.2, 0.6], [0.4, 0.3, 0.7], [0.6, 0.8, 0.4], [0.5, 0.6, 0.5], [0.3, 0.1, 0.2]])
NAMES = ["edema", "mass", "nodule"]
HALF = [0.5] * 3


def _metrics(y, p, **options):
    return multilabel_metrics(y, p, names=NAMES, thresholds=HALF, **options)


def _random(n, *, seed, missing=0.2):
    rng = np.random.default_rng(seed)
    y = (rng.random((n, 3)) < 0.4).astype(float)
    y[rng.random((n, 3)) < missing] = NAN
    return y, rng.integers(1, 10, (n, 3)) / 10


def test_the_values_of_the_worked_example():
    got = values(_metrics(Y, P))
    assert [got[f"{name}: auroc"] for name in NAMES] == pytest.approx([2 / 3, 1, 1])
    assert got["macro_auroc"] == pytest.approx(0.8888889, abs=6e-8)
    assert got["macro_average_precision"] == pytest.approx(0.9555556, abs=6e-8)
    assert got["nll"] == pytest.approx(0.4482541, abs=6e-8)
    got = values(_metrics(np.nan_to_num(Y), P))
    assert got["micro_auroc"] == pytest.approx(0.9196429, abs=6e-8)
    assert got["hamming_loss"] == pytest.approx(0.2)
    assert got["macro_f1"] == pytest.approx(0.8222222, abs=6e-8)
    assert got["micro_f1"] == pytest.approx(0.8)


@pytest.mark.parametrize("seed", range(3))
def test_metrics_are_those_of_scikit_learn(seed):
    y, p = _random(30, seed=seed)
    got, seen, called = values(_metrics(y, p)), ~np.isnan(y), p >= 0.5
    columns = [(y[s, c], p[s, c], called[s, c]) for c, s in enumerate(seen.T)]
    aurocs = [roc_auc_score(a, b) for a, b, _ in columns]
    assert [got[f"{name}: auroc"] for name in NAMES] == pytest.approx(aurocs, abs=1e-12)
    whole = seen.all(1)
    expected = {
        "macro_auroc": np.mean(aurocs),
        "macro_average_precision": np.mean([average_precision_score(a, b) for a, b, _ in columns]),
        "macro_f1": np.mean([f1_score(a, c) for a, _, c in columns]),
        "micro_auroc": roc_auc_score(y[seen], p[seen]),
        "micro_average_precision": average_precision_score(y[seen], p[seen]),
        "micro_f1": f1_score(y[seen], called[seen]),
        "subset_accuracy": accuracy_score(y[whole], called[whole]),
        "hamming_loss": hamming_loss(y[whole], called[whole]),
        "label_ranking_precision": label_ranking_average_precision_score(y[whole], p[whole]),
        "nll": np.mean(
            [log_loss(y[i, s], p[i, s], labels=[0, 1]) for i, s in enumerate(seen) if s.any()]
        ),
    }
    for name, value in expected.items():
        assert got[name] == pytest.approx(value, abs=1e-12), name


def test_a_mean_of_fewer_findings_has_another_name():
    y = Y.copy()
    y[:, 1] = [0, NAN, 0, 0, NAN]
    metrics = _metrics(y, P)
    assert metrics.overall["macro_auroc"].value is None
    assert metrics.overall["macro_auroc"].reason == (
        "1 of 3 findings (mass: only one class among 3 observed bags)"
    )
    of_two = metrics.overall["macro_auroc_2_of_3"].value
    assert of_two == pytest.approx((2 / 3 + 1) / 2)
    assert "macro auroc over all findings leaves out mass" in metrics.notes
    assert "macro_auroc_2_of_3" not in _metrics(Y, P).overall
    y[:] = NAN
    metrics = _metrics(y, P)
    assert metrics.overall["macro_auroc_0_of_3"].value is None
    assert all(value is None for value in values(metrics).values())


def test_without_thresholds_there_are_no_calls():
    metrics = multilabel_metrics(Y, P, names=NAMES)
    for name in ("macro_f1", "micro_f1", "subset_accuracy", "hamming_loss"):
        assert "no thresholds" in (metrics.overall[name].reason or "")
    assert metrics.overall["label_ranking_precision"].value is not None
    assert metrics.notes == ()


def test_resamples_are_those_of_repeated_rows():
    y, p = _random(16, seed=3)
    draws = Draws.stratified(np.zeros(16), groups=None, resamples=15, seed=2)
    undefined = assert_resamples_are_repeated_rows(
        lambda rows, d: _metrics(y[rows], p[rows], draws=d), draws
    )
    assert undefined > 0  # a finding loses its positives in some resamples


def test_what_does_not_fit_is_refused():
    with refused("0, 1 or nan"):
        _metrics(Y * 2, P)
    with refused("2 thresholds for 3 findings"):
        multilabel_metrics(Y, P, names=NAMES, thresholds=[0.5, 0.5])
