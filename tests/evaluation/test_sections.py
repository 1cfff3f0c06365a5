"""The sections on calibration and doubt: by hand, undefined with reasons, as figures."""

import io
import json

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import norm
from sklearn.metrics import roc_auc_score
from support.made_predictions import cohort

from probsa.evaluation.prediction import Prediction
from probsa.evaluation.report import evaluate
from probsa.evaluation.storage import write_predictions
from probsa.maps import write_report_figures


def _predictions(n=40, *, members=False, labels=True, kind="evidence", classes=2, variance=True):
    bags = []
    for k in range(n):
        rng = np.random.default_rng((3, k))
        y, size = k % classes, 15
        truth = (rng.random(size) < 0.4) & (y > 0)
        f = rng.normal(size=size) + truth
        s = 0.2 * rng.random(1 if classes == 2 else classes) * variance
        p = [1 / (1 + np.exp(-rng.normal(2 * y - 1, 2)))]
        values = {"attention_variance": rng.random(size) * variance}
        if members:
            values |= {"variance_within": rng.random(size), "variance_between": rng.random(size)}
            values["attention_variance"] = values["variance_within"] + values["variance_between"]
        std = {"std": s}
        if members:
            std |= {"std_within": 0.6 * s, "std_between": 0.8 * s}
        bags.append(
            Prediction(
                name=f"b{k}",
                probability=np.float32(p if classes == 2 else rng.dirichlet(np.ones(classes))),
                coords=None,
                attention_mean=np.float32(f),
                weight_mean=np.full(size, 1 / size, np.float32),
                weight_variance=np.zeros(size, np.float32),
                degree=np.ones(size, np.float32),
                score_kind=kind,
                instance_labels=truth.astype(np.int8) if labels else None,
                **{name: np.float32(v) for name, v in (values | std).items()},
            )
        )
    return bags


def _report(path, bags, *, labels=None, classes=2, bootstrap=0):
    write_predictions(
        path,
        bags,
        labels=labels or {p.name: k % classes for k, p in enumerate(bags)},
        parts={p.name: "test" for p in bags},
        classes=[str(c) for c in range(classes)],
        threshold=0.4 if classes == 2 else None,
        metadata={},
        overwrite=True,
    )
    return evaluate(path, bootstrap=bootstrap)


def test_detectors_of_wrong_bags_by_hand(tmp_path):
    bags = _predictions(members=True)
    got = _report(tmp_path / "p", bags).to_dict()["doubt"]["bags"]
    p = np.array([b.probability[0] for b in bags], np.float64)
    names = ("std", "std_within", "std_between")
    s = {name: np.array([getattr(b, name)[0] for b in bags]) for name in names}
    wrong = (p >= 0.4) != np.arange(40) % 2
    expected = {
        "doubt": norm.cdf(-np.abs(p - 0.4) / s["std"]),
        "spread": s["std"],
        "within": s["std_within"],
        "between": s["std_between"],
        "margin": -np.abs(p - 0.4),
        "entropy": -np.abs(p - 0.5),  # the same order
    }
    for name, score in expected.items():
        auroc = roc_auc_score(wrong, score)
        assert got["error_auroc"][name]["value"] == pytest.approx(auroc), name
        kept = np.argsort(score, kind="stable")[:20]
        half = got["retention"]["curves"][name]["error_rate"][9]
        assert got["retention"]["shares"][9] == 0.5
        assert half == pytest.approx(wrong[kept].mean()), name
    assert got["retention"]["random"] == pytest.approx(wrong.mean())
    assert got["error_auroc"]["ood"]["reason"] == "the predictions have no distances from training"


