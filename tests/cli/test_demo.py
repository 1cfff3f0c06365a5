"""A small demo: it runs completely, and every number that it prints is from its runs."""

import io
import json

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from sklearn.metrics import average_precision_score, roc_auc_score
from support.blank_pictures import use_blank_pictures

from probsa.cli import demo
from probsa.cli.demo import (
    DEFAULT,
    MARK,
    MODELS,
    STRIDE,
    beside_chance,
    render,
    run_config,
    run_demo,
)
from probsa.core import note_written
from probsa.errors import OutputExists
from probsa.evaluation import evaluate, read_predictions
from probsa.statistics import Metric
from probsa.training import read_run


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("demo") / "out"


@pytest.fixture(scope="module")
def done(out):
    return run_demo(out, slides=40, epochs=2)


def test_the_models_are_judged_on_the_same_test_slides(done, out):
    assert done["models"].keys() == MODELS.keys()
    for name, report in done["models"].items():
        assert report["part"] == "test" and report["bags"] == 12
        again = evaluate(out / "runs" / name / "predictions", bootstrap=0).to_dict()
        assert again["metrics"]["auroc"]["value"] == report["metrics"]["auroc"]["value"]
        for key in ("error_auroc_variance", "error_auroc_doubt"):
            assert (report["instances"][key]["value"] is None) == (name == "abmil")


def test_the_runs_differ_only_in_what_the_demo_says(tmp_path):
    abmil, probsa, default = (run_config(tmp_path, m, epochs=40).to_dict() for m in MODELS)
    assert {k for k, v in abmil.items() if probsa[k] != v} == {"model"}
    both = abmil["model"].keys() & probsa["model"].keys() - {"name"}
    assert "embed" in both and all(abmil["model"][k] == probsa["model"][k] for k in both)
    files = {"features": str(tmp_path / "features"), "labels": str(tmp_path / "labels.csv")}
    usual = read_run(None, {**files, "threads": 1, "device": "cpu", "tensorboard": False}).to_dict()
    changed = {(k, v) for k, v in default["training"].items() if usual["training"][k] != v}
    assert changed == {("epochs", 20), ("members", 2)} and usual["training"]["epochs"] == 40
    assert {k for k, v in default.items() if usual[k] != v} <= {"model", "training"}
    assert default["model"]["name"] == usual["model"]["name"]


def test_the_null_map_is_nearness_to_the_centre(done, out):
    predictions = read_predictions(out / "runs" / "abmil" / "predictions")
    y = []
    nearness = []
    for bag, part in zip(predictions.bags, predictions.parts, strict=True):
        p = predictions.instances(bag)
        if part == "test" and (p.instance_labels > 0).any():
            x = p.coords - (np.min(p.coords, axis=0) + np.max(p.coords, axis=0)) / 2
            y.extend(p.instance_labels > 0)
            nearness.extend(-np.sqrt(x[:, 0] ** 2 + x[:, 1] ** 2))
    for key, metric in (("auroc", roc_auc_score), ("average_precision", average_precision_score)):
        found = done["null"][f"{key}_positive_bags"]["value"]
        assert found == pytest.approx(metric(y, nearness))


def test_maps_are_of_the_first_positive_test_slides_and_the_page_shows_all(done, out):
    predictions = read_predictions(out / "runs" / "abmil" / "predictions")
    rows = zip(predictions.bags, predictions.parts, predictions.labels, strict=True)
    positive = [bag for bag, part, label in rows if part == "test" and label == 1]
    expected = [str(out / "maps" / f"{bag}.png") for bag in positive[:3]]
    assert done["maps"] == expected and len(list((out / "maps").iterdir())) == 3
    for path in done["maps"]:
        with Image.open(path) as picture:
            colours = np.asarray(picture.convert("RGB")).astype(int) @ [65536, 256, 1]
            assert len(np.unique(colours)) > 50
    assert done["page"] == str(out / "page" / "index.html") and (out / "page/index.html").is_file()
    listed = (out / "page/data/slides.js").read_text()
    assert all(f'"{bag}"' in listed for bag in predictions.bags)


def test_the_comparison_is_printed(done):
    console = Console(file=io.StringIO(), width=160)
    render(done, console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    for model in done["models"].values():
        of_patches = (model["instances"][k] for k in ("auroc_positive_bags", "error_auroc_margin"))
        for found in (model["metrics"]["auroc"], *of_patches):
            assert f"{found['value']:.3f} [{found['low']:.3f}, {found['high']:.3f}]" in printed
    assert f"{done['null']['auroc_positive_bags']['value']:.3f}" in printed
    assert done["page"] in printed and "{" not in printed
    assert json.loads(json.dumps(done)) == done


def test_the_page_has_a_picture_of_each_slide(done, out):
    files = sorted((out / "data" / "slides").glob("*.png"))
    predictions = read_predictions(out / "runs" / DEFAULT / "predictions")
    assert [f.stem for f in files] == sorted(predictions.bags)
    assert len(list((out / "page" / "data" / "tiles").iterdir())) == len(predictions.bags)
    for file in files[:3]:
        p = predictions.instances(file.stem)
        with Image.open(file) as picture:
            grey = np.asarray(picture.convert("L"))
        inside = np.zeros(grey.shape, bool)
        for x, y in p.coords:
            inside[y : y + STRIDE, x : x + STRIDE] = True
        assert (grey[~inside] == 255).all() and grey[inside].mean() < 220


@pytest.mark.parametrize(
    ("auroc", "is_named"),
    [
        (Metric(0.25, 0.22, 0.29), True),
        (Metric(0.48, 0.45, 0.52), True),
        (Metric(0.55, 0.48, 0.61), True),
        (Metric(0.5), True),
        (Metric(0.9, 0.8, 0.95), False),
        (Metric.undefined("no variance"), False),
    ],
)
def test_an_auroc_that_is_no_better_than_chance_is_named(auroc, is_named):
    assert bool(beside_chance(auroc)) is is_named


def test_a_demo_replaces_its_own_folder_and_no_other(tmp_path, monkeypatch):
    """A smaller one with blank pictures and two models of a single member, as it is run twice."""
    use_blank_pictures(monkeypatch)
    models = {name: MODELS[name] for name in ("abmil", DEFAULT)}
    monkeypatch.setattr(demo, "MODELS", models)
    monkeypatch.setattr(demo, "MEMBERS", 1)
    out = tmp_path / "out"
    done = run_demo(out, slides=20, epochs=1)
    (out / "mine.txt").write_text("kept")
    (out / "maps" / "old.png").write_text("old")
    with pytest.raises(OutputExists, match=r"old\.png"):
        run_demo(out, slides=20, epochs=1)
    assert (out / "data" / "labels.csv").is_file()
    note_written(out / "maps" / "old.png")
    again = run_demo(out, slides=20, epochs=1)
    assert not (out / "maps" / "old.png").exists() and (out / "mine.txt").read_text() == "kept"
    for model in models:  # and the same seed gives the same metrics
        assert again["models"][model]["metrics"] == done["models"][model]["metrics"]
    other = tmp_path / "other"
    other.mkdir()
    (other / "demo.json").write_text("{}")
    (tmp_path / "file").write_text("")
    for path in (other, tmp_path / "file"):
        with pytest.raises(OutputExists, match=path.name):
            run_demo(path)
    assert [f.name for f in other.iterdir()] == ["demo.json"]
    assert (out / MARK).is_file() and (out / "runs" / DEFAULT).is_dir()
