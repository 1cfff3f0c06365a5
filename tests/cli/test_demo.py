"""A small demo: it runs completely, and every number on its page is from its runs."""

import html
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from sklearn.metrics import average_precision_score, roc_auc_score

from probsa.cli.demo import DEFAULT, MARK, MODELS, DemoResult, default_config, run_config, run_demo
from probsa.cli.demo_page import DefaultRun, figure_sentence
from probsa.errors import OutputExists
from probsa.evaluation import evaluate
from probsa.evaluation.storage import read_predictions
from probsa.training import default_recipe


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> DemoResult:
    return run_demo(tmp_path_factory.mktemp("demo") / "out", slides=40, epochs=2)


def test_the_models_are_judged_on_the_same_test_slides(done):
    assert tuple(done.reports) == MODELS
    for name, report in done.reports.items():
        assert report.part == "test"
        assert report.bags == 12
        again = evaluate(done.out / "runs" / name / "predictions", bootstrap=0)
        assert again.metrics["auroc"].value == report.metrics["auroc"].value
    for key in ("error_auroc_variance", "error_auroc_doubt"):
        plain, *probabilistic = (done.metric(m, "instances", key) for m in MODELS)
        assert plain is not None
        assert plain.value is None
        assert [m is not None and m.value is not None for m in probabilistic] == [True, True]


def test_abmil_and_probsa_differ_only_in_the_posterior(done):
    configs = []
    for name in MODELS[:2]:
        predictions = read_predictions(done.out / "runs" / name / "predictions")
        assert set(predictions.parts) == {"val", "test"}
        configs.append((done.out / "runs" / name / "run.yaml").read_text())
    lines = [set(c.splitlines()) for c in configs]
    assert {line.split(":")[0].strip() for line in lines[0] ^ lines[1]} == {
        "name",
        "samples",
        "predict_samples",
    }


def test_the_default_recipe_is_as_it_is_but_for_fewer_epochs_and_members(tmp_path):
    usual = default_config(tmp_path, seed=3)
    config = run_config(tmp_path, DEFAULT, seed=3, epochs=40)
    assert config.model == usual.model == default_recipe()["model.name"]
    changed = {k for k, v in config.to_dict()["training"].items()
               if usual.to_dict()["training"][k] != v}  # fmt: skip
    assert changed == {"epochs", "members"}
    assert (config.training.epochs, config.training.members) == (20, 2)
    assert config.data == usual.data and config.seed == usual.seed == 3
    assert DefaultRun(config=config, usual=usual).sentence() == (
        f"The default recipe trains {usual.model}, here with 20 epochs and 2 members instead of "
        f"{usual.training.epochs} and {usual.training.members} to save time."
    )


def test_the_null_map_is_nearness_to_the_centre(done):
    predictions = read_predictions(done.out / "runs" / "abmil" / "predictions")
    test = [
        b for b, part in zip(predictions.bags, predictions.parts, strict=True) if part == "test"
    ]
    bags = [predictions.instances(b) for b in test]
    y, nearness = [], []
    for p in bags:
        if (p.instance_labels > 0).any():
            x = p.coords - (np.min(p.coords, axis=0) + np.max(p.coords, axis=0)) / 2
            y.extend(p.instance_labels > 0)
            nearness.extend(-np.sqrt(x[:, 0] ** 2 + x[:, 1] ** 2))
    for key, metric in (("auroc", roc_auc_score), ("average_precision", average_precision_score)):
        got = done.metric("null", "instances", f"{key}_positive_bags")
        assert got.value == pytest.approx(metric(y, nearness))
    assert done.metric("null", "bags", "auroc") is None


