"""Metrics of classes, grades and findings against scikit-learn and scoringrules."""

import numpy as np
import pytest
import scoringrules
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    brier_score_loss,
    cohen_kappa_score,
    f1_score,
    log_loss,
    mean_absolute_error,
    recall_score,
    roc_auc_score,
)
from support.repeated_draws import repeated_draws
from support.target_metrics import assert_resamples_are_repeated_rows, values

from probsa.errors import InputError
from probsa.statistics import (
    Draws,
    Support,
    binary_metrics,
    cohen_kappa,
    confusion,
    median_call,
    multiclass_metrics,
    multilabel_metrics,
    ordinal_metrics,
)


def _of_data(metrics):
    """The metrics without resamples, unless draws are given, of classes named by their numbers."""

    def of(y, p, *, draws=None, **options):
        if metrics in (multiclass_metrics, ordinal_metrics):
            options = {"names": [str(c) for c in range(p.shape[1])], **options}
        return metrics(y, p, draws=draws or Draws.of_data(len(y)), **options)

    return of


binary, multiclass, ordinal, multilabel = map(
    _of_data, (binary_metrics, multiclass_metrics, ordinal_metrics, multilabel_metrics)
)


def _data(n, classes, *, seed):
    """Labels of all classes, and probabilities with ties."""
    rng = np.random.default_rng(seed)
    y = np.append(np.arange(classes), rng.integers(0, classes, n - classes))
    p = rng.multinomial(5, np.full(classes, 1 / classes), size=n) + 0.5 * np.eye(classes)[y] + 0.5
    return y, p / p.sum(1, keepdims=True)


Y, P = _data(8, 3, seed=0)


def _one(y, called, *, classes):
    matrix = confusion(y, called, classes=classes, draws=Draws.of_data(len(y)))
    support = Support(patients=len(y), part=None, trials=float(len(y)))
    return [
        cohen_kappa(matrix, support=support, weighting=w) for w in ("none", "linear", "quadratic")
    ]


def _reference(y, p):
    classes = range(p.shape[1])
    called = p.argmax(1)
    one_hot = np.eye(p.shape[1], dtype=int)[y]
    recall = recall_score(y, called, average=None)
    return {
        "auroc": roc_auc_score(y, p, multi_class="ovr", average="macro"),
        **{f"{c}: auroc": roc_auc_score(y == c, p[:, c]) for c in classes},
        **{f"{c}: recall": recall[c] for c in classes},
        "average_precision": average_precision_score(one_hot, p, average="macro"),
        "f1": f1_score(y, called, average="macro"),
        "balanced_accuracy": balanced_accuracy_score(y, called),
        "accuracy": np.mean(y == called),
        "kappa": cohen_kappa_score(y, called, labels=classes),
        "linear_kappa": cohen_kappa_score(y, called, labels=classes, weights="linear"),
        "quadratic_kappa": cohen_kappa_score(y, called, labels=classes, weights="quadratic"),
        "nll": log_loss(y, p, labels=classes),
        "brier": brier_score_loss(y, p, labels=classes, scale_by_half=False),
        "ece": _ece(p.max(1), called == y),
    }


def _ece(p, hit):
    """The gaps between two means in 15 bins of equal width, weighted by their sizes."""
    bins = [min(int(value * 15), 14) for value in p]
    inside = [[i for i, b in enumerate(bins) if b == k] for k in set(bins)]
    return sum(len(i) / len(p) * abs(p[i].mean() - hit[i].mean()) for i in inside)


@pytest.mark.parametrize("seed", range(8))
def test_metrics_are_those_of_scikit_learn(seed):
    y, p = _data(14 + seed, 3 + seed % 3, seed=seed)
    got = values(multiclass(y, p))
    expected = _reference(y, p)
    for name, value in expected.items():
        assert got[name] == pytest.approx(value, abs=1e-12), name


