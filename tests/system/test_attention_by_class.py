"""Models with one attention per class, from the model to files, metrics and maps."""

import csv
import json

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from support.stored import WIDTH, write_folder

import probsa
from probsa import pack
from probsa.cli import main
from probsa.datasets import open_bags
from probsa.evaluation import Predictor, read_predictions
from probsa.maps import VARIANCES, draw_map, map_limits
from probsa.maps.picture import BACKGROUND
from probsa.maps.quantities import quantities
from probsa.models import build
from probsa.training import Standardizer

CASES = {"one logit": (2, 1), "two classes": (2, 2), "three classes": (3, 3)}
"""The number of classes, and the number of attention columns that it leads to."""
"""The number of classes, and the number of attention columns that it leads to."""


@pytest.mark.parametrize(("columns", "kind"), [(1, "ct"), (2, "slide"), (3, "slide")])
def test_a_prediction_has_the_models_columns(tmp_path, columns, kind):
    features, _ = write_folder(tmp_path, bags=5, kind=kind)
    stored = open_bags(features)
    bags = [stored.bag(name) for name in stored.names]
    torch.manual_seed(0)
    model = build("clam-mb", in_dim=WIDTH, embed=8, attention_dim=4, n_classes=columns)
    found = list(Predictor(model, Standardizer()).predict(bags))
    for bag, p in zip(bags, found, strict=True):
        with torch.no_grad():
            alone = model(pack([bag]))
        want = alone.attention.mean.numpy()
        assert p.attention_mean.shape == p.weight_mean.shape == (len(bag), columns)
        np.testing.assert_allclose(p.attention_mean, want, rtol=1e-5, atol=1e-6)
        weight = np.exp(want) / np.exp(want).sum(0)
        np.testing.assert_allclose(p.weight_mean, weight, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(p.probability, alone.probability[0].numpy(), rtol=1e-5)
        for none in (p.attention_variance, p.weight_variance):
            assert none.shape == (len(bag), columns)
            assert not none.any()


FURTHER = pytest.param("two classes", marks=pytest.mark.nightly)


@pytest.fixture(scope="module", params=["one logit", FURTHER, "three classes"])
def run(request, tmp_path_factory):
    """A trained run: (features, labels, run folder, columns)."""
    classes, columns = CASES[request.param]
    folder = tmp_path_factory.mktemp("by_class")
    features, labels = write_folder(folder / "data", kind="slide")
    if classes == 3:  # positive bags alternate between classes 1 and 2
        rows = [f"{k:03d},{k % 2 * (1 + k // 2 % 2)},{k // 2 % 3}" for k in range(12)]
        labels.write_text("\n".join(["bag,label,fold", *rows]) + "\n")
    out = folder / "run"
    more = ["--model.n_classes", "2"] if columns == 2 else []
    status = main(
        [
            *(
                f"train --features {features} --labels {labels} --out {out} --model "
                "clam-mb --model.embed 8 --model.k_sample 2 --test-fold 0 --epochs 2 "
                "--batch-size 4 --device cpu --tensorboard false --maps none"
            ).split(),
            *more,
        ]
    )
    assert status == 0
    return features, labels, out, columns


def of_the_class(p) -> np.ndarray:
    """Return the column of the most probable class above 0, or the only column."""
    if p.attention_mean.shape[1] == 1:
        return p.attention_mean[:, 0]
    return p.attention_mean[:, 1 + p.probability[1:].argmax()]


def test_evaluation_judges_the_column_of_the_predicted_class(run, tmp_path, capsys):
    features, labels, folder, columns = run
    preds = tmp_path / "preds"
    given = ["predict", str(folder), "--features", str(features), "--out", str(preds), "--json"]
    assert main([*given, "--labels", str(labels)]) == 0
    assert json.loads(capsys.readouterr().out)["bags"] == 12
    assert main(["evaluate", str(preds), "--labels", str(labels), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["part"] == "test"
    found = read_predictions(preds)
    held = [
        found.instances(b)
        for b, part in zip(found.bags, found.parts, strict=True)
        if part == "test"
    ]
    assert {p.attention_mean.shape[1] for p in held} == {columns}
    y = np.concatenate([p.instance_labels > 0 for p in held])
    score = np.concatenate([of_the_class(p) for p in held])
    got = report["instances"]["auroc"]["value"]
    assert got == pytest.approx(roc_auc_score(y, score), abs=1e-9)
    undefined = report["instances"]["error_auroc_variance"]
    assert undefined["value"] is None and "no variance" in undefined["reason"]


def test_a_loaded_run_predicts_what_it_wrote(run):
    features, _, folder, _ = run
    stored = open_bags(features)
    found = read_predictions(folder / "predictions")
    names = list(found.bags)
    for p in probsa.load(folder, device="cpu").predict(stored.bag(n) for n in names):
        held = found.instances(p.name)
        np.testing.assert_allclose(p.attention_mean, held.attention_mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(p.probability, held.probability, atol=1e-6)


@pytest.mark.parametrize("scale", ["fixed", pytest.param("per-bag", marks=pytest.mark.nightly)])
def test_a_map_has_a_row_for_each_class(run, tmp_path, scale):
    _, _, folder, columns = run
    preds = folder / "predictions"
    with (preds / "predictions.csv").open() as f:
        bag = next(csv.DictReader(f))["bag"]
    given = ["map", str(preds), "--bag", bag, "--out", str(tmp_path / "maps"), "--scale", scale]
    assert main(given) == 0
    assert [p.name for p in (tmp_path / "maps").glob("*.png")] == [f"{bag}.png"]
    p = read_predictions(preds).instances(bag)
    limits = map_limits(preds) if scale == "fixed" else None
    figure = draw_map(p, limits=limits, also=VARIANCES)
    means = [
        ax for ax in figure.axes if str(ax.get_label()) in ("mean", "mean 0", "mean 1", "mean 2")
    ]
    assert len(means) == columns
    shown = quantities(p, limits, also=VARIANCES)
    found = [q for q in shown if q.key == "mean"]
    for c, (ax, q) in enumerate(zip(means, found, strict=True)):
        np.testing.assert_array_equal(q.values, p.attention_mean[:, c].astype(np.float64))
        drawn = {tuple(v) for v in np.asarray(ax.images[0].get_array()).reshape(-1, 3).tolist()}
        assert drawn == {BACKGROUND, *map(tuple, q.colours.tolist())}
