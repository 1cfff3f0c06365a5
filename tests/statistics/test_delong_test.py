"""AUROCs, their covariance and their test, against a reference and counted pair by pair."""

import csv

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from probsa.errors import InputError
from probsa.statistics.delong_test import delong

CASES = [
    "d1_n20_balanced",
    "d2_n50_ties",
    "d3_n200_rare",
    "d4_n400_light_ties",
    "d5_n1000_mostly_pos",
    "d6_n2000",
    "e1_degenerate",
]


@pytest.fixture(scope="module")
def reference(shared_golden):
    with np.load(shared_golden / "evaluation" / "delong" / "delong.npz") as file:
        return dict(file)


def test_every_reference_case_is_among_ours(reference):
    assert {key.split("__")[0] for key in reference} == set(CASES)


@pytest.mark.parametrize("case", CASES)
def test_auc_placements_and_covariance_are_the_references(reference, case):
    got = delong(reference[f"{case}__y"], reference[f"{case}__scores"])
    for ours, name in ((got.auc, "auc"), (got.v10, "v10"), (got.v01, "v01")):
        np.testing.assert_allclose(ours, reference[f"{case}__{name}"], rtol=0, atol=1e-14)
    expected = reference[f"{case}__cov"]
    np.testing.assert_allclose(got.covariance, expected, rtol=1e-11, atol=1e-17)
    np.testing.assert_allclose(got.se, np.sqrt(np.diag(expected)), rtol=1e-11)


@pytest.mark.parametrize("case", CASES[:-1])
def test_every_pair_has_the_references_z_and_p(reference, case):
    got = delong(reference[f"{case}__y"], reference[f"{case}__scores"])
    for row, (i, j) in enumerate(reference[f"{case}__pairs"]):
        test = got.compare(int(i), int(j))
        expected = {key: reference[f"{case}__{key}"][row] for key in ("diff", "z", "p", "log10_p")}
        assert test.reason is None
        assert test.difference == pytest.approx(expected["diff"], abs=1e-14)
        assert test.z == pytest.approx(expected["z"], rel=1e-9)
        assert test.p == pytest.approx(expected["p"], rel=1e-7)
        assert test.log10_p == pytest.approx(expected["log10_p"], rel=1e-8)
        assert test.se**2 == pytest.approx(reference[f"{case}__var_diff"][row], rel=1e-10)


def test_the_table_of_the_reference_agrees(shared_golden, reference):
    path = shared_golden / "evaluation" / "delong" / "delong.csv"
    with path.open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["dataset"] != "e1_degenerate"]
    assert len(rows) == 18
    for r in rows:
        got = delong(reference[f"{r['dataset']}__y"], reference[f"{r['dataset']}__scores"])
        i, j = int(r["a"]), int(r["b"])
        assert got.compare(i, j).z == pytest.approx(float(r["z"]), rel=1e-9)
        assert got.covariance[i, j] == pytest.approx(float(r["cov_ab"]), rel=1e-10, abs=1e-17)


def test_without_variance_there_is_no_p_of_zero_and_no_nan(reference):
    """Scores 0 and 1 are equal, 2 is constant, 3 is inverted; the reference has nan and inf."""
    got = delong(reference["e1_degenerate__y"], reference["e1_degenerate__scores"])
    same = got.compare(0, 1)
    assert (same.difference, same.z, same.p, same.log10_p) == (0, 0, 1, 0)
    assert "same way" in same.reason
    for i, j, difference in ((0, 2, 0.5), (0, 3, 1.0), (2, 3, 0.5), (1, 2, 0.5)):
        test = got.compare(i, j)
        assert test.difference == difference
        assert (test.z, test.p, test.log10_p) == (None, None, None)
        assert "zero variance" in test.reason


def test_against_all_pairs_counted_one_by_one():
    rng = np.random.default_rng(0)
    y = np.array([1, 0, 1, 0, 0, 1, 0])
    s = rng.integers(0, 4, size=(2, 7)).astype(float)
    got = delong(y, s)
    higher = [
        [[(p > q) + (p == q) / 2 for q in row[y == 0]] for p in row[y == 1]]
        for row in s.tolist()
        for row in [np.array(row)]
    ]
    for k in range(2):
        psi = np.array(higher[k])
        assert got.auc[k] == pytest.approx(psi.mean(), abs=1e-15)
        assert got.auc[k] == pytest.approx(roc_auc_score(y, s[k]), abs=1e-15)
        expected = psi.mean(1).var(ddof=1) / 3 + psi.mean(0).var(ddof=1) / 4
        assert got.covariance[k, k] == pytest.approx(expected, abs=1e-15)


def test_the_order_of_methods_changes_the_sign_alone():
    rng = np.random.default_rng(1)
    y = np.arange(40) % 3 == 0
    got = delong(y, rng.standard_normal((2, 40)) + y)
    one, two = got.compare(0, 1), got.compare(1, 0)
    assert (one.z, one.p, one.se) == (-two.z, two.p, two.se)


def test_its_type_i_error_is_nominal():
    rng = np.random.default_rng(2)
    y = np.arange(100) < 40
    rejected = 0
    for _ in range(1000):
        common = rng.standard_normal(100)
        s = 1.2 * y + common + rng.standard_normal((2, 100))
        rejected += delong(y, s).compare(0, 1).p <= 0.05
    # 50 are expected, with a binomial s.d. of 6.9.
    assert 27 <= rejected <= 73


@pytest.mark.parametrize("alone", ["positive", "negative"])
def test_one_bag_of_a_class_has_an_auc_and_no_variance(alone):
    y, s = np.array([0, 1, 0, 0]), np.array([[0.1, 0.5, 0.6, 0.2], [0.1, 0.9, 0.6, 0.2]])
    got = delong(y, s) if alone == "positive" else delong(1 - y, -s)
    np.testing.assert_allclose(got.auc, [2 / 3, 1])
    assert np.isnan(got.covariance).all()
    test = got.compare(0, 1)
    assert test.p is None
    assert test.reason == f"one {alone} bag: the variance is unknown"


@pytest.mark.parametrize(
    ("y", "scores", "message"),
    [
        ([1, 1], [0.1, 0.2], "only one class among 2 bags"),
        ([0, 2], [0.1, 0.2], r"labels are \[0, 2\]"),
        ([0, 1], [0.1, float("nan")], "nan"),
        ([0, 1, 1], [[0.1, 0.2]], r"labels of shape \(3,\) and scores of shape \(1, 2\)"),
    ],
)
def test_bad_input(y, scores, message):
    with pytest.raises(InputError, match=message):
        delong(y, scores)
