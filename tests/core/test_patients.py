"""Bags of patients: slides are joined block by block, and packing carries what belongs to them."""

from dataclasses import fields, replace

import pytest
import torch
from support.random_bags import F64, adjacency, random_bag
from support.refusals import refused

from probsa import Bag, pack
from probsa.core import join_bags, repeat_bags, select_instances
from probsa.errors import BagError


def slide(name: str, n: int, *, seed: int, **changes: object) -> Bag:
    made = random_bag(n, seed=seed, name=name)
    arcs = torch.tensor([[0, n - 1], [n - 1, 0]])
    return replace(
        made,
        coords=torch.arange(2 * n).reshape(n, 2),
        stride=2.0,
        arcs=arcs,
        arc_weights=torch.tensor([0.5, 1.5], dtype=F64),
        **changes,
    )


def slides() -> list[Bag]:
    return [slide("c", 3, seed=1), slide("a", 4, seed=2), slide("b", 2, seed=3)]


def test_slides_are_joined_in_the_order_of_their_names():
    c, a, b = slides()
    joined = join_bags("p", [c, a, b], y=1)
    assert (joined.name, joined.y, joined.slides, joined.stride) == ("p", 1, ("a", "b", "c"), 2.0)
    assert joined.slide is not None and joined.slide.tolist() == [0] * 4 + [1] * 2 + [2] * 3
    assert torch.equal(joined.x, torch.cat([a.x, b.x, c.x]))
    assert torch.equal(joined.coords, torch.cat([a.coords, b.coords, c.coords]))
    blocks = torch.block_diag(adjacency(a), adjacency(b), adjacency(c))
    assert torch.equal(adjacency(joined), blocks)
    assert (joined.slide[joined.edges[0]] == joined.slide[joined.edges[1]]).all()
    assert joined.arcs.tolist() == [[0, 3, 4, 5, 6, 8], [3, 0, 5, 4, 8, 6]]
    assert joined.arc_weights.tolist() == [0.5, 1.5] * 3
    assert joined.instance_labels is None
    one = join_bags("p", slides(), y=None)
    other = join_bags("p", slides()[::-1], y=None)
    for f in fields(Bag):
        mine = getattr(one, f.name)
        theirs = getattr(other, f.name)
        assert torch.equal(mine, theirs) if isinstance(mine, torch.Tensor) else mine == theirs
    (alone,) = slides()[:1]
    as_bag = pack([replace(alone, name="p", y=1)])
    as_patient = pack([join_bags("p", [alone], y=1)])
    for f in fields(as_bag):
        mine = getattr(as_patient, f.name)
        theirs = getattr(as_bag, f.name)
        if f.name == "elimination":
            assert torch.equal(mine.plans[0].edges, theirs.plans[0].edges)
        elif f.name == "slide":
            assert mine.tolist() == [0, 0, 0] and theirs is None
        else:
            assert torch.equal(mine, theirs) if isinstance(mine, torch.Tensor) else mine == theirs


def test_what_slides_differ_in():
    c, a, b = slides()
    labelled = replace(a, instance_labels=torch.tensor([0, 1, 1, 0]))
    joined = join_bags("p", [c, labelled, replace(b, stride=3.0)], y=None)
    assert joined.instance_labels.tolist() == [0, 1, 1, 0] + [-1] * 5
    assert joined.stride is None
    x = torch.ones(2)
    assert join_bags("p", [replace(s, covariates=x) for s in (a, b)], y=None).covariates is x
    for other, message in (
        (replace(b, x=b.x[:, :4]), r"slide 'b' has 4 features, slide 'a' has 5"),
        (replace(b, coords=None), "slide 'b' has 0 coordinates per instance, slide 'a' has 2"),
        (replace(b, arcs=None, arc_weights=None), "'b' has no arcs, slide 'a'"),
        (replace(b, covariates=x), "slides 'a' and 'b' have different covariates"),
        (replace(b, name="a"), "two slides named 'a'"),
        (join_bags("b", [b], y=None), "bag 'b' .*from 1 slides"),
    ):
        refused(BagError, rf"patient 'p'.*{message}", join_bags, "p", [a, other], y=None)
    refused(BagError, r"patient 'p' has no slides", join_bags, "p", [], y=None)


def patients() -> list[Bag]:
    c, a, b = slides()
    first = join_bags("p", [c, a], y=torch.tensor([1.0, float("nan")]))
    second = join_bags("q", [b], y=torch.tensor([0.0, 1.0]))
    return [
        replace(first, covariates=torch.tensor([1.0, 2.0])),
        replace(second, covariates=torch.tensor([3.0, 4.0])),
    ]


def test_packing_carries_slides_covariates_and_several_targets():
    packed = pack(patients())
    assert packed.slide.tolist() == [0] * 4 + [1] * 3 + [0] * 2
    assert packed.covariates.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert packed.y.shape == (2, 2) and packed.y.isnan().tolist() == [[False, True], [False] * 2]
    moved = packed.to("cpu", F64)
    assert torch.equal(moved.covariates, packed.covariates)
    assert torch.equal(moved.slide, packed.slide)
    twice = repeat_bags(packed, 2)
    again = pack(patients() * 2)
    for name in ("offsets", "edges", "weights", "coords"):
        assert torch.equal(getattr(twice, name), getattr(again, name)), name
    assert (twice.names, twice.sizes, len(twice.x)) == (again.names, again.sizes, len(again.x))
    kept = select_instances(patients()[0], torch.tensor([6, 0, 5]))
    assert kept.slide.tolist() == [1, 0, 1] and kept.slides == ("a", "c")
    assert kept.covariates.tolist() == [1.0, 2.0]
    p, q = patients()
    assert pack([p, replace(q, slide=None, slides=())]).slide is None
    with pytest.raises(BagError, match=r"'p'.*slide"):
        pack([replace(p, slides=("a",))])
    with pytest.raises(BagError, match=r"'p'.*slide"):
        pack([replace(p, slide=torch.tensor([0, 1]))])
    for wrong in (None, torch.ones(3)):
        with pytest.raises(BagError, match=r"'q'.*covariates"):
            pack([p, replace(q, covariates=wrong)])
    with pytest.raises(BagError, match=r"'q'.*covariates"):
        pack([p, replace(q, covariates=torch.tensor([1.0, float("nan")]))])
    for wrong in (1, torch.ones(3)):
        refused(BagError, "'q'.*labels", pack, [p, replace(q, y=wrong)])
    assert pack([replace(p, y=1), replace(q, y=torch.tensor([0]))]).y.tolist() == [1, 0]
