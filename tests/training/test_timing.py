"""The estimated time of a run: of `probsa train --dry-run`, and after the first steps."""

import json
import time
from datetime import timedelta

import pytest
from support.stored import write_folder

from probsa.cli import terminal
from probsa.cli.entry import main
from probsa.training import estimate_time, prepare
from probsa.training.config import DataConfig, RunConfig, TrainingConfig


def test_an_estimate_counts_all_batches_epochs_and_members(tmp_path):
    features, labels = write_folder(tmp_path / "data")
    given = DataConfig(features=features, labels=labels, test_fold=0)
    training = TrainingConfig(epochs=7, batch_size=2, device="cpu", members=3)
    config = RunConfig(data=given, model="abmil", model_arguments={"embed": 8}, training=training)
    found = estimate_time(config, prepare(config))
    assert found.epoch > 0 and found.seconds == pytest.approx(21 * found.epoch)
    assert str(found).endswith(f": 7 epochs of 3 members, {found.epoch:.1f} s each")


@pytest.mark.parametrize("model", ["abmil", "instance-lr"])
def test_a_dry_run_writes_nothing_but_the_time(tmp_path, capsys, model):
    features, labels = write_folder(tmp_path / "data")
    before = sorted(tmp_path.rglob("*"))
    flags = ["--features", features, "--labels", labels, "--test-fold", 0, "--model", model]
    assert main(["train", *map(str, flags), "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["training_bags"] == found["validation_bags"] == 4
    assert (found["seconds"] is None) == (model == "instance-lr")
    assert sorted(tmp_path.rglob("*")) == before


def test_after_the_first_steps_the_time_to_go_is_written_once(capsys, monkeypatch):
    clock = iter(range(0, 1000, 6))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    bar = terminal.TrainingBar()
    for k in range(1, 5):  # a step of a quarter of an epoch in 6 seconds
        bar.step(epoch=0, share=k / 4)
    said = capsys.readouterr().err
    assert said.count("to go") == 1
    to_go = timedelta(seconds=round(24 * (1 - 3 / 4)))
    assert f"about {to_go} (h:mm:ss) to go: epochs of 24.0 s each" in said
