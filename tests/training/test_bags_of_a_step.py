"""How bags reach a step: in the precision of their files, read ahead, and from pinned memory."""

import dataclasses

import h5py
import numpy as np
import pytest
import torch
from support.made_runs import assert_same_run, loop_of, make_config
from torch.utils.data._utils.pin_memory import pin_memory

from probsa.core import Bags
from probsa.training import Standardizer, train
from probsa.training.batching import Shard


@pytest.fixture
def config(tmp_path):
    return make_config(tmp_path / "data")


def store_features(folder, dtype):
    """Store the features of all bags as numbers that half precision has, in another type."""
    for file in folder.glob("*.h5"):
        with h5py.File(file, "r+") as f:
            values = f["features"][...].astype(np.float16)
            del f["features"]
            f["features"] = values.astype(dtype)


def test_half_precision_is_trained_as_the_same_numbers_in_single_precision(config, tmp_path):
    runs = []
    for dtype in (np.float16, np.float32):
        store_features(config.data.features, dtype)
        runs.append(train(config, tmp_path / np.dtype(dtype).name))
    assert_same_run(*runs)


def test_bags_arrive_at_a_step_in_the_precision_of_their_files(config, tmp_path, monkeypatch):
    store_features(config.data.features, np.float16)
    arrived = []
    seen_by_model = []
    forward = Standardizer.forward

    def recorded(standardizer, bags):
        arrived.append(bags.x.dtype)
        standardized = forward(standardizer, bags)
        seen_by_model.append(standardized.x.dtype)
        return standardized

    monkeypatch.setattr(Standardizer, "forward", recorded)
    train(config, tmp_path / "run")
    assert set(arrived) == {torch.float16}
    assert set(seen_by_model) == {torch.float32}


def test_a_loader_that_pins_pins_every_tensor_of_the_bags(config, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)  # needs no GPU
    loop = loop_of(config, tmp_path / "run")
    bags = loop.reader[Shard(loop.prepared.split.train[:2], 2)]
    pinned = pin_memory(bags)
    assert isinstance(pinned, Bags)
    on_the_device = {f.name for f in dataclasses.fields(Bags)} - {"host_coords"}
    tensors = [name for name in on_the_device if torch.is_tensor(getattr(bags, name))]
    assert len(tensors) >= 5
    for name in tensors:
        before = getattr(bags, name)
        after = getattr(pinned, name)
        assert torch.equal(before, after)
        assert before.data_ptr() != after.data_ptr() or before.numel() == 0
    assert pinned.segments == bags.segments
    assert pinned.segments.bag.data_ptr() != bags.segments.bag.data_ptr()
    assert pinned.names == bags.names
