"""A run with a temperature and distances: its files, its predictions, and those of new bags."""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy.special import expit, logit
from support.stored import write_folder

from probsa import load
from probsa.cli import main
from probsa.evaluation import read_predictions
from probsa.statistics import choose_threshold
from probsa.training import DataConfig, RunConfig, RunFolder, TrainingConfig, train
from probsa.workflow import finish_run, predict_folder, predict_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """One ensemble, finished with a temperature, and a copy of it finished without."""
    folder = tmp_path_factory.mktemp("run")
    features, labels = write_folder(folder / "data", bags=60)
    # A few wrong labels, without which the validation bags would determine no temperature.
    rows = [row.split(",") for row in labels.read_text().splitlines()]
    rows = [[b, str(1 - int(y)) if b[-1] == "7" else y, f] for b, y, f in rows[1:]]
    labels.write_text("bag,label,fold\n" + "".join(",".join(row) + "\n" for row in rows))
    config = RunConfig(
        data=DataConfig(features=features, labels=labels, test_fold=0),
        model="abmil-probsa-diag",
        model_arguments={"embed": 8, "attention_dim": 4, "samples": 3, "predict_samples": 10},
        training=TrainingConfig(
            epochs=40,
            batch_size=5,
            device="cpu",
            tensorboard=False,
            threads=1,
            learning_rate=1e-2,
            warmup_epochs=0,
            members=2,
            select="last",
            temperature_scaling=True,
        ),
    )
    scaled = train(config, folder / "scaled")
    plain = RunFolder(Path(shutil.copytree(scaled.path, folder / "plain")))
    text = plain.config_file.read_text()
    assert "temperature_scaling: true" in text
    plain.config_file.write_text(text.replace("temperature_scaling: true", ""))
    for run in (plain, scaled):
        finish_run(run, maps="none", bootstrap=0)
    return features, labels, plain, scaled


def _temperature(run):
    return json.loads(run.temperature_file.read_text())["temperature"]


def test_the_option_scales_the_predictions_of_the_ensemble(trained, tmp_path):
    _, _, run, scaled = trained
    plain = read_predictions(run.predictions)
    got = read_predictions(scaled.predictions)
    temperature = _temperature(scaled)
    assert not run.temperature_file.exists() and plain.metadata.temperature is None
    assert abs(np.log(temperature)) > 0.2 and got.metadata.temperature == temperature
    expected = expit(logit(plain.probability) / temperature)
    np.testing.assert_allclose(got.probability, expected, rtol=1e-4)
    assert plain.bags == got.bags
    one = plain.instances(plain.bags[0])
    other = got.instances(got.bags[0])
    np.testing.assert_array_equal(one.attention_mean, other.attention_mean)
    scaled = trained[3]
    got = read_predictions(scaled.predictions)
    val = np.array([part == "val" for part in got.parts])
    y = np.array(got.labels)[val] == 1
    chosen = choose_threshold(y, got.probability[val, 0]).value
    assert got.threshold == pytest.approx(chosen, rel=1e-6)
    features, _, _, scaled = trained
    predict_folder(scaled.path, features, out=tmp_path / "p")
    one = read_predictions(scaled.predictions)
    other = read_predictions(tmp_path / "p")
    for name in one.bags:
        a, b = one.bags.index(name), other.bags.index(name)
        np.testing.assert_allclose(other.probability[b], one.probability[a], rtol=1e-5)
        assert other.ood[b] == one.ood[a]
        assert other.ood_distance[b] == pytest.approx(one.ood_distance[a], rel=1e-6)
    assert load(scaled.path).temperature == _temperature(scaled)


def test_distances_are_stored_by_bag_and_instance(trained):
    run = trained[2]
    table = read_predictions(run.predictions)
    about = json.loads(run.distance_file.with_suffix(".json").read_text())
    split = json.loads(run.split_file.read_text())
    assert about["training_bags"] == len(split["train"])
    assert ((table.ood >= 0) & (table.ood <= 1)).all() and (table.ood_distance > 0).all()
    assert table.metadata.distance_validation_bags == table.parts.count("val")
    with h5py.File(table.instance_path(table.bags[0])) as f:
        assert f["ood"].shape == f["ood_distance"].shape == f["degree"].shape
    # Validation bags are compared with themselves: their percentiles are spread evenly.
    val = np.sort([v for v, part in zip(table.ood, table.parts, strict=True) if part == "val"])
    np.testing.assert_allclose(val, (np.arange(len(val)) + 0.5) / len(val), atol=0.51 / len(val))


def test_finishing_again_without_them_removes_what_was_stored(trained, tmp_path):
    run = trained[3]
    before = _temperature(run)
    predict_run(run, extras=False)
    assert _temperature(run) == pytest.approx(before, rel=1e-6)
    assert read_predictions(run.predictions).ood is None
    finish_run(run, maps="none", bootstrap=0)
    assert read_predictions(run.predictions).ood is not None


def test_runs_without_the_files_keep_working_and_several_share_a_temperature(trained, tmp_path):
    features, _, run, scaled = trained
    run.distance_file.unlink()
    predict_folder(run.path, features, out=tmp_path / "p")
    assert read_predictions(tmp_path / "p").ood is None
    predict_folder([run.path, scaled.path], features, out=tmp_path / "q")
    got = read_predictions(tmp_path / "q")
    assert got.metadata.temperature == pytest.approx(_temperature(scaled) ** 0.5)
    assert got.threshold == pytest.approx(
        np.mean([r.thresholds().threshold for r in (run, scaled)])
    )
    assert got.ood is None


def test_the_command_writes_figures(trained, tmp_path, capsys):
    _, labels, _, scaled = trained
    words = [
        "evaluate",
        str(scaled.predictions),
        "--labels",
        str(labels),
        "--bootstrap",
        "0",
        "--full",
    ]
    assert main([*words, "--bootstrap", "0", "--figures", str(tmp_path / "f")]) == 0
    assert "reliability.png" in {p.name for p in (tmp_path / "f").iterdir()}
    assert "calibration of bags (temperature" in capsys.readouterr().out