def test_an_absent_class_leaves_the_means_undefined_and_the_others_their_values():
    keep = Y != 1
    metrics = multiclass(Y[keep], P[keep], names=["lepidic", "acinar", "solid"])
    (reason,) = {metric.reason for metric in metrics.by_part["acinar"].values()}
    for name in ("auroc", "average_precision", "f1", "balanced_accuracy"):
        assert metrics.overall[name].value is None
        assert reason in metrics.overall[name].reason
    got = values(metrics)
    assert got["acinar: auroc"] is None and got["acinar: f1"] is None
    for c, name in ((0, "lepidic"), (2, "solid")):
        assert got[f"{name}: auroc"] == pytest.approx(roc_auc_score(Y[keep] == c, P[keep][:, c]))


def test_one_class_alone_and_no_bags_have_reasons():
    y = np.zeros(4, dtype=np.int64)
    metrics = multiclass(y, P[:4])
    reason = metrics.by_part["0"]["auroc"].reason
    assert "all 4 bags" in reason and "class 0" in reason
    none = multiclass(y[:0], P[:0])
    assert all(v is None for v in values(none).values())


def test_kappa_counts_with_all_classes_and_is_undefined_for_a_single_one():
    truth = np.array([0, 1, 3, 3, 5, 1])
    call = np.array([0, 1, 3, 5, 5, 0])
    assert _one(truth, call, classes=6)[2].value == pytest.approx(0.8872180, abs=6e-8)
    assert cohen_kappa_score(truth, call, weights="quadratic") == pytest.approx(0.8666667, abs=1e-7)
    same = np.full(5, 3)
    for metric in _one(same, same, classes=6):
        assert metric.value is None and "5 bags" in (metric.reason or "")
    for metric in _one(np.array([0, 1, 2, 2, 5]), same, classes=6):
        assert metric.value == 0


def test_what_does_not_fit_is_refused():
    with pytest.raises(InputError, match="labels go from 0 to 3"):
        multiclass(np.append(Y[:7], 3), P)
    with pytest.raises(InputError, match=r"0 to 2.* 0 to 1"):
        binary(np.array([0, 2, 1]), np.array([0.2, 0.7, 0.4]))
    with pytest.raises(InputError, match="0, 1 or nan"):
        _metrics(FINDINGS * 2, P_FINDINGS)
    with pytest.raises(InputError, match="2 thresholds for 3 findings"):
        multilabel(FINDINGS, P_FINDINGS, names=NAMES, thresholds=[0.5, 0.5])


@pytest.mark.parametrize("seed", range(4))
def test_metrics_of_two_classes_are_those_of_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    y = np.append([1, 0], (rng.random(28) < 0.4).astype(int))
    p = (rng.integers(0, 8, 30) + 2 * y) / 10
    called = p >= 0.6
    metrics = binary(y, p, threshold=0.6)
    expected = {
        "auroc": roc_auc_score(y, p),
        "average_precision": average_precision_score(y, p),
        "f1": f1_score(y, called),
        "f1_at_0.5": f1_score(y, p >= 0.5),
        "balanced_accuracy": balanced_accuracy_score(y, called),
        "accuracy": accuracy_score(y, called),
        "brier": brier_score_loss(y, p),
        "ece": _ece(p, y),
        "nll": log_loss(y, p),
    }
    assert list(metrics.overall) == list(expected)
    assert values(metrics) == pytest.approx(expected, abs=1e-6)  # p = 1 is clipped in the NLL


def test_two_classes_without_a_threshold_or_a_class_have_reasons():
    p = np.array([0.2, 0.7, 0.4])
    metrics = binary(np.array([1, 0, 1]), p).overall
    undefined = {name for name, m in metrics.items() if "no threshold" in (m.reason or "")}
    assert undefined == {"f1", "balanced_accuracy", "accuracy"}
    metrics = binary(np.zeros(3, int), p, threshold=0.5).overall
    for name in ("auroc", "average_precision", "balanced_accuracy"):
        assert "one class among 3 bags" in metrics[name].reason
    assert "no positive among 3 bags" in metrics["f1"].reason and "F1" in metrics["f1"].reason


def test_a_certain_mistake_has_a_finite_likelihood():
    metrics = binary(np.array([1, 0]), np.zeros(2), threshold=0.5)
    assert values(metrics)["nll"] == pytest.approx(-np.log(2.0**-23) / 2)


def _grades(n, *, seed, grades=6):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, grades, n)
    p = rng.multinomial(4, np.full(grades, 1 / grades), size=n) + np.eye(grades)[y] + 0.1
    return y, p / p.sum(1, keepdims=True)


