"""The leaderboard: measures, winners, nulls, submissions, and its files."""

import csv
import hashlib
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, log_loss
from support.made_experiments import write_folds

from probsa.benchmark.leaderboard.entries import CHECKS, VALUES, Entry, entry_of
from probsa.benchmark.leaderboard.measures import above_zero, set_board
from probsa.benchmark.leaderboard.writing import write_leaderboard
from probsa.benchmark.results.results import read_results
from probsa.core import write_csv, write_json
from probsa.datasets import SetCard, fingerprint_line
from probsa.datasets.localmil import SetDescription
from probsa.errors import InputError
from probsa.evaluation import read_submission, submit
from probsa.statistics import Difference

FOLDS = [[f"f{k}b{i}" for i in range(10)] for k in range(4)]
BAGS = [b for fold in FOLDS for b in fold]
Y = {b: i % 2 for i, b in enumerate(BAGS)}
N = 12


def _experiment(out, *, better=0.0, seeds=2):
    """Two methods; the second one's scores of positive instances are higher by `better`."""
    labels = {b: [int(Y[b] and 3 <= n < 6) for n in range(N)] for b in BAGS}
    for seed in range(seeds):
        for k, model in enumerate(("abmil", "clam-sb")):
            rng = np.random.default_rng((seed, k))
            p = {b: float(np.clip(0.25 + 0.5 * Y[b] + rng.normal(0, 0.2), 0.02, 0.98)) for b in Y}
            means = {
                b: (rng.normal(size=N) + (better * k + 0.5) * np.array(labels[b])).tolist()
                for b in BAGS
            }
            write_folds(
                out, Y, FOLDS, p, model=model, seed=seed, instances=labels, means=means,
                groups={b: b[:3] + str(int(b[-1]) // 2) for b in BAGS},
            )  # fmt: skip
    return labels


def _entries(out):
    entries = [entry_of(s) for s in read_results(out).scores]
    return {e.name: e for e in entries if e is not None}


def _null(entry, labels, *, seed=0):
    rng = np.random.default_rng(seed)
    ap = [average_precision_score(labels[b], rng.normal(size=N)) if Y[b] else np.nan for b in BAGS]
    nothing = np.full((1, len(BAGS)), np.nan)
    by_name = dict(zip(BAGS, ap, strict=True))
    values = dict.fromkeys((*VALUES, *CHECKS), nothing)
    values["average_precision"] = np.array([[by_name[b] for b in entry.bags]])
    return Entry(
        data=entry.data, name="centre", bags=entry.bags, groups=entry.groups, values=values
    )


def test_values_equal_those_computed_from_the_files(tmp_path):
    labels = _experiment(tmp_path)
    entries = _entries(tmp_path)
    board = set_board(list(entries.values()), resamples=100)
    s = read_results(tmp_path).scores
    for scores in s:
        name = scores.method.name
        nll = np.mean([log_loss(scores.y, p, labels=[0, 1]) for p in scores.p])
        assert board.of("nll", name).value == pytest.approx(nll, abs=1e-6)
    rng = np.random.default_rng((0, 0))
    for _ in Y:  # the draws of p come first
        rng.normal(0, 0.2)
    means = {b: rng.normal(size=N) + 0.5 * np.array(labels[b]) for b in BAGS}
    rank = {
        b: average_precision_score(labels[b], means[b].astype(np.float32)) for b in BAGS if Y[b]
    }
    e = entries["abmil"]
    found = dict(zip(e.bags, e.values["average_precision"][0], strict=True))
    assert {b: v for b, v in found.items() if np.isfinite(v)} == pytest.approx(rank, abs=1e-9)
    both = np.isfinite(e.values["average_precision"]).all(0)
    assert board.of("ap", "abmil").value == pytest.approx(
        e.values["average_precision"][:, both].mean(), abs=1e-12
    )


def test_a_better_map_wins_and_gains_over_the_null(tmp_path):
    labels = _experiment(tmp_path, better=4.0)
    entries = _entries(tmp_path)
    null = _null(entries["abmil"], labels)
    board = set_board([*entries.values(), null], resamples=300)
    assert board.best_null == "centre"
    assert board.of("ap", "clam-sb").wins and not board.of("ap", "abmil").wins
    gain = board.of("ap", "clam-sb").value - board.of("ap", "centre").value
    assert board.of("gain", "clam-sb").value == pytest.approx(gain, abs=1e-12)
    assert board.of("gain", "clam-sb").wins
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


def test_files_name_every_method_and_escape_markup(tmp_path):
    _experiment(tmp_path)
    row = tmp_path / "submissions" / "row.json"
    _submission(tmp_path, row, name="<b>theirs</b>")
    files = write_leaderboard(tmp_path, read_results(tmp_path), resamples=50)
    names = {f.name for f in files}
    assert {"leaderboard.md", "leaderboard.html", "leaderboard_toy.csv"} <= names
    html = (tmp_path / "leaderboard" / "leaderboard.html").read_text()
    assert "&lt;b&gt;theirs&lt;/b&gt; (submitted)" in html and "<b>theirs" not in html
    assert not re.search(r"(src|href)=.(http|//)", html)
    with (tmp_path / "leaderboard" / "leaderboard_toy.csv").open() as f:
        rows = {r["method"]: r for r in csv.DictReader(f)}
    assert set(rows) == {"abmil", "clam-sb", "<b>theirs</b> (submitted)"}


def test_experiments_without_instance_labels_have_no_leaderboard(tmp_path):
    p = {b: 0.2 + 0.6 * Y[b] for b in BAGS}
    write_folds(tmp_path, Y, FOLDS, p, instances={})
    assert write_leaderboard(tmp_path, read_results(tmp_path)) == ()


# --------------------------------------------------------------------------------- submissions


def _card(folder, labels):
    digest = hashlib.sha256()
    for b in sorted(BAGS):
        digest.update(fingerprint_line(b, y=Y[b], n=N, positive=sum(labels[b])))
    folder.mkdir(parents=True, exist_ok=True)
    description = SetDescription(title="toy", source="", licence="", commit="", graph="none")
    card = SetCard(
        name="toy", description=description, bags=40, positive_bags=20, groups=20, folds=4,
        labelled_bags=40, instances=40 * N, positive_instances=60, features=2,
        fingerprint=digest.hexdigest(),
    )  # fmt: skip
    write_json(folder / "card.json", card.to_dict())
    rows = [{"bag": b, "label": Y[b], "fold": k} for k, f in enumerate(FOLDS) for b in f]
    write_csv(folder / "labels.csv", ["bag", "label", "fold"], rows)
    return folder


def _submission(out, row, *, name="theirs", folds=4, replicate=0):
    labels = {b: [int(Y[b] and 3 <= n < 6) for n in range(N)] for b in BAGS}
    prepared = _card(out / "set", labels)
    for split in range(folds):
        predictions = out / "cells" / "toy" / "abmil" / f"split{split}-seed0" / "predictions"
        submit(predictions, row, folder=prepared, method=name, replicate=replicate)
    return prepared


def test_a_submitted_row_equals_the_runs_it_was_made_from(tmp_path):
    _experiment(tmp_path, seeds=1)
    _submission(tmp_path, tmp_path / "submissions" / "row.json")
    write_leaderboard(tmp_path, read_results(tmp_path), resamples=50)
    with (tmp_path / "leaderboard" / "leaderboard_toy.csv").open() as f:
        rows = {r["method"]: r for r in csv.DictReader(f)}
    for key in ("auroc", "nll", "ap", "doubt_gain"):
        assert rows["theirs (submitted)"][key] == rows["abmil"][key] != ""


def test_a_row_that_lacks_a_fold_is_left_out_with_the_reason(tmp_path):
    _experiment(tmp_path, seeds=1)
    _submission(tmp_path, tmp_path / "submissions" / "row.json", folds=3)
    write_leaderboard(tmp_path, read_results(tmp_path), resamples=50)
    text = (tmp_path / "leaderboard" / "leaderboard.md").read_text()
    assert "row.json on toy: left out, because in replicate 0 its 30 bags are not those" in text


def test_an_edited_row_is_left_out(tmp_path):
    _experiment(tmp_path, seeds=1)
    path = tmp_path / "submissions" / "row.json"
    _submission(tmp_path, path)
    row = json.loads(path.read_text())
    bag = row["sets"]["toy"]["replicates"]["0"]["f0b1"]
    bag["y"] = 1 - bag["y"]
    path.write_text(json.dumps(row))
    (tmp_path / "submissions" / "other.json").write_text('{"format": "x"}')
    write_leaderboard(tmp_path, read_results(tmp_path), resamples=50)
    text = (tmp_path / "leaderboard" / "leaderboard.md").read_text()
    assert "row.json on toy: left out" in text
    assert "other.json is not a row of the leaderboard" in text
    bag["y"], bag["measures"]["average_precision"] = 1 - bag["y"], 1.0000000000000002
    path.write_text(json.dumps(row))
    assert read_submission(path).method == "theirs"
    bag["measures"]["average_precision"] = 1.1
    path.write_text(json.dumps(row))
    with pytest.raises(InputError, match="expected values from −1 to 1"):
        read_submission(path)
    bag["p"] = 1.5
    path.write_text(json.dumps(row))
    with pytest.raises(InputError, match=r"p is 1\.5, expected 0 to 1"):
        read_submission(path)


def test_wrong_submissions_are_refused(tmp_path):
    _experiment(tmp_path, seeds=1)
    row = tmp_path / "row.json"
    prepared = _submission(tmp_path, row)
    predictions = tmp_path / "cells" / "toy" / "abmil" / "split0-seed0" / "predictions"
    with pytest.raises(InputError, match="already in replicate 0"):
        submit(predictions, row, folder=prepared, method="theirs")
    with pytest.raises(InputError, match="is the row of 'theirs', not of 'mine'"):
        submit(predictions, row, folder=prepared, method="mine")
    with pytest.raises(InputError, match="does not name its model"):
        submit(predictions, tmp_path / "new.json", folder=prepared)
    with pytest.raises(InputError, match="is not a set of LocalMIL"):
        submit(predictions, tmp_path / "new.json", folder=tmp_path, method="a")
    rows = [{"bag": b, "label": Y[b], "fold": 0} for b in BAGS if b != "f0b3"]
    write_csv(prepared / "labels.csv", ["bag", "label", "fold"], rows)
    with pytest.raises(InputError, match=r"bag 'f0b3' .* is not in"):
        submit(predictions, tmp_path / "new.json", folder=prepared, method="a")
    assert not (tmp_path / "new.json").exists()
