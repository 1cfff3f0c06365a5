"""The scripts of `benchmarks/` use what the package has, and measure what the package measures."""

import csv
import runpy
import sys

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from support.delong import delong
from support.leaderboards import N, run_of, write_experiment, write_set
from support.paths import ROOT

from probsa.benchmark.leaderboard.entries import entry_of
from probsa.benchmark.leaderboard.measures import set_board
from probsa.benchmark.leaderboard.writing import write_leaderboard
from probsa.benchmark.results.results import read_results
from probsa.core import TextTable, write_csv

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


@pytest.mark.parametrize("name", ["assumptions", "paper", "timing", "localmil/page"])
def test_they_can_be_imported(script, name, capsys):
    with pytest.raises(SystemExit) as end:
        script(name, "--help")
    assert end.value.code == 0 and "usage" in capsys.readouterr().out


def test_a_row_of_localmil_has_the_measures_of_the_leaderboard(script, tmp_path, capsys):
    write_experiment(tmp_path)
    prepared = write_set(tmp_path / "set")
    own = [run_of(tmp_path, split, seed=seed) for seed in (0, 1) for split in range(4)]
    row = tmp_path / "mine" / "toy.csv"
    script("localmil/submit", *own, "--set", prepared, "--method", "<b>mine", "--out", row)
    with row.open(newline="") as f:
        (written,) = csv.DictReader(f)
    entries = [e for s in read_results(tmp_path).scores if (e := entry_of(s)) is not None]
    board = set_board(entries, resamples=1000)
    for measure, unit in {"auroc": 100, "nll": 1, "ap": 100}.items():
        expected = board.of(measure, "abmil")
        assert float(written[measure]) == pytest.approx(unit * expected.value, abs=1e-4)
        if measure != "auroc":
            assert float(written[f"{measure}_low"]) == pytest.approx(unit * expected.low, abs=1)

    write_leaderboard(tmp_path, read_results(tmp_path), resamples=50)
    board_file = tmp_path / "leaderboard" / "leaderboard_toy.csv"
    rows = TextTable.read(board_file).rows
    write_csv(board_file, list(rows[0]), [*rows, {"method": "centre (null)", "ap": "10"}])
    page = tmp_path / "page.html"
    capsys.readouterr()
    script("localmil/page", board_file, row, "--out", page)
    html = page.read_text()
    assert html.count("&lt;b&gt;mine") == 4 and "<b>mine" not in html and "http" not in html


@pytest.mark.parametrize(("folds", "said"), [(3, "is tested 0 times"), (4, "12 instances")])
def test_a_row_needs_every_bag_with_its_instances(script, tmp_path, folds, said):
    write_experiment(tmp_path, seeds=1)
    prepared = write_set(tmp_path / "set", n=N if folds == 3 else N + 1)
    own = [run_of(tmp_path, split) for split in range(folds)]
    with pytest.raises(SystemExit, match=said):
        script(
            "localmil/submit", *own, "--set", prepared, "--method", "m", "--out", tmp_path / "m.csv"
        )


def test_the_standard_error_of_an_assumption_is_delongs():
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    p = np.round(rng.normal(size=60) + y, 1)  # with ties
    value, se = runpy.run_path(str(SCRIPTS / "assumptions.py"))["auroc"](y, p)
    areas, covariance = delong(y, p[None])
    assert value == pytest.approx(roc_auc_score(y, p)) == pytest.approx(areas[0])
    assert se == pytest.approx(np.sqrt(covariance[0, 0]))
