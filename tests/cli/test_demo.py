"""A small demo: it runs completely, and every number on its page is from its runs."""

import html
import io
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from probsa.cli.demo import MARK, MODELS, DemoResult, run_demo
from probsa.errors import OutputExists
from probsa.evaluation.report import evaluate
from probsa.evaluation.tables import read_predictions


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> DemoResult:
    return run_demo(tmp_path_factory.mktemp("demo") / "out", slides=40, epochs=2)


def test_both_models_are_judged_on_the_same_test_slides(done):
    assert tuple(done.reports) == MODELS
    for name, report in done.reports.items():
        assert report.part == "test"
        assert report.bags == 12
        again = evaluate(done.out / "runs" / name / "predictions", bootstrap=0)
        assert again.metrics["auroc"].value == report.metrics["auroc"].value
    plain, probabilistic = (done.metric(m, "instances", "error_auroc_variance") for m in MODELS)
    assert plain is not None
    assert plain.value is None
    assert probabilistic is not None
    assert probabilistic.value is not None


def test_the_models_differ_only_in_the_posterior(done):
    configs = []
    for name in MODELS:
        predictions = read_predictions(done.out / "runs" / name / "predictions")
        assert set(predictions.parts) == {"val", "test"}
        configs.append((done.out / "runs" / name / "run.yaml").read_text())
    lines = [set(c.splitlines()) for c in configs]
    assert {line.split(":")[0].strip() for line in lines[0] ^ lines[1]} == {
        "name",
        "samples",
        "predict_samples",
    }


def test_maps_are_of_the_first_positive_test_slides(done):
    predictions = read_predictions(done.out / "runs" / "abmil" / "predictions")
    rows = zip(predictions.bags, predictions.parts, predictions.labels, strict=True)
    positive = [bag for bag, part, label in rows if part == "test" and label == 1]
    expected = {f"{bag}-{model}.png" for bag in positive[:3] for model in MODELS}
    assert {m.name for m in done.maps} == expected
    assert {m.name for m in (done.out / "maps").iterdir()} == expected
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


def test_the_comparison_is_printed(done):
    console = Console(file=io.StringIO(), width=160)
    done.render(console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    for model in MODELS:
        value = done.metric(model, "instances", "auroc_positive_bags").value
        assert f"{value:.3f}" in printed
    assert "no variance" in printed
    assert json.loads(json.dumps(done.to_dict()))["models"].keys() == set(MODELS)


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
