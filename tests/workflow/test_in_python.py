"""What a user does with a run in Python, where every path may be a text."""

import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from support.stored import write_folder

from probsa import load, predict_folder, train_and_report
from probsa.datasets import open_bags
from probsa.errors import InputError
from probsa.evaluation import evaluate, read_predictions
from probsa.evaluation.storage import read_instances
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
    with pytest.raises(InputError, match="read_predictions"):
        load("preds")


def test_runs_and_predictions_are_drawn(folder):
    run, ax = load("run", device="cpu"), Figure().subplots()
    assert run.plot_training(ax) is ax and len(ax.lines) == 4  # two losses of two members
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["nll", "validation nll"]
    (p,) = run.predict([open_bags("features").bag("001")])
    ax = p.plot(Figure().subplots())
    (squares,) = ax.collections
    assert squares.get_array().tolist() == p.attention_mean.tolist()
    assert squares.get_clim() == (-abs(p.attention_mean).max(), abs(p.attention_mean).max())
    slices = replace(p, coords=np.arange(len(p.degree))[::-1, None]).plot(Figure().subplots())
    assert slices.lines[0].get_ydata().tolist() == p.attention_mean[::-1].tolist()
    with pytest.raises(InputError, match="run folder"):
        load(run.save_pretrained("model"), device="cpu").plot_training()


def test_a_run_and_its_predictions_say_what_they_are(folder):
    run = load("run", device="cpu")
    assert re.fullmatch(
        r"<Ensemble: 2 × evidence-field, binary \(0, 1\), \d training bags, \d validation bags, "
        r"4 test bags, test AUROC .*>",
        repr(run),
    )
    (p,) = run.predict([open_bags("features").bag("001")])
    assert re.fullmatch(
        r"<Prediction of '001': class [01]: p.* ± 0.*, thr.*, \d instances>", repr(p)
    )
    stored = read_predictions("run/predictions")
    name = stored.bags[0]
    call = stored.to_frame().set_index("bag").loc[name, "call"]
    assert f"{name!r}: class {call}: p" in repr(stored.instances(name))
    assert repr(read_instances(stored.instance_path(name))).startswith(f"<Prediction of {name!r}: ")
    assert read_run("run/run.yaml", {}).training.epochs == 2
