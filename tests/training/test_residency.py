"""Features that stay on a device: which, and that steps get the same values."""

from dataclasses import replace

import pytest
import torch
from support.made_runs import assert_same_run, loop_of, make_config, with_training
from support.random_bags import random_bag

from probsa.core import pack, select_instances
from probsa.datasets import BagList, BagSet
from probsa.errors import BagError
from probsa.training import prepare, residency, train
from probsa.training.device_memory import MemoryState
from probsa.training.residency import ResidentFeatures, resident_features, resident_names

CPU = torch.device("cpu")


@pytest.fixture
def config(tmp_path):
    return make_config(tmp_path / "data")


def give_memory(monkeypatch, free):
    """Let every device have some free memory, as a GPU does."""
    state = MemoryState(allocated=1000, peak=2000, capacity=1000 + free)
    monkeypatch.setattr(residency, "memory_state", lambda device: state)


@pytest.mark.parametrize(
    ("free", "names"),
    [
        (0, ""),
        (19, ""),
        (20, "a"),
        (60, "ac"),  # b does not fit into half of it, c does
        (100, "ab"),
        (120, "abc"),
        (10**9, "abcd"),
    ],
)
def test_bags_stay_in_order_while_they_fit_into_half_of_what_is_free(free, names):
    sizes = {"a": 10, "b": 40, "c": 10, "d": 50}
    assert resident_names(sizes, free=free) == frozenset(names)


def test_only_a_cuda_device_keeps_features(config):
    prepared = prepare(config)
    assert resident_features(prepared.bags, prepared.split.train, device=CPU) is None


def test_sizes_are_those_that_the_files_state(config, monkeypatch):
    prepared = prepare(config)
    train_names = prepared.split.train
    sizes = [prepared.bags.size(name) * 6 * 4 for name in train_names]
    give_memory(monkeypatch, 2 * sum(sizes))
    resident = resident_features(prepared.bags, train_names, device=CPU)
    assert resident.names == set(train_names)
    assert resident.nbytes == sum(sizes)
    give_memory(monkeypatch, 2 * sum(sizes) - 1)
    resident = resident_features(prepared.bags, train_names, device=CPU)
    assert resident.names == set(train_names[:-1])
    give_memory(monkeypatch, 0)
    assert resident_features(prepared.bags, train_names, device=CPU) is None


@pytest.mark.parametrize("model", ["abmil-probsa-field", "abmil"])
@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("sampling", ["shuffled", "balanced"])
def test_a_run_whose_features_stay_is_the_run_that_reads_them(
    tmp_path, monkeypatch, model, share, sampling
):
    config = make_config(tmp_path / "data", model=model, sampling=sampling, batch_size=3)
    expected = train(config, tmp_path / "read")
    prepared = prepare(config)
    names = (*prepared.split.train, *prepared.split.val)
    total = sum(prepared.bags.size(name) for name in names) * 6 * 4
    give_memory(monkeypatch, int(2 * share * total))
    reads = []
    read = BagSet.bag

    def recorded(bags, name):
        reads.append(name)
        return read(bags, name)

    monkeypatch.setattr(BagSet, "bag", recorded)
    loop = loop_of(config, tmp_path / "loop")
    reads.clear()
    loop._keep_features()
    resident = loop.loader.reader.resident
    assert (len(resident.names) == len(names)) == (share == 1)
    for _ in range(2):
        loop.train_epoch()
        loop.validate()
    read_by_loop = [name for name in reads[1:] if name in resident.names]
    assert len(read_by_loop) == len(set(read_by_loop))
    assert set(resident.features) == set(read_by_loop)
    assert not resident.waiting
    assert_same_run(expected, train(config, tmp_path / "kept"))


def test_windows_of_features_that_stay_are_those_of_bags_that_are_read(
    config, tmp_path, monkeypatch
):
    config = with_training(config, window=3)
    expected = train(config, tmp_path / "read")
    give_memory(monkeypatch, 10**9)
    assert_same_run(expected, train(config, tmp_path / "kept"))


def test_processes_that_read_do_not_use_what_a_device_has(config, tmp_path, monkeypatch):
    give_memory(monkeypatch, 10**9)
    loop = loop_of(with_training(config, workers=1), tmp_path / "run")
    loop._keep_features()
    assert loop.loader.complete is None


def bag_set():
    bags = [
        replace(random_bag(n, seed=n, features=3, dtype=torch.float32), name=name)
        for name, n in (("a", 5), ("b", 7), ("c", 4))
    ]
    return BagList(bags)


def test_parts_of_bags_get_their_own_rows():
    bags = bag_set()
    resident = ResidentFeatures({"a", "b"}, device=CPU, nbytes=0)
    rows = {"a": torch.tensor([1, 4]), "b": torch.arange(7), "c": torch.tensor([0, 2])}
    for _ in range(2):  # the second time, the features of a and b are on the device
        parts = [select_instances(resident.bag(name, bags), rows[name]) for name in "abc"]
        packed = resident.on_device(resident.pack(parts))
        expected = pack([select_instances(bags.bag(name), rows[name]) for name in "abc"])
        assert torch.equal(packed.x, expected.x)
        assert torch.equal(packed.edges, expected.edges)
        assert packed.sizes == expected.sizes
    assert set(resident.features) == {"a", "b"}
    assert torch.equal(resident.features["a"], bags.bag("a").x)


def test_a_batch_that_was_read_and_not_used_loses_nothing():
    bags = bag_set()
    resident = ResidentFeatures({"a"}, device=CPU, nbytes=0)
    resident.pack([resident.bag("a", bags)])
    batches = [resident.pack([resident.bag("a", bags)]) for _ in range(2)]
    for batch in batches:  # both were read before either was used
        assert torch.equal(resident.on_device(batch).x, bags.bag("a").x)
    assert not resident.waiting


def test_a_batch_is_pinned_with_all_of_its_features(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)  # needs no GPU
    bags = bag_set()
    resident = ResidentFeatures({"a"}, device=CPU, nbytes=0)
    batch = resident.pack([resident.bag(name, bags) for name in "ac"])
    pinned = batch.pin_memory()
    assert torch.equal(resident.on_device(pinned).x, pack([bags.bag("a"), bags.bag("c")]).x)
    assert pinned.features[0] is None
    assert pinned.features[1].data_ptr() != batch.features[1].data_ptr()
    assert pinned.uploads["a"].data_ptr() != batch.uploads["a"].data_ptr()


@pytest.mark.parametrize("resident_bags", [{"b"}, set()])
def test_features_that_are_not_finite_are_refused(resident_bags):
    good = bag_set().bag("b")
    x = good.x.clone()
    x[2, 1] = float("nan")
    bags = BagList([replace(good, x=x)])
    resident = ResidentFeatures(resident_bags, device=CPU, nbytes=0)
    with pytest.raises(BagError, match=r"'b'.*row 2"):
        resident.pack([resident.bag("b", bags)])
