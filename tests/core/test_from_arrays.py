"""`Bag.from_arrays` against the same bag in a file."""

import numpy as np
import pytest
import torch
from support.made_bags import made_bags
from support.refusals import refused

from probsa import Bag
from probsa.core import GraphOptions, as_graph_options, write_bag
from probsa.datasets import open_bags
from probsa.errors import BagError, EmptyBag, GraphError, InputError, UnknownName

(X, COORDS), *_ = made_bags(1, size=9)[0]
OPTIONS = [
    {},
    {"weight_scale": "degree"},
    {"kind": "knn", "neighbours": 2, "edge_weights": "rbf"},
    {"kind": "none"},
    {"kind": "chain", "weight_scale": "median"},
    {"stride": 64.0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", ["slide", "ct"])
def test_it_has_the_graph_of_the_stored_bag(options, kind, tmp_path):
    coords = COORDS if kind == "slide" else np.arange(9.0)[:, None]
    if kind == "ct" and "stride" in options:
        pytest.skip("slices have no stride")
    write_bag(tmp_path / "a.h5", features=X, coords=coords, kind=kind)
    stored = open_bags(tmp_path, graph=GraphOptions(**options)).bag("a")
    bag = Bag.from_arrays(X, coords, 1, name="a", graph=options)
    for field in ("x", "edges", "weights", "coords"):
        assert torch.equal(getattr(bag, field), getattr(stored, field)), field
        assert getattr(bag, field).dtype == getattr(stored, field).dtype, field
    assert (bag.name, bag.y, bag.stride) == ("a", 1, stored.stride)


def test_defaults_are_the_eight_neighbours_with_inverse_distances():
    bag = Bag.from_arrays(X, COORDS)
    assert bag.edges.shape == (2, 20)  # a 3 x 3 lattice: 12 sides and 8 diagonals
    i, j = bag.edges
    expected = 1 / np.linalg.norm(X[i].astype(np.float64) - X[j], axis=1)
    np.testing.assert_allclose(bag.weights, expected, rtol=1e-5)


def test_what_arrays_may_be():
    bag = Bag.from_arrays(X, COORDS, instance_labels=[0] * 8 + [1])
    assert bag.instance_labels.tolist() == [0] * 8 + [1]
    for x, coords in (
        (torch.from_numpy(X).requires_grad_(), torch.from_numpy(COORDS)),
        (X.tolist(), COORDS.tolist()),
        (X.astype(np.float64), COORDS.astype(np.float32)),
    ):
        same = Bag.from_arrays(x, coords)
        assert torch.equal(same.x, bag.x) and torch.equal(same.edges, bag.edges)
    assert Bag.from_arrays(X.astype(np.float16)).x.dtype == torch.float16
    assert Bag.from_arrays(torch.ones(2, 3, dtype=torch.bfloat16)).x.dtype == torch.float32
    assert Bag.from_arrays(X).edges.shape == (2, 0)  # no coordinates, no neighbours
    slices = Bag.from_arrays(X, np.arange(9))  # positions may be flat
    assert slices.coords.shape == (9, 1) and slices.edges.shape == (2, 8)
    read_only = X.copy()
    read_only.flags.writeable = False
    assert torch.equal(Bag.from_arrays(read_only).x, bag.x)
    assert Bag.from_arrays(X, COORDS, graph="knn").edges.shape[1] == 36  # all pairs of 9
    assert Bag.from_arrays(X, COORDS, graph=GraphOptions(kind="none")).edges.shape == (2, 0)
    refused(InputError, "graph is 3; expected a kind", as_graph_options, 3)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"features": np.zeros((0, 3))}, EmptyBag, "'s1' is empty"),
        ({"features": np.zeros(3)}, BagError, r"'s1': features have the shape \(3,\)"),
        ({"features": [["a"]]}, BagError, "'s1': features are of type"),
        ({"features": np.full((2, 3), np.nan)}, BagError, "'s1': features of row 0"),
        ({"coords": COORDS[:4]}, BagError, "'s1': features have 9 rows, coords 4"),
        ({"coords": [["a"]] * 9}, BagError, "'s1': coords are of type"),
        ({"instance_labels": [0.5] * 9}, BagError, "'s1': the instance labels"),
        ({"coords": COORDS, "stride": 500}, GraphError, "s1"),
        ({"graph": "grid"}, GraphError, "'s1' has no coordinates"),
        ({"graph": {"neighbors": 3}}, UnknownName, "Did you mean 'neighbours'"),
        ({"graph": "lattice"}, InputError, "lattice"),
        ({"graph": {"neighbours": 0}}, InputError, "neighbours is 0"),
    ],
)
def test_errors_name_the_bag_or_the_option(arguments, error, message):
    arguments = {"features": X, "name": "s1", **arguments}
    refused(error, message, Bag.from_arrays, **arguments)
