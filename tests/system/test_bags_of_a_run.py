"""What training refuses, prediction and evaluation refuse as well."""

import json
from dataclasses import replace

import h5py
import pytest
import torch
from support.refusals import refused
from support.stored import write_folder

from probsa import Bag
from probsa.cli import main
from probsa.core import TextTable, select_instances
from probsa.errors import BagError, InputError, TableError
from probsa.evaluation import evaluate, load
from probsa.models import look_up, names
from probsa.training import DataConfig, RunConfig, RunFolder, TrainingConfig, open_data, train
from probsa.workflow import predict_folder


def strip_coords(path):
    """Remove the coordinates of a bag, and keep what it is of."""
    with h5py.File(path, "r+") as f:
        kind = f["coords"].attrs["kind"]
        del f["coords"]
        f["features"].attrs["kind"] = kind


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of a model that needs a graph, and one of a model that does not."""
    folder = tmp_path_factory.mktemp("runs")
    features, labels = write_folder(folder / "data", bags=12, kind="slide")
    config = RunConfig(
        data=DataConfig(features=features, labels=labels, test_fold=0),
        model="abmil",
        model_arguments={"embed": 8, "attention_dim": 4},
        training=TrainingConfig(epochs=1, device="cpu", tensorboard=False, threads=1),
    )
    train(config, folder / "abmil")
    train(replace(config, model="smabmil", model_arguments={"embed": 8}), folder / "smabmil")
    return folder


@pytest.fixture
def copied(runs, tmp_path):
    """A copy of the features, which a test may change."""
    folder = tmp_path / "features"
    folder.mkdir()
    for path in (runs / "data" / "features").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def predict(*arguments):
    return main(["predict", *map(str, arguments), "--device", "cpu"])


def bag(n, *, edges=0, coords=False):
    rows = torch.arange(n)
    chain = torch.stack([rows[:-1], rows[1:]])[:, :edges]
    xy = torch.stack([rows, rows], 1) * 1000
    return Bag(
        name="x",
        x=torch.ones(n, 3),
        edges=chain,
        weights=torch.ones(chain.shape[1]),
        coords=xy if coords else None,
    )


@pytest.mark.parametrize("name", names())
def test_each_model_refuses_bags_without_what_it_says_that_it_needs(name):
    model = look_up(name).model
    model.check_bag(bag(5, coords=True))  # patches may be isolated
    bags_without = {"edges": bag(5), "coords": bag(5, edges=4)}
    for need in model.needs & bags_without.keys():
        with pytest.raises(BagError, match=f"bag 'x': {name} "):
            model.check_bag(bags_without[need], name=name)
    if not model.needs:
        model.check_bag(bag(5))
    if "coords" not in model.needs:
        model.check_bag(bag(1))  # a single instance has no neighbours
        model.check_bag(bag(5, edges=4))


def test_a_bag_with_too_few_instances_is_refused():
    class Four(look_up("abmil").model):
        min_instances = 4

    Four.check_bag(bag(4))
    refused(BagError, "needs 4 instances .* has 3: leave", Four.check_bag, bag(3))


def test_prediction_leaves_out_a_bag_without_coordinates(runs, copied, tmp_path, capsys):
    features = runs / "data" / "features"
    assert predict(runs / "smabmil", "--features", features, "--out", tmp_path / "whole") == 0
    strip_coords(copied / "003.h5")
    assert predict(runs / "smabmil", "--features", copied, "--out", tmp_path / "p") == 1
    (failed,) = TextTable.read(tmp_path / "p" / "failed.csv").rows
    assert failed["bag"] == "003" and "smabmil" in failed["reason"]
    assert failed["reason"] in capsys.readouterr().err
    whole = {
        r["bag"]: r["p_1"] for r in TextTable.read(tmp_path / "whole" / "predictions.csv").rows
    }
    rows = {r["bag"]: r["p_1"] for r in TextTable.read(tmp_path / "p" / "predictions.csv").rows}
    assert rows == {name: p for name, p in whole.items() if name != "003"}
    # a model that needs no coordinates predicts all bags, and each has a note
    assert predict(runs / "abmil", "--features", copied, "--out", tmp_path / "plain") == 0
    assert list(json.loads((tmp_path / "plain" / "notes.json").read_text())) == sorted(whole)


def test_a_folder_without_coordinates_is_refused(runs, copied, tmp_path, capsys):
    for path in copied.iterdir():
        strip_coords(path)
    assert predict(runs / "smabmil", "--features", copied, "--out", tmp_path / "p") == 2
    assert "smabmil" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


def test_every_run_that_predicts_a_bag_checks_it(runs, copied, tmp_path):
    strip_coords(copied / "003.h5")
    (copied / "new.h5").write_bytes((copied / "003.h5").read_bytes())
    both = [runs / "abmil", runs / "smabmil"]
    predicted = predict_folder(both, copied, out=tmp_path / "p", device="cpu")
    assert "smabmil" in dict(predicted.failures)["new"]
    # the features of each run are compared, not only those of the first
    file = RunFolder(runs / "smabmil").features_file
    stored = file.read_text()
    file.write_text(json.dumps(json.loads(stored) | {"kinds": ["ct"]}))
    try:
        predicted = predict_folder(
            both, runs / "data" / "features", out=tmp_path / "q", device="cpu", other_features=True
        )
        assert len(predicted.other) == predicted.bags
        with pytest.raises(BagError, match="scan"):
            predict_folder(both, runs / "data" / "features", out=tmp_path / "r", device="cpu")
    finally:
        file.write_text(stored)


def test_a_predictor_in_python_refuses_as_well(runs, copied):
    strip_coords(copied / "003.h5")
    predictor = load(runs / "smabmil", device="cpu")
    bags = open_data(replace(predictor.config.data, features=copied))
    with pytest.raises(BagError, match="'003': smabmil"):
        predictor.predict([bags.bag("001"), bags.bag("003")])
    # a part of a bag may have lost all neighbours
    part = select_instances(bags.bag("003"), torch.tensor([0, 1]))
    assert len(predictor.predict([part], parts=True)) == 1


@pytest.mark.parametrize("members", [1, 2])
def test_training_refuses_one_bag_without_coordinates(runs, copied, tmp_path, members):
    config = RunFolder(runs / "smabmil").config()
    config = replace(
        config,
        data=replace(config.data, features=copied),
        training=replace(config.training, members=members),
    )
    strip_coords(copied / "003.h5")
    refused(InputError, "smabmil needs neighbours", train, config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    train(replace(config, model="abmil"), tmp_path / "abmil")


def table(path, rows):
    path.write_text("bag,label\n" + "".join(f"{b},{y}\n" for b, y in rows))
    return path


def test_labels_are_classes_of_the_run_and_name_its_bags(runs, tmp_path, capsys):
    features = runs / "data" / "features"

    def labelled(rows, out):
        labels = table(tmp_path / "labels.csv", rows)
        return predict_folder(
            runs / "abmil", features, out=tmp_path / out, device="cpu", labels=labels
        )

    with pytest.raises(TableError, match=r"'001'.*'2'"):
        labelled([("000", 0), ("001", 2), ("002", 1)], "a")
    refused(TableError, "'000'", labelled, [("0", 0), ("1", 1)], "b")
    assert not (tmp_path / "a").exists() and not (tmp_path / "b").exists()
    predicted = labelled([("000", 0), ("001", 1), ("gone", 1)], "c")
    assert predicted.without_features == ("gone",) and predicted.bags == 12
    assert (
        predict(
            runs / "abmil",
            "--features",
            features,
            "--out",
            tmp_path / "d",
            "--labels",
            tmp_path / "labels.csv",
        )
        == 0
    )
    assert "'gone'" in capsys.readouterr().err


def test_classes_of_an_evaluation_are_those_of_the_model(runs, tmp_path):
    names_of = {0: "benign", 1: "tumour"}
    rows = [(f"{k:03d}", names_of[k % 2]) for k in range(12)]
    labels = table(tmp_path / "labels.csv", rows)
    config = RunFolder(runs / "abmil").config()
    data = replace(config.data, labels=labels, classes=("benign", "tumour"), test_fold=None)
    train(replace(config, data=data), tmp_path / "run")
    out = tmp_path / "p"
    predict_folder(tmp_path / "run", data.features, out=out, device="cpu", labels=labels)
    plain = evaluate(out, labels=labels, bootstrap=0, part="all")
    named = evaluate(out, labels=labels, classes=("benign", "tumour"), bootstrap=0, part="all")
    assert named.metrics["auroc"] == plain.metrics["auroc"]
    with pytest.raises(InputError, match=r"tumour, benign.*benign, tumour"):
        evaluate(out, labels=labels, classes=("tumour", "benign"), bootstrap=0, part="all")