@pytest.mark.parametrize("seed", range(8))
def test_metrics_are_those_of_scikit_learn_and_scoringrules(seed):
    y, p = _grades(20, seed=seed)
    y = np.where(y == seed % 6, (seed + 1) % 6, y)  # one grade is absent from the truth
    got = values(ordinal(y, p))
    call = median_call(p)
    assert call.tolist() == [int((np.cumsum(row) < 0.5 - 1e-9).sum()) for row in p]
    for weights in ("linear", "quadratic"):
        expected = cohen_kappa_score(y, call, weights=weights, labels=range(6))
        assert got[f"{weights}_kappa"] == pytest.approx(expected, abs=1e-12)
    assert got["mae"] == pytest.approx(mean_absolute_error(y, call), abs=1e-12)
    assert got["within_one"] == pytest.approx(np.mean(np.abs(y - call) <= 1), abs=1e-12)
    expected = scoringrules.rps_score(y + 1, p)
    assert got["rps"] == pytest.approx(expected.mean(), abs=1e-12)
    assert got["nll"] == pytest.approx(log_loss(y, p, labels=range(6)), abs=1e-12)
    for k in range(1, 6):
        if 0 < (y >= k).sum() < len(y):
            score = p[:, k:].sum(1).round(12)
            expected = roc_auc_score(y >= k, score)
            assert got[f"≥{k}: auroc"] == pytest.approx(expected, abs=1e-12)


def test_the_median_at_exactly_one_half_is_the_lower_grade():
    p = np.array([[0.1, 0.4, 0.5], [0.5, 0.25, 0.25], [0.3, 0.1, 0.6], [0.15, 0.35, 0.5]])
    assert median_call(p).tolist() == [1, 0, 2, 1]
    # In float32, .15 + .35 is a little below ½ or not; the call must not depend on it.
    assert median_call(p.astype(np.float32).astype(np.float64)).tolist()[:3] == [1, 0, 2]


def test_undefined_metrics_of_grades_have_reasons():
    y = np.full(4, 3)
    p = np.tile(np.eye(6)[3], (4, 1))
    metrics = ordinal(y, p)
    assert "kappa is 0/0" in (metrics.overall["quadratic_kappa"].reason or "")
    assert "at least grade 3" in (metrics.by_part["≥3"]["auroc"].reason or "")
    assert "below grade 4" in (metrics.by_part["≥4"]["auroc"].reason or "")
    constant = ordinal(np.array([0, 1, 4]), np.tile(np.eye(6)[0], (3, 1)))
    assert constant.overall["quadratic_kappa"].value == 0


NAN = np.nan
FINDINGS = np.array([[1, 0, 1], [0, NAN, 1], [1, 1, 0], [0, 1, NAN], [1, 0, 0]])
P_FINDINGS = np.array(
    [[0.9, 0.2, 0.6], [0.4, 0.3, 0.7], [0.6, 0.8, 0.4], [0.5, 0.6, 0.5], [0.3, 0.1, 0.2]]
)
NAMES = ["edema", "mass", "nodule"]
HALF = [0.5] * 3


def _metrics(y, p, **options):
    return multilabel(y, p, names=NAMES, thresholds=HALF, **options)


def _findings(n, *, seed, missing=0.2):
    rng = np.random.default_rng(seed)
    y = (rng.random((n, 3)) < 0.4).astype(float)
    y[rng.random((n, 3)) < missing] = NAN
    return y, rng.integers(1, 10, (n, 3)) / 10


@pytest.mark.parametrize("seed", range(3))
def test_metrics_of_findings_are_those_of_scikit_learn(seed):
    y, p = _findings(30, seed=seed)
    got = values(_metrics(y, p))
    seen = ~np.isnan(y)
    called = p >= 0.5
    columns = [(y[s, c], p[s, c], called[s, c]) for c, s in enumerate(seen.T)]
    aurocs = [roc_auc_score(a, b) for a, b, _ in columns]
    assert [got[f"{name}: auroc"] for name in NAMES] == pytest.approx(aurocs, abs=1e-12)
    expected = {
        "macro_auroc": np.mean(aurocs),
        "macro_average_precision": np.mean([average_precision_score(a, b) for a, b, _ in columns]),
        "macro_f1": np.mean([f1_score(a, c) for a, _, c in columns]),
        "nll": np.mean(
            [log_loss(y[i, s], p[i, s], labels=[0, 1]) for i, s in enumerate(seen) if s.any()]
        ),
    }
    for name, value in expected.items():
        assert got[name] == pytest.approx(value, abs=1e-12), name


