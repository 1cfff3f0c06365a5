"""Two processes under torchrun train like one: same batches and noise, same weights to 1e-6."""

import os
import subprocess
import sys

import pytest
import torch
import yaml
from support.counted_model import register_counted
from support.made_runs import history_of, make_config
from support.processes import free_port, run_script

from probsa.cli import main
from probsa.models import _registry
from probsa.training import RunFolder, load_checkpoint, read_split, train


def weights(run):
    return load_checkpoint(run.last).part("model")


def assert_close(one, two, *, atol=1e-6):
    assert one.keys() == two.keys()
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=0, atol=atol, msg=name)


@pytest.mark.slow
def test_two_processes_give_the_weights_of_one(shared_data, tmp_path):
    """Three epochs of ct_ich in batches of five: one rank gets three bags and the other two."""
    bags = shared_data / "bags" / "ct_ich"
    command = [
        "train", "--features", str(bags / "features"), "--labels", str(bags / "labels.csv"),
        "--model", "abmil-probsa-diag", "--test-fold", "0", "--standardize", "--epochs", "3",
        "--batch-size", "5", "--device", "cpu", "--threads", "1", "--tensorboard", "false",
        "--maps", "none", "--optimizer", "radam", "--schedule", "plateau", "--schedule-epochs", "1",
        "--weight-decay", "0.1", "--decay-vectors", "false", "--out",
    ]  # fmt: skip
    assert main([*command, str(tmp_path / "one")]) == 0
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2",
            f"--master-port={free_port()}", "--module", "probsa", *command, str(tmp_path / "two"),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    one, two = RunFolder(tmp_path / "one"), RunFolder(tmp_path / "two")
    assert_close(weights(one), weights(two))
    for a, b in zip(history_of(one), history_of(two), strict=True):
        for key in ("nll", "kl", "loss", "val_nll", "val_auroc"):
            assert b[key] == pytest.approx(a[key], abs=1e-5), key


TRAIN = """
import sys
from pathlib import Path
from support.counted_model import register_counted
register_counted()
from probsa.training import RunConfig, load_yaml, train
train(RunConfig.from_dict(load_yaml(Path(sys.argv[1]))), Path(sys.argv[2]))
"""


@pytest.mark.parametrize("model", ["counted", "evidence-field", "mean-pool"])
def test_two_processes_train_like_one(tmp_path, model):
    """In batches of five, one process has three bags; of the last bag of an epoch, it has all.

    Members of an ensemble, running statistics over the whole batch, and a fit in one go.
    """
    name = register_counted()
    try:
        config = make_config(
            tmp_path / "data", bags=18, batch_size=5, model=name if model == "counted" else model,
            members=2 if model == "evidence-field" else 1,
        )  # fmt: skip
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(config.to_dict()))
        (tmp_path / "script.py").write_text(TRAIN)
        run_script(tmp_path / "script.py", tmp_path / "run.yaml", tmp_path / "two", processes=2)
        one, two = train(config, tmp_path / "one"), RunFolder(tmp_path / "two")
        for a, b in zip(one.members(), two.members(), strict=True):
            assert_close(weights(a), weights(b), atol=1e-5)
        if model == "counted":
            assert weights(one)["bags"] == 3 * len(read_split(one).train)
            assert weights(one)["log_kappa"] != 0
    finally:
        del _registry._registrations[name]
