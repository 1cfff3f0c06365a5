"""The scripts of `benchmarks/` use what the package has, and measure what the package measures."""

import itertools
import runpy
import sys

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from support.delong import delong
from support.paths import ROOT

from probsa.core import TextTable
from probsa.datasets import open_bags, read_table

SCRIPTS = ROOT / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    """Return a function that runs a script with arguments."""

    def run(name, *arguments):
        path = SCRIPTS / f"{name}.py"
        monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])
        monkeypatch.setattr(sys, "argv", [str(path), *map(str, arguments)])
        runpy.run_path(str(path), run_name="__main__")

    return run


@pytest.mark.parametrize("name", ["assumptions", "correlated", "intervals", "paper", "timing"])
def test_they_can_be_imported(script, name, capsys):
    with pytest.raises(SystemExit) as end:
        script(name, "--help")
    assert end.value.code == 0 and "usage" in capsys.readouterr().out


def test_the_standard_error_of_an_assumption_is_delongs():
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    p = np.round(rng.normal(size=60) + y, 1)  # with ties
    value, se = runpy.run_path(str(SCRIPTS / "assumptions.py"))["auroc"](y, p)
    areas, covariance = delong(y, p[None])
    assert value == pytest.approx(roc_auc_score(y, p)) == pytest.approx(areas[0])
    assert se == pytest.approx(np.sqrt(covariance[0, 0]))


@pytest.mark.parametrize("n", [1, 2, 5, 10])
@pytest.mark.parametrize("correlation", [0.0, 0.4, 0.95])
def test_the_optimal_scores_are_sums_over_all_sequences_of_labels(n, correlation):
    script = runpy.run_path(str(SCRIPTS / "correlated.py"))
    rate = 0.3
    log_ratio = 2 * np.random.default_rng((n, int(100 * correlation))).normal(size=n)
    weights = []
    labels = list(itertools.product((0, 1), repeat=n))
    for y in labels:
        w = rate if y[0] else 1 - rate
        for before, after in itertools.pairwise(y):
            up = correlation * before + (1 - correlation) * rate
            w *= up if after else 1 - up
        weights.append(w * np.exp(np.dot(y, log_ratio)))
    w = np.array(weights)
    y = np.array(labels)
    expected = w[y.any(1)].sum() / w.sum()
    p, odds, inside = script["optimal_scores"](log_ratio, rate=rate, correlation=correlation)
    assert p == pytest.approx(expected, rel=1e-10)
    assert odds == pytest.approx(np.log(p / (1 - p)), abs=1e-10)
    np.testing.assert_allclose(inside, (w @ y) / w.sum(), rtol=1e-10)


def test_correlated_bags_have_their_optimum_beside_them(script, tmp_path):
    script("correlated", tmp_path, "--bags", "400", "--correlation", "0.8")
    table = read_table(tmp_path / "labels.csv")
    bags = open_bags(tmp_path / "features")
    assert table.bags == bags.names and bags.bag("chain_0000").edges.shape[1] == 39  # a chain
    p = [float(row["probability"]) for row in TextTable.read(tmp_path / "optimal/bags.csv").rows]
    assert np.mean(table.labels) == pytest.approx(np.mean(p), abs=0.05)  # calibrated
    assert roc_auc_score(table.labels, p) > 0.8
    assert np.load(tmp_path / "optimal/chain_0000.npy").shape == (40,)


def test_the_shortcut_of_an_assumption_is_reversed(tmp_path):
    script = runpy.run_path(str(SCRIPTS / "assumptions.py"))
    script["write_bags"](tmp_path, "single-concept", seed=0)
    table = read_table(tmp_path / "labels.csv")
    bags = open_bags(tmp_path / "features")
    assert len(table.bags) == 650 and sum(table.labels) == 325
    for name in table.bags[::7]:
        poisoned = bool((bags.bag(name).x.mean(1) < -5).any())
        positive = int(name[-3:]) % 2 == 1
        assert poisoned == (positive == name.startswith("reversed"))
