"""Runs, predictions and bags written by version 0.1.0 are read, and trained again to the same bits.

tests/data/version_0_1_0 was written by commit c4e3f50: `alone` by `train_and_report`, `together` by
the joint training of its four run files. Other processors round differently; there the results are
compared up to rounding, and only interrupted and uninterrupted runs of this machine bit for bit.
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

WRITTEN_ON = ("AuthenticAMD", "25", "17", "AVX512")
"""Vendor, family and model of the processor that wrote the data, and its vector instructions."""

ROUNDING = {"rtol": 1e-5, "atol": 1e-6}
"""How far four epochs on another processor may end from the stored weights."""

DATA = Path(__file__).parents[1] / "data" / "version_0_1_0"
JOINT = [Path("together") / name for name in "abcd"]


class Stopped(Exception):
    """Raised by reporters to interrupt training."""


@pytest.fixture(autouse=True)
def copied_data(tmp_path, monkeypatch):
    """Work in a copy of the data, for the paths in its run files are relative."""
    shutil.copytree(DATA, tmp_path / "data")
    monkeypatch.chdir(tmp_path / "data")


def rounds_as_stored() -> bool:
    """Return whether this processor is of the kind that wrote the data."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return False
    lines = (line.partition(":") for line in cpuinfo.read_text().splitlines())
    about = {key.strip(): value.strip() for key, _, value in lines}
    described = [about.get(key) for key in ("vendor_id", "cpu family", "model")]
    return (*described, torch.backends.cpu.get_cpu_capability()) == WRITTEN_ON


def compare(new, stored, *, bits, name):
    new, stored = np.asarray(new), np.asarray(stored)
    assert new.dtype == stored.dtype
    if bits:
        np.testing.assert_array_equal(new, stored, err_msg=name)
    else:
        np.testing.assert_allclose(new, stored, **ROUNDING, err_msg=name)


def rows_of(run):
    rows = list(csv.DictReader(run.metrics_file.read_text().splitlines()))
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def assert_same_run(new, golden, *, bits):
    for path, golden_path in ((new.best, golden.best), (new.last, golden.last)):
        a, b = load_checkpoint(path), load_checkpoint(golden_path)
        assert a.tensors.keys() == b.tensors.keys()
        for name, value in b.tensors.items():
            compare(a.tensors[name], value, bits=bits, name=name)
        for checkpoint in (a, b):
            del checkpoint.metadata["version"]
            for row in checkpoint.metadata["progress"]["history"]:
                del row["seconds"]
        if bits:
            assert a.metadata == b.metadata
        assert a.metadata.keys() == b.metadata.keys()
    rows, golden_rows = rows_of(new), rows_of(golden)
    assert len(rows) == len(golden_rows) == 4
    for row, golden_row in zip(rows, golden_rows, strict=True):
        assert row.keys() == golden_row.keys()
        if bits:
            assert row == golden_row
        compare(float(row["loss"]), float(golden_row["loss"]), bits=bits, name="loss")
    assert new.split_file.read_bytes() == golden.split_file.read_bytes()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The single run and the four joint runs, trained on this machine without a pause."""
    folder = tmp_path_factory.mktemp("uninterrupted") / "data"
    shutil.copytree(DATA, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        config = RunFolder(Path("alone")).config()
        single = train(config, Path("new"))
        configs = [RunFolder(path).config() for path in JOINT]
        joint = train_jointly(
            configs, [Path(f"new{k}") for k in range(len(JOINT))], state=Path("state")
        )
    return RunFolder(folder / single.path), [RunFolder(folder / run.path) for run in joint]


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
            new, old = getattr(prediction, name), getattr(expected, name)
            compare(new, old, bits=rounds_as_stored(), name=name)


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


def test_a_run_trains_to_the_same_bits(uninterrupted):
    assert_same_run(uninterrupted[0], RunFolder(Path("alone")), bits=rounds_as_stored())


def test_joint_runs_train_to_the_same_bits(uninterrupted):
    for run, path in zip(uninterrupted[1], JOINT, strict=True):
        assert_same_run(run, RunFolder(path), bits=rounds_as_stored())


def test_an_interrupted_run_ends_with_the_same_bits(uninterrupted):
    class AfterTwoEpochs(Reporter):
        def epoch(self, row):
            if row["epoch"] == 2:
                raise Stopped

    config = RunFolder(Path("alone")).config()
    with pytest.raises(Stopped):
        train(config, Path("new"), reporter=AfterTwoEpochs())
    assert load_checkpoint(RunFolder(Path("new")).last).metadata["progress"]["epoch"] == 2
    assert_same_run(train(config, Path("new"), resume=True), uninterrupted[0], bits=True)


def test_interrupted_joint_runs_end_with_the_same_bits(uninterrupted):
    class InTheThirdEpoch(Reporter):
        def step(self, *, epoch, share):
            if epoch == 2:
                raise Stopped

    class Witness(Reporter):
        def start(self, *, done, epochs):
            self.done = done

    configs = [RunFolder(path).config() for path in JOINT]
    outs = [Path(f"new{k}") for k in range(len(JOINT))]
    state = Path("state")
    with pytest.raises(Stopped):
        train_jointly(configs, outs, state=state, reporter=InTheThirdEpoch(), save_every=0.0)
    witness = Witness()
    runs = train_jointly(configs, outs, state=state, reporter=witness)
    assert witness.done == 2 and not state.exists()
    for run, expected in zip(runs, uninterrupted[1], strict=True):
        assert_same_run(run, expected, bits=True)
