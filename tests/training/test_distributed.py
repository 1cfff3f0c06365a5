"""Two processes under torchrun train like one: same batches and noise, same weights to 1e-6."""

import pytest
import torch
import yaml
from support.counted_model import register_counted
from support.made_runs import history_of, make_config
from support.processes import run_script

from probsa.models import _registry
from probsa.training import RunFolder, load_checkpoint, read_split, train


def weights(run):
    return load_checkpoint(run.last).part("model")


TRAIN = """
import sys
from support.counted_model import register_counted
register_counted()
from probsa.cli import main
sys.exit(main(["train", "--config", sys.argv[1], "--out", sys.argv[2], "--maps", "none"]))
"""


@pytest.mark.parametrize(
    ("model", "training"),
    [
        ("counted-test", {"optimizer": "radam", "schedule": "plateau", "schedule_epochs": 1}),
        ("evidence-field", {"members": 2}),
        ("mean-pool", {}),
    ],
)
def test_two_processes_train_like_one(tmp_path, model, training):
    """In batches of five, one process has three bags; of the last bag of an epoch, it has all.

    Members of an ensemble, running statistics over the whole batch, and a fit in one go.
    """
    name = register_counted()
    try:
        config = make_config(tmp_path / "data", bags=18, batch_size=5, model=model, **training)
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(config.to_dict()))
        (tmp_path / "script.py").write_text(TRAIN)
        run_script(tmp_path / "script.py", tmp_path / "run.yaml", tmp_path / "two", processes=2)
        one, two = train(config, tmp_path / "one"), RunFolder(tmp_path / "two")
        for a, b in zip(one.members(), two.members(), strict=True):
            expected = weights(a)
            assert expected.keys() == weights(b).keys()
            for key, value in weights(b).items():
                torch.testing.assert_close(value, expected[key], rtol=0, atol=1e-5, msg=key)
            for row, other in zip(history_of(a), history_of(b), strict=True):
                for key in ("loss", "val_nll", "val_auroc"):
                    assert other[key] == pytest.approx(row[key], abs=1e-5), key
        assert (two.path / "evaluation.json").is_file()
        if model == name:
            assert weights(one)["bags"] == 3 * len(read_split(one).train)
            assert weights(one)["log_kappa"] != 0
    finally:
        del _registry._registrations[name]
