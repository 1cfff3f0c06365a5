"""A run that is interrupted at any moment and resumed ends with exactly the same weights."""

import random
import signal
import time
from dataclasses import replace

import pytest
import yaml
from support import forks
from support.made_runs import (
    Breaker,
    Stopped,
    assert_same_run,
    history_of,
    make_config,
    make_cox,
    with_training,
)

from probsa.errors import CheckpointError, InputError
from probsa.training import RunFolder, load_checkpoint, train

ALL_STATE = {
    "optimizer": "radam", "epochs": 14, "learning_rate": 2.0, "warmup_epochs": 2,
    "schedule": "plateau", "schedule_epochs": 1, "schedule_factor": 0.5, "weight_decay": 0.1,
    "decay_vectors": False, "clip_norm": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "training"),
    [
        ("abmil-probsa-diag", ALL_STATE),
        ("abmil-probsa-diag", {"select": "nll"}),
        ("abmil-probsa-diag", {"select": "last", "precision": "bf16"}),
        ("abmil", {"select": "ema-nll", "schedule": "cosine"}),
        ("abmil", {"sampling": "balanced", "workers": 1}),
        ("evidence-field", {"select": "ema-nll", "members": 2}),
        ("dsmil", {"select": "nll", "members": 2}),
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
    if model == "abmil-probsa-diag":
        config = replace(config, model_arguments={**config.model_arguments, "dropout": 0.3})
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


def test_an_interrupted_cox_model_deals_the_same_batches(tmp_path):
    config = make_cox(tmp_path / "data")
    whole = train(config, tmp_path / "whole")
    with pytest.raises(Stopped):
        train(config, tmp_path / "broken", reporter=Breaker(3))
    assert_same_run(whole, train(config, tmp_path / "broken", resume=True))


def test_an_interrupted_field_keeps_the_average_of_its_kappa(tmp_path):
    config = make_config(tmp_path / "data", bags=18, model="evidence-field", select="ema-nll")
    run = train(with_training(config, epochs=4), tmp_path / "run")
    key = "attention.prior.log_kappa"
    last, best = load_checkpoint(run.last), load_checkpoint(run.best)
    own, average = (last.part(part)[key] for part in ("model", "average"))
    assert own != 0 and average != own
    kappas = [row["kappa"] for row in history_of(run)]
    assert len(set(kappas)) == 4 and kappas[-1] == pytest.approx(float(own.exp()))
    kept = float(best.part("model")[key].exp())  # an average, no epoch's own
    assert all(abs(kept - kappa) > 1e-6 for kappa in kappas)


SLOW_WRITES = """
import time, pathlib, contextlib
from probsa.training import checkpoints
import probsa.core.files as f
real = f.replacing
@contextlib.contextmanager
def slow(path):
    with real(path) as temporary:
        yield temporary
        pathlib.Path({mark!r}).touch()      # the temporary file is complete ...
        time.sleep({pause})                 # ... but not renamed yet
        pathlib.Path({mark!r}).unlink(missing_ok=True)
checkpoints.replacing = slow
"""

RUN = """
import pathlib
from probsa.training import Reporter, RunConfig, load_yaml, train
class Starter(Reporter):
    def start(self, *, done, epochs):
        pathlib.Path({started!r}).touch()
config = RunConfig.from_dict(load_yaml(pathlib.Path({config!r})))
train(config, pathlib.Path({out!r}), resume=True, reporter=Starter())
"""


class Victim:
    """A training process to kill; the constructor returns when its first epoch starts."""

    def __init__(self, folder, out, *, prelude=""):
        self.started = folder / "started"
        self.started.unlink(missing_ok=True)
        code = prelude + RUN.format(
            config=str(folder / "run.yaml"), out=str(out), started=str(self.started)
        )
        self.process = forks.begin(code)
        self.wait_for(self.started)

    def wait_for(self, file):
        begun = time.monotonic()
        while not file.exists() and self.process.poll() is None and time.monotonic() - begun < 90:
            time.sleep(0.002)
        return file.exists()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def finish(self):
        assert self.process.wait(180) == 0, self.process.errors()


@pytest.mark.slow
def test_kills_at_moments_drawn_from_a_seed(tmp_path):
    """SIGKILL twice during a write, then at random moments of the measured duration."""
    arguments = {"embed": 64, "dropout": 0.3, "predict_samples": 200}
    config = make_config(tmp_path / "data", bags=18, model_arguments=arguments, epochs=60)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config.to_dict()))
    whole, out = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "killed")
    victim = Victim(tmp_path, whole.path)
    begun = time.monotonic()
    victim.finish()
    duration = time.monotonic() - begun
    draw, mark, left, epochs = random.Random(20251120), tmp_path / "writing", [], []
    for _ in range(2):
        prelude = SLOW_WRITES.format(mark=str(mark), pause=5)
        victim = Victim(tmp_path, out.path, prelude=prelude)
        inside = victim.wait_for(mark)
        time.sleep(0.05)
        victim.kill()
        left.append(inside and len(list(out.path.rglob("*.tmp"))))
        mark.unlink(missing_ok=True)
    for _ in range(3):
        victim = Victim(tmp_path, out.path)
        time.sleep(draw.uniform(0.05, 0.35) * duration)
        victim.kill()
        epochs.append(len(history_of(out)) if out.last.is_file() else 0)
    assert any(left) and any(0 < n < config.training.epochs for n in epochs), (left, epochs)
    Victim(tmp_path, out.path).finish()
    assert_same_run(whole, out)
    assert not list(out.path.rglob("*.tmp"))


def test_what_cannot_be_resumed_is_named(tmp_path):
    config = make_config(tmp_path / "data", epochs=1)
    run = train(config, tmp_path / "a")
    with pytest.raises(InputError, match=r"learning_rate = 0\.01, not 1\.0"):
        train(with_training(config, learning_rate=1.0), run.path, resume=True)
    run.last.write_bytes(run.last.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"last\.safetensors is damaged"):
        train(config, run.path, resume=True)
