"""The report: which bags, threshold, labels, sections by hand, reasons, figures and text."""

import io
import json
import shutil
from dataclasses import replace

import h5py
import numpy as np
import pytest
from rich.console import Console
from scipy.stats import norm
from sklearn import metrics as sk
from support.made_predictions import cohort, made
from support.refusals import refused
from support.stored import write_folder

from probsa import predict_folder
from probsa.errors import BagError, InputError, TableError
from probsa.evaluation import (
    WITHIN,
    Caution,
    Claim,
    evaluate,
    null_maps_file,
    read_predictions,
    write_predictions,
)
from probsa.evaluation.baselines.null_maps import NO_INTENSITY, NO_NULL_MAPS
from probsa.evaluation.instances.measures import NO_LABELS
from probsa.evaluation.instances.table import NO_CALLS, NO_DISTANCE, NO_INSTANCE_LABELS
from probsa.evaluation.report.uncertainty import DRAWN_DETECTORS, LEAST_KEPT, SEVERAL_CLASSES
from probsa.evaluation.scores import NO_VARIANCE
from probsa.evaluation.section import metric_grid
from probsa.evaluation.words import INSTANCE_DETECTORS, INSTANCE_TITLES, METRIC_TITLES, shortened
from probsa.maps import write_report_figures
from probsa.statistics import Metric, NoInterval, Threshold
from probsa.training import read_run, train
from probsa.workflow import finish_run

PARTS = {"train": 6, "val": 8, "test": 12, "new": 4}
PARTS_OF_RUN = {part: count for part, count in PARTS.items() if part != "new"}
LABELS = {f"{part}{i}": i % 2 for part, count in PARTS.items() for i in range(count)}


def _bag(name, *, classes=2, masks=True, kind="evidence", variance=1.0, members=False):
    """Return a bag whose class is the rest of the number in its name."""
    rng = np.random.default_rng([*name.encode()])
    n = 15
    y = int(name.lstrip("abcdefghijklmnopqrstuvwxyz")) % classes
    truth = (rng.random(n) < 0.4) & (y > 0)
    p = [1 / (1 + np.exp(-rng.normal(1.5 * (2 * y - 1), 2)))]
    p = p if classes == 2 else rng.dirichlet(np.ones(classes))
    within, between = variance * rng.random((2, n))
    s = 0.2 * variance * rng.random(len(p))
    spreads = {"attention_variance": within, "std": s}
    if members:
        spreads |= {"attention_variance": within + between, "variance_within": within}
        spreads |= {"variance_between": between, "std_within": 0.6 * s, "std_between": 0.8 * s}
    found = made(
        name,
        rng.normal(size=n) + truth,
        truth if masks else None,
        probability=p,
        weight_mean=np.full(n, 1 / n),
        score_kind=kind,
        task="binary" if classes == 2 else "multiclass",
    )
    if kind == "evidence":
        spreads["instance_probability"] = 1 / (1 + np.exp(-found.attention_mean + 0.2))
    return replace(found, **{k: np.float32(v) for k, v in spreads.items()})


def _bags(n=40, **options):
    return [_bag(f"b{k}", **options) for k in range(n)]


def _folder(path, *, parts=tuple(PARTS), labels=None, threshold=None, classes=("0", "1"), **other):
    names = [n for n in LABELS if n.rstrip("0123456789") in parts]
    write_predictions(
        path,
        (_bag(n, **{"masks": False, **other}) for n in names),
        labels=LABELS if labels is None else labels,
        parts={n: n.rstrip("0123456789") for n in names},
        classes=classes,
        threshold=threshold,
        metadata={"model": "abmil"},
    )
    return path


def _report(path, bags, *, labels=None, classes=2, bootstrap=0, parts=None, metadata=None):
    write_predictions(
        path,
        bags,
        labels=labels or {p.name: k % classes for k, p in enumerate(bags)},
        parts=parts or {p.name: "test" for p in bags},
        classes=[str(c) for c in range(classes)],
        threshold=0.4 if classes == 2 else None,
        metadata=metadata or {},
        overwrite=True,
    )
    return evaluate(path, bootstrap=bootstrap)


