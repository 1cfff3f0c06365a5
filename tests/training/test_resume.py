"""A run that is interrupted at any moment and resumed ends with exactly the same weights."""

import shutil
from contextlib import contextmanager
from dataclasses import replace

import pytest
from support.leftovers import temporary_of
from support.made_runs import (
    Breaker,
    Stopped,
    assert_same_run,
    history_of,
    make_config,
    make_survival,
    with_training,
)

from probsa.errors import CheckpointError, InputError
from probsa.training import checkpoints, load_checkpoint, read_split, train

ALL_STATE = {
    "optimizer": "radam",
    "epochs": 14,
    "learning_rate": 2.0,
    "warmup_epochs": 2,
    "schedule": "plateau",
    "schedule_epochs": 1,
    "schedule_factor": 0.5,
    "weight_decay": 0.1,
    "decay_vectors": False,
    "clip_norm": 1.0,
}
IIBMIL = {
    "embed": 8,
    "heads": 2,
    "hidden": 16,
    "layers": 1,
    "decoder_layers": 1,
    "dropout": 0.2,
    "warmup_epochs": 1,
}


@pytest.mark.parametrize(
    ("model", "training"),
    [
        ("abmil-probsa-diag", ALL_STATE),
        ("abmil-probsa-diag", {"select": "last", "precision": "bf16"}),
        ("abmil", {"select": "ema-nll", "schedule": "cosine", "sampling": "balanced"}),
        ("evidence-field", {"select": "ema-nll", "members": 2}),
        ("abmil-probsa-diag", {"members": 2, "patience": 1, "epochs": 9}),
        ("iibmil", {}),
        ("mean-pool", {}),
    ],
    ids=str,
)
def test_an_interrupted_run_ends_with_the_same_bits(tmp_path, model, training):
    """It is broken off twice, inside an epoch, and left alone once it is complete."""
    settings = {"epochs": 4, "batch_size": 3, "members": 1, **training}
    config = make_config(tmp_path / "data", bags=18, model=model, **settings)
    more = {"abmil-probsa-diag": {"dropout": 0.3}, "iibmil": IIBMIL}.get(model, {})
    config = replace(config, model_arguments={**config.model_arguments, **more})
    whole = train(config, tmp_path / "whole")
    if model != "mean-pool":  # which has no steps
        for steps in (3, 4):
            with pytest.raises(Stopped):
                train(config, tmp_path / "broken", resume=True, reporter=Breaker(steps))
    broken = train(config, tmp_path / "broken", resume=True)
    assert_same_run(whole, broken)
    if settings["members"] > 1:  # each member equals its run alone
        member = whole.members()[1]
        assert_same_run(member, train(member.config(), tmp_path / "alone"))
    before = {p: p.stat().st_mtime_ns for p in broken.path.rglob("*.safetensors")}
    train(config, broken.path, resume=True)
    assert {p: p.stat().st_mtime_ns for p in broken.path.rglob("*.safetensors")} == before
    if training is ALL_STATE:
        rates = [row["learning_rate"] for row in history_of(whole)]
        assert rates[-1] < max(rates)
    if model == "iibmil":  # the labels of training instances, which changed in several epochs
        bank = load_checkpoint(whole.last).part("memory")
        assert set(bank) == set(read_split(whole).train)
        values = {round(v, 4) for labels in bank.values() for v in labels.flatten().tolist()}
        assert len(values) > 3


def test_a_process_that_dies_at_any_write_loses_nothing(tmp_path, monkeypatch):
    """It leaves a complete temporary file."""
    config = with_training(make_survival(tmp_path / "data"), epochs=2)
    replacing = checkpoints.replacing
    files = []
    last_write = None

    @contextmanager
    def interrupted(path):
        with replacing(path) as temporary:
            yield temporary
            files.append(path)
            if len(files) == last_write:
                shutil.copyfile(temporary, temporary_of(path))
                raise Stopped

    monkeypatch.setattr(checkpoints, "replacing", interrupted)
    whole = train(config, tmp_path / "whole")
    for last_write in range(1, len(files) + 1):
        files.clear()
        with pytest.raises(Stopped):
            train(config, tmp_path / f"{last_write}")
        assert_same_run(whole, train(config, tmp_path / f"{last_write}", resume=True))
        assert not list((tmp_path / f"{last_write}").rglob("*.tmp"))


def test_an_interrupted_field_keeps_the_average_of_its_kappa(tmp_path):
    config = make_config(tmp_path / "data", bags=18, model="evidence-field", select="ema-nll")
    run = train(with_training(config, epochs=4), tmp_path / "run")
    key = "attention.prior.log_kappa"
    last = load_checkpoint(run.last)
    log_kappa = last.part("model")[key]
    assert log_kappa != 0 and last.part("average")[key] != log_kappa
    kappas = [row["kappa"] for row in history_of(run)]
    assert len(set(kappas)) == 4 and kappas[-1] == pytest.approx(float(log_kappa.exp()))
    best_kappa = float(load_checkpoint(run.best).part("model")[key].exp())
    # an average, no epoch's own
    assert all(abs(best_kappa - kappa) > 1e-6 for kappa in kappas)


def test_what_cannot_be_resumed_is_named(tmp_path):
    config = make_config(tmp_path / "data", epochs=1)
    run = train(config, tmp_path / "a")
    with pytest.raises(InputError, match="learning_rate"):
        train(with_training(config, learning_rate=1.0), run.path, resume=True)
    run.last.write_bytes(run.last.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=str(run.last)):
        train(config, run.path, resume=True)
