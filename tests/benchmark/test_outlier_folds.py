"""Reports on an experiment name folds with flipped labels."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from support.made_experiments import write_folds, write_run

from probsa.benchmark import reports as report
from probsa.benchmark.figures.figure_files import FigureFiles
from probsa.benchmark.results.outlier_folds import outlier_notes
from probsa.benchmark.results.results import read_scores

BAGS = [f"b{k:02}" for k in range(60)]
FOLDS = [BAGS[k::3] for k in range(3)]
TRUTH = {b: k // 3 % 2 for k, b in enumerate(BAGS)}
P = {b: 0.25 + 0.5 * y + k % 7 / 100 for k, (b, y) in enumerate(TRUTH.items())}


def experiment(out: Path, *, data: str, flipped: int | None) -> None:
    labels = {
        b: 1 - y if flipped is not None and b in FOLDS[flipped] else y for b, y in TRUTH.items()
    }
    write_folds(out, labels, FOLDS, P, model="abmil", data=data)


def test_flipped_folds_of_every_data_set_are_said(tmp_path):
    for data, flipped in (("a", 2), ("b", None), ("c", 0)):
        experiment(tmp_path, data=data, flipped=flipped)
    notes = outlier_notes(read_scores(tmp_path))
    assert [s.partition(" AUROC")[0] for s in notes] == [
        "a, fold 2: labels flipped?",
        "c, fold 0: labels flipped?",
    ]
    assert "AUROC 0.000, against 1.000 in the other folds" in notes[0]


def test_patients_are_what_a_fold_is_judged_by(tmp_path):
    """Five identical bags per patient: outliers by bags need not be outliers by patients."""
    notes = {}
    for grouped in (False, True):
        rng = np.random.default_rng(1)
        patients = [f"p{k:02}" for k in range(30)]
        bags = [f"{p}-{i}" for p in patients for i in range(5)]
        y = {b: int(b[1:3]) // 3 % 2 for b in bags}
        score = dict(zip(patients, rng.random(30).tolist(), strict=True))
        sign = {b: 1 if int(b[1:3]) % 3 else -1 for b in bags}  # inverted in fold 0
        p = {b: 0.3 + 0.4 * score[b[:3]] + 0.02 * sign[b] * (2 * y[b] - 1) for b in bags}
        out = tmp_path / str(grouped)
        folds = [[b for b in bags if int(b[1:3]) % 3 == k] for k in range(3)]
        groups = {b: b[:3] for b in bags} if grouped else None
        write_folds(out, y, folds, p, model="abmil", data="toy", groups=groups)
        notes[grouped] = outlier_notes(read_scores(out))
    assert len(notes[False]) > 0 and notes[True] == ()


@pytest.mark.parametrize(("wrong", "odd"), [(60, True), (45, True), (30, False), (0, False)])
def test_a_test_part_below_chance_is_said(tmp_path, wrong, odd):
    p = {b: 1 - P[b] if k < wrong else P[b] for k, b in enumerate(BAGS)}
    for model in ("abmil", "dsmil"):
        for split in (0, 1):
            write_run(tmp_path, model=model, split=split, folds=False, test=p, y=TRUTH)
    auroc = roc_auc_score(list(TRUTH.values()), list(p.values()))
    notes = [n.partition(" [")[0] for n in outlier_notes(read_scores(tmp_path))]
    expected = f"toy, the test part: labels flipped? AUROC {auroc:.3f}"
    assert [n.partition(" over")[0] for n in notes] == ([expected] if odd else [])


def test_a_report_says_them(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "write_tables", lambda *_, **__: [])
    monkeypatch.setattr(report, "write_figures", lambda *_, **__: FigureFiles())
    experiment(tmp_path, data="a", flipped=1)
    (notes,) = report.write_report(tmp_path).odd
    assert notes.startswith("a, fold 1: labels flipped?")


def test_maps_of_bags_that_are_chosen_no_more_go(tmp_path, monkeypatch):
    figures = tmp_path / "figures"
    now = figures / "attention-a-b01.png"

    def drawn(out, **_):
        now.write_text("new")
        return FigureFiles(written=(now,))

    monkeypatch.setattr(report, "write_tables", lambda *_, **__: [])
    monkeypatch.setattr(report, "write_figures", drawn)
    experiment(tmp_path, data="a", flipped=None)
    figures.mkdir()
    for name in ("attention-a-b00.png", "attention-a-b00.csv", "attention-a-b01.png", "mine.png"):
        (figures / name).write_text("old")
    report.write_report(tmp_path)
    assert sorted(p.name for p in figures.iterdir()) == ["attention-a-b01.png", "mine.png"]
    assert now.read_text() == "new"