def _scores(folder, *parts):
    """Labels and probabilities of some parts, read independently of the tested code."""
    rows = [line.split(",") for line in (folder / "predictions.csv").read_text().splitlines()[1:]]
    pairs = [(int(r[2]), float(r[4])) for r in rows if r[1] in parts]
    return np.array([y for y, _ in pairs]), np.array([p for _, p in pairs])


def _table(path, labels, *, header="bag,label", extra=None):
    rows = [f"{b},{y}" + ("" if extra is None else f",{extra[b]}") for b, y in labels.items()]
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def _text(report, width=200):
    console = Console(width=width, file=io.StringIO())
    report.render(console, full=True)
    return console.file.getvalue()


def _values(report, key):
    (found,) = [s for s in report.sections if s.key == key]
    return found.values


# Which bags


@pytest.mark.parametrize(
    ("predicted", "part", "evaluated", "parts", "cautions"),
    [
        ("train val test new", "auto", "test", {"test": 12, "new": 4}, []),
        ("train val new", "auto", "test", {"new": 4}, []),
        ("train val", "auto", "val", {"val": 8}, [Caution.NOTHING_HELD_OUT]),
        ("train", "auto", "all", {"train": 6}, [Caution.ONLY_TRAINING_BAGS]),
        ("train val test", "val", "val", {"val": 8}, [Caution.CHOSEN_ON_THESE_BAGS]),
        ("train val test", "train", "train", {"train": 6}, [Caution.ONLY_TRAINING_BAGS]),
        ("train val test", "all", "all", PARTS_OF_RUN, [Caution.SOME_TRAINING_BAGS]),
    ],
)
def test_the_requested_part_is_evaluated(tmp_path, predicted, part, evaluated, parts, cautions):
    folder = _folder(tmp_path / "p", parts=predicted.split(), threshold=0.4)
    report = evaluate(folder, part=part, bootstrap=0)
    assert (report.part, report.parts, report.bags) == (evaluated, parts, sum(parts.values()))
    y, p = _scores(folder, *parts)
    assert report.metrics["auroc"].value == pytest.approx(sk.roc_auc_score(y, p), abs=1e-9)
    assert report.per_class == {"0": int((y == 0).sum()), "1": int((y == 1).sum())}
    assert list(report.cautions) == cautions and len(report.warnings) == len(cautions)


# The threshold


def test_the_threshold_is_stored_or_chosen_on_the_validation_bags(tmp_path):
    folder = _folder(tmp_path / "p", threshold=0.9)
    report = evaluate(folder, bootstrap=0)
    y, p = _scores(folder, "test", "new")
    assert report.call_threshold == Threshold(value=0.9, origin="stored")
    assert report.metrics["f1"].value == pytest.approx(sk.f1_score(y, p >= 0.9))
    assert report.metrics["f1_at_0.5"].value == pytest.approx(sk.f1_score(y, p >= 0.5))
    assert report.metrics["f1"] != report.metrics["f1_at_0.5"]
    folder = _folder(tmp_path / "s")
    report = evaluate(folder, bootstrap=0)
    y, p = _scores(folder, "val")
    best = max(sk.f1_score(y, p >= t) for t in p)
    assert sk.f1_score(y, p >= report.threshold) == pytest.approx(best)
    assert report.threshold not in p
    assert (report.call_threshold.origin, report.call_threshold.bags) == ("chosen", 8)
    report = evaluate(_folder(tmp_path / "q", parts=("test",)), bootstrap=0)
    assert report.call_threshold == Threshold(value=0.5, origin="default")
    assert Caution.DEFAULT_THRESHOLD in report.cautions
    labels = {b: 0 if b.startswith("val") else y for b, y in LABELS.items()}
    report = evaluate(_folder(tmp_path / "r", labels=labels), bootstrap=0)
    assert (report.threshold, report.call_threshold.bags) == (0.5, 8)
    assert report.call_threshold.reason  # no bag of class 1 could choose it


