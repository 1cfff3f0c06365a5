"""Runs, predictions and bags written by version 0.1.0 are read, and trained again to the same bits.

tests/data/version_0_1_0 was written by commit c4e3f50: `alone` by `train_and_report`, `together` by
the joint training of its four run files. Another CPU or PyTorch may round differently: there, make
both again with that commit, in a copy of the folder, before you compare.
"""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from probsa.core import read_bag
from probsa.evaluation import evaluate, load, read_predictions
from probsa.training import (
    Reporter,
    RunFolder,
    load_checkpoint,
    open_data,
    train,
    train_jointly,
)

DATA = Path(__file__).parents[1] / "data" / "version_0_1_0"
JOINT = [Path("together") / name for name in "abcd"]


class Stopped(Exception):
    """Raised by reporters to interrupt training."""


@pytest.fixture(autouse=True)
def copied_data(tmp_path, monkeypatch):
    """Work in a copy of the data, for the paths in its run files are relative."""
    shutil.copytree(DATA, tmp_path / "data")
    monkeypatch.chdir(tmp_path / "data")


def assert_same_run(new, golden):
    for path, golden_path in ((new.best, golden.best), (new.last, golden.last)):
        a, b = load_checkpoint(path), load_checkpoint(golden_path)
        assert a.tensors.keys() == b.tensors.keys()
        for name, value in b.tensors.items():
            assert a.tensors[name].dtype == value.dtype
            assert torch.equal(a.tensors[name], value), name
        for checkpoint in (a, b):
            del checkpoint.metadata["version"]
            for row in checkpoint.metadata["progress"]["history"]:
                del row["seconds"]
        assert a.metadata == b.metadata
    rows, golden_rows = (
        list(csv.DictReader(run.metrics_file.read_text().splitlines())) for run in (new, golden)
    )
    for row in rows + golden_rows:
        del row["seconds"]
    assert rows == golden_rows and len(rows) == 4
    assert new.split_file.read_bytes() == golden.split_file.read_bytes()


def test_a_stored_run_predicts_what_it_predicted():
    run = RunFolder(Path("alone"))
    stored = read_predictions(run.predictions)
    bags = open_data(run.config().data)
    predictor = load(run.path, device="cpu")
    for prediction in predictor.predict([bags.bag(name) for name in stored.bags]):
        expected = stored.instances(prediction.name)
        for name in (
            "probability", "std", "attention_mean", "attention_variance", "weight_mean",
            "weight_variance", "degree", "coords", "instance_labels",
        ):  # fmt: skip
            np.testing.assert_array_equal(
                getattr(prediction, name), getattr(expected, name), err_msg=name
            )


def test_stored_predictions_are_evaluated():
    report = evaluate(Path("alone/predictions"), bootstrap=0)
    assert report.part == "test"
    assert report.metrics["auroc"].value == 0.0
    assert report.threshold == 0.23363429307937622


def test_a_stored_run_that_is_finished_stays_as_it_is():
    run = RunFolder(Path("alone"))
    before = {p: p.read_bytes() for p in Path("alone").rglob("*") if p.is_file()}
    train(run.config(), run.path, resume=True)
    assert {p: p.read_bytes() for p in Path("alone").rglob("*") if p.is_file()} == before


def test_stored_bags_are_read():
    for k in range(2):
        bag = read_bag(Path(f"store/slide{k}.h5"))
        assert bag.name == f"slide{k}" and bag.stride == 256
        assert bag.features.shape[1] == 6 and np.isfinite(bag.features).all()
        assert bag.coords.shape == (len(bag.features), 2)
        assert bag.instance_labels.shape == (len(bag.features),)


def test_a_run_trains_to_the_same_bits():
    golden = RunFolder(Path("alone"))
    assert_same_run(train(golden.config(), Path("new")), golden)


def test_joint_runs_train_to_the_same_bits():
    golden = [RunFolder(path) for path in JOINT]
    outs = [Path(f"new{k}") for k in range(len(golden))]
    for run, expected in zip(
        train_jointly([g.config() for g in golden], outs, state=Path("state")), golden, strict=True
    ):
        assert_same_run(run, expected)


def test_an_interrupted_run_ends_with_the_same_bits():
    class AfterTwoEpochs(Reporter):
        def epoch(self, row):
            if row["epoch"] == 2:
                raise Stopped

    golden = RunFolder(Path("alone"))
    with pytest.raises(Stopped):
        train(golden.config(), Path("new"), reporter=AfterTwoEpochs())
    assert load_checkpoint(RunFolder(Path("new")).last).metadata["progress"]["epoch"] == 2
    assert_same_run(train(golden.config(), Path("new"), resume=True), golden)


def test_interrupted_joint_runs_end_with_the_same_bits():
    class InTheThirdEpoch(Reporter):
        def step(self, *, epoch, share):
            if epoch == 2:
                raise Stopped

    class Witness(Reporter):
        def start(self, *, done, epochs):
            self.done = done

    golden = [RunFolder(path) for path in JOINT]
    configs = [g.config() for g in golden]
    outs = [Path(f"new{k}") for k in range(len(golden))]
    state = Path("state")
    with pytest.raises(Stopped):
        train_jointly(configs, outs, state=state, reporter=InTheThirdEpoch(), save_every=0.0)
    witness = Witness()
    runs = train_jointly(configs, outs, state=state, reporter=witness)
    assert witness.done == 2 and not state.exists()
    for run, expected in zip(runs, golden, strict=True):
        assert_same_run(run, expected)
