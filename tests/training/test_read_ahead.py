"""Reading ahead: the same batches in the same order, and no thread that outlives its loop."""

import threading
import traceback
from contextlib import contextmanager

import h5py
import pytest
import torch
from support import forks
from support.made_runs import (
    Breaker,
    Stopped,
    assert_same_run,
    loop_of,
    make_config,
    with_data,
    with_training,
)

from probsa.core import Bags
from probsa.errors import BagError
from probsa.training import Reporter, batching, prepare, train
from probsa.training.batching import BagReader
from probsa.training.read_ahead import read_ahead

CPU = torch.device("cpu")
PATIENCE = 20
"""Seconds after which something that should happen at once has failed."""


@pytest.fixture
def config(tmp_path):
    return make_config(tmp_path / "data")


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert not reading_threads()


def reading_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("read-ahead")]


def test_the_next_value_is_made_while_one_is_used_and_no_more():
    made = [threading.Event() for _ in range(5)]

    def source():
        for k, event in enumerate(made):
            event.set()
            yield k

    used = []
    with read_ahead(source(), device=CPU) as values:
        for k in values:
            used.append(k)
            if k + 1 < len(made):
                assert made[k + 1].wait(PATIENCE)
            assert not any(event.is_set() for event in made[k + 2 :])
    assert used == [0, 1, 2, 3, 4]


def test_what_the_thread_raises_is_raised_in_its_place():
    def fails_at_two():
        yield 0
        yield 1
        raise BagError("bag 'two' is damaged")

    used = []
    reading = read_ahead(fails_at_two(), device=CPU)
    with pytest.raises(BagError, match="'two'") as raised, reading as values:
        for k in values:
            used.append(k)
    assert used == [0, 1]
    frames = traceback.extract_tb(raised.value.__traceback__)
    assert "fails_at_two" in [frame.name for frame in frames]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_loop_that_is_left_early_leaves_no_thread(error):
    with pytest.raises(error), read_ahead(range(100), device=CPU) as values:
        for k in values:
            assert reading_threads()
            if k == 1:
                raise error
    assert not reading_threads()


def test_reading_ahead_gives_the_run_that_reading_in_turn_gives(config, tmp_path, monkeypatch):
    config = with_training(config, select="nll")
    ahead = train(config, tmp_path / "ahead")

    @contextmanager
    def in_turn(values, *, device):
        yield iter(values)

    monkeypatch.setattr(batching, "read_ahead", in_turn)
    assert_same_run(ahead, train(config, tmp_path / "in_turn"))


@pytest.mark.parametrize("cache_gb", [0.0, 4.0])
def test_the_batches_of_training_and_of_validation_are_read_on_the_thread(
    config, tmp_path, monkeypatch, cache_gb
):
    readers = set()
    read = BagReader.__getitem__

    def recorded(reader, part):
        readers.update((name, threading.current_thread().name) for name in part.names)
        return read(reader, part)

    monkeypatch.setattr(BagReader, "__getitem__", recorded)
    loop = loop_of(with_data(config, cache_gb=cache_gb), tmp_path / "run")
    loop.train_epoch()
    loop.validate()
    split = loop.prepared.split
    assert {name for name, _ in readers} == {*split.train, *split.val}
    assert all(thread.startswith("read-ahead") for _, thread in readers)
    assert loop.loader.waited > 0


@pytest.mark.parametrize("part", ["train", "val"])
def test_a_bag_that_breaks_during_training_is_named(config, tmp_path, part):
    config = with_data(config, cache_gb=0.0)
    prepared = prepare(config)
    name = getattr(prepared.split, part)[-1]
    with h5py.File(config.data.features / f"{name}.h5", "r+") as f:
        f["features"][0, 0] = float("nan")
    with pytest.raises(BagError, match=repr(name)):
        train(config, tmp_path / "run", prepared=prepared)
    assert not reading_threads()


class Interrupted(Reporter):
    def step(self, *, epoch, share):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("reporter", "error"), [(Breaker(2), Stopped), (Interrupted(), KeyboardInterrupt)]
)
def test_training_that_is_interrupted_leaves_no_thread(config, tmp_path, reporter, error):
    with pytest.raises(error):
        train(config, tmp_path / "run", reporter=reporter)
    assert not reading_threads()


def test_the_loader_draws_nothing_from_the_generator_of_torch(config, tmp_path):
    loop = loop_of(config, tmp_path / "run")
    shards = [batching.Shard(names, len(names)) for names in loop.plans[0]]
    before = torch.get_rng_state()
    with loop.loader.epoch(shards) as batches:
        for part, bags in batches:
            assert isinstance(bags, Bags)
            assert bags.names == part.names
    assert torch.equal(torch.get_rng_state(), before)


# A run that sends itself a signal while its thread reads the first bag of a batch.
INTERRUPTED = """
import os, signal, sys, threading, time
from probsa.datasets.bag_set import BagSet
read = BagSet.bag

def slow(bags, name):
    if threading.current_thread() is not threading.main_thread():
        print("reading", name, flush=True)
        os.kill(os.getpid(), signal.{number})
        time.sleep(1)
    return read(bags, name)

BagSet.bag = slow
from probsa.cli import main
sys.exit(main({arguments!r}))
"""


@pytest.mark.parametrize(("number", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_ends_a_command_before_its_thread_reads_another_bag(
    config, tmp_path, number, status
):
    data = config.data
    arguments = ["train", "--features", data.features, "--labels", data.labels, "--test-fold", 0]
    arguments += ["--model", "abmil", "--device", "cpu", "--out", tmp_path / "run"]
    program = INTERRUPTED.format(number=number, arguments=[str(a) for a in arguments])
    done = forks.run(program)
    assert done.returncode == status, done.errors()
    assert done.output().count("reading") == 1
