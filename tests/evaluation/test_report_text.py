"""The text of a report: one name for one thing, null rivals in every table."""

import io

import numpy as np
import pytest
from rich.console import Console
from support.made_predictions import cohort

from probsa.evaluation import read_predictions
from probsa.evaluation.beyond_validation import DISTANCE_VALIDATION_BAGS
from probsa.evaluation.detector_pool import detector_pool
from probsa.evaluation.report import evaluate
from probsa.evaluation.storage import write_predictions
from probsa.statistics import Draws, auroc


def _folder(path, *, variance=True, parts=("val", "test"), metadata=None, **fields):
    """Write the same 24 slides for every part, with probabilities and deviations."""
    rng = np.random.default_rng(5)
    bags, labels, part_of = [], {}, {}
    for part in parts:
        for p in cohort(24, variance=None if variance else lambda _, wrong: 0 * wrong)[0]:
            y = int(p.name.removeprefix("b")) % 2
            values = {
                "score_kind": "evidence",
                "name": f"{part}-{p.name}",
                "probability": np.float32([1 / (1 + np.exp(-rng.normal(2 * y - 1, 2)))]),
                "std": np.float32([0.1 * rng.random() if variance else 0]),
            }
            bags.append(_replaced(p, **values, **{k: f(rng, part) for k, f in fields.items()}))
            labels[values["name"]], part_of[values["name"]] = y, part
    write_predictions(
        path, bags, labels=labels, parts=part_of, classes=("0", "1"), threshold=0.4,
        metadata=metadata or {},
    )  # fmt: skip
    return path


def _replaced(p, **values):
    return type(p)(**{name: getattr(p, name) for name in p.__dataclass_fields__} | values)


def _text(report, width=200):
    console = Console(width=width, file=io.StringIO())
    report.render(console)
    return console.file.getvalue()


def test_detectors_stand_in_one_table(tmp_path):
    report = evaluate(_folder(tmp_path / "p"), bootstrap=0)
    text = _text(report)
    assert "wrong bags found by" not in text and "wrong calls found by σ²" not in text
    assert text.count("−w log w (null)") == text.count("−|e| (null)") == 1
    assert "error_auroc_margin" in report.to_dict()["instances"]
    assert "error_auroc_spread" in report.to_dict()["metrics"]


def test_pooled_measures_and_thresholds_are_named(tmp_path):
    text = _text(evaluate(_folder(tmp_path / "p"), bootstrap=0))
    assert "AUROC, positive bags pooled" in text and "AUROC within positive bags" not in text
    assert "Dice at the validation threshold, mean over positive bags" in text
    assert "ECE, 15 bins of equal width" in text
    p = read_predictions(tmp_path / "p").probability[24:, 0]
    filled = len(set((p * 15).astype(int)))
    assert f"15 bins of equal width, of which {filled} have a bag" in text


def test_the_null_rivals_of_the_benchmark_are_those_of_the_report(tmp_path):
    folder = _folder(tmp_path / "p")
    found = evaluate(folder, bootstrap=0).to_dict()["doubt"]["instances"]["error_auroc"]
    table = read_predictions(folder)
    bags = [table.instances(b) for b in table.bags if b.startswith("test")]
    positive = [p for p in bags if (p.instance_labels > 0).any()]
    pool = detector_pool(positive)
    draws = Draws(counts=np.ones((1, 12)), member=pool["bag"])
    for name in ("margin", "entropy"):
        expected = auroc(pool["wrong"], pool[name], draws=draws, what="instances").value
        assert found[name]["value"] == pytest.approx(expected), name


def test_a_random_order_has_exact_values(tmp_path):
    report = evaluate(_folder(tmp_path / "p"), bootstrap=0)
    for level in ("bags", "instances"):
        found = report.to_dict()["doubt"][level]
        rate = found["error_rate"]["value"]
        assert found["random_order"] == {"error_auroc": 0.5, "augrc": pytest.approx(rate / 2)}
        assert found["retention"]["random"] == rate
    rows = [line for line in _text(report).splitlines() if "random order (null)" in line]
    assert len(rows) == 2
    assert all("0.500" in row and "exact" in row for row in rows)
    assert f"{rate / 2:.4f}" in rows[1]


def test_without_a_variance_there_is_a_sentence_and_no_row(tmp_path):
    report = evaluate(_folder(tmp_path / "p", variance=False), bootstrap=0)
    text = _text(report)
    rows = [line for line in text.splitlines() if line.startswith("│")]
    assert not any("variance" in row or "P(wrong)" in row for row in rows)
    assert (
        "Undefined: P(wrong), σ² (this posterior has no variance); P(wrong) with σ between "
        "members (one model has no variance between members)"
    ) in text
    calibration = report.to_dict()["calibration"]
    assert calibration["instances"] is None
    assert calibration["instances_reason"] == "this posterior has no variance"
    assert "calibration of P(f > 0) is undefined: this posterior has no variance" in text


def test_a_single_model_shows_no_parts(tmp_path):
    text = _text(evaluate(_folder(tmp_path / "p"), bootstrap=0))
    assert "P(wrong) with σ within members" not in text
    assert text.count("one model has no variance between members") == 2


def test_bags_beyond_all_validation_bags_are_counted(tmp_path):
    def ood(_, part):
        return 1.0 if part == "test" else 0.5

    folder = _folder(tmp_path / "p", bag_ood=ood, bag_ood_distance=lambda *_: 2.0)
    report = evaluate(folder, bootstrap=0)
    expected = {"bags": 24, "beyond": 24, "validation_bags": 24, "expected": 24 / 25}
    assert report.to_dict()["doubt"]["beyond_validation"] == expected
    assert (
        "24 of 24 bags are further from training than all 24 validation bags; 1.0 are expected by "
        "chance"
    ) in _text(report)
    assert evaluate(folder, part="val", bootstrap=0).to_dict()["doubt"]["beyond_validation"] is None


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [({DISTANCE_VALIDATION_BAGS: 11}, 2.0), ({}, None), ({"runs": ["a", "b"]}, None)],
)
def test_the_number_of_validation_bags_comes_from_the_predictions(tmp_path, metadata, expected):
    folder = _folder(
        tmp_path / "p", parts=("new",), metadata=metadata, bag_ood=lambda *_: 0.9,
        bag_ood_distance=lambda *_: 2.0,
    )  # fmt: skip
    report = evaluate(folder, bootstrap=0)
    found = report.to_dict()["doubt"]["beyond_validation"]
    assert (found["beyond"], found["expected"]) == (0, expected)
    assert ("by chance if these bags" in _text(report)) == (expected is not None)
