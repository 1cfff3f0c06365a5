"""Ensembles: K members in one run, one after another, resumed and divided."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from support.processes import run_script
from support.stored import write_folder

from probsa.errors import InputError
from probsa.evaluation import Ensemble, load, read_predictions
from probsa.training import Reporter, load_checkpoint, open_data, read_split, train
from probsa.training.config import DataConfig, RunConfig, TrainingConfig
from probsa.training.run_folder import RunFolder
from probsa.training.single import member_configs
from probsa.workflow import train_and_report


@pytest.fixture
def config(tmp_path):
    features, labels = write_folder(tmp_path / "data", bags=30, signal=1.0)
    return RunConfig(
        data=DataConfig(features=features, labels=labels, test_fold=0),
        model="abmil-probsa-diag",
        model_arguments={"embed": 12, "attention_dim": 6, "samples": 3, "predict_samples": 20},
        training=TrainingConfig(
            epochs=4, batch_size=5, device="cpu", tensorboard=False, threads=1,
            learning_rate=1e-2, warmup_epochs=0, members=3,
        ),
        seed=4,
    )  # fmt: skip


def setting(config, **changes):
    return replace(config, training=replace(config.training, **changes))


KAPPA = "model.attention.prior.log_kappa"


class Stopped(Exception):
    """Raised by reporters to interrupt training."""


class Breaker(Reporter):
    def __init__(self, *, steps):
        self.steps = steps

    def step(self, *, epoch, share):
        self.steps -= 1
        if self.steps == 0:
            raise Stopped


def assert_same_members(one, other):
    for a, b in zip(one.members(), other.members(), strict=True):
        for x, y in ((a.best, b.best), (a.last, b.last)):
            x, y = load_checkpoint(x), load_checkpoint(y)
            assert x.tensors.keys() == y.tensors.keys()
            assert all(torch.equal(v, y.tensors[k]) for k, v in x.tensors.items())


def test_members_differ_in_their_seed_alone(config, tmp_path):
    run = train(config, tmp_path / "run")
    members = run.members()
    assert [m.path.name for m in members] == ["0", "1", "2"] and not run.best.exists()
    assert [m.config() for m in members] == member_configs(config)
    assert [m.config().seed for m in members] == [4, 5, 6]
    assert {m.config().data_seed for m in members} == {4}
    assert all(read_split(m) == read_split(run) for m in members)
    for member in members:  # each equals its run alone
        assert_same_members(train(member.config(), tmp_path / f"a{member.path.name}"), member)
    rows = [load_checkpoint(m.last).metadata["progress"]["history"] for m in members]
    lines = run.metrics_file.read_text().splitlines()
    assert len(lines) == 5 and "val_nll" in lines[0]
    nll = float(lines[1].split(",")[lines[0].split(",").index("val_nll")])
    assert nll == pytest.approx(np.mean([r[0]["val_nll"] for r in rows]))


@pytest.mark.parametrize(
    ("model", "select"),
    [("abmil-probsa-diag", "auroc"), ("dsmil", "nll"), ("evidence-field", "ema-nll")],
)
def test_an_interrupted_ensemble_ends_with_the_same_bits(config, tmp_path, model, select):
    """The run is broken off in its first member, and in its second."""
    arguments = {} if model == "dsmil" else config.model_arguments
    config = setting(replace(config, model=model, model_arguments=arguments), select=select)
    whole = train(config, tmp_path / "whole")
    for steps in (5, 13):
        with pytest.raises(Stopped):
            train(config, tmp_path / "broken", resume=True, reporter=Breaker(steps=steps))
    broken = train(config, tmp_path / "broken", resume=True)
    assert_same_members(whole, broken)
    if model == "evidence-field":
        kappas = {float(load_checkpoint(m.last).tensors[KAPPA]) for m in whole.members()}
        assert len(kappas) == 3 and 0.0 not in kappas  # each member has learned its own
    before = {p: p.stat().st_mtime_ns for p in broken.path.rglob("*.safetensors")}
    train(config, broken.path, resume=True)
    assert {p: p.stat().st_mtime_ns for p in broken.path.rglob("*.safetensors")} == before


def test_members_may_run_out_of_patience(config, tmp_path):
    run = train(setting(config, members=2, clip_norm=0.5, patience=1, epochs=9), tmp_path / "run")
    for member in run.members():
        alone = train(member.config(), tmp_path / f"alone{member.path.name}")
        assert_same_members(alone, member)


def test_an_ensemble_is_a_run_that_predicts_and_is_evaluated(config, tmp_path):
    trained = train_and_report(config, tmp_path / "run", maps="test")
    assert trained is not None and trained.maps == len(read_split(trained.run).test)
    predictor = load(tmp_path / "run", device="cpu")
    assert isinstance(predictor, Ensemble) and len(predictor.members) == 3
    bags = open_data(config.data)
    stored = read_predictions(trained.run.predictions)
    assert stored.metadata["members"] == 3 and len(stored.metadata["epoch"]) == 3
    names = stored.bags
    alone = [
        list(load(m.path, device="cpu").predict(bags.bag(n) for n in names))
        for m in trained.run.members()
    ]
    for row, name in enumerate(names):
        p = np.array([member[row].probability for member in alone], np.float64)
        std = np.array([member[row].std for member in alone], np.float64)
        np.testing.assert_allclose(stored.probability[row], p.mean(0), rtol=1e-6)
        within, between = np.square(std).mean(0), p.var(0)
        np.testing.assert_allclose(stored.std_within[row], np.sqrt(within), rtol=1e-5)
        np.testing.assert_allclose(stored.std_between[row], np.sqrt(between), rtol=1e-5)
        np.testing.assert_allclose(stored.std[row], np.sqrt(within + between), rtol=1e-5)
        read = stored.instances(name)
        total = read.variance_within + read.variance_between
        np.testing.assert_allclose(read.attention_variance, total, rtol=1e-5)
        assert read.std_between is not None and read.variance_between.any()


def test_a_member_that_diverges_is_named(config, tmp_path):
    wild = setting(replace(config, model="dsmil", model_arguments={}), learning_rate=1e30)
    with pytest.raises(InputError, match=r"members.0: epoch 1: .* lower learning_rate"):
        train(wild, tmp_path / "run")
    assert not (tmp_path / "run").exists()


SCRIPT = """
import sys
from pathlib import Path
from probsa.training import train
from probsa.training.config import RunConfig
from probsa.training.yaml_files import load_yaml
train(RunConfig.from_dict(load_yaml(Path(sys.argv[1]))), Path(sys.argv[2]))
"""


def test_two_processes_train_the_members_of_one(config, tmp_path):
    """In batches of five, one process has three bags."""
    config = setting(
        replace(config, model="evidence-field"),
        select="ema-nll", members=2, epochs=3, batch_size=5, learning_rate=1e-3,
    )  # fmt: skip
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config.to_dict()))
    (tmp_path / "script.py").write_text(SCRIPT)
    for k in (1, 2):
        run_script(tmp_path / "script.py", tmp_path / "run.yaml", tmp_path / str(k), processes=k)
    one, two = (RunFolder(tmp_path / str(k)) for k in (1, 2))
    for a, b in zip(one.members(), two.members(), strict=True):
        for x, y in ((a.best, b.best), (a.last, b.last)):
            x, y = load_checkpoint(x), load_checkpoint(y)
            for name, value in x.part("model").items():
                torch.testing.assert_close(y.part("model")[name], value, rtol=0, atol=2e-6)
        histories = [load_checkpoint(f.last).metadata["progress"]["history"] for f in (a, b)]
        for r, s in zip(*histories, strict=True):
            assert s["val_nll"] == pytest.approx(r["val_nll"], abs=1e-5)
