"""Null maps: their scores by other means, what is missing and why, and the way to a report."""

import io
import json
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from rich.console import Console
from scipy.spatial.distance import mahalanobis
from sklearn.covariance import ledoit_wolf
from sklearn.metrics import average_precision_score, roc_auc_score
from support.stored import WIDTH, write_folder

from probsa import Bag, predict_folder
from probsa.core import StoredBag
from probsa.errors import BagError, CheckpointError, InputError
from probsa.evaluation import evaluate
from probsa.evaluation.null_files import NO_NULL_MAPS, null_maps_file
from probsa.evaluation.null_maps import (
    NO_COORDINATES,
    NO_INTENSITY,
    NullMaps,
    centre,
    fit_null_maps,
    position_basis,
)
from probsa.evaluation.pooled_nulls import best_null
from probsa.evaluation.within_bags import WITHIN
from probsa.models import build
from probsa.training import read_run, train
from probsa.workflow import finish_run


def stored(name, *, seed, y, n=15, coords=True, **fields):
    g = np.random.default_rng(seed)
    x = g.normal(size=(n, WIDTH)) * np.arange(1, WIDTH + 1) + 7
    x[: n // 3, 0] += 2 * y
    place = np.stack([np.arange(n) % 5, np.arange(n) // 5], 1) * 256
    return StoredBag(
        name=name, features=x.astype(np.float32), coords=place if coords else None, **fields
    )


def cohort(count, *, seed, labels=(0, 1), **fields):
    return [
        (stored(f"b{k}", seed=seed + k, y=labels[k % len(labels)], **fields),
         bool(labels[k % len(labels)]))
        for k in range(count)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def fitted():
    return fit_null_maps(cohort(20, seed=0), cohort(8, seed=100), bags=20)


def test_scores_without_training_are_their_formulas(fitted):
    bag = stored("new", seed=999, y=1)
    got = fitted.scores(bag)
    rows = np.concatenate([b.features for b, _ in cohort(20, seed=0)]).astype(np.float64)
    z = (bag.features - rows.mean(0)) / rows.std(0)
    np.testing.assert_allclose(got["norm"], np.sqrt((z**2).sum(1)), rtol=1e-10)
    precision = np.linalg.inv(ledoit_wolf((rows - rows.mean(0)) / rows.std(0))[0])
    want = [mahalanobis(v, np.zeros(WIDTH), precision) for v in z]
    np.testing.assert_allclose(got["mahalanobis"], want, rtol=1e-9)
    middle = np.array([4 * 256, 2 * 256]) / 2
    np.testing.assert_allclose(got["centre"], -np.hypot(*(bag.coords - middle).T), rtol=1e-12)
    assert got["darkness"] == NO_INTENSITY and "brightness" not in got


@pytest.mark.parametrize(
    ("null_map", "model"), [("mean_features", "mean-pool"), ("single_instance", "instance-lr")]
)
def test_the_regressions_are_the_maps_of_the_models(fitted, null_map, model):
    def bags(some):
        none = {"edges": torch.zeros(2, 0, dtype=torch.long), "weights": torch.zeros(0)}
        return [Bag(name=b.name, x=torch.from_numpy(b.features), y=int(y), **none) for b, y in some]

    m = build(model, in_dim=WIDTH).double()
    m.fit_bags(bags(cohort(20, seed=0)), bags(cohort(8, seed=100)))
    bag = stored("new", seed=999, y=1)
    with torch.no_grad():
        z = (torch.from_numpy(bag.features).double() - m.mean) / m.deviation
        want = m.linear(z)[:, 0].numpy()
    np.testing.assert_allclose(fitted.scores(bag)[null_map], want, atol=1e-6)
    assert fitted.about[f"{null_map}_C"] == float(m.monitored()["C"])


def test_the_place_within_a_bag_has_no_unit_and_learns_from_labels_of_bags():
    grid = np.stack(np.meshgrid(np.arange(7), np.arange(4)), -1).reshape(-1, 2)
    basis = position_basis(grid)
    np.testing.assert_allclose(basis.sum(1), 1, atol=1e-12)
    np.testing.assert_allclose(position_basis(grid * 512 + 99), basis, atol=1e-12)
    assert position_basis(grid[:1]).shape == (1, basis.shape[1])
    # positive bags have instances at the top only, so that the top speaks for positive bags
    line = np.arange(30)[:, None]

    def bag(name, y):
        coords = np.concatenate([line[:15], line[-1:]]) if y else line
        return StoredBag(name=name, features=np.zeros((len(coords), 2), np.float32), coords=coords)

    some = [(bag(f"b{k}", k % 2), bool(k % 2)) for k in range(10)]
    maps = fit_null_maps(some, some, bags=10)
    score = maps.scores(bag("new", 0))["position"]
    assert score[2:14].min() > score[16:28].max()


def test_darkness_of_patches_and_brightness_of_slices(fitted):
    level = np.linspace(0, 255, 15).astype(np.float32)
    slide = fitted.scores(stored("s", seed=1, y=0, intensity=level))
    np.testing.assert_array_equal(slide["darkness"], -level.astype(np.float64))
    scan = fitted.scores(
        stored("s", seed=1, y=0, intensity=level, kind="ct"),
    )
    np.testing.assert_array_equal(scan["brightness"], level)
    assert "darkness" not in scan


def test_only_a_sample_of_large_bags_is_kept(monkeypatch):
    monkeypatch.setattr("probsa.evaluation.null_maps.sample_size", lambda bags: 4)
    maps = fit_null_maps(cohort(20, seed=0), cohort(8, seed=100), bags=20)
    assert maps.about["instances"] == 80 and maps.about["instances_per_bag"] == 4
    again = fit_null_maps(cohort(20, seed=0), cohort(8, seed=100), bags=20)
    for key, value in maps.arrays.items():
        np.testing.assert_array_equal(again.arrays[key], value)


def test_what_is_missing_has_a_reason():
    positive = fit_null_maps(cohort(6, seed=0, labels=(1,)), [], bags=6)
    got = positive.scores(stored("new", seed=5, y=1))
    for name in ("mean_features", "single_instance", "position"):
        assert "all 6 training bags are positive" in got[name]
    for name in ("centre", "norm", "mahalanobis"):
        assert got[name].shape == (15,)
    without = fit_null_maps(cohort(8, seed=0, coords=False), [], bags=8)
    got = without.scores(stored("new", seed=5, y=1, coords=False))
    assert got["centre"] == NO_COORDINATES == centre(None)
    assert got["position"] == NO_COORDINATES
    assert without.missing["position"] == f"{NO_COORDINATES} in the training bags"
    assert got["mean_features"].shape == (15,)
    assert without.about["mean_features_C"] == 1.0  # no validation bags


def test_bad_bags_are_refused(fitted):
    bad = stored("bad", seed=0, y=0)
    bad.features[3, 1] = np.nan
    with pytest.raises(BagError, match="'bad': its features hold NaN or infinity, first in row 3"):
        fit_null_maps([(bad, False)], [], bags=1)
    narrow = replace(bad, features=np.zeros((15, 2), np.float32))
    with pytest.raises(BagError, match=f"2 features per instance, .* fitted on {WIDTH}"):
        fitted.scores(narrow)
    with pytest.raises(InputError, match="no training bags"):
        fit_null_maps([], [], bags=0)


def test_a_stored_fit_gives_the_same_scores_and_a_foreign_file_is_refused(fitted, tmp_path):
    fitted.save(tmp_path / "maps.safetensors")
    again = NullMaps.load(tmp_path / "maps.safetensors")
    bag = stored("new", seed=9, y=1)
    for name, score in fitted.scores(bag).items():
        np.testing.assert_array_equal(again.scores(bag)[name], score)
    assert again.about == fitted.about
    (tmp_path / "text").write_text("no maps")
    with pytest.raises(CheckpointError, match="damaged or not a safetensors file"):
        NullMaps.load(tmp_path / "text")
    from safetensors.numpy import save_file

    save_file({"mean": np.zeros(2)}, tmp_path / "other")
    with pytest.raises(CheckpointError, match="does not hold null maps"):
        NullMaps.load(tmp_path / "other")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("null maps")
    features, labels = write_folder(folder / "data", bags=36)
    file = folder / "run.yaml"
    file.write_text(
        f"data: {{features: {features}, labels: {labels}, test_fold: 0}}\n"
        "model: {name: mean-pool}\ntraining: {device: cpu}\n"
    )
    run = train(read_run(file, {}), folder / "run")
    finish_run(run, bootstrap=0, maps="none")
    return run


def section(report):
    (found,) = [s for s in report.sections if s.key == "within_bags"]
    return found


def text_of(report):
    console = Console(file=io.StringIO(), width=200)
    report.render(console)
    return console.file.getvalue()


def test_a_run_stores_its_null_maps_and_a_report_needs_no_fit(run, monkeypatch):
    monkeypatch.setattr("probsa.evaluation.null_files.fit_null_maps", None)
    report = evaluate(run.predictions, bootstrap=100)
    found = section(report)
    assert list(found.nulls) == [
        "centre", "position", "norm", "mahalanobis", "mean_features", "single_instance"
    ]  # fmt: skip
    # the model is this null map: equal measures, and no difference
    assert found.maps["evidence"][WITHIN].value == pytest.approx(
        found.nulls["mean_features"][WITHIN].value, abs=1e-6
    )
    (compared,) = found.comparisons
    assert compared.verdict != "better"
    assert compared.differences["mean_features"].value == pytest.approx(0, abs=1e-6)
    text = text_of(report)
    assert compared.sentence in text and NO_INTENSITY in text
    assert f"Means over {found.counted} of {found.positive} positive bags" in text
    assert json.loads(json.dumps(report.to_dict()))["within_bags"]["null_maps"]["centre"]


def test_predictions_of_new_bags_get_the_stored_null_maps(run, tmp_path):
    features, labels = write_folder(tmp_path / "new", bags=12, seed=7)
    for _ in range(2):  # the second time, it replaces its own folder of null maps
        predict_folder(
            run.path, features, out=tmp_path / "out", labels=labels, overwrite=True, device="cpu"
        )
        found = section(evaluate(tmp_path / "out", part="all", bootstrap=0))
        assert "single_instance" in found.nulls and found.counted > 3
    null_maps_file(run.path).rename(tmp_path / "kept")
    try:
        predict_folder(run.path, features, out=tmp_path / "plain", labels=labels, device="cpu")
    finally:
        (tmp_path / "kept").rename(null_maps_file(run.path))
    found = section(evaluate(tmp_path / "plain", part="all", bootstrap=0))
    assert list(found.nulls) == ["centre"] and found.missing == {"others": NO_NULL_MAPS}


def test_bags_without_instance_labels_are_counted(run, tmp_path):
    features, labels = write_folder(tmp_path / "new", bags=12, seed=7)
    for name in ("001", "003", "004"):
        with h5py.File(features / f"{name}.h5", "a") as f:
            del f["instance_labels"]
    predict_folder(run.path, features, out=tmp_path / "out", labels=labels, device="cpu")
    report = evaluate(tmp_path / "out", part="all", bootstrap=0)
    found = section(report)
    assert (found.unlabelled, found.positive) == (3, 6) and found.counted <= 4
    assert "3 evaluated bags have no instance labels" in text_of(report)


def test_a_damaged_file_of_scores_is_named(run, tmp_path):
    features, labels = write_folder(tmp_path / "new", bags=4, seed=7)
    predict_folder(run.path, features, out=tmp_path / "out", labels=labels, device="cpu")
    file = tmp_path / "out" / "null_maps" / "001.h5"
    with h5py.File(file, "a") as f:
        del f["norm"]
        f["norm"] = np.zeros(99)
    with pytest.raises(BagError, match=r"001.h5: /norm is float64 of shape \(99,\)"):
        evaluate(tmp_path / "out", part="all", bootstrap=0)
    file.write_bytes(b"no file")
    with pytest.raises(BagError, match=r"001.h5 is not an HDF5 file"):
        evaluate(tmp_path / "out", part="all", bootstrap=0)


def test_a_null_map_that_a_bag_lacks_is_left_out_for_all(run, tmp_path):
    features, labels = write_folder(tmp_path / "new", bags=12, seed=7)
    predict_folder(run.path, features, out=tmp_path / "out", labels=labels, device="cpu")
    with h5py.File(tmp_path / "out" / "null_maps" / "001.h5", "a") as f:
        del f["norm"]
    found = section(evaluate(tmp_path / "out", part="all", bootstrap=0))
    assert "norm" not in found.nulls and "mahalanobis" in found.nulls
    assert found.missing["norm"] == "some bags have no stored scores of it (1 of 12 bags)"


def test_null_maps_have_the_pooled_measures_of_the_model(run):
    report = evaluate(run.predictions, bootstrap=20)
    found = section(report)
    truth, scores, own = [], {name: [] for name in found.nulls}, []
    for name in _names(run):
        with h5py.File(run.predictions / "instances" / f"{name}.h5") as f:
            if not int(name) % 2:
                continue  # a negative bag
            truth.append(f["instance_labels"][:] > 0)
            own.append(f["attention_mean"][:])
        with h5py.File(run.predictions / "null_maps" / f"{name}.h5") as f:
            for null in scores:
                scores[null].append(f[null][:])
    y = np.concatenate(truth)
    assert set(found.pooled) == set(found.nulls) != set()
    for null, parts in scores.items():
        auroc, ap = found.pooled[null].values()
        assert auroc.value == pytest.approx(roc_auc_score(y, np.concatenate(parts)))
        assert ap.value == pytest.approx(average_precision_score(y, np.concatenate(parts)))
        assert auroc.low <= auroc.value <= auroc.high
    expected = roc_auc_score(y, np.concatenate(own))
    assert report.instances["auroc_positive_bags"].value == pytest.approx(expected)
    best = max(found.pooled, key=lambda k: found.pooled[k]["auroc_positive_bags"].value)
    assert best_null(found.pooled, "auroc_positive_bags") == (
        best, found.pooled[best]["auroc_positive_bags"],
    )  # fmt: skip
    console = Console(width=200, file=io.StringIO())
    report.render(console)
    lines = console.file.getvalue().splitlines()
    (row,) = [k for k, line in enumerate(lines) if "AUROC, positive bags pooled" in line]
    assert f"… of the best null map ({best})" in lines[row + 1]
    json.dumps(report.to_dict()["within_bags"]["null_maps_pooled"], allow_nan=False)


def test_dice_of_evidence_is_at_zero(run):
    report = evaluate(run.predictions, bootstrap=0)
    found = section(report)
    assert "evidence e above 0" in found.threshold
    assert found.dice_title.split() == ["Dice", "at", "e", ">", "0"]
    values = []
    for name in _names(run):
        with h5py.File(run.predictions / "instances" / f"{name}.h5") as f:
            truth, called = f["instance_labels"][:] > 0, f["attention_mean"][:] > 0
        if truth.any():
            values.append(2 * (truth & called).sum() / (truth.sum() + called.sum()))
    assert found.maps["evidence"]["dice"].value == pytest.approx(np.mean(values), abs=1e-12)


def _names(run):
    lines = (run.predictions / "predictions.csv").read_text().splitlines()[1:]
    return [line.split(",")[0] for line in lines if line.split(",")[1] == "test"]