# Labels


def test_unmatched_bags_are_counted_and_named(tmp_path):
    folder = _folder(tmp_path / "p", parts=("test",), labels={})
    labels = {f"test{i}": i % 2 for i in range(10)} | {"elsewhere": 1}
    report = evaluate(folder, labels=_table(tmp_path / "l.csv", labels), bootstrap=0)
    assert report.bags == 10 and report.without_prediction == ("elsewhere",)
    assert report.without_label == ("test10", "test11")
    text = _text(report)
    assert all(f"{bag!r}" in text for bag in ("test10", "test11", "elsewhere"))


def test_labels_that_cannot_be_used(tmp_path):
    with pytest.raises(InputError, match="6 train, 8 val"):
        evaluate(_folder(tmp_path / "o", parts=("train", "val")), part="test")
    folder = _folder(tmp_path / "p", parts=("test",), labels={})
    refused(InputError, r"12 bags .*'test0', .* and 7 more", evaluate, folder)
    with pytest.raises(TableError, match=r"gone\.csv"):
        evaluate(folder, labels=tmp_path / "gone.csv")
    labels = _table(tmp_path / "l.csv", {f"test{i}": i % 3 for i in range(12)})
    with pytest.raises(InputError, match=r"bag 'test2' class 2"):
        evaluate(folder, labels=labels)


def test_labels_of_a_table_replace_the_stored_ones(tmp_path):
    folder = _folder(tmp_path / "p", parts=("test",), classes=("normal", "tumour"))
    stored = evaluate(folder, bootstrap=0)
    labels = {b: y for b, y in LABELS.items() if b.startswith("test")}
    names = {b: ("normal", "tumour")[y] for b, y in labels.items()}
    table = _table(tmp_path / "l.csv", names)
    report = evaluate(folder, labels=table, bootstrap=0)
    assert report.per_class == {"normal": 6, "tumour": 6}
    assert report.classes == ("normal", "tumour") and report.metrics == stored.metrics
    with pytest.raises(InputError, match="tumour, normal"):
        evaluate(folder, labels=table, classes=["tumour", "normal"])
    flipped = _table(tmp_path / "f.csv", {b: ("tumour", "normal")[y] for b, y in labels.items()})
    given = evaluate(folder, labels=flipped, bootstrap=0)
    assert given.metrics["auroc"].value == pytest.approx(1 - stored.metrics["auroc"].value)
    assert any("12 bags ('test0'," in warning for warning in given.warnings)


def test_the_groups_of_the_table_are_resampled(tmp_path):
    folder = _folder(tmp_path / "p", parts=("test",), masks=True)
    labels = {b: y for b, y in LABELS.items() if b.startswith("test")}
    alone = evaluate(folder, labels=_table(tmp_path / "l.csv", labels), bootstrap=300)
    patients = {b: f"patient{i // 3}" for i, b in enumerate(labels)}
    table = _table(tmp_path / "g.csv", labels, header="bag,label,group", extra=patients)
    grouped = evaluate(folder, labels=table, bootstrap=300)
    for one, other in (
        (grouped.metrics["auroc"], alone.metrics["auroc"]),
        (grouped.instances["auroc"], alone.instances["auroc"]),
    ):
        assert one.value == other.value and one.low != other.low
    of_patients = _values(grouped, "patients")
    p = np.array(_scores(folder, "test")[1]).reshape(4, 3).mean(1)
    y = np.array(list(labels.values())).reshape(4, 3).max(1)
    assert of_patients["patients"] == 4
    brier = of_patients["metrics"]["brier"].value
    assert brier == pytest.approx(np.mean((p - y) ** 2), abs=1e-6)
    misspelt = _table(tmp_path / "m.csv", labels, header="bag,label,grup", extra=patients)
    warned = evaluate(folder, labels=misspelt, bootstrap=0).warnings
    assert any("'grup'" in warning and "'group'" in warning for warning in warned)


