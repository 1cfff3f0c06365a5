"""The leaderboard: measures, winners, nulls, and its files."""

import csv
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, log_loss
from support.leaderboards import BAGS, FOLDS, LABELS, N, Y, write_experiment
from support.made_experiments import write_folds

from probsa.benchmark.leaderboard import (
    VALUES,
    Entry,
    above_zero,
    entry_of,
    set_board,
    write_leaderboard,
)
from probsa.benchmark.results.results import read_results
from probsa.statistics import Difference


def _entries(results):
    entries = [entry_of(s) for s in results.scores]
    return {e.name: e for e in entries if e is not None}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    out = tmp_path_factory.mktemp("leaderboard")
    write_experiment(out)
    return read_results(out)


def _null(entry, labels, *, seed=0):
    rng = np.random.default_rng(seed)
    ap = [average_precision_score(labels[b], rng.normal(size=N)) if Y[b] else np.nan for b in BAGS]
    nothing = np.full((1, len(BAGS)), np.nan)
    by_name = dict(zip(BAGS, ap, strict=True))
    values = dict.fromkeys(VALUES, nothing)
    values["average_precision"] = np.array([[by_name[b] for b in entry.scores.bags]])
    return Entry(name="centre", scores=entry.scores, values=values, null=True)


def test_values_equal_those_computed_from_the_files(results):
    labels, entries = LABELS, _entries(results)
    board = set_board(list(entries.values()), resamples=100)
    for scores in results.scores:
        name = scores.method.name
        nll = np.mean([log_loss(scores.positive, p, labels=[0, 1]) for p in scores.p])
        assert board.of("nll", name).value == pytest.approx(nll, abs=1e-6)
    rng = np.random.default_rng((0, 0))
    for _ in Y:  # the draws of p come first
        rng.normal(0, 0.2)
    means = {b: rng.normal(size=N) + 0.5 * np.array(labels[b]) for b in BAGS}
    rank = {
        b: average_precision_score(labels[b], means[b].astype(np.float32)) for b in BAGS if Y[b]
    }
    e = entries["abmil"]
    found = dict(zip(e.scores.bags, e.values["average_precision"][0], strict=True))
    assert {b: v for b, v in found.items() if np.isfinite(v)} == pytest.approx(rank, abs=1e-9)
    both = np.isfinite(e.values["average_precision"]).all(0)
    assert board.of("ap", "abmil").value == pytest.approx(
        e.values["average_precision"][:, both].mean(), abs=1e-12
    )


def test_a_better_map_wins_and_gains_over_the_null(tmp_path):
    labels = write_experiment(tmp_path, better=4.0)
    entries = _entries(read_results(tmp_path))
    null = _null(entries["abmil"], labels)
    board = set_board([*entries.values(), null], resamples=300)
    assert board.best_null == "centre"
    assert board.of("ap", "clam-sb").bold and not board.of("ap", "abmil").bold
    gain = board.of("ap", "clam-sb").value - board.of("ap", "centre").value
    assert board.of("gain", "clam-sb").value == pytest.approx(gain, abs=1e-12)
    assert board.of("gain", "clam-sb").bold
    assert board.of("gain", "centre").value == 0
    assert board.of("auroc", "centre").value is None


def test_gains_are_adjusted_for_the_number_of_methods():
    """A gain of p = 0.01 is shown to be above 0 alone, and not among 30 others."""
    one = Difference(difference=0.1, low=0.02, high=0.18, p=0.01, spread=None)
    noise = {
        f"noise{k}": Difference(difference=0.0, low=-0.1, high=0.1, p=0.9, spread=None)
        for k in range(30)
    }
    worse = Difference(difference=-0.5, low=-0.6, high=-0.4, p=1e-9, spread=None)
    assert above_zero({"one": one, "worse": worse}) == {"one"}
    assert above_zero({"one": one, **noise}) == frozenset()
    strong = replace(one, p=0.001)
    assert above_zero({"strong": strong, **noise}) == {"strong"}


def test_a_null_map_without_values_on_some_bags_is_noted(results):
    entries = _entries(results)
    null = _null(entries["abmil"], LABELS)
    assert set_board([*entries.values(), null], resamples=50).notes == ()
    bags = [null.scores.bags.index(b) for b in ("f1b1", "f1b3", "f2b5")]
    null.values["average_precision"][0, bags] = np.nan
    board = set_board([*entries.values(), null], resamples=50, notes=("first",))
    assert board.positive == 17 and board.notes[0] == "first"
    assert board.notes[1].startswith(
        "centre on toy has no AP for 3 bags ('f1b1' first) for which other methods have one"
    )


def test_files_name_every_method(results, tmp_path):
    files = write_leaderboard(results, tmp_path, resamples=50)
    names = {f.name for f in files}
    assert {"leaderboard.md", "leaderboard_toy.csv"} <= names
    with (tmp_path / "leaderboard" / "leaderboard_toy.csv").open() as f:
        rows = {r["method"]: r for r in csv.DictReader(f)}
    assert set(rows) == {"abmil", "clam-sb"}


def test_experiments_without_instance_labels_have_no_leaderboard(tmp_path):
    p = {b: 0.2 + 0.6 * Y[b] for b in BAGS}
    write_folds(tmp_path, Y, FOLDS, p, instances={})
    assert write_leaderboard(read_results(tmp_path), tmp_path) == ()