def test_a_mean_of_fewer_findings_has_another_name():
    y = FINDINGS.copy()
    y[:, 1] = [0, NAN, 0, 0, NAN]
    metrics = _metrics(y, P_FINDINGS)
    assert metrics.overall["macro_auroc"].value is None
    assert "1 of 3 findings (mass:" in metrics.overall["macro_auroc"].reason
    of_two = metrics.overall["macro_auroc_2_of_3"].value
    assert of_two == pytest.approx((2 / 3 + 1) / 2)
    assert any("auroc" in note and "mass" in note for note in metrics.notes)
    assert "macro_auroc_2_of_3" not in _metrics(FINDINGS, P_FINDINGS).overall
    y[:] = NAN
    metrics = _metrics(y, P_FINDINGS)
    assert metrics.overall["macro_auroc"].value is None
    assert "macro_auroc_0_of_3" not in metrics.overall and metrics.notes == ()
    assert all(value is None for value in values(metrics).values())


def test_without_thresholds_there_are_no_calls():
    metrics = multilabel(FINDINGS, P_FINDINGS, names=NAMES)
    assert "no thresholds" in (metrics.overall["macro_f1"].reason or "")
    assert metrics.notes == ()


@pytest.mark.parametrize(
    ("metrics", "data", "all_defined"),
    [
        (binary, ((np.arange(12) % 3 == 0) * 1, np.arange(12)[::-1] % 5 / 5), True),
        (multiclass, _data(24, 3, seed=1), True),
        (multiclass, (Y, P), False),
        (ordinal, _grades(18, seed=4, grades=4), True),
        (multilabel, _findings(16, seed=3), False),
    ],
)
def test_resamples_are_those_of_repeated_rows(metrics, data, all_defined):
    y, p = data
    groups = [i // 2 for i in range(len(y))] if all_defined else range(len(y))
    draws = repeated_draws(groups, resamples=15, seed=1)
    options = {binary: {"threshold": 0.5}, multilabel: {"names": NAMES, "thresholds": HALF}}
    undefined = assert_resamples_are_repeated_rows(
        lambda rows, d: metrics(y[rows], p[rows], draws=d, **options.get(metrics, {})), draws
    )
    assert all_defined or undefined > 0


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("right", [True, False])
def test_calls_of_a_single_class_cannot_be_judged(label, right):
    n = 22
    y = np.full(n, label)
    likely = 0.9 if bool(label) == right else 0.1
    draws = Draws.patients(np.zeros(n), groups=[str(k) for k in range(n)], resamples=50, seed=0)
    p = np.full(n, likely)
    found = binary_metrics(y, p, threshold=0.5, draws=draws).overall
    keys = ("auroc", "f1", "f1_at_0.5", "balanced_accuracy", "accuracy")
    assert [key for key in keys if found[key].value is not None] == []
    assert "one class among 22 bags" in found["accuracy"].reason
    assert found["brier"].value == pytest.approx((likely - label) ** 2)
    rows = np.tile([1 - likely, likely, 0.0], (n, 1))
    several = multiclass_metrics(y, rows, names=("a", "b", "c"), draws=draws).overall
    keys = ("auroc", "f1", "balanced_accuracy", "accuracy")
    assert [key for key in keys if several[key].value is not None] == []
    grades = ordinal_metrics(y, rows, names=("a", "b", "c"), draws=draws).overall
    assert grades["accuracy"].value is None and grades["within_one"].value is None
    assert grades["accuracy"].reason != grades["within_one"].reason
    assert grades["mae"].value is not None
    mixed = np.arange(n) % 2
    assert binary_metrics(mixed, p, threshold=0.5, draws=draws).overall["accuracy"].value == 0.5