def test_the_sentence_of_a_figure_has_the_counts_of_its_slide(done):
    predictions = read_predictions(done.out / "runs" / DEFAULT / "predictions")
    p = predictions.instances(done.maps[0].stem)
    lesion, called = p.instance_labels > 0, p.attention_mean > 0
    said = figure_sentence(p)
    assert f"above 0 for {(lesion & called).sum()} of {lesion.sum()} lesion patches" in said
    assert f"and for {(~lesion & called).sum()} of {(~lesion).sum()} others" in said
    assert said in html.unescape(done.page.read_text(encoding="utf-8"))
    right = replace(p, attention_mean=np.where(lesion, 2, -2).astype(np.float32))
    assert "every call is right, with a mean P(wrong) of" in figure_sentence(right)
    certain = replace(right, attention_variance=np.zeros(len(lesion), np.float32))
    assert "is +0.00 for s and +0.00 for P(wrong)" in figure_sentence(certain)


def test_maps_are_of_the_first_positive_test_slides(done):
    predictions = read_predictions(done.out / "runs" / "abmil" / "predictions")
    rows = zip(predictions.bags, predictions.parts, predictions.labels, strict=True)
    positive = [bag for bag, part, label in rows if part == "test" and label == 1]
    expected = [f"{bag}.png" for bag in positive[:3]]
    assert [m.name for m in done.maps] == expected
    assert {m.name for m in (done.out / "maps").iterdir()} == set(expected)
    for path in done.maps:
        with Image.open(path) as picture:
            colours = np.asarray(picture.convert("RGB")).astype(int) @ [65536, 256, 1]
            assert len(np.unique(colours)) > 50


def test_the_page_stands_alone_and_says_what_came_out(done):
    page = done.page.read_text(encoding="utf-8")
    links = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(links) == len(done.maps)
    assert all((done.out / link).is_file() for link in links)
    assert "://" not in page
    text = html.unescape(page)
    for model in MODELS:
        auroc = done.metric(model, "bags", "auroc")
        assert auroc is not None
        assert f"{auroc.value:.3f} [{auroc.low:.3f}, {auroc.high:.3f}]" in text
    assert "{" not in re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)
    assert "probsa train --features" in page
    patches = done.metric("null", "instances", "auroc_positive_bags")
    assert f"{patches.value:.3f} [{patches.low:.3f}, {patches.high:.3f}]" in text
    doubt, margin = (done.metric(DEFAULT, "instances", f"error_auroc_{k}").value
                     for k in ("doubt", "margin"))  # fmt: skip
    assert re.search(rf"here {doubt:.3f} \[.*\] by P\(wrong\) and {margin:.3f} \[", text)
    assert "here with 1 epochs and 2 members instead of" in text


def test_the_comparison_is_printed(done):
    console = Console(file=io.StringIO(), width=160)
    done.render(console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    for model in MODELS:
        value = done.metric(model, "instances", "auroc_positive_bags").value
        assert f"{value:.3f}" in printed
    assert "no variance" in printed
    assert "nearness to the centre" in printed
    stored = json.loads(json.dumps(done.to_dict()))
    assert stored["models"].keys() == set(MODELS)
    assert set(stored["null"]) == {"auroc_positive_bags", "average_precision_positive_bags"}


def test_a_demo_replaces_its_own_folder_and_no_other(done, tmp_path):
    (done.out / "mine.txt").write_text("kept")
    (done.out / "maps" / "old.png").write_text("old")
    threads = torch.get_num_threads()
    again = run_demo(done.out, slides=40, epochs=2)
    assert torch.get_num_threads() == threads
    assert not (done.out / "maps" / "old.png").exists()
    assert (done.out / "mine.txt").read_text() == "kept"
    for model in MODELS:  # and the same seed gives the same metrics
        assert again.metric(model, "bags", "auroc") == done.metric(model, "bags", "auroc")

    other = tmp_path / "other"
    other.mkdir()
    (other / MARK).write_text('{"some": "json"}')
    with pytest.raises(OutputExists, match=r"other exists and is not the folder of a demo.*--out"):
        run_demo(other)
    assert [f.name for f in other.iterdir()] == [MARK]
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(OutputExists, match="file"):
        run_demo(file)
