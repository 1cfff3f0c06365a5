"""The results in paper.csv are those that the paper prints, under our names."""

import csv
from pathlib import Path

import numpy as np
import pytest

import probsa
from probsa.benchmark.grid.methods_and_cells import Method
from probsa.benchmark.results.paper import (
    LABELS,
    paper_rows,
    paper_value,
    position,
    spelled,
    study_of,
    title_of,
)
from probsa.models import names

CARRIED = Path(probsa.__file__).parent / "benchmark" / "paper.csv"


def test_the_packages_table_is_the_papers(shared_data):
    original = shared_data.parent / "paper" / "tables.csv"
    if not original.is_file():
        pytest.skip("the paper's table is not beside this checkout")
    assert CARRIED.read_bytes() == original.read_bytes()


def test_every_row_of_the_file_is_given_once():
    with CARRIED.open(newline="") as f:
        rows = list(csv.DictReader(f))
    given = [r for t in ("2", "3", "4", "5") for r in paper_rows(t)]
    assert len(given) == len(rows) == 300
    assert sorted((r.method, r.mean, r.sd) for r in given) == sorted(
        (r["model"], float(r["mean"]), float(r["sd"])) for r in rows
    )


def test_figures_are_found_under_our_names():
    row = paper_value("2", "abmil-probsa-diag", study="rsna", metric="AUROC")
    assert row is not None and (row.mean, row.sd, row.method) == (
        90.231,
        0.401,
        "ABMIL+ProbSA Diag",
    )
    row = paper_value("3", "tabmil", study="camelyon16", metric="F1")
    assert row is not None and (row.mean, row.sd) == (92.967, 3.638)
    row = paper_value(
        "5", "tabmil-probsa-dirac", study="panda", metric="AUROC", kl_weight="cyclical"
    )
    assert row is not None and row.mean == 97.974
    row = paper_value("4", "setmil", study="camelyon16", metric="ms")
    assert row is not None and (row.mean, row.sd) == (307.732, 103.096)
    assert paper_value("2", "tabmil", study="rsna", metric="AUROC") is None
    assert {r.study for r in paper_rows("2")} == {"rsna", "panda", "camelyon16", "rank"}


def test_every_model_of_the_paper_is_one_of_ours():
    assert set(LABELS.values()) <= set(names())


@pytest.mark.parametrize(
    ("kl", "text"), [(None, "0.0"), (0.1, "0.1"), (1.0, "1.0"), ("cyclical", "cyclical")]
)
def test_kl_weights_are_spelled_as_in_the_paper(kl, text):
    method = Method(label="abmil-probsa-diag", model="abmil-probsa-diag", kl_weight=kl)
    assert spelled(method) == text
    assert text in {r.kl_weight for r in paper_rows("5")}


def test_data_sets_go_by_their_names():
    assert [study_of(d) for d in ("rsna", "CAMELYON16", "ct_ich")] == ["rsna", "camelyon16", None]
    assert title_of("camelyon16") == "CAMELYON16"


def test_methods_stand_in_the_papers_order():
    def method(model, kl=None):
        return Method(label=model, model=model, kl_weight=kl)

    given = [
        method("vmil"),
        method("smabmil"),
        method("tabmil"),
        method("clam-sb"),
        method("abmil-probsa-diag", "cyclical"),
        method("abmil"),
        method("abmil-probsa-diag", 1.0),
        method("abmil-probsa-diag", 0.5),
        method("abmil-probsa-diag", "linear"),
    ]
    assert [m.name for m in sorted(given, key=position)] == [
        "abmil-probsa-diag λ=0.5",
        "abmil-probsa-diag λ=1",
        "abmil-probsa-diag λ=linear",
        "abmil-probsa-diag λ=cyclical",
        "abmil",
        "clam-sb",
        "smabmil",
        "tabmil",
        "vmil",
    ]


def test_the_papers_ranks_follow_from_its_figures():
    """Average ranks follow from six (data set, metric) columns within a family, with ddof = 1."""
    rows = [r for r in paper_rows("2") if r.study != "rank"]
    methods = list(dict.fromkeys(r.label for r in rows))
    pairs = list(dict.fromkeys((r.study, r.metric) for r in rows))
    value = {(r.label, r.study, r.metric): r.mean for r in rows}
    for label in methods:
        ranks = [1 + sum(value[m, *pair] > value[label, *pair] for m in methods) for pair in pairs]
        printed = paper_value("2", label, study="rank", metric="rank")
        assert printed is not None
        assert np.mean(ranks) == pytest.approx(printed.mean, abs=5e-4)
        assert np.std(ranks, ddof=1) == pytest.approx(printed.sd, abs=5e-4)