def test_predictions_in_memory_need_no_folder(tmp_path):
    folder = _folder(tmp_path / "p", masks=True)
    stored = evaluate(folder, bootstrap=20)
    predictions = replace(read_predictions(folder), path=None)
    shutil.rmtree(folder)
    report = evaluate(predictions, bootstrap=20)
    assert report.folder is None and report.metrics == stored.metrics
    sections = {section.key: section for section in stored.sections}
    assert sections.keys() - {section.key for section in report.sections} == {"within_bags"}
    assert report.instances is None and Caution.MISSING_OUTPUTS in report.cautions
    for section in report.sections:
        for level, part in section.parts.items():
            assert (
                level == "bags" and part.to_dict() == sections[section.key].parts[level].to_dict()
            )
    assert "in memory" in report.to_dict()["doubt"]["instances_reason"]
    _text(report)


# Metrics of bags and instances


def test_instance_metrics_need_instance_labels(tmp_path):
    without = evaluate(_folder(tmp_path / "p"), bootstrap=20)
    assert without.instances is None and without.instance_bags == 0
    report = evaluate(_folder(tmp_path / "m", masks=True), bootstrap=20)
    assert report.instance_bags == 16 and tuple(report.instances) == tuple(INSTANCE_TITLES)
    assert all(m.value is not None for m in report.instances.values())
    only = evaluate(_folder(tmp_path / "t", masks=True, parts=("test",)), bootstrap=0)
    assert only.instances["dice"].reason == NO_LABELS
    val = evaluate(tmp_path / "m", part="val", bootstrap=0)
    assert val.instances["dice"].value is None
    (tmp_path / "t" / "instances" / "test3.h5").unlink()
    report = evaluate(tmp_path / "t", bootstrap=0)
    assert report.instance_bags == 11 and report.bags == 12
    assert Caution.MISSING_OUTPUTS in report.cautions
    assert any("1 bag ('test3')" in warning for warning in report.warnings)


def test_the_report_is_json_a_frame_and_the_same_each_time(tmp_path):
    labels = dict.fromkeys(LABELS, 1)
    folder = _folder(tmp_path / "p", masks=True, labels=labels, parts=("test",))
    report = evaluate(folder, bootstrap=30, seed=3)
    again = evaluate(folder, bootstrap=30, seed=3)
    stored = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert stored == json.loads(json.dumps(again.to_dict()))
    reason = stored["metrics"]["auroc"].pop("reason")
    undefined = {"value": None, "low": None, "high": None, "left_out": 0, "no_interval": None}
    assert reason and stored["metrics"]["auroc"] == undefined
    assert (stored["bags"], stored["part"], stored["about"]) == (12, "test", {"model": "abmil"})
    frame = report.to_frame().set_index(["of", "metric"])
    assert np.isnan(frame.loc[("bags", "auroc"), "value"])
    assert frame.loc[("bags", "auroc"), "reason"] == reason
    value = report.instances["auroc"].value
    assert frame.loc[("instances", "auroc"), "value"] == value


def test_the_text_has_values_intervals_reasons_and_warnings(tmp_path):
    folder = _folder(tmp_path / "p", masks=True, parts=("test",), variance=0.0)
    report = evaluate(folder, bootstrap=200)
    text = _text(report)
    m = report.metrics["auroc"]
    assert f"{m.value:.3f} │ [{m.low:.3f}, {m.high:.3f}]" in text
    assert NO_VARIANCE in text
    for name in report.metrics:
        assert (METRIC_TITLES[name] in text) == (not name.startswith("error_auroc_"))
    for name in report.instances:
        assert (INSTANCE_TITLES[name] in text) == (not name.startswith("error_auroc_"))
    for warning in report.warnings:
        assert f"warning: {warning}" in text


# Doubt and calibration


