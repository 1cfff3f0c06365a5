"""The report: selection of bags, threshold, labels, warnings and contents."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from sklearn import metrics as sk

from probsa.errors import InputError, TableError
from probsa.evaluation.instances import NAMES
from probsa.evaluation.prediction import Prediction
from probsa.evaluation.report import Report, evaluate
from probsa.evaluation.storage import write_predictions
from probsa.evaluation.titles import INSTANCE_TITLES, TITLES
from probsa.statistics import Metric

PARTS = {"train": 6, "val": 8, "test": 12, "new": 4}
LABELS = {f"{part}{i}": i % 2 for part, count in PARTS.items() for i in range(count)}


def _prediction(name, *, seed, columns=1, masks=False, std=0.1):
    rng = np.random.default_rng(seed)
    y, n = LABELS.get(name, 0), 12
    p = 1 / (1 + np.exp(-rng.normal(1.5 * (2 * y - 1), 2)))
    probability = [p] if columns == 1 else rng.dirichlet(np.ones(columns))
    tumour = (rng.random(n) < 0.4) & bool(y)
    return Prediction(
        name=name,
        probability=np.array(probability, dtype=np.float32),
        std=np.full(columns, std * rng.random(), dtype=np.float32),
        coords=None,
        attention_mean=(rng.normal(size=n) + tumour).astype(np.float32),
        attention_variance=rng.random(n).astype(np.float32),
        weight_mean=np.full(n, 1 / n, np.float32),
        weight_variance=np.zeros(n, np.float32),
        degree=rng.integers(1, 5, size=n).astype(np.float32),
        instance_labels=tumour.astype(np.int8) if masks else None,
    )


def _folder(path, *, parts=tuple(PARTS), labels=None, threshold=None, classes=("0", "1"), **other):
    names = [n for n in LABELS if n.rstrip("0123456789") in parts]
    write_predictions(
        path,
        (_prediction(n, seed=i, **other) for i, n in enumerate(names)),
        labels=LABELS if labels is None else labels,
        parts={n: n.rstrip("0123456789") for n in names},
        classes=classes,
        threshold=threshold,
        metadata={"model": "abmil"},
    )
    return path


def _scores(folder, *parts):
    """Labels and probabilities of some parts, read independently of the tested code."""
    rows = [line.split(",") for line in (folder / "predictions.csv").read_text().splitlines()[1:]]
    pairs = [(int(r[2]), float(r[4])) for r in rows if r[1] in parts]
    return np.array([y for y, _ in pairs]), np.array([p for _, p in pairs])


def _table(path, labels, *, header="bag,label", extra=None):
    rows = [f"{b},{y}" + ("" if extra is None else f",{extra[b]}") for b, y in labels.items()]
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def _text(report):
    console = Console(width=200, file=io.StringIO())
    report.render(console)
    return console.file.getvalue()


# Which bags


@pytest.mark.parametrize(
    ("predicted", "part", "evaluated", "parts"),
    [
        (("train", "val", "test", "new"), "auto", "test", {"test": 12, "new": 4}),
        (("train", "val", "new"), "auto", "test", {"new": 4}),
        (("train", "val"), "auto", "val", {"val": 8}),
        (("train",), "auto", "all", {"train": 6}),
        (("train", "val", "test"), "test", "test", {"test": 12}),
        (("train", "val", "test"), "val", "val", {"val": 8}),
        (("train", "val", "test"), "train", "train", {"train": 6}),
        (("train", "val", "test"), "all", "all", {"train": 6, "val": 8, "test": 12}),
    ],
)
def test_the_requested_part_is_evaluated(tmp_path, predicted, part, evaluated, parts):
    folder = _folder(tmp_path / "p", parts=predicted)
    report = evaluate(folder, labels=None, part=part, bootstrap=0)
    assert (report.part, report.parts, report.bags) == (evaluated, parts, sum(parts.values()))
    y, p = _scores(folder, *parts)
    assert report.metrics["auroc"].value == pytest.approx(sk.roc_auc_score(y, p), abs=1e-9)
    assert report.per_class == {"0": int((y == 0).sum()), "1": int((y == 1).sum())}


def test_there_is_a_warning_for_training_bags(tmp_path):
    folder = _folder(tmp_path / "p", parts=("train", "test"))
    mixed = evaluate(folder, labels=None, part="all", bootstrap=0)
    assert "6 of the evaluated bags are training bags" in mixed.warnings
    only = evaluate(folder, labels=None, part="train", bootstrap=0)
    assert any(w.startswith("all evaluated bags are training bags") for w in only.warnings)
    test_only = evaluate(folder, labels=None, bootstrap=0)
    assert not any("training" in w for w in test_only.warnings)


def test_validation_metrics_are_called_optimistic(tmp_path):
    folder = _folder(tmp_path / "p", parts=("val",), threshold=0.4)
    report = evaluate(folder, labels=None, bootstrap=0)
    assert any("chosen on these validation bags" in w for w in report.warnings)


def test_a_part_without_bags(tmp_path):
    folder = _folder(tmp_path / "p", parts=("train", "test"))
    with pytest.raises(InputError, match="no labelled val bags; it has 6 train, 12 test"):
        evaluate(folder, labels=None, part="val")


# The threshold


def test_the_stored_threshold_is_used(tmp_path):
    folder = _folder(tmp_path / "p", threshold=0.8)
    report = evaluate(folder, labels=None, bootstrap=0)
    y, p = _scores(folder, "test", "new")
    assert report.threshold == 0.8
    assert "stored with the predictions" in report.threshold_source
    assert report.metrics["f1"].value == pytest.approx(sk.f1_score(y, p >= 0.8))
    assert report.metrics["f1_at_0.5"].value == pytest.approx(sk.f1_score(y, p >= 0.5))
    assert report.metrics["f1"] != report.metrics["f1_at_0.5"]


def test_without_a_threshold_it_is_chosen_on_the_validation_bags(tmp_path):
    folder = _folder(tmp_path / "p")
    report = evaluate(folder, labels=None, bootstrap=0)
    y, p = _scores(folder, "val")
    best = max(sk.f1_score(y, p >= t) for t in p)
    assert sk.f1_score(y, p >= report.threshold) == pytest.approx(best)
    assert report.threshold not in p
    assert report.threshold_source.endswith("the best F1 on 8 validation bags")


def test_without_validation_bags_the_threshold_is_a_half_with_a_warning(tmp_path):
    report = evaluate(_folder(tmp_path / "p", parts=("test",)), labels=None, bootstrap=0)
    assert report.threshold == 0.5
    assert report.threshold_source.startswith(
        "0.5: no threshold is stored, and no labelled validation bag"
    )
    assert any("which was not chosen" in w for w in report.warnings)
    assert report.metrics["f1"] == report.metrics["f1_at_0.5"]


def test_validation_without_positives_gives_a_half_with_the_reason(tmp_path):
    labels = {b: 0 if b.startswith("val") else y for b, y in LABELS.items()}
    report = evaluate(_folder(tmp_path / "p", labels=labels), labels=None, bootstrap=0)
    assert report.threshold_source == ("0.5: no positive bag among 8: F1 is undefined")


# Labels


def test_labels_of_a_table_replace_the_stored_ones(tmp_path):
    folder = _folder(tmp_path / "p", parts=("test",))
    flipped = {b: 1 - y for b, y in LABELS.items() if b.startswith("test")}
    stored = evaluate(folder, labels=None, bootstrap=0)
    given = evaluate(folder, labels=_table(tmp_path / "l.csv", flipped), bootstrap=0)
    assert given.metrics["auroc"].value == pytest.approx(1 - stored.metrics["auroc"].value)
    assert any(
        "replaces different labels" in w and "12 bags ('test0'," in w for w in given.warnings
    )
    assert not any("different labels" in w for w in stored.warnings)


def test_unmatched_bags_are_counted_and_named(tmp_path):
    folder = _folder(tmp_path / "p", parts=("test",), labels={})
    labels = {f"test{i}": i % 2 for i in range(10)} | {"elsewhere": 1}
    report = evaluate(folder, labels=_table(tmp_path / "l.csv", labels), bootstrap=0)
    assert report.bags == 10
    assert report.without_label == ("test10", "test11")
    assert report.without_prediction == ("elsewhere",)
    text = _text(report)
    assert "predicted without a label: 2 bags ('test10', 'test11')" in text
    assert "labels without a prediction: 1 bag ('elsewhere')" in text


def test_no_labels_at_all(tmp_path):
    folder = _folder(tmp_path / "p", parts=("test",), labels={})
    with pytest.raises(InputError, match=r"none of the 12 bags .* and 7 more\)\): give --labels"):
        evaluate(folder, labels=None)
    with pytest.raises(TableError, match=r"there is no table .*gone\.csv"):
        evaluate(folder, labels=tmp_path / "gone.csv")


def test_a_class_that_the_model_does_not_know(tmp_path):
    folder = _folder(tmp_path / "p", parts=("test",))
    labels = {f"test{i}": i % 3 for i in range(12)}
    with pytest.raises(InputError, match=r"bag 'test2' class 2, but .* has classes 0 to 1"):
        evaluate(folder, labels=_table(tmp_path / "l.csv", labels))


def test_names_of_classes_come_from_the_predictions(tmp_path):
    folder = _folder(tmp_path / "p", parts=("test",), classes=("normal", "tumour"))
    names = {b: ("normal", "tumour")[y] for b, y in LABELS.items() if b.startswith("test")}
    report = evaluate(folder, labels=_table(tmp_path / "l.csv", names), bootstrap=0)
    assert report.classes == ("normal", "tumour")
    assert report.per_class == {"normal": 6, "tumour": 6}
    stored = evaluate(folder, labels=None, bootstrap=0)
    assert report.metrics == stored.metrics


def test_the_groups_of_the_table_are_resampled(tmp_path):
    folder = _folder(tmp_path / "p", parts=("test",), masks=True)
    labels = {b: y for b, y in LABELS.items() if b.startswith("test")}
    alone = evaluate(folder, labels=_table(tmp_path / "l.csv", labels), bootstrap=300)
    patients = {b: f"patient{i // 3}" for i, b in enumerate(labels)}
    table = _table(tmp_path / "g.csv", labels, header="bag,label,group", extra=patients)
    grouped = evaluate(folder, labels=table, bootstrap=300)
    assert grouped.metrics["auroc"].value == alone.metrics["auroc"].value
    assert grouped.metrics["auroc"].low != alone.metrics["auroc"].low
    assert grouped.metrics["error_auroc_margin"] != alone.metrics["error_auroc_margin"]
    assert grouped.instances["auroc"].value == alone.instances["auroc"].value
    assert grouped.instances["auroc"].low != alone.instances["auroc"].low


# Contents


def test_errors_are_those_at_the_threshold(tmp_path):
    folder = _folder(tmp_path / "p", threshold=0.3)
    report = evaluate(folder, labels=None, bootstrap=0)
    y, p = _scores(folder, "test", "new")
    wrong = (p >= 0.3) != y
    expected = sk.roc_auc_score(wrong, -np.abs(p - 0.3))
    assert report.metrics["error_auroc_margin"].value == pytest.approx(expected)
    flat = evaluate(_folder(tmp_path / "flat", std=0.0), labels=None, bootstrap=0)
    assert flat.metrics["error_auroc_spread"].reason == "this posterior has no variance"


def test_instance_metrics_need_instance_labels(tmp_path):
    without = evaluate(_folder(tmp_path / "p"), labels=None, bootstrap=20)
    assert without.instances is None and without.instance_bags == 0
    report = evaluate(_folder(tmp_path / "m", masks=True), labels=None, bootstrap=20)
    assert report.instance_bags == 16
    assert tuple(report.instances) == NAMES
    assert all(m.value is not None for m in report.instances.values())
    assert 0 < report.instances["auroc"].low < report.instances["auroc"].high
    test_only = evaluate(_folder(tmp_path / "t", masks=True, parts=("test",)), labels=None)
    assert test_only.instances["authors_f1"].reason == (
        "no positive validation bag has instance labels to choose a threshold on"
    )
    val = evaluate(tmp_path / "m", labels=None, part="val", bootstrap=0)
    assert val.instances["authors_f1"].value is None


def test_missing_instance_files_are_named(tmp_path):
    folder = _folder(tmp_path / "p", masks=True, parts=("test",))
    (folder / "instances" / "test3.h5").unlink()
    report = evaluate(folder, labels=None, bootstrap=0)
    assert report.instance_bags == 11 and report.bags == 12
    assert "no per-instance outputs of 1 bag ('test3')" in report.warnings


def test_three_classes(tmp_path):
    folder = _folder(tmp_path / "p", classes=("a", "b", "c"), columns=3)
    names = {b: "abc"[i % 3] for i, b in enumerate(LABELS)}
    report = evaluate(folder, labels=_table(tmp_path / "l.csv", names), bootstrap=10)
    assert report.threshold is None
    assert report.threshold_source == "none: the most probable class is called"
    assert "f1_at_0.5" not in report.metrics and report.metrics["f1"].value is not None
    assert sum(report.per_class.values()) == 16


def test_the_report_is_json_and_the_same_each_time(tmp_path):
    labels = dict.fromkeys(LABELS, 1)
    folder = _folder(tmp_path / "p", masks=True, labels=labels, parts=("test",))
    report = evaluate(folder, labels=None, bootstrap=30, seed=3)
    assert report == evaluate(folder, labels=None, bootstrap=30, seed=3)
    stored = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert stored["metrics"]["auroc"] == {
        "value": None,
        "low": None,
        "high": None,
        "reason": "only one class among 12 bags: AUROC is undefined",
        "left_out": 0,
    }
    assert stored["metrics"]["brier"]["value"] == report.metrics["brier"].value
    assert (stored["bags"], stored["part"], stored["about"]) == (12, "test", {"model": "abmil"})
    assert stored["instances"]["auroc"]["value"] == report.instances["auroc"].value


def test_the_text_has_values_intervals_reasons_and_warnings(tmp_path):
    folder = _folder(tmp_path / "p", masks=True, parts=("test",), std=0.0)
    report = evaluate(folder, labels=None, bootstrap=200)
    text = _text(report)
    m = report.metrics["auroc"]
    assert "12 bags (12 test; 6 of class 0, 6 of class 1)" in text
    assert f"{m.value:.3f} │ [{m.low:.3f}, {m.high:.3f}]" in text
    assert "this posterior has no variance" in text
    assert "instances of 12 bags" in text
    for name in report.metrics:
        assert (TITLES[name] in text) == (not name.startswith("error_auroc_"))
    for name in report.instances:
        assert (INSTANCE_TITLES[name] in text) == (not name.startswith("error_auroc_"))
    for warning in report.warnings:
        assert f"warning: {warning}" in text


def test_a_report_has_one_row_per_metric():
    report = Report(
        folder=Path("p"), part="test", parts={}, bags=3, classes=("0", "1"), per_class={},
        threshold=0.5, threshold_source="", instance_bags=1, without_label=(),
        without_prediction=(), warnings=(),
        metrics={"auroc": Metric(0.75, low=0.5, high=1.0), "f1": Metric.undefined("one class")},
        instances={"auroc": Metric(0.25)},
    )  # fmt: skip
    frame = report.to_frame()
    assert frame["of"].tolist() == ["bags", "bags", "instances"]
    assert frame["metric"].tolist() == ["auroc", "f1", "auroc"]
    np.testing.assert_array_equal(frame["value"], [0.75, np.nan, 0.25])
    np.testing.assert_array_equal(frame["low"], [0.5, np.nan, np.nan])
    assert frame["reason"].tolist() == [None, "one class", None]
