"""Packing keeps all data of each bag, and rejects inconsistent bags."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.random_bags import F64, random_bag, types_not_executed
from support.refusals import refused

from probsa import Bag, Bags, pack
from probsa.core import select_instances
from probsa.errors import BagError
from probsa.variational import Dirichlet

BAGS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 999)), min_size=1, max_size=6)


def bag(**changes) -> Bag:
    """Make a chain of four instances; every field can be overridden."""
    given_ = {
        "name": "a",
        "x": torch.arange(12.0).reshape(4, 3),
        "edges": torch.tensor([[0, 1, 2], [1, 2, 3]]),
        "weights": torch.tensor([1.0, 2.0, 3.0]),
    }
    return Bag(**{**given_, **changes})


def unpack(bags: Bags) -> list[Bag]:
    """Recover the bags by their offsets."""
    out = []
    for b, (start, stop) in enumerate(zip(bags.offsets, bags.offsets[1:], strict=False)):
        in_bag = (bags.edges[0] >= start) & (bags.edges[0] < stop)
        out.append(
            Bag(
                name=bags.names[b],
                x=bags.x[start:stop],
                edges=bags.edges[:, in_bag] - start,
                weights=bags.weights[in_bag],
                y=None if bags.y is None else int(bags.y[b]),
            )
        )
    return out


@settings(deadline=None, derandomize=True, max_examples=40)
@given(shapes=BAGS)
def test_unpacking_gives_the_bags_back(shapes):
    given_ = [random_bag(n, seed=s, name=f"{k}", y=k % 2) for k, (n, s) in enumerate(shapes)]
    for before, after in zip(given_, unpack(pack(given_)), strict=True):
        assert (before.name, before.y) == (after.name, after.y)
        for field in ("x", "edges", "weights"):
            assert torch.equal(getattr(before, field), getattr(after, field))


@settings(deadline=None, derandomize=True, max_examples=40)
@given(shapes=BAGS, laplacian=st.sampled_from(["combinatorial", "normalized"]))
def test_the_energy_of_a_batch_is_the_list_of_energies(shapes, laplacian):
    given_ = [random_bag(n, seed=s) for n, s in shapes]
    prior = Dirichlet(kappa=1.5, ridge=0.1, laplacian=laplacian)
    bags = pack(given_)
    f = bags.x[:, 0]
    alone = [prior.energy(b.x[:, 0], pack([b])) for b in given_]
    torch.testing.assert_close(prior.energy(f, bags), torch.cat(alone), rtol=1e-13, atol=1e-14)


def test_rows_are_shifted_to_the_place_of_their_bag():
    arcs = torch.tensor([[0, 3, 1], [2, 0, 1]])
    bags = pack([bag(arcs=arcs), bag(name="b", arcs=arcs)])
    assert bags.offsets.tolist() == [0, 4, 8]
    assert bags.sizes == (4, 4)
    assert bags.bag.tolist() == [0] * 4 + [1] * 4
    assert bags.edges.tolist() == [[0, 1, 2, 4, 5, 6], [1, 2, 3, 5, 6, 7]]
    assert bags.arcs.tolist() == [[0, 3, 1, 4, 7, 5], [2, 0, 1, 6, 4, 5]]
    assert bags.degrees.tolist() == [1, 3, 5, 3] * 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, F64])
def test_dtypes_are_kept(dtype):
    bags = pack([bag(x=torch.ones(4, 3, dtype=dtype), weights=torch.ones(3, dtype=F64))] * 2)
    assert bags.x.dtype == dtype
    assert bags.weights.dtype == F64
    assert bags.degrees.dtype == F64


def test_optional_parts_are_joined_where_every_bag_has_them():
    full = bag(
        coords=torch.tensor([[0, 0], [1, 0], [2, 0], [3, 0]]),
        stride=1.0,
        arcs=torch.tensor([[0], [1]]),
        arc_weights=torch.tensor([0.5]),
        instance_labels=torch.tensor([0, 1, 0, 1]),
    )
    both = pack([full, full])
    assert torch.equal(both.coords, torch.cat([full.coords] * 2))
    assert both.stride == (1.0, 1.0)
    assert both.arc_weights.tolist() == [0.5, 0.5]
    assert both.instance_labels.tolist() == [0, 1, 0, 1] * 2
    mixed = pack([dataclasses.replace(full, arcs=None, arc_weights=None), bag()])
    assert mixed.coords is None and mixed.arcs is None and mixed.instance_labels is None
    assert mixed.stride == (1.0, None)
    assert pack([bag()]).stride is None
    # otherwise a directed method would fall back to the edges for the whole batch
    arcs = torch.tensor([[0], [1]])
    with pytest.raises(BagError, match=r"'b'.*arcs"):
        pack([bag(arcs=arcs), bag(name="b")])
    weights = torch.tensor([0.5])
    with pytest.raises(BagError, match=r"'b'.*arc weights"):
        pack([bag(arcs=arcs, arc_weights=weights), bag(name="b", arcs=arcs)])


def test_labels_are_classes_numbers_or_absent():
    assert pack([bag(), bag()]).y is None
    whole = pack([bag(y=1), bag(y=0)]).y
    assert whole.dtype == torch.int64 and whole.tolist() == [1, 0]
    real = pack([bag(y=1.0), bag(y=0.0)]).y
    assert real.dtype == torch.float32 and real.tolist() == [1, 0]
    assert pack([bag(y=torch.tensor([2]))]).y.tolist() == [2]
    refused(BagError, "labels", pack, [bag(y=1), bag()])
    with pytest.raises(BagError):
        pack([])


def test_both_directions_and_repeats_are_one_edge_and_loops_none():
    edges = torch.tensor([[1, 0, 2, 2, 3, 1, 0], [0, 1, 1, 2, 2, 2, 1]])
    weights = torch.tensor([5.0, 5.0, 7.0, 9.0, 3.0, 7.0, 5.0])
    bags = pack([bag(edges=edges, weights=weights)])
    assert bags.edges.tolist() == [[0, 1, 2], [1, 2, 3]]
    assert bags.weights.tolist() == [5, 7, 3]
    bags = pack([bag(edges=torch.tensor([[1, 2], [1, 2]]), weights=torch.tensor([1.0, 2.0]))])
    assert bags.edges.shape == (2, 0) and bags.weights.shape == (0,)
    assert bags.degrees.tolist() == [0] * 4


@pytest.mark.parametrize("edges", [[[0, 1], [1, 0]], [[0, 0], [1, 1]]])
def test_weights_that_disagree_are_refused_by_name(edges):
    wrong = bag(name="slide 7", edges=torch.tensor(edges), weights=torch.tensor([1.0, 2.0]))
    with pytest.raises(BagError, match=r"'slide 7'.*\(0, 1\)"):
        pack([bag(), wrong])


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        (
            {
                "x": torch.zeros(0, 3),
                "edges": torch.zeros(2, 0, dtype=torch.long),
                "weights": torch.zeros(0),
            },
            "",
        ),
        ({"x": torch.zeros(4, 2)}, "features"),
        (
            {"edges": torch.tensor([[0, 1, 2], [1, 2, 4]])},
            "edges.* 4",
        ),
        ({"edges": torch.tensor([[-1, 1, 2], [1, 2, 3]])}, "edges.* -1"),
        ({"arcs": torch.tensor([[0], [9]])}, "arcs"),
        ({"slide": torch.zeros(4).long()}, "slide"),
        (
            {"x": torch.tensor([[0.0] * 3, [0.0] * 3, [0.0, torch.nan, 0.0], [0.0] * 3])},
            "features.*row 2",
        ),
        ({"x": torch.tensor([[0.0, torch.inf, -torch.inf]] * 4)}, "features.*row 0"),
        ({"x": torch.full((4, 3), torch.inf, dtype=torch.float16)}, "features"),
        ({"weights": torch.tensor([1.0, -0.5, 0.0])}, r"\(1, 2\).*-0\.5"),
        ({"weights": torch.tensor([0.0, 1.0, torch.nan])}, r"\(2, 3\).*nan"),
        ({"weights": torch.tensor([torch.inf, 1.0, 1.0])}, r"\(0, 1\).*inf"),
    ],
)
def test_a_bag_that_cannot_be_meant_is_refused_by_name(changes, fact):
    refused(BagError, f"'wrong'.*{fact}", pack, [bag(), bag(name="wrong", **changes)])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weights", torch.ones(2)),
        ("coords", torch.zeros(5, 2)),
        ("instance_labels", torch.zeros(3).long()),
    ],
)
def test_rows_that_disagree_are_refused_where_types_are_not_executed(field, value):
    with types_not_executed(), pytest.raises(BagError, match=rf"'wrong'.*{field}"):
        pack([bag(name="wrong", **{field: value})])


@pytest.mark.parametrize(("dtype", "value"), [(torch.float16, 6e4), (torch.float32, 3e38)])
def test_features_whose_sum_overflows_are_still_finite(dtype, value):
    bags = pack([bag(x=torch.full((4, 3), value, dtype=dtype))])
    assert bool(bags.x.isfinite().all())


def test_elsewhere_and_in_another_dtype_the_bags_stay_the_same():
    bags = pack([bag(x=torch.ones(4, 3, dtype=torch.float16), y=1), bag(y=0)])
    moved = bags.to("cpu", torch.float32)
    assert moved.x.dtype == torch.float32 and torch.equal(moved.x, bags.x.float())
    for field in dataclasses.fields(Bags):
        if field.name != "x":
            before, after = getattr(bags, field.name), getattr(moved, field.name)
            if field.name == "elimination":
                assert before.plans == after.plans
            elif torch.is_tensor(before):
                assert torch.equal(before, after), field.name
            else:
                assert before == after, field.name


def test_selected_instances_keep_their_graph_among_themselves():
    bag = Bag(
        name="a",
        x=torch.arange(8.0).reshape(4, 2),
        edges=torch.tensor([[0, 1, 2], [1, 2, 3]]),
        weights=torch.tensor([0.1, 0.2, 0.3]),
        coords=torch.arange(4)[:, None],
        arcs=torch.tensor([[0, 3], [3, 1]]),
        arc_weights=torch.tensor([1.0, 2.0]),
        instance_labels=torch.tensor([0, 1, 0, 1]),
        y=1,
        stride=2.0,
    )
    part = select_instances(bag, torch.tensor([1, 2, 3]))
    assert (part.name, part.y, part.stride, len(part)) == ("a", 1, 2.0, 3)
    assert part.edges.tolist() == [[0, 1], [1, 2]]
    assert part.weights.tolist() == pytest.approx([0.2, 0.3])
    assert part.arcs.tolist() == [[2], [0]]
    assert part.arc_weights.tolist() == [2.0]
    assert part.coords.flatten().tolist() == [1, 2, 3]
    assert part.instance_labels.tolist() == [1, 0, 1]
    assert torch.equal(part.x, bag.x[1:])
    everything = select_instances(bag, torch.arange(4))
    assert torch.equal(everything.edges, bag.edges)
    assert torch.equal(everything.arcs, bag.arcs)
