"""What a user does with a run in Python, where every path may be a text."""

import pytest
from support.stored import write_folder

from probsa import load, predict_folder, train_and_report
from probsa.datasets import open_bags
from probsa.evaluation import evaluate, read_predictions
from probsa.exports import ExportSettings, export_folder
from probsa.maps import render_folder
from probsa.training import read_run

SMALL = {"epochs": 2, "members": 2, "device": "cpu", "threads": 1, "tensorboard": False}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a run and its bags, which is the current one."""
    write_folder(tmp_path, kind="slide")
    monkeypatch.chdir(tmp_path)
    data = {"features": "features", "labels": "labels.csv", "test_fold": 0}
    config = read_run(None, data | SMALL)
    assert train_and_report(config, "run", maps="none")
    return tmp_path


def test_paths_may_be_texts(folder):
    predict_folder("run", "features", out="preds", labels="labels.csv", device="cpu")
    predict_folder(["run"], "features", out="again", device="cpu")
    assert evaluate("preds", labels="labels.csv", bootstrap=0).part == "test"
    assert not render_folder("preds", "maps", bags=["000"], scale="fixed")
    assert not export_folder("preds", "exports", ExportSettings(geojson="tiles")).failures
    assert (folder / "maps" / "000.png").is_file() and any((folder / "exports").iterdir())
    assert len(read_predictions("preds").bags) == len(open_bags("features").names)
    assert load("run", device="cpu").task == "binary"
    assert read_run("run/run.yaml", {}).training.epochs == 2
