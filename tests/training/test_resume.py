"""A run that is interrupted at any moment and resumed ends with exactly the same weights."""

import json
import random
import signal
import time
from dataclasses import replace

import pytest
import torch
import yaml
from support import forks
from support.stored import write_folder

from probsa.errors import CheckpointError, InputError
from probsa.training import Reporter, train
from probsa.training.checkpoints import load_checkpoint
from probsa.training.config import DataConfig, RunConfig, TrainingConfig
from probsa.training.run_folder import RunFolder


@pytest.fixture
def config(tmp_path):
    features, labels = write_folder(tmp_path / "data", bags=18)
    return RunConfig(
        data=DataConfig(features=features, labels=labels, test_fold=0),
        model="abmil-probsa-diag",
        model_arguments={"embed": 64, "dropout": 0.3, "predict_samples": 200},
        training=TrainingConfig(
            epochs=60, batch_size=2, device="cpu", tensorboard=False, threads=1
        ),
    )


def tensors(folder):
    return load_checkpoint(folder.last).tensors, load_checkpoint(folder.best).tensors


def assert_same_run(a, b):
    for one, other in zip(tensors(a), tensors(b), strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[k], other[k]) for k in one)
    history = [load_checkpoint(r.last).metadata["progress"]["history"] for r in (a, b)]
    for rows in history:
        for row in rows:
            del row["seconds"]
    assert history[0] == history[1]


def test_every_kind_of_state_goes_on(config, tmp_path):
    """RAdam's moments, and the plateau of the learning rate."""

    class Stop(Exception):
        pass

    class Breaker(Reporter):
        def step(self, *, epoch, share):
            if epoch in self.at and share > 0.4:
                raise Stop

    settings = replace(
        config.training, epochs=14, optimizer="radam",
        learning_rate=0.3, warmup_epochs=2, schedule="plateau", schedule_epochs=1,
        schedule_factor=0.5, weight_decay=0.1, decay_vectors=False, clip_norm=1.0,
    )  # fmt: skip
    config = replace(config, training=settings)
    whole = train(config, tmp_path / "whole")
    last = load_checkpoint(whole.last)
    rates = [row["learning_rate"] for row in last.metadata["progress"]["history"]]
    assert rates[-1] < max(rates)
    for at in (3, 11):
        Breaker.at = (at,)
        with pytest.raises(Stop):
            train(config, tmp_path / "broken", resume=True, reporter=Breaker())
    assert_same_run(whole, train(config, tmp_path / "broken", resume=True))


def test_an_interrupted_field_learns_its_kappa_with_the_same_bits(config, tmp_path):
    """The average of the weights includes log κ; validation and the best checkpoint use it."""

    class Stop(Exception):
        pass

    class Breaker(Reporter):
        def step(self, *, epoch, share):
            if epoch == self.at and share > 0.4:
                raise Stop

    config = replace(
        config, model="evidence-field",
        model_arguments={"embed": 12, "attention_dim": 6, "samples": 3, "predict_samples": 20},
        training=replace(config.training, epochs=4, select="ema-nll", learning_rate=1e-2),
    )  # fmt: skip
    whole = train(config, tmp_path / "whole")
    for at in (1, 3):
        Breaker.at = at
        with pytest.raises(Stop):
            train(config, tmp_path / "broken", resume=True, reporter=Breaker())
    assert_same_run(whole, train(config, tmp_path / "broken", resume=True))
    last, best = tensors(whole)
    of_model, of_average = (last[f"{k}.attention.prior.log_kappa"] for k in ("model", "average"))
    assert of_model != 0 and of_average != of_model
    rows = load_checkpoint(whole.last).metadata["progress"]["history"]
    kappas = [row["kappa"] for row in rows]
    assert len(set(kappas)) == 4 and kappas[-1] == pytest.approx(float(of_model.exp()))
    kept = float(best["model.attention.prior.log_kappa"].exp())  # an average, no epoch's own
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
from probsa.training.config import RunConfig
from probsa.training.yaml_files import load_yaml
from probsa.training.run_folder import RunFolder
from probsa.training import Reporter, train
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


def epochs_of(out):
    last = out / "checkpoints" / "last.safetensors"
    return load_checkpoint(last).metadata["progress"]["epoch"] if last.is_file() else 0


@pytest.mark.slow
def test_kills_at_moments_drawn_from_a_seed(config, tmp_path):
    """SIGKILL twice during a write, then at random moments of the measured duration."""
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config.to_dict()))
    whole, out = tmp_path / "whole", tmp_path / "killed"
    victim = Victim(tmp_path, whole)
    begun = time.monotonic()
    victim.finish()
    duration = time.monotonic() - begun
    draw = random.Random(20251120)
    moments = [{"whole_run_s": round(duration, 2)}]
    mark = tmp_path / "writing"
    for _ in range(2):
        victim = Victim(tmp_path, out, prelude=SLOW_WRITES.format(mark=str(mark), pause=5))
        inside = victim.wait_for(mark)
        time.sleep(0.05)
        victim.kill()
        moments.append({"inside_a_write": inside, "left": len(list(out.rglob("*.tmp")))})
        mark.unlink(missing_ok=True)
    for _ in range(3):
        moment = draw.uniform(0.05, 0.35) * duration
        victim = Victim(tmp_path, out)
        time.sleep(moment)
        victim.kill()
        moments.append({"after_s": round(moment, 2), "epochs": epochs_of(out)})
    (tmp_path / "moments.json").write_text(json.dumps(moments))
    assert any(m.get("inside_a_write") and m["left"] for m in moments), moments
    assert any(0 < m.get("epochs", 0) < config.training.epochs for m in moments), moments
    Victim(tmp_path, out).finish()
    assert_same_run(RunFolder(whole), RunFolder(out))
    assert not list(out.rglob("*.tmp"))


def test_a_resumed_run_keeps_its_run_file(config, tmp_path):
    config = replace(config, training=replace(config.training, epochs=2))
    train(config, tmp_path / "a")
    other = replace(config, training=replace(config.training, learning_rate=1.0))
    with pytest.raises(InputError, match=r"learning_rate = 0\.0001, not 1\.0"):
        train(other, tmp_path / "a", resume=True)


def test_a_damaged_checkpoint_is_named(config, tmp_path):
    config = replace(config, training=replace(config.training, epochs=1))
    run = train(config, tmp_path / "a")
    run.last.write_bytes(run.last.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"last\.safetensors is damaged"):
        train(config, tmp_path / "a", resume=True)
