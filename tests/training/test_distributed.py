"""Two processes under torchrun train like one: same batches and noise, same weights to 1e-6."""

import os
import subprocess
import sys

import pytest
import torch
from support.processes import free_port, run_script

from probsa.cli import main
from probsa.training.checkpoints import load_checkpoint


def arguments(shared_data, out):
    bags = shared_data / "bags" / "ct_ich"
    return [
        "train", "--features", str(bags / "features"), "--labels",
        str(bags / "labels.csv"), "--model", "abmil-probsa-diag", "--test-fold", "0",
        "--standardize", "--epochs", "3", "--batch-size", "5", "--device", "cpu", "--threads", "1",
        "--tensorboard", "false", "--maps", "none", "--out", str(out), *SETTINGS,
    ]  # fmt: skip


SETTINGS = (
    "--optimizer", "radam", "--schedule", "plateau", "--schedule-epochs", "1",
    "--weight-decay", "0.1", "--decay-vectors", "false",
)  # fmt: skip


@pytest.mark.slow
def test_two_processes_give_the_weights_of_one(shared_data, tmp_path):
    """Three epochs of ct_ich in batches of five: one rank gets three bags and the other two."""
    assert main(arguments(shared_data, tmp_path / "one")) == 0
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2",
            f"--master-port={free_port()}", "--module", "probsa",
            *arguments(shared_data, tmp_path / "two"),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    one, two = (
        load_checkpoint(tmp_path / name / "checkpoints" / "last.safetensors")
        for name in ("one", "two")
    )
    for name, value in one.part("model").items():
        torch.testing.assert_close(two.part("model")[name], value, rtol=0, atol=1e-6)
    for a, b in zip(
        one.metadata["progress"]["history"], two.metadata["progress"]["history"], strict=True
    ):
        for key in ("nll", "kl", "loss", "val_nll", "val_auroc"):
            assert b[key] == pytest.approx(a[key], abs=1e-5), key


GRADIENTS = """
import sys, torch
from dataclasses import replace
from pathlib import Path
from probsa.training.batching import shard
from probsa.training.config import DataConfig, RunConfig, TrainingConfig
from probsa.training.devices import world
from probsa.training.preparation import prepare
from probsa.training import Reporter
from probsa.training.loop import TrainingLoop
from probsa.training.run_folder import RunFolder
data, out = Path(sys.argv[1]), Path(sys.argv[2])
config = RunConfig(
    data=DataConfig(features=data / "features", labels=data / "labels.csv", test_fold=0),
    model="abmil-probsa-diag",
    training=TrainingConfig(batch_size=5, device="cpu", threads=1, tensorboard=False),
)
torch.set_num_threads(1)
with world(torch.device("cpu")) as w:
    loop = TrainingLoop(config, RunFolder(out / "none"), prepare(config),
                        device=torch.device("cpu"), world=w, reporter=Reporter())
    model = loop.model
    model.train()
    for batch in [loop.plans[0][0], loop.plans[0][0][:1]]:  # with one bag, a rank has none
        for part, bags in loop.loader.epoch([shard(batch, rank=w.rank, world=w.size)]):
            loop.optimizer.param_groups[0]["lr"] = 0.0
            loop.step(part, bags, 0.7)
        if w.first:
            torch.save({k: p.grad for k, p in model.named_parameters()},
                       out / f"gradients{len(batch)}_{w.size}.pt")
"""


@pytest.mark.slow
def test_the_gradients_are_those_of_the_whole_batch(shared_data, tmp_path):
    """This holds for a batch with fewer bags than ranks, too."""
    script = tmp_path / "gradients.py"
    script.write_text(GRADIENTS)
    for processes in (1, 2):
        run_script(script, shared_data / "bags" / "ct_ich", tmp_path, processes=processes)
    for bags in (5, 1):
        one = torch.load(tmp_path / f"gradients{bags}_1.pt", weights_only=True)
        two = torch.load(tmp_path / f"gradients{bags}_2.pt", weights_only=True)
        assert any(g.abs().max() > 1e-3 for g in one.values())
        for name, value in one.items():
            torch.testing.assert_close(two[name], value, rtol=0, atol=1e-6)