def test_instances_of_positive_bags_by_hand(tmp_path):
    bags = _predictions(members=True)
    report = _report(tmp_path / "p", bags, bootstrap=20).to_dict()
    got = report["doubt"]["instances"]
    inside = [b for k, b in enumerate(bags) if k % 2]
    f = np.concatenate([b.attention_mean for b in inside]).astype(np.float64)
    truth = np.concatenate([b.instance_labels for b in inside]) > 0
    between = np.concatenate([b.variance_between for b in inside])
    auroc = roc_auc_score((f > 0) != truth, norm.cdf(-np.abs(f) / np.sqrt(between)))
    assert got["error_auroc"]["doubt_between"]["value"] == pytest.approx(auroc)
    assert got["items"] == 300 and got["verdict"].startswith("P(wrong)")
    calibration = report["calibration"]["instances"]
    total = np.concatenate([b.attention_variance for b in inside]).astype(np.float64)
    p = norm.cdf(f / np.sqrt(total))
    order, parts = np.argsort(p), np.arange(300) // 20
    ece = sum(abs(np.sum(p[order][parts == b] - truth[order][parts == b])) for b in range(15)) / 300
    assert calibration["ece_adaptive"]["value"] == pytest.approx(ece)
    assert calibration["bins"]["low"][3] is not None
    json.dumps(report)


def test_calibration_of_bags_by_hand(tmp_path):
    bags = _predictions()
    got = _report(tmp_path / "p", bags).to_dict()["calibration"]
    p, y = np.array([b.probability[0] for b in bags], np.float64), np.arange(40) % 2
    order = np.argsort(p)
    gaps = (p - y)[order].reshape(4, 10).sum(1)
    assert got["bags"]["ece_adaptive"]["value"] == pytest.approx(np.abs(gaps).sum() / 40)
    assert got["bags"]["bins"]["count"] == [10] * 4
    assert got["ece_class_wise"] is None and got["temperature"] is None


def test_several_classes(tmp_path):
    bags = _predictions(60, classes=3)
    got = _report(tmp_path / "p", bags, classes=3).to_dict()
    p, y = np.stack([b.probability for b in bags]).astype(np.float64), np.arange(60) % 3
    errors = []
    for c in range(3):
        order = np.argsort(p[:, c])
        errors.append(np.abs((p[:, c] - (y == c))[order].reshape(6, 10).sum(1)).sum() / 60)
    assert got["calibration"]["ece_class_wise"]["value"] == pytest.approx(np.mean(errors))
    bags_of = got["doubt"]["bags"]["error_auroc"]
    assert bags_of["doubt"]["reason"] == "it needs two classes"
    assert bags_of["spread"]["value"] is not None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"labels": False}, "no bag has instance labels"),
        ({"kind": "relevance"}, "relevance has no threshold for calls"),
    ],
)
def test_without_instances_there_is_a_reason(tmp_path, changes, reason):
    report = _report(tmp_path / "p", _predictions(**changes))
    got = report.to_dict()
    assert got["doubt"]["instances"] is None and got["doubt"]["instances_reason"] == reason
    assert got["calibration"]["instances"] is None and got["calibration"]["instances_reason"]
    report.render(Console(file=io.StringIO()))


def test_nothing_to_detect_has_a_reason(tmp_path):
    bags = _predictions()
    labels = {b.name: int(b.probability[0] >= 0.4) for b in bags}
    report = _report(tmp_path / "right", bags, labels=labels)
    got = report.to_dict()["doubt"]["bags"]
    reason = "no wrong call among 40 bags: errors cannot be ranked"
    assert {m["reason"] for m in got["error_auroc"].values()} == {reason}
    assert got["verdict"] == f"P(wrong) cannot be evaluated on bags: {reason}."
    assert got["retention"]["curves"] == {}
    negative = dict.fromkeys(labels, 0)
    report = _report(tmp_path / "negative", bags, labels=negative)
    got = report.to_dict()
    assert got["doubt"]["instances_reason"] == "no instances of positive bags"
    assert got["calibration"]["instances_reason"] == "no labelled instances of positive bags"
    report.render(Console(file=io.StringIO()))
    flat = _report(tmp_path / "flat", _predictions(variance=False)).to_dict()["doubt"]
    for level, name in (("bags", "doubt"), ("bags", "spread"), ("instances", "variance")):
        assert flat[level]["error_auroc"][name]["reason"] == "this posterior has no variance"


def test_figures(tmp_path):
    report = _report(tmp_path / "p", _predictions(), bootstrap=20)
    written = write_report_figures(report, tmp_path / "figures")
    assert {p.name for p in written} == {"reliability.png", "retention.png"}
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in written)
    bags, _ = cohort(2)
    labels = {"b0": 1, "b1": 1}
    report = _report(tmp_path / "few", bags, labels=labels)
    assert [p.name for p in write_report_figures(report, tmp_path / "few-figures")] != []
