"""The commands, in this process: what they print, what they leave, and how they exit."""

import csv
import json
import shutil

import pytest
from support.stored import write_folder

from probsa.cli.entry import main


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder of bags and a run on it."""
    folder = tmp_path_factory.mktemp("cli")
    features, labels = write_folder(folder / "data")
    run = folder / "run"
    assert main(train_flags(features, labels, run)) == 0
    return features, labels, run


def train_flags(features, labels, out, *more):
    return [
        "train", "--features", str(features), "--labels", str(labels), "--out", str(out),
        "--model", "abmil-probsa-diag", "--model.embed", "8", "--test-fold", "0", "--epochs", "2",
        "--batch-size", "2", "--device", "cpu", "--tensorboard", "false", *more,
    ]  # fmt: skip


def failed(capsys, *arguments):
    """The error of a command that must refuse, once as words and once as JSON."""
    assert main(list(arguments)) == 2
    words = capsys.readouterr().err
    assert main([*arguments, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"] in words
    return words


def test_train_leaves_predictions_figures_and_maps(trained):
    _, _, run = trained
    with (run / "predictions" / "predictions.csv").open() as f:
        rows = list(csv.DictReader(f))
    assert {r["part"] for r in rows} == {"val", "test"} and len(rows) == 8
    assert len(list((run / "maps").glob("*.png"))) == 4
    found = json.loads((run / "evaluation.json").read_text())
    assert "auroc" in json.dumps(found)


def test_predict_evaluate_map(trained, tmp_path, capsys):
    features, labels, run = trained
    preds = tmp_path / "preds"
    given = ["predict", str(run), "--features", str(features), "--out", str(preds), "--json"]
    assert main([*given, "--labels", str(labels)]) == 0
    assert json.loads(capsys.readouterr().out)["bags"] == 12
    with (preds / "predictions.csv").open() as f:
        rows = {r["bag"]: r for r in csv.DictReader(f)}
    assert rows["000"]["part"] in ("train", "val", "test") and len(rows) == 12
    with (run / "predictions" / "predictions.csv").open() as f:
        for row in csv.DictReader(f):  # whatever the batch, whatever else was predicted
            assert float(row["p_1"]) == pytest.approx(float(rows[row["bag"]]["p_1"]), abs=1e-6)
    assert main(["evaluate", str(preds), "--labels", str(labels), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["part"] != "all"
    assert main(["evaluate", str(preds), "--labels", str(labels)]) == 0
    assert "AUROC" in capsys.readouterr().out
    assert main(["map", str(preds), "--bag", "003", "--out", str(tmp_path / "maps")]) == 0
    assert [p.name for p in (tmp_path / "maps").iterdir()] == ["003.png"]


def test_a_bag_that_cannot_be_read_is_left_out_with_its_reason(trained, tmp_path, capsys):
    features, _, run = trained
    copy = tmp_path / "features"
    shutil.copytree(features, copy)
    (copy / "004.h5").write_bytes((copy / "004.h5").read_bytes()[:200])
    preds = tmp_path / "preds"
    given = ["predict", str(run), "--features", str(copy), "--out", str(preds), "--json"]
    assert main(given) == 1
    found = json.loads(capsys.readouterr().out)
    assert [f["bag"] for f in found["failed"]] == ["004"] and found["bags"] == 11
    with (preds / "failed.csv").open() as f:
        assert [r["bag"] for r in csv.DictReader(f)] == ["004"]
    assert not (preds / "instances" / "004.h5").exists()


def test_unknown_names_are_answered_with_the_likely_one(capsys):
    assert "Did you mean 'train'" in failed(capsys, "trian")
    assert "Did you mean '--labels'" in failed(capsys, "evaluate", "x", "--lables", "y")
    assert "Did you mean 'abmil'" in failed(capsys, "models", "abmli")


def test_outputs_that_exist_are_refused(trained, tmp_path, capsys):
    features, labels, run = trained
    assert "--resume" in failed(capsys, *train_flags(features, labels, run))
    preds = tmp_path / "preds"
    given = ["predict", str(run), "--features", str(features), "--out", str(preds)]
    assert main(given) == 0
    assert "--overwrite" in failed(capsys, *given)
    assert main([*given, "--overwrite"]) == 0
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("precious")
    given[-1] = str(mine)
    assert "would be lost" in failed(capsys, *given, "--overwrite")
    assert (mine / "thesis.txt").exists()


def test_resume_needs_no_more_than_the_folder(trained, capsys):
    _, _, run = trained
    before = (run / "checkpoints" / "last.safetensors").read_bytes()
    assert main(["train", "--out", str(run), "--resume"]) == 0
    assert "done already" in capsys.readouterr().err
    assert (run / "checkpoints" / "last.safetensors").read_bytes() == before


def test_features_of_another_encoder_are_refused(trained, tmp_path, capsys):
    import h5py
    import numpy as np

    _, _, run = trained
    other = tmp_path / "other"
    other.mkdir()
    with h5py.File(other / "a.h5", "w") as f:
        f["features"] = np.zeros((3, 9), np.float32)
        f["coords"] = np.arange(3)[:, None]
    said = failed(
        capsys, "predict", str(run), "--features", str(other), "--out", str(tmp_path / "p")
    )
    assert "9 features" in said and "trained on 6" in said
    assert not (tmp_path / "p").exists()


def test_folders_that_are_not_what_they_should_be(tmp_path, capsys):
    assert "not a run folder" in failed(
        capsys, "predict", str(tmp_path), "--features", str(tmp_path), "--out", str(tmp_path / "p")
    )
    assert str(tmp_path) in failed(capsys, "evaluate", str(tmp_path))
    assert str(tmp_path) in failed(capsys, "map", str(tmp_path), "--out", str(tmp_path / "m"))
    assert not (tmp_path / "m").exists()


def test_a_map_of_a_training_bag_says_so(trained, tmp_path, monkeypatch):
    features, _, run = trained
    preds = tmp_path / "preds"
    assert main(["predict", str(run), "--features", str(features), "--out", str(preds)]) == 0
    with (preds / "predictions.csv").open() as f:
        part = {r["bag"]: r["part"] for r in csv.DictReader(f)}
    titles = {}
    monkeypatch.setattr(
        "probsa.maps.folder.render_map", lambda p, path, **given: titles.update({p.name: given})
    )
    assert main(["map", str(preds), "--out", str(tmp_path / "m")]) == 0
    for bag, given in titles.items():
        assert given["title"].endswith("a training bag") == (part[bag] == "train")
    assert set(titles) == set(part)


def test_help_and_models(capsys):
    for arguments in ([], ["--help"], ["train", "--help"]):
        assert main(arguments) == 0
        assert "probsa" in capsys.readouterr().out
    for command in ("predict", "evaluate", "map", "models", "demo"):
        with pytest.raises(SystemExit) as stop:
            main([command, "--help"])
        assert stop.value.code == 0
    capsys.readouterr()
    assert main(["models", "abmil-probsa-diag", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"]["default"] == 16


def test_print_config_is_a_run_file(trained, tmp_path, capsys):
    features, labels, _ = trained
    assert main(train_flags(features, labels, tmp_path / "r", "--print_config")) == 0
    file = tmp_path / "run.yaml"
    file.write_text(capsys.readouterr().out)
    assert not (tmp_path / "r").exists()
    given = ["train", "--config", str(file), "--out", str(tmp_path / "r"), "--maps", "none"]
    assert main([*given, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["maps"] == 0


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("bag,label\n000,0\n001,one\n", "'one'"),
        ("bag,label\n000,0\n000,1\n", "000"),
        ("bag,label,group,split\n" + "".join(
            f"{k:03d},{k % 2},g{k // 3},{('train', 'val', 'test')[k % 3]}\n" for k in range(12)
        ), "g0"),
    ],
    ids=["a label that is no class", "a bag twice", "a group in two parts"],
)  # fmt: skip
def test_tables_that_cannot_be_used(trained, tmp_path, capsys, table, said):
    features, _, _ = trained
    labels = tmp_path / "labels.csv"
    labels.write_text(table)
    given = [
        a for a in train_flags(features, labels, tmp_path / "r") if a not in ("--test-fold", "0")
    ]
    words = failed(capsys, *given)
    assert "labels.csv" in words and said in words
    assert not (tmp_path / "r").exists()
