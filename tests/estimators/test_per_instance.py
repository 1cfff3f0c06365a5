"""`PerInstance` against the transformer on one table of all instances."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from support.made_bags import made_bags

from probsa import Bag, PerInstance
from probsa.errors import BagError, InputError

PAIRS, _ = made_bags(5)
ARRAYS = [x for x, _ in PAIRS]


@pytest.mark.parametrize("transformer", [StandardScaler(), PCA(2, svd_solver="full")])
def test_it_transforms_all_instances_as_one_table(transformer):
    mine = PerInstance(transformer).fit(ARRAYS)
    table = np.concatenate(ARRAYS)
    expected = transformer.fit(table)
    new = mine.transform(ARRAYS)
    assert [len(x) for x in new] == [len(x) for x in ARRAYS]
    np.testing.assert_allclose(np.concatenate(new), expected.transform(table), atol=1e-5)


def test_it_keeps_coordinates_graphs_and_names():
    bags = [Bag.from_arrays(x, c, k, name=f"b{k}") for k, (x, c) in enumerate(PAIRS)]
    mine = PerInstance(StandardScaler()).fit(PAIRS)
    of_pairs = mine.transform(PAIRS)
    of_bags = mine.transform(bags)
    for (x, coords), bag, (_, given), old in zip(of_pairs, of_bags, PAIRS, bags, strict=True):
        assert coords is given
        assert (bag.name, bag.y) == (old.name, old.y)
        assert torch.equal(bag.edges, old.edges) and torch.equal(bag.weights, old.weights)
        np.testing.assert_allclose(bag.x, x, atol=1e-6)


def test_sparse_results_are_made_dense():
    rows = [np.array([["a"], ["b"]]), np.array([["b"]])]
    new = PerInstance(OneHotEncoder()).fit_transform(rows)
    assert [x.tolist() for x in new] == [[[1, 0], [0, 1]], [[0, 1]]]


def test_errors():
    with pytest.raises(NotFittedError):
        PerInstance(StandardScaler()).transform(ARRAYS)
    with pytest.raises(InputError, match="X has 0 bags"):
        PerInstance(StandardScaler()).fit([])
    with pytest.raises(BagError, match=r"bag 1 of X.*\(2, 3\)"):
        PerInstance(StandardScaler()).fit([np.zeros((2, 6)), np.zeros((2, 3))])
    inner = StandardScaler()
    assert PerInstance(inner).fit(ARRAYS).transformer_ is not inner