def test_detectors_of_wrong_bags_by_hand(tmp_path):
    bags = _bags(members=True)
    report = _report(tmp_path / "p", bags)
    got = report.to_dict()["doubt"]["bags"]
    p = np.array([b.probability[0] for b in bags], np.float64)
    names = ("std", "std_within", "std_between")
    s = {name: np.array([getattr(b, name)[0] for b in bags]) for name in names}
    wrong = (p >= 0.4) != np.arange(40) % 2
    expected = {
        "doubt": np.where(p >= 0.4, 1 - p, p),
        "flip": norm.cdf(-np.abs(p - 0.4) / s["std"]),
        "spread": s["std"],
        "within": s["std_within"],
        "between": s["std_between"],
        "margin": -np.abs(p - 0.4),
        "entropy": -np.abs(p - 0.5),  # the same order
    }
    for name, score in expected.items():
        auroc = sk.roc_auc_score(wrong, score)
        assert got["error_auroc"][name]["value"] == pytest.approx(auroc), name
        kept = np.argsort(score, kind="stable")[:20]
        half = got["retention"]["curves"][name]["error_rate"][9]
        assert half == pytest.approx(wrong[kept].mean()), name
    for name in ("spread", "margin"):
        assert report.metrics[f"error_auroc_{name}"].to_dict() == got["error_auroc"][name]
    rate = wrong.mean()
    assert got["retention"]["shares"][9] == 0.5
    assert got["retention"]["random"] == pytest.approx(rate)
    assert got["random_order"] == {"error_auroc": 0.5}
    assert got["error_auroc"]["ood"]["reason"] == NO_DISTANCE


def test_instances_of_positive_bags_by_hand(tmp_path):
    bags = _bags(members=True)
    report = _report(tmp_path / "p", bags, bootstrap=20).to_dict()
    got = report["doubt"]["instances"]
    inside = [b for k, b in enumerate(bags) if k % 2]
    f = np.concatenate([b.attention_mean for b in inside]).astype(np.float64)
    truth = np.concatenate([b.instance_labels for b in inside]) > 0
    between = np.concatenate([b.variance_between for b in inside])
    auroc = sk.roc_auc_score((f > 0) != truth, norm.cdf(-np.abs(f) / np.sqrt(between)))
    assert got["error_auroc"]["flip_between"]["value"] == pytest.approx(auroc)
    assert (got["items"], got["judged"]) == (300, "doubt")
    calibration = report["calibration"]["instances"]
    p = np.concatenate([b.instance_probability for b in inside]).astype(np.float64)
    order = np.argsort(p)
    parts = np.arange(300) // 20
    ece = sum(abs(np.sum(p[order][parts == b] - truth[order][parts == b])) for b in range(15)) / 300
    assert calibration["ece_adaptive"]["value"] == pytest.approx(ece)
    assert calibration["bins"]["low"][3] is not None
    assert calibration["nll"]["value"] == pytest.approx(sk.log_loss(truth, p))
    everywhere = np.concatenate([b.instance_probability for b in bags]).astype(np.float64)
    labels = np.concatenate([b.instance_labels for b in bags]) > 0
    nll = calibration["all_bags"]["nll"]["value"]
    assert nll == pytest.approx(sk.log_loss(labels, everywhere))
    assert (calibration["items"], calibration["all_bags"]["items"]) == (300, 600)


def test_calibration_of_bags_and_of_several_classes_by_hand(tmp_path):
    bags = _bags()
    report = _report(tmp_path / "p", bags)
    got = report.to_dict()["calibration"]
    p = np.array([b.probability[0] for b in bags], np.float64)
    y = np.arange(40) % 2
    gaps = (p - y)[np.argsort(p)].reshape(4, 10).sum(1)
    assert got["bags"]["ece_adaptive"]["value"] == pytest.approx(np.abs(gaps).sum() / 40)
    assert got["bags"]["bins"]["count"] == [10] * 4
    assert got["temperature"] is None
    bags = _bags(60, classes=3)
    got = _report(tmp_path / "q", bags, classes=3).to_dict()
    p = np.stack([b.probability for b in bags]).astype(np.float64)
    y = np.arange(60) % 3
    of_bags = got["doubt"]["bags"]["error_auroc"]
    assert of_bags["flip"]["reason"] == SEVERAL_CLASSES
    called = p.argmax(1)
    area = sk.roc_auc_score(called != y, 1 - p.max(1))
    assert of_bags["doubt"]["value"] == pytest.approx(area)
    assert of_bags["spread"]["value"] is not None
    assert got["threshold"] is None
    assert "f1_at_0.5" not in got["metrics"] and got["metrics"]["f1"]["value"] is not None
    assert set(got["target"]["by_part"]) == {"0", "1", "2"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"masks": False}, NO_INSTANCE_LABELS),
        ({"kind": "relevance"}, NO_CALLS),
    ],
)
def test_without_instances_there_is_a_reason(tmp_path, changes, reason):
    report = _report(tmp_path / "p", _bags(**changes))
    got = report.to_dict()
    assert got["doubt"]["instances"] is None and got["doubt"]["instances_reason"] == reason
    assert got["calibration"]["instances"] is None and got["calibration"]["instances_reason"]
    _text(report)


