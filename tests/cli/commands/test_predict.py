"""probsa predict with the runs of a cross-validation: no bag by a run that has seen it."""

import csv
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from support.stored import write_folder

from probsa.cli import main
from probsa.core import read_bag, write_bag
from probsa.errors import InputError
from probsa.evaluation import load, load_several
from probsa.training import (
    DataConfig,
    RunConfig,
    RunFolder,
    TrainingConfig,
    open_data,
    read_split,
    train,
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three folds, the last of which is an ensemble of two members."""
    folder = tmp_path_factory.mktemp("runs")
    features, labels = write_folder(folder / "data", bags=18)
    training = TrainingConfig(
        epochs=1, batch_size=4, device="cpu", tensorboard=False, threads=1, learning_rate=1e-2
    )
    config = RunConfig(
        data=DataConfig(features=features, labels=labels, test_fold=0),
        model="abmil",
        model_arguments={"embed": 8, "attention_dim": 4},
        training=training,
    )
    for fold in range(3):
        one = replace(config, data=replace(config.data, test_fold=fold), seed=fold)
        train(replace(one, training=replace(training, members=1 + fold // 2)), folder / str(fold))
    transmil = {"embed": 16, "heads": 2, "landmarks": 4}
    train(replace(config, model="transmil", model_arguments=transmil), folder / "other")
    return folder


def predict(*arguments):
    return main(["predict", *map(str, arguments)])


def rows_of(folder, file="predictions.csv"):
    return {r["bag"]: r for r in csv.DictReader((folder / file).read_text().splitlines())}


def test_each_bag_is_predicted_by_runs_that_have_not_seen_it(runs, tmp_path, capsys):
    folders = [runs / str(k) for k in range(3)]
    features = runs / "data" / "features"
    status = predict(
        *folders,
        "--features",
        features,
        "--out",
        tmp_path / "p",
        "--device",
        "cpu",
        "--labels",
        runs / "data" / "labels.csv",
    )
    assert status == 0, capsys.readouterr().err
    rows = rows_of(tmp_path / "p")
    assert len(rows) == 18 and {r["part"] for r in rows.values()} == {"test"}
    bags = open_data(RunFolder(folders[0]).config().data)
    for k, folder in enumerate(folders):
        test = read_split(RunFolder(folder)).test
        for p in load(folder, device="cpu").predict(bags.bag(n) for n in test):
            assert float(rows[p.name]["p_1"]) == pytest.approx(float(p.probability[0]), rel=1e-5)
            assert (float(rows[p.name]["sd_between_1"]) > 0) == (k == 2)
    stored = json.loads((tmp_path / "p" / "predictions.json").read_text())
    assert stored["model"] == "abmil"
    assert stored["members"] == 4 and len(stored["runs"]) == 3


def test_bags_that_every_run_has_seen_are_left_out_and_new_ones_are_not(runs, tmp_path):
    features = tmp_path / "features"
    features.mkdir()
    for path in (runs / "data" / "features").iterdir():
        (features / path.name).symlink_to(path)
    (features / "new.h5").write_bytes((runs / "data" / "features" / "003.h5").read_bytes())
    folders = [runs / "0", runs / "1"]
    status = predict(*folders, "--features", features, "--out", tmp_path / "p", "--device", "cpu")
    assert status == 1
    seen = [{*s.train, *s.val} for s in (read_split(RunFolder(f)) for f in folders)]
    left_out = rows_of(tmp_path / "p", "failed.csv")
    assert set(left_out) == seen[0] & seen[1] and len(left_out) == 6
    rows = rows_of(tmp_path / "p")
    assert len(rows) == 13 and rows["new"]["part"] == "new"
    bags = open_data(RunFolder(folders[0]).config().data)
    x = replace(bags.bag("003"), name="new")
    both = [load(f, device="cpu").predict([x])[0].probability for f in folders]
    assert float(rows["new"]["p_1"]) == pytest.approx(float(np.mean(both)), rel=1e-5)
    assert float(rows["new"]["sd_between_1"]) == pytest.approx(float(np.std(both)), rel=1e-4)


def test_runs_that_do_not_fit_are_refused(runs, tmp_path):
    with pytest.raises(InputError, match=str(runs / "0")):
        load_several([runs / "0", runs / "0"], device="cpu")
    with pytest.raises(InputError, match=str(runs / "2")):
        load_several([runs / "2", runs / "2" / "members" / "0"], device="cpu")
    moved = RunFolder(runs / "1")
    config = moved.config_file.read_text()
    changed = config.replace("graph: auto", "graph: knn")
    assert changed != config
    moved.config_file.write_text(changed)
    try:
        with pytest.raises(InputError, match="graphs"):
            load_several([runs / "0", moved.path], device="cpu")
    finally:
        moved.config_file.write_text(config)
    with pytest.raises(InputError, match="logit and weight"):
        load_several([runs / "0", runs / "other"], device="cpu")


def test_faithfulness_is_stored_and_reported(runs, tmp_path, capsys):
    data = runs / "data"
    common = ("--features", data / "features", "--labels", data / "labels.csv", "--device", "cpu")
    assert predict(runs / "0", *common, "--out", tmp_path / "plain") == 0
    assert predict(runs / "0", *common, "--out", tmp_path / "p", "--faithfulness") == 0
    plain = rows_of(tmp_path / "plain")
    with_curves = rows_of(tmp_path / "p")
    for name, row in plain.items():
        assert float(row["p_1"]) == pytest.approx(float(with_curves[name]["p_1"]), abs=1e-6)
    stored = json.loads((tmp_path / "p" / "faithfulness.json").read_text())["bags"]
    assert sorted(stored) == sorted(plain)
    assert not (tmp_path / "plain" / "faithfulness.json").exists()
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "p"), "--bootstrap", "0", "--json"]) == 0
    assert "area_shown" in json.loads(capsys.readouterr().out)["faithfulness"]["metrics"]
    # the file belongs to predictions, so that these can be replaced
    assert predict(runs / "0", *common, "--out", tmp_path / "p", "--overwrite") == 0
    assert not (tmp_path / "p" / "faithfulness.json").exists()


@pytest.mark.parametrize("odd", ["00", "zzz"])
@pytest.mark.parametrize("several", [False, True])
def test_the_model_says_how_wide_features_are_and_no_bag_does(runs, tmp_path, odd, several):
    """A bag of another encoder is left out, whether its name comes first or last."""
    features = tmp_path / "features"
    features.mkdir()
    good = sorted((runs / "data" / "features").glob("*.h5"))[:2]
    for path in good:
        shutil.copy(path, features / path.name)
    stored = read_bag(good[0])
    wide = np.concatenate([stored.features, stored.features], axis=1)
    write_bag(features / f"{odd}.h5", features=wide, coords=stored.coords, kind=stored.kind)
    folders = [runs / "0", runs / "1"] if several else [runs / "0"]
    out = tmp_path / "p"
    assert predict(*folders, "--features", features, "--out", out, "--device", "cpu") == 1
    assert set(rows_of(out)) == {path.stem for path in good}
    (failed,) = rows_of(out, "failed.csv").values()
    assert failed["bag"] == odd and str(wide.shape[1]) in failed["reason"]
