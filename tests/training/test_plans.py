"""The plan of elimination is made once for each bag of a set, ahead of the step."""

import pickle
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from support.made_runs import history_of, make_config

from probsa import Bag
from probsa.core import Elimination, GraphPlan, elimination
from probsa.datasets import open_bags
from probsa.training import train
from probsa.training.batching import BagReader, Shard


def slide(name: str, n: int = 400, *, seed: int = 0) -> Bag:
    row = np.arange(n)
    coords = 512 * np.stack([row % 20, row // 20], 1)
    x = np.random.default_rng(seed).normal(size=(n, 4)).astype(np.float32)
    return Bag.from_arrays(x, coords, label=0, name=name)


def stored_set(tmp_path, **options):
    for k in range(2):
        bag = slide(f"s{k}", seed=k)
        with h5py.File(tmp_path / f"s{k}.h5", "w") as file:
            file["features"] = bag.x.numpy()
            file["coords"] = bag.coords.numpy()
    return open_bags(tmp_path, **options)


@pytest.fixture
def dissections(monkeypatch):
    """The numbers of instances of all bags that are dissected."""
    sizes: list[int] = []
    original = elimination.dissect

    def counted(edges, n, **options):
        sizes.append(n)
        return original(edges, n, **options)

    monkeypatch.setattr(elimination, "dissect", counted)
    return sizes


@pytest.mark.parametrize("cache_gb", [0.001, 1.0])
def test_a_reader_for_a_field_dissects_each_bag_once(tmp_path, dissections, cache_gb):
    """Also where the features do not fit into the cache and are read again."""
    bags = stored_set(tmp_path, cache_gb=cache_gb)
    reader = BagReader(bags, {"s0": 0, "s1": 1}, model="evidence-field")
    for _ in range(3):
        packed = reader[Shard(("s0", "s1"), 2)]
        packed.elimination.trees(torch.device("cpu"))
    assert dissections == [400, 400]


def test_a_reader_for_another_model_dissects_none(tmp_path, dissections):
    reader = BagReader(stored_set(tmp_path, cache_gb=1.0), {"s0": 0}, model="abmil")
    assert len(reader[Shard(("s0",), 1)].x) == 400
    assert dissections == []


def test_without_a_cache_nothing_is_kept(tmp_path, dissections):
    reader = BagReader(stored_set(tmp_path, cache_gb=0.0), {"s0": 0}, model="evidence-field")
    for _ in range(2):
        reader[Shard(("s0",), 1)]
    assert dissections == [400, 400]


def test_a_plan_is_not_used_for_other_edges():
    bag = slide("a")
    assert bag.plan is not None
    fewer = replace(bag, edges=bag.edges[:, 1:], weights=bag.weights[1:])
    assert bag.plan.is_of(bag.edges.clone())
    assert not bag.plan.is_of(fewer.edges)
    assert not bag.plan.is_of(bag.edges.flip(0))


def test_a_process_gets_the_levels_that_are_made():
    bag = slide("a")
    made = Elimination([bag.plan], ["a"])
    made.make()
    copy = pickle.loads(pickle.dumps(made))
    for mine, theirs in zip(
        made.trees(torch.device("cpu")), copy.trees(torch.device("cpu")), strict=True
    ):
        for level, other in zip(mine.levels, theirs.levels, strict=True):
            assert torch.equal(level.pivots, other.pivots)
            assert torch.equal(level.places, other.places)


def test_bags_of_equal_depth_share_their_levels():
    plans = [slide(str(n), n).plan for n in (300, 310, 320, 900)]
    trees = Elimination(plans, ["a", "b", "c", "d"]).trees(torch.device("cpu"))
    assert sorted(list(tree.bags) for tree in trees) == [[0, 1, 2], [3]]


def test_a_graph_plan_says_how_large_it_is():
    plan = slide("a").plan
    assert isinstance(plan, GraphPlan) and plan.nbytes == 0
    plan.levels(name="a")
    assert plan.nbytes > 8 * 3 * plan.edges.shape[1]


def test_a_run_with_workers_is_the_run_without(tmp_path):
    config = make_config(tmp_path / "data", model="evidence-field")
    alone = train(config, tmp_path / "alone")
    settings = replace(config.training, workers=1)
    helped = train(replace(config, training=settings), tmp_path / "helped")
    for one, other in zip(history_of(alone), history_of(helped), strict=True):
        assert one["loss"] == other["loss"]
        assert one["val_nll"] == other["val_nll"]