def test_nothing_to_detect_has_a_reason(tmp_path):
    bags = _bags()
    labels = {b.name: int(b.probability[0] >= 0.4) for b in bags}
    got = _report(tmp_path / "right", bags, labels=labels).to_dict()["doubt"]["bags"]
    (reason,) = {m["reason"] for m in got["error_auroc"].values()}
    assert "40 bags" in reason and reason in got["verdict"]
    assert got["retention"]["curves"] == {} and got["random_order"] is None
    report = _report(tmp_path / "negative", bags, labels=dict.fromkeys(labels, 0))
    got = report.to_dict()
    for section in ("doubt", "calibration"):
        assert got[section]["instances"] is None and got[section]["instances_reason"]
    _text(report)
    report = _report(tmp_path / "flat", _bags(variance=0.0))
    text = _text(report)
    doubt = report.to_dict()["doubt"]
    for level, name in (("bags", "flip"), ("bags", "spread"), ("instances", "flip")):
        assert doubt[level]["error_auroc"][name]["reason"] == NO_VARIANCE
    assert report.metrics["error_auroc_spread"].reason == NO_VARIANCE
    rows = [line for line in text.splitlines() if line.startswith("│")]
    for name in ("variance", "flip"):
        title = INSTANCE_DETECTORS[name]
        assert title in text and not any(title in row for row in rows)
    assert INSTANCE_DETECTORS["flip_within"] not in text  # of a single model it is the whole
    # a point mass states probabilities, too
    assert doubt["instances"]["error_auroc"]["doubt"]["value"] is not None


@pytest.mark.parametrize(
    ("part", "metadata", "validation"),
    [
        ("val", {}, 12),
        ("new", {"distance_validation_bags": 11}, 11),
        ("new", {}, None),
        ("new", {"runs": ["a", "b"]}, None),
    ],
)
def test_bags_beyond_all_validation_bags_are_counted(tmp_path, part, metadata, validation):
    bags = [replace(p, bag_ood=float(k % 2), bag_ood_distance=2.0) for k, p in enumerate(_bags(24))]
    parts = {p.name: part if k < 12 else "test" for k, p in enumerate(bags)}
    report = _report(tmp_path / "p", bags, parts=parts, metadata=metadata)
    found = report.to_dict()["doubt"]["beyond_validation"]
    count = 12 if part == "val" else 24
    expected = None if validation is None else count / (validation + 1)
    assert found == {
        "bags": count,
        "beyond": count // 2,
        "validation_bags": validation,
        "expected": expected,
        "patients": count,
        "patients_beyond": count // 2,
        "validation_patients": validation,
        "claim": Claim.UNLIKE_TRAINING,
    }
    if expected is not None:
        assert f"{expected:.1f}" in _text(report)


def test_figures(tmp_path):
    report = _report(tmp_path / "p", _bags(), bootstrap=20)
    written = write_report_figures(report, tmp_path / "figures")
    assert {p.name for p in written} == {"reliability.png", "retention.png"}
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in written)
    report = _report(tmp_path / "few", cohort(2)[0], labels={"b0": 1, "b1": 1})
    assert write_report_figures(report, tmp_path / "few-figures")


