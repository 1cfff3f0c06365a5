"""The estimated time of a run: of `probsa train --dry-run`, and after the first steps."""

import json
import time

import numpy as np
import pytest
from support.stored import write_folder

from probsa.cli import main, terminal


@pytest.mark.parametrize("model", ["abmil", "instance-lr"])
def test_a_dry_run_writes_nothing_but_the_time(tmp_path, capsys, model):
    features, labels = write_folder(tmp_path / "data")
    before = sorted(tmp_path.rglob("*"))
    flags = ["--features", features, "--labels", labels, "--test-fold", 0, "--model", model]
    flags += ["--epochs", 1000] if model == "abmil" else []
    assert main(["train", *map(str, flags), "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["training_bags"] == found["validation_bags"] == 4
    assert (found["seconds"] is None) == (model == "instance-lr")
    assert found["seconds"] is None or found["seconds"] > 0
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("seed", range(5))
def test_an_estimate_lies_within_what_was_measured(seed, monkeypatch, tmp_path):
    """A machine that is busy for a moment slows one timing; the estimate does not multiply it."""
    from probsa.training import DataConfig, RunConfig, epoch_seconds, loop, prepare

    features, labels = write_folder(tmp_path / "data")
    data = DataConfig(features=features, labels=labels, test_fold=0)
    made = RunConfig(data=data, model="abmil")
    rng = np.random.default_rng(seed)
    measured = []

    def slow_at_times(*_, is_training):
        measured.append(float(rng.exponential(1.0)))
        return measured[-1]

    monkeypatch.setattr(loop, "_batch_seconds", slow_at_times)
    seconds = epoch_seconds(made, prepare(made))
    assert 0 < seconds <= 8 * max(measured)  # four bags to train on, and four to validate on


def test_after_the_first_steps_of_each_run_the_time_to_go_is_written_once(capsys, monkeypatch):
    clock = iter(range(0, 10_000, 6))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    bar = terminal.TrainingBar()
    monkeypatch.setattr(bar.bar, "start", lambda: None)
    for shares in ([0.25], [0.25, 0.5, 0.75, 1.0]):  # a step of a quarter of an epoch in 6 seconds
        bar.start(done=0, epochs=1)
        for share in shares:
            bar.step(epoch=0, share=share)
    said = capsys.readouterr().err
    assert said.count("to go") == 1
    assert "to go: about 0:00:06 (h:mm:ss), 24.0 s an epoch" in said


def test_a_dry_run_says_what_training_would_say_of_the_table(tmp_path, capsys):
    features, labels = write_folder(tmp_path / "data")
    head, first, *rows = labels.read_text().splitlines()
    bag, _, rest = first.split(",", 2)
    labels.write_text("\n".join([head, f"{bag},NA,{rest}", *rows[:-1]]))
    flags = ["--features", features, "--labels", labels, "--test-fold", 0, "--model", "abmil"]
    flags += ["--epochs", 1, "--maps", "none"]
    told = []
    for more in (["--dry-run"], ["--out", tmp_path / "run", "--device", "cpu"]):
        assert main(["train", *map(str, [*flags, *more])]) == 0
        told.append(capsys.readouterr().err.splitlines())
    dry, real = told
    assert len(dry) >= 2 and set(dry) <= set(real)
    assert any("NA" in line for line in dry) and any("left out" in line for line in dry)
