"""Running statistics: sums over the whole batch, whichever process has its bags."""

from pathlib import Path

import pytest
import torch
import yaml
from support.counted_model import register_counted
from support.processes import run_script
from support.stored import write_folder

from probsa.models import _registry
from probsa.training import load_checkpoint, read_split, train
from probsa.training.config import DataConfig, RunConfig, TrainingConfig
from probsa.training.run_folder import RunFolder


@pytest.fixture
def config(tmp_path):
    name = register_counted()
    features, labels = write_folder(tmp_path / "data", bags=18)
    yield RunConfig(
        data=DataConfig(features=features, labels=labels, test_fold=0),
        model=name,
        training=TrainingConfig(
            epochs=3, batch_size=5, device="cpu", tensorboard=False, threads=1, learning_rate=1e-2
        ),
        data_seed=0,
    )
    del _registry._registrations[name]


def state(folder):
    return load_checkpoint(folder.last).part("model")


def test_every_training_bag_counts_once_an_epoch(config, tmp_path):
    run = train(config, tmp_path / "run")
    assert state(run)["bags"] == 3 * len(read_split(run).train)
    assert state(run)["log_kappa"] != 0


SCRIPT = """
import sys
from pathlib import Path
from support.counted_model import register_counted
register_counted()
from probsa.training import train
from probsa.training.config import RunConfig
from probsa.training.yaml_files import load_yaml
train(RunConfig.from_dict(load_yaml(Path(sys.argv[1]))), Path(sys.argv[2]))
"""


def test_two_processes_sum_over_the_whole_batch(config, tmp_path):
    """In batches of five, one process has three bags; of the last bag of an epoch, it has all."""
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config.to_dict()))
    (tmp_path / "script.py").write_text(SCRIPT)
    for k in (1, 2):
        run_script(tmp_path / "script.py", tmp_path / "run.yaml", tmp_path / str(k), processes=k)
    one, two = (state(RunFolder(Path(tmp_path / str(k)))) for k in (1, 2))
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=0, atol=1e-5, msg=name)
    assert one["bags"] == two["bags"]