@pytest.mark.parametrize("members", [False, True])
def test_a_retention_curve_has_few_lines_and_begins_with_some_calls(tmp_path, members):
    report = _report(tmp_path / "p", _bags(14, members=members), bootstrap=20)
    ((_, panels),) = [s.figure for s in report.sections if s.key == "doubt"]
    assert len(panels) == 2
    for panel in panels:
        count = int(panel.title.split(" ")[0])
        assert {"margin"} < {line.name for line in panel.lines} <= set(DRAWN_DETECTORS)
        assert len(panel.lines) <= 5
        for line in panel.lines:
            assert line.x[0] == panel.xlim[0] and line.x[0] * count / 100 >= LEAST_KEPT
            assert line.x[-1] == 100 and len(line.x) == len(line.y)


# Maps beside null maps, of a trained run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("null maps")
    features, labels = write_folder(folder / "data", bags=36)
    file = folder / "run.yaml"
    file.write_text(
        f"data: {{features: {features}, labels: {labels}, test_fold: 0}}\n"
        "model: {name: mean-pool}\ntraining: {device: cpu}\n"
    )
    trained = train(read_run(file, {}), folder / "run")
    finish_run(trained, bootstrap=0, maps="none")
    return trained


@pytest.fixture
def new(run, tmp_path):
    """Predictions of twelve new bags."""
    features, labels = write_folder(tmp_path / "new", bags=12, seed=7)
    predict_folder(run.path, features, out=tmp_path / "out", labels=labels, device="cpu")
    return tmp_path / "out"


def _test_bags(run):
    table = read_predictions(run.predictions)
    return [b for b, part in zip(table.bags, table.parts, strict=True) if part == "test"]


def test_a_run_stores_its_null_maps_and_a_report_needs_no_fit(run, monkeypatch):
    monkeypatch.setattr("probsa.evaluation.baselines.null_maps.fit_logistic", None)
    report = evaluate(run.predictions, bootstrap=100)
    found = _values(report, "within_bags")
    assert list(found["null_maps"]) == [
        "centre",
        "position",
        "norm",
        "mahalanobis",
        "mean_features",
        "single_instance",
    ]
    # the model is this null map: equal measures, and no difference
    own = found["maps"]["evidence"][WITHIN].value
    assert own == pytest.approx(found["null_maps"]["mean_features"][WITHIN].value, abs=1e-6)
    (compared,) = found["comparisons"]
    assert compared.verdict != "better"
    assert compared.differences["mean_features"].value == pytest.approx(0, abs=1e-6)
    text = _text(report)
    assert compared.sentence in text and NO_INTENSITY in text
    assert f"{found['counted_bags']} of {found['positive_bags']} positive bags" in text


def test_null_maps_have_the_pooled_measures_of_the_model(run):
    report = evaluate(run.predictions, bootstrap=20)
    found = _values(report, "within_bags")["null_maps_pooled"]
    truth = []
    scores = {name: [] for name in found}
    for name in _test_bags(run):
        with h5py.File(run.predictions / "instances" / f"{name}.h5") as f:
            if not int(name) % 2:
                continue  # a negative bag
            truth.append(f["instance_labels"][:] > 0)
        with h5py.File(run.predictions / "null_maps" / f"{name}.h5") as f:
            for null in scores:
                scores[null].append(f[null][:])
    y = np.concatenate(truth)
    for null, parts in scores.items():
        auroc, ap = found[null].values()
        assert auroc.value == pytest.approx(sk.roc_auc_score(y, np.concatenate(parts)))
        assert ap.value == pytest.approx(sk.average_precision_score(y, np.concatenate(parts)))
        assert auroc.low <= auroc.value <= auroc.high
    best = max(found, key=lambda k: found[k]["auroc_positive_bags"].value)
    lines = _text(report).splitlines()
    title = INSTANCE_TITLES["auroc_positive_bags"]
    (row,) = [k for k, line in enumerate(lines) if title in line]
    assert f"({best})" in lines[row + 1]


