"""Models in folders: the same predictions, an honest card, and refusal of what does not fit."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from support.made_bags import made_bags
from support.refusals import refused

import probsa
from probsa.cli import main
from probsa.core import read_json, write_bag, write_json
from probsa.datasets import open_bags
from probsa.errors import CheckpointError, InputError, MissingExtra, OutputExists, UnknownName
from probsa.evaluation import MapTest
from probsa.evaluation.words import no_interval_text
from probsa.removed import REMOVED
from probsa.statistics import NoInterval
from probsa.training import DataConfig, RunConfig, TrainingConfig, train
from probsa.workflow import finish_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """An ensemble of two, with a temperature, evaluated on a test part."""
    folder = tmp_path_factory.mktemp("run")
    pairs, _ = made_bags(12, signal=1.0)
    lines = ["bag,label,fold"]
    for k, (x, coords) in enumerate(pairs):
        write_bag(
            folder / "features" / f"s{k}.h5",
            features=x,
            coords=coords,
            kind="slide",
            attributes={"patch_size": 64, "patch_size_level0": 64, "overlap": 0},
            stamps={"encoder": "resnet50", "mpp": "0.5"},
        )
        lines.append(f"s{k},{k % 2},{k // 2 % 3}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    config = RunConfig(
        data=DataConfig(
            features=folder / "features",
            labels=folder / "labels.csv",
            test_fold=0,
            standardize=True,
        ),
        model="abmil-probsa-diag",
        model_arguments={"embed": 8, "attention_dim": 4, "predict_samples": 10},
        training=TrainingConfig(
            epochs=2,
            batch_size=4,
            device="cpu",
            threads=1,
            tensorboard=False,
            members=2,
            temperature_scaling=True,
            learning_rate=0.01,
            warmup_epochs=0,
        ),
    )
    trained = train(config, folder / "run")
    finish_run(trained, bootstrap=20, maps="none", extras=False)
    # so few bags determine none
    stored = {"temperature": 1.7, "bags": 4, "nll_before": None, "nll_after": None}
    write_json(trained.temperature_file, stored)
    return trained


@pytest.fixture(scope="module")
def saved(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "model"
    return probsa.load(run.path, device="cpu").save_pretrained(folder, data="Twelve made slides.")


@pytest.fixture
def copy(saved, tmp_path):
    """A folder that may be damaged."""
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def bags(run):
    stored = open_bags(run.config().data.features)
    return [stored.bag(name) for name in stored.names]


def test_predictions_are_equal(run, saved, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # no hub is needed for a folder
    original = probsa.load(run.path, device="cpu")
    for loaded in (probsa.from_pretrained(saved, device="cpu"), probsa.load(saved, device="cpu")):
        assert loaded.temperature == original.temperature != 1
        assert loaded.classes == original.classes and loaded.metadata == original.metadata
        both = (model.predict(bags(run)) for model in (loaded, original))
        for mine, theirs in zip(*both, strict=True):
            for name in ("probability", "std", "std_between", "attention_mean", "weight_variance"):
                assert (getattr(mine, name) == getattr(theirs, name)).all(), name
    again = loaded.save_pretrained(saved.parent / "again")
    tensors, others = (load_file(folder / "model.safetensors") for folder in (again, saved))
    assert tensors.keys() == others.keys()
    assert {p.name for p in saved.iterdir()} == {"README.md", "config.json", "model.safetensors"}
    text = (saved / "config.json").read_text() + (saved / "README.md").read_text()
    assert str(run.path.parent) not in text and "s11" not in text
    assert (
        json.loads((saved / "config.json").read_text())["threshold"] == run.thresholds().threshold
    )
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OutputExists, match=r"notes\.txt"):
        probsa.load(run.path, device="cpu").save_pretrained(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_the_card_states_the_files_of_the_run(run, saved):
    text = (saved / "README.md").read_text()
    _, header, body = text.split("---\n", 2)
    assert yaml.safe_load(header)["library_name"] == "probsa"
    report = read_json(run.path / "evaluation.json")
    brier = report["metrics"]["brier"]
    row = f"| Brier score | {brier['value']:.3f} | {brier['low']:.3f} to {brier['high']:.3f} |"
    assert row in body
    # two of the four test bags are of class 1
    auroc = report["metrics"]["auroc"]
    missing = no_interval_text(NoInterval(**auroc["no_interval"]))
    assert missing and f"| AUROC | {auroc['value']:.3f} | {missing} |" in body
    assert "On 4 bags" in body
    for part in (
        "Twelve made slides.",
        "4 training, 4 validation, 4 test",
        "patches of slides",
        "resnet50 (licence:",
        "64 pixels",
        "attention logits f",
        "of 2 members",
        "Not a medical",
        "arXiv:2507.14932",
        "members: 2",
    ):
        assert part in body, part
    assert "$" not in body
    # what the evaluation says against model and maps, and where calls begin
    trust = report["map_trust"]
    for test in MapTest:
        result = "not passed" if test in trust["failed"] else "passed"
        result = "not tested" if test in trust["untested"] else result
        assert f"- {test.value.capitalize()}: {result}" in body
    assert report["chance"] in body
    assert f"{report['threshold']:.4g} ({report['threshold_source']})" in body


def test_the_hubs_own_reader_reads_the_card(saved):
    hub = pytest.importorskip("huggingface_hub")
    card = hub.ModelCard.load(saved / "README.md")
    assert card.data.library_name == "probsa"


def test_the_predictions_of_a_folder(run, saved, tmp_path):
    features = run.config().data.features
    for model, out in ((run.path, "a"), (saved, "b")):
        probsa.predict_folder(model, features, out=tmp_path / out, device="cpu")
    mine, theirs = (np.genfromtxt(tmp_path / k / "predictions.csv", delimiter=",") for k in "ba")
    assert (mine[1:, 4] == theirs[1:, 4]).all()  # p, at the same threshold
    assert (mine[1:, 3] == theirs[1:, 3]).all()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda c: c.pop("members"), InputError, "members is missing"),
        (lambda c: c.update(members=[]), InputError, "has no members"),
        (lambda c: c.update(library_name="timm"), InputError, "is of 'timm'"),
        (lambda c: c.update(format=2), InputError, "format 2"),
        (lambda c: c.update(temperature=-1.0), InputError, "temperature"),
        (lambda c: c["members"].pop(), CheckpointError, "'members.1.model"),
        (lambda c: c["members"][0].update(model="abmill"), CheckpointError, "abmill"),
        (lambda c: c["members"][0]["arguments"].update(in_dim=9), CheckpointError, "fit"),
        (lambda c: c["run"]["training"].update(epoch=3), UnknownName, "epoch"),
    ],
)
def test_a_damaged_config_is_refused(change, error, message, copy):
    values = json.loads((copy / "config.json").read_text())
    change(values)
    (copy / "config.json").write_text(json.dumps(values))
    refused(error, message, probsa.from_pretrained, copy, device="cpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("members.1.model.attention.mean.weight"), "fit"),
        (lambda t: t.update({"members.0.model.more": torch.zeros(1)}), "fit"),
        (lambda t: t.update({"more": torch.zeros(1)}), "'more'"),
        (lambda t: t.pop("members.0.standardize.mean"), "means and deviations"),
    ],
)
def test_missing_and_additional_tensors_are_refused(change, message, copy):
    path = copy / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"probsa": json.dumps({"format": 1})})
    refused(CheckpointError, message, probsa.from_pretrained, copy, device="cpu")


def test_a_repository_is_read_from_the_cache_offline(saved, tmp_path, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    commit = "0" * 40
    cache = tmp_path / "models--someone--made" / "snapshots" / commit
    shutil.copytree(saved, cache)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    loaded = probsa.from_pretrained("someone/made", revision=commit, device="cpu")
    assert len(loaded.members) == 2
    with pytest.raises(InputError, match="HF_HUB_OFFLINE"):
        probsa.from_pretrained("someone/else", device="cpu")


def test_names_that_are_neither_folder_nor_repository(monkeypatch):
    for name in ("missing", "./missing/model", "a/b/c"):
        refused(InputError, name, probsa.from_pretrained, name)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    refused(MissingExtra, r"'\.\[hub\]'", probsa.from_pretrained, "someone/made")


@pytest.mark.parametrize("command", [False, True])
def test_a_file_in_place_of_a_run_names_what_to_use_instead(run, tmp_path, capsys, command):
    """Earlier versions wrote converted weights of other programs into single files."""
    file = next(run.path.rglob("best.safetensors"))
    if command:
        given = ["predict", str(file), "--features", str(tmp_path), "--out", str(tmp_path / "out")]
        assert main(given) == 2
        said = capsys.readouterr().err
    else:
        with pytest.raises(InputError) as caught:
            probsa.load(file)
        said = str(caught.value)
    assert str(file) in said and REMOVED["convert_checkpoint"] in said
