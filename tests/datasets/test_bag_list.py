"""Bags in memory behave as a folder of bags."""

import pytest
import torch
from support.stored import write_folder

from probsa import Bag
from probsa.datasets import BagList, open_bags
from probsa.errors import BagError, InputError


def test_it_is_like_the_folder(tmp_path):
    features, _ = write_folder(tmp_path, bags=3)
    folder = open_bags(features)
    memory = BagList([folder.bag(name) for name in folder.names])
    assert memory.names == folder.names and memory.in_dim == folder.in_dim
    for name in memory.names:
        assert memory.size(name) == folder.size(name)
        assert torch.equal(memory.bag(name).x, folder.bag(name).x)
        assert torch.equal(memory.bag(name).weights, folder.bag(name).weights)
        assert memory.metadata(name).kind == folder.metadata(name).kind == "ct"
        mine, theirs = memory.stored(name), folder.stored(name)
        assert (mine.features == theirs.features).all() and (mine.coords == theirs.coords).all()
        assert (mine.instance_labels == theirs.instance_labels).all()
    sealed = memory.sealed(["000"], why="it is tested")
    with pytest.raises(InputError, match="it is tested"):
        sealed.bag("000")


def test_what_it_refuses():
    one, wide = (Bag.from_arrays(torch.ones(2, d), name=n) for n, d in (("a", 3), ("b", 4)))
    with pytest.raises(InputError, match="no bags"):
        BagList([])
    with pytest.raises(BagError, match="two bags are named 'a'"):
        BagList([one, one])
    with pytest.raises(BagError, match=r"'b' .* has 4 features per instance, 'a' has 3"):
        BagList([one, wide]).bag("b")
    with pytest.raises(BagError, match="no bag named 'c'"):
        BagList([one]).bag("c")
