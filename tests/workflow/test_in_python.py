"""What a user does with a run in Python, where every path may be a text."""

import contextlib
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from support.stored import write_folder

from probsa import load, predict_folder, train_and_report
from probsa.cohorts import PatchSet, WorkFolder
from probsa.core import read_bag, write_bag
from probsa.datasets import (
    ConversionOptions,
    CovariateOptions,
    convert,
    make_split,
    open_bags,
    read_covariates,
    read_splits,
    read_splits_metadata,
    read_table,
    write_splits,
)
from probsa.errors import InputError
from probsa.evaluation import evaluate, load_several, read_predictions, write_predictions
from probsa.evaluation.storage import read_instances
from probsa.exports import ExportSettings, export_folder
from probsa.maps import KINDS, render_folder
from probsa.training import RunFolder, load_checkpoint, open_units, prepare, read_run
from probsa.view import ViewData, export_page

SMALL = {"epochs": 2, "members": 2, "device": "cpu", "threads": 1, "tensorboard": False}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a run and its bags, where they were trained on by relative paths."""
    path = tmp_path_factory.mktemp("trained")
    write_folder(path, kind="slide")
    data = {"features": "features", "labels": "labels.csv", "test_fold": 0}
    with contextlib.chdir(path):
        assert train_and_report(read_run(None, data | SMALL), "run", maps="none")
    return path


@pytest.fixture
def folder(trained, tmp_path, monkeypatch):
    """A copy of that folder, which is the current one."""
    copy = shutil.copytree(trained, tmp_path / "copy")
    monkeypatch.chdir(copy)
    return copy


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


def test_every_public_call_takes_texts(folder):
    table = read_table("labels.csv")
    config = RunFolder("run").config()
    data = replace(config.data, features="features", labels="labels.csv")
    assert prepare(replace(config, data=data)).table.bags == table.bags
    assert WorkFolder("work").path == PatchSet("work").path == Path("work")
    ages = "bag,age\n" + "".join(f"{bag},3\n" for bag in table.bags)
    Path("ages.csv").write_text(ages)
    assert len(read_covariates("ages.csv", CovariateOptions(numeric=("age",)))) == len(table.bags)
    write_splits("splits", [make_split(table, test_fold=0)])
    assert read_splits("splits", table)[0].test and read_splits_metadata("splits")
    write_bag("one.h5", features=np.ones((2, 3), np.float32), kind="ct")
    assert read_bag("one.h5").name == "one"
    members = ["run/members/0", "run/members/1"]
    (p,) = load_several(members, device="cpu").predict([open_bags("features").bag("001")])
    write_predictions(
        "written", [p], labels={}, parts={}, classes=["0", "1"], threshold=None, metadata={}
    )
    assert read_predictions("written").bags == ("001",)
    load_checkpoint("run/members/1/checkpoints/best.safetensors")
    options = ConversionOptions(labels="labels.csv")
    convert("features", "converted", source_format="probsa", options=options)
    export_page(ViewData("written", against="written"), "page")
    assert (folder / "converted").is_dir() and (folder / "page" / "index.html").is_file()


def test_ids_of_a_table_may_be_names_of_files(folder):
    rows = [row.split(",") for row in (folder / "labels.csv").read_text().splitlines()[1:]]
    lines = [f"{bag}.svs,{label},{fold},{k}\n" for k, (bag, label, fold) in enumerate(rows)]
    (folder / "files.csv").write_text("bag,label,fold,age\n" + "".join(lines))
    data = {"features": "features", "labels": "files.csv", "test_fold": 0, "numeric": ["age"]}
    config = read_run(None, data | SMALL | {"members": 1})
    prepared = prepare(config)
    assert prepared.table.bags == tuple(bag for bag, *_ in rows) == tuple(prepared.bags.covariates)
    assert open_units(config.data)[1].bags == prepared.table.bags
    predict_folder("run", "features", out="preds", labels="files.csv", device="cpu")
    stored = read_predictions("preds")
    assert None not in stored.labels
    report = evaluate("preds", labels="files.csv", bootstrap=0)
    assert not report.without_label and "files.csv" in str(report.warnings)


def test_runs_and_predictions_are_drawn(folder):
    run = load("run", device="cpu")
    ax = Figure().subplots()
    assert run.plot_training(ax) is ax
    looks = {(line.get_color(), line.get_linestyle()) for line in ax.lines}
    assert len(looks) == len(ax.lines) == 4, "two losses of two members look different"
    assert len({line.get_color() for line in ax.lines}) == 2, "a member has one colour"
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == [f"member {k}, {part}" for k in (1, 2) for part in ("training", "validation")]
    (p,) = run.predict([open_bags("features").bag("001")])
    ax = p.plot(Figure().subplots())
    (squares,) = ax.collections
    assert squares.get_array().tolist() == p.attention_mean.tolist()
    assert squares.get_cmap() == KINDS["evidence"].colours
    assert squares.get_clim() == (-abs(p.attention_mean).max(), abs(p.attention_mean).max())
    slices = replace(p, coords=np.arange(len(p.degree))[::-1, None]).plot(Figure().subplots())
    assert slices.lines[0].get_ydata().tolist() == p.attention_mean[::-1].tolist()
    with pytest.raises(InputError):
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
