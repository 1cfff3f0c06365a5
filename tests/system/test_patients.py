"""Patients with several slides: one bag each, from training to maps, and slides put together."""

from dataclasses import replace

import h5py
import numpy as np
import pytest
from support.refusals import refused

from probsa.cli import main
from probsa.datasets import (
    MissingSlides,
    PatientBags,
    patient_table,
    read_notes,
    read_table,
)
from probsa.errors import BagError, InputError, TableError
from probsa.evaluation import evaluate, load, read_predictions
from probsa.tasks import TargetOptions
from probsa.training import (
    DataConfig,
    RunConfig,
    RunFolder,
    TrainingConfig,
    open_data,
    read_split,
    train,
)
from probsa.workflow import predict_folder, train_and_report

PATIENTS = 24


def write_slide(path, x, truth):
    rows = np.arange(len(x))
    with h5py.File(path, "w") as f:
        f["features"], f["instance_labels"] = x, truth
        f["coords"] = np.stack([rows % 3, rows // 3], 1) * 64
        f["coords"].attrs["kind"] = "slide"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Patients of one to four slides; of an ill one, exactly one slide has a lesion."""
    path = tmp_path_factory.mktemp("patients")
    g = np.random.default_rng(0)
    (path / "features").mkdir()
    lines = ["bag,patient,label,fold"]
    for p in range(PATIENTS):
        slides = 1 + p // 2 % 4
        ill_slide = int(g.integers(slides))
        for s in range(slides):
            n = int(g.integers(4, 9))
            x = g.normal(size=(n, 6)).astype(np.float32)
            truth = np.zeros(n, np.int8)
            if p % 2 and s == ill_slide:
                truth[:3] = 1
                x[:3, 0] += 6
            write_slide(path / "features" / f"p{p:02d}-{s}.h5", x, truth)
            lines.append(f"p{p:02d}-{s},p{p:02d},{p % 2},{p // 2 % 3}")
    (path / "labels.csv").write_text("\n".join(lines) + "\n")
    return path


def config_of(folder, *, unit="patient", **model):
    return RunConfig(
        data=DataConfig(
            features=folder / "features",
            labels=folder / "labels.csv",
            test_fold=0,
            targets=TargetOptions(unit=unit),
        ),
        model="abmil-probsa-diag",
        model_arguments={"embed": 8, "attention_dim": 4, "samples": 3, "predict_samples": 40}
        | model,
        training=TrainingConfig(
            epochs=25,
            batch_size=4,
            learning_rate=2e-2,
            device="cpu",
            threads=1,
            tensorboard=False,
            kl_weight=0.1,
        ),
    )


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    return train_and_report(config_of(folder), tmp_path_factory.mktemp("run") / "run").run


def test_every_bag_is_a_patient_and_the_ill_slide_has_the_attention(trained, folder):
    predictions = read_predictions(trained.predictions)
    assert {len(name) for name in predictions.bags} == {3}
    report = evaluate(trained.predictions, labels=folder / "labels.csv", bootstrap=0)
    assert report.metrics["auroc"].value == 1.0
    test = [
        b for b, part in zip(predictions.bags, predictions.parts, strict=True) if part == "test"
    ]
    for name in test:
        p = predictions.instances(name)
        shares = p.slide_shares()
        assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
        if int(name[1:]) % 2:
            ill = p.slides[int(p.slide[p.instance_labels > 0][0])]
            assert next(iter(shares)) == ill and shares[ill] > 0.5
    of_test = [b for b, p in zip(predictions.bags, predictions.parts, strict=True) if p == "test"]
    slides = [s for b in of_test for s in predictions.instances(b).slides]
    assert sorted(p.stem for p in trained.maps.glob("*.png")) == sorted(slides)
    p = predictions.instances(of_test[-1])
    part = p.of_slide(p.slides[-1])
    assert part.name == p.slides[-1] and not part.slides
    np.testing.assert_array_equal(part.weight_mean, p.weight_mean[p.slide == len(p.slides) - 1])
    table = patient_table(read_table(folder / "labels.csv"))
    split = read_split(RunFolder(trained.path))
    parts = [set(split.train), set(split.val), set(split.test)]
    assert sum(map(len, parts)) == len(set().union(*parts)) == PATIENTS == len(table.bags)


def test_the_order_of_the_slides_in_the_table_changes_nothing(trained, folder, tmp_path):
    lines = (folder / "labels.csv").read_text().splitlines()
    (tmp_path / "labels.csv").write_text("\n".join([lines[0], *lines[:0:-1]]) + "\n")
    for name, table in (("a", folder / "labels.csv"), ("b", tmp_path / "labels.csv")):
        predict_folder(trained.path, folder / "features", out=tmp_path / name, labels=table)
    a, b = (read_predictions(tmp_path / name) for name in "ab")
    order = [b.bags.index(name) for name in a.bags]
    np.testing.assert_array_equal(a.probability, b.probability[order])


def test_a_patient_of_one_slide_is_that_slide(trained, folder):
    predictor = load(trained.path, device="cpu")
    slides = open_data(config_of(folder).data)
    patient = PatientBags(slides, read_table(folder / "labels.csv")).bag("p00")
    slide = replace(slides.bag("p00-0"), name="p00")
    a, b = predictor.predict([patient, slide])
    assert (a.slides, b.slides) == (("p00-0",), ())
    np.testing.assert_array_equal(a.weight_mean, b.weight_mean)
    np.testing.assert_array_equal(a.probability, b.probability)


def test_a_missing_slide_is_told_in_prediction_and_refused_in_training(trained, folder, tmp_path):
    features = tmp_path / "features"
    features.mkdir()
    for file in (folder / "features").glob("*.h5"):
        if file.stem != "p07-1":
            (features / file.name).symlink_to(file)
    predict_folder(trained.path, features, out=tmp_path / "p", labels=folder / "labels.csv")
    rows = (tmp_path / "p/predictions.csv").read_text().splitlines()
    assert next(r for r in rows if r.startswith("p07,")).endswith(",3/4")
    config = config_of(folder)
    lacking = replace(config, data=replace(config.data, features=features))
    refused(TableError, "p07-1", train, lacking, tmp_path / "run")
    kept = replace(lacking.data, targets=TargetOptions(unit="patient", missing="leave_out"))
    short = replace(config.training, epochs=1)
    run = train(replace(config, data=kept, training=short), tmp_path / "run")
    notes = read_notes(run.notes_file, advice="")
    assert notes["p07"] == (MissingSlides(used=3, missing={"p07-1": "no bag"}),)


def test_a_run_of_patients_needs_to_know_whose_the_slides_are(trained, folder, tmp_path):
    with pytest.raises(InputError, match="column 'group'"):
        predict_folder(trained.path, folder / "features", out=tmp_path / "p")


def test_a_model_that_lays_out_one_slide_refuses_several(folder, tmp_path):
    config = replace(config_of(folder), model="setmil", model_arguments={})
    with pytest.raises(BagError, match="slides"):
        train(config, tmp_path / "run")


def test_patients_of_slides_that_were_predicted_alone(folder, tmp_path):
    config = config_of(folder, unit="bag")
    run = train_and_report(
        replace(config, training=replace(config.training, epochs=2)), tmp_path / "run", maps="none"
    ).run
    predictions = read_predictions(run.predictions)
    report = evaluate(run.predictions, labels=folder / "labels.csv", bootstrap=50).to_dict()
    test = [k for k, part in enumerate(predictions.parts) if part == "test"]
    mean = {}
    for k in test:
        mean.setdefault(predictions.bags[k][:3], []).append(predictions.probability[k, 0])
    y = np.array([int(name[1:]) % 2 for name in mean])
    p = np.array([np.mean(v) for v in mean.values()])
    assert report["patients"]["patients"] == len(mean) < report["patients"]["slides"] == len(test)
    assert report["patients"]["metrics"]["brier"]["value"] == pytest.approx(np.mean((p - y) ** 2))
    predict_folder(run.path, folder / "features", out=tmp_path / "p", labels=folder / "labels.csv")


def test_the_command_says_that_patients_are_bags(folder, tmp_path, capsys):
    status = main(
        (
            f"train --model abmil --features {folder / 'features'} --labels "
            f"{folder / 'labels.csv'} --unit patient --test-fold 0 --epochs 1 --embed "
            f"4 --device cpu --out {tmp_path / 'run'} --maps none"
        ).split()
    )
    assert status == 0, capsys.readouterr().err
    assert '"unit": "patient"' in (tmp_path / "run/predictions/predictions.json").read_text()
