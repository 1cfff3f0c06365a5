"""FROC of a study with annotated lesions, in the tables of an experiment."""

import json

import numpy as np
import pytest
import yaml
from support.made_experiments import write_run
from support.made_predictions import made_slide
from support.made_studies import SIDE, asap_xml, lattice, write_slide

from probsa.benchmark.results import lesions as benchmark_lesions
from probsa.benchmark.results.results import read_results
from probsa.benchmark.tables.instances import instances_table
from probsa.datasets.studies.annotated import recorded_files
from probsa.datasets.studies.opening import open_study
from probsa.evaluation.storage import write_predictions


@pytest.fixture
def experiment(tmp_path):
    """Two methods on a miniature CAMELYON16 with tumour in the left quarter of each slide."""
    root, work, out = tmp_path / "c16", tmp_path / "work" / "features_test", tmp_path / "out"
    (root / "annotations").mkdir(parents=True)
    (root / "testing").mkdir()
    names = {"test_001": 1, "test_002": 1, "test_003": 0, "test_004": 1, "test_114": 1}
    coords = lattice(8, 8)
    for name in (*names, "tumor_001"):
        write_slide(work, name, coords)
    left = asap_xml((0, 0), (2 * SIDE, 0), (2 * SIDE, 8 * SIDE), (0, 8 * SIDE))
    for name in ("test_001", "test_002", "test_114", "tumor_001"):
        (root / "annotations" / f"{name}.xml").write_text(left)
    lines = [f"{n},{'Tumor' if y else 'Normal'}" for n, y in names.items()]
    (root / "testing" / "reference.csv").write_text("\n".join(lines))
    study = open_study("camelyon16", root, out=out / "data" / "c16", features=work)
    tumour = coords[:, 0] < 2 * SIDE
    for model, right in (("abmil", True), ("dsmil", False)):
        for seed in (0, 1):
            run = write_run(
                out, data="c16", model=model, seed=seed, folds=False,
                test=dict.fromkeys(names, 0.5), y=names, rest=("tumor_001",),
            )  # fmt: skip
            data = {k: str(v) for k, v in study.settings().items() if k in ("features", "labels")}
            (run / "run.yaml").write_text(yaml.safe_dump({"data": data, "model": {"name": model}}))
            slides = [_prediction(n, y, coords, tumour, right=right) for n, y in names.items()]
            write_predictions(
                run / "predictions", slides, labels=names, parts=dict.fromkeys(names, "test"),
                classes=("0", "1"), threshold=0.5, metadata={}, overwrite=True,
            )  # fmt: skip
    return out


def _prediction(name, y, coords, tumour, *, right):
    labels = tumour.astype(int) * y
    if name in ("test_004", "test_114"):  # as in the study
        labels = np.full(len(coords), -1)
    share = np.where(tumour == right, 0.9, 0.1)
    return made_slide(name, coords, share, p=0.9 if y else 0.1, labels=labels)


def test_tables_of_a_camelyon16_study(experiment):
    record = json.loads((experiment / "data" / "c16" / "dataset.json").read_text())
    assert sorted(record["annotations"]) == ["test_001", "test_002", "test_114", "tumor_001"]
    scores = read_results(experiment).scores
    table = instances_table(scores, bootstrap=20)
    names = ["errors_c16", "froc_patches_c16", "froc_c16", "within_bags_c16"]
    assert [t.name for t in table.follow] == names
    _, patches, official, _ = table.follow
    for t in (patches, official):
        assert [row[0].text for row in t.rows] == ["abmil", "dsmil"]
        assert t.rows[0][1].value == 1.0  # the best detections of both slides are hits
        assert t.rows[1][1].value < 1.0
        assert "2 lesions on 2 tumour slides of 3; 0 isolated tumour cells." in t.footnotes
    assert "approximation on patches" in patches.footnotes[0]
    assert patches.title == "FROC (patch-level) of c16"
    assert any(
        "test_004, test_114): tumour slides without complete patch labels" in n
        for n in patches.footnotes
    )
    assert any("(test_004): tumour, but no annotation" in n for n in official.footnotes)
    assert any("(test_114): CAMELYON16's test_114 is not" in n for n in official.footnotes)


def test_without_the_annotations_the_approximation_remains(experiment, tmp_path):
    scores = read_results(experiment).scores
    (tmp_path / "c16" / "annotations" / "test_001.xml").unlink()
    table = instances_table(scores, bootstrap=0)
    assert [t.name for t in table.follow] == ["errors_c16", "froc_patches_c16", "within_bags_c16"]
    assert any("No official FROC" in n and "test_001.xml" in n for n in table.footnotes)
    labels = experiment / "data" / "c16" / "labels.csv"
    assert recorded_files(labels, ["test_002"]).keys() == {"test_002"}
    (labels.parent / "dataset.json").unlink()
    assert recorded_files(labels, ["test_002"]) is None


def test_many_patches_are_not_detected_in_all_replicates(experiment, monkeypatch):
    monkeypatch.setattr(benchmark_lesions, "PATCHES", 5 * 64 + 1)
    table = instances_table(read_results(experiment).scores, bootstrap=0)
    assert any("abmil (1 of 2), dsmil (1 of 2)" in n for n in table.follow[1].footnotes)
    (experiment / "cells" / "c16" / "dsmil" / "split0-seed1").rename(experiment / "away")
    table = instances_table(read_results(experiment).scores, bootstrap=0)
    assert any("to save time: abmil (1 of 2)." in n for n in table.follow[1].footnotes)


def test_small_pictures_have_no_lesions_to_find(tmp_path):
    """In bags of 4 pixels all lesions are ITC, and the reason is a footnote of the table."""
    y = {"a": 1, "b": 0}
    labels = {"a": [0, 0, 1, 1], "b": [0, 0, 0, 0]}
    write_run(tmp_path, folds=False, test={"a": 0.9, "b": 0.2}, y=y, instances=labels)
    table = instances_table(read_results(tmp_path).scores, bootstrap=0)
    assert [t.name for t in table.follow] == ["errors_toy", "within_bags_toy"]
    assert any("No FROC (patch-level) of toy: FROC needs a lesion" in n for n in table.footnotes)