def test_calls_at_evidence_0_have_dice_recall_and_precision(run):
    report = evaluate(run.predictions, bootstrap=20)
    found = _values(report, "within_bags")
    values = []
    y = []
    at_0 = []
    for name in _test_bags(run):
        with h5py.File(run.predictions / "instances" / f"{name}.h5") as f:
            truth = f["instance_labels"][:] > 0
            called = f["attention_mean"][:] > 0
        if truth.any():
            values.append(2 * (truth & called).sum() / (truth.sum() + called.sum()))
        if int(name) % 2:  # a positive bag
            y.append(truth)
            at_0.append(called)
    assert found["maps"]["evidence"]["dice"].value == pytest.approx(np.mean(values), abs=1e-12)
    truth = np.concatenate(y)
    called = np.concatenate(at_0)
    at = found["at_threshold"]
    assert at["recall"].value == pytest.approx(sk.recall_score(truth, called))
    assert at["precision"].value == pytest.approx(sk.precision_score(truth, called))
    assert at["precision"].low <= at["precision"].value <= at["precision"].high
    assert at["recall"].value == 1 and at["recall"].no_interval == NoInterval("no variation")
    text = _text(report)
    for m in at.values():
        assert shortened(f"{m.value:.2f}") in "\n".join(report.summary) and str(m) in text


def test_predictions_of_new_bags_get_the_stored_null_maps(run, new, tmp_path):
    found = _values(evaluate(new, part="all", bootstrap=0), "within_bags")
    assert "single_instance" in found["null_maps"] and found["counted_bags"] > 3
    null_maps_file(run.path).rename(tmp_path / "kept")
    features = tmp_path / "new" / "features"
    labels = tmp_path / "new" / "labels.csv"
    try:
        predict_folder(run.path, features, out=tmp_path / "plain", labels=labels, device="cpu")
    finally:
        (tmp_path / "kept").rename(null_maps_file(run.path))
    found = _values(evaluate(tmp_path / "plain", part="all", bootstrap=0), "within_bags")
    assert list(found["null_maps"]) == ["centre"] and found["missing"] == {"others": NO_NULL_MAPS}


def test_what_a_bag_lacks_is_left_out_for_all_and_damage_is_named(new):
    file = new / "null_maps" / "001.h5"
    with h5py.File(file, "a") as f:
        del f["norm"]
    found = _values(evaluate(new, part="all", bootstrap=0), "within_bags")
    assert "norm" not in found["null_maps"] and "mahalanobis" in found["null_maps"]
    assert "1 of 12 bags" in found["missing"]["norm"]
    with h5py.File(file, "a") as f:
        f["norm"] = np.zeros(99)
    with pytest.raises(BagError, match=r"001\.h5: norm "):
        evaluate(new, part="all", bootstrap=0)
    file.write_bytes(b"no file")
    refused(BagError, r"001\.h5 ", evaluate, new, part="all", bootstrap=0)


def test_bags_without_instance_labels_are_counted(new):
    for name in ("001", "003", "004"):
        with h5py.File(new / "instances" / f"{name}.h5", "a") as f:
            del f["instance_labels"]
    report = evaluate(new, part="all", bootstrap=0)
    found = _values(report, "within_bags")
    assert (found["bags_without_instance_labels"], found["positive_bags"]) == (3, 6)


def test_a_shared_reason_is_said_once_and_numbers_have_three_digits():
    none = Metric.undefined("there is no bag of class 1")
    months = Metric(12.345, low=9.876, high=15.678)
    metrics = {"a": none, "b": none, "c": months, "d": Metric(0.8126), "e": Metric(1.0)}
    console = Console(file=io.StringIO(), record=True, width=120)
    console.print(metric_grid("bags", metrics, titles={name: name for name in metrics}))
    text = console.export_text()
    assert text.count("there is no bag of class 1") == 1 and text.count("see 1") == 2
    for said in ("12.3 ", "[9.9, 15.7]", "0.813 ", "1.000 "):
        assert said in text
    assert str(Metric(1234.5, low=900, high=1500)) == "1234 [900, 1500]"
