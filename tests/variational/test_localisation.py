"""Terms that move the map, against sums over instances and edges written out in NumPy."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from probsa.core import Bag, pack
from probsa.errors import InputError
from probsa.variational import (
    Diagonal,
    Dirac,
    evidence_level,
    localisation,
    negative_instances,
    normal_guidance,
)


def bag(name, coords, *, seed=0, graph="knn"):
    coords = np.asarray(coords, float)
    x = np.random.default_rng(seed).normal(size=(len(coords), 3))
    return Bag.from_arrays(x, coords, name=name, graph=graph)


CHAIN = bag("chain", np.arange(9.0)[:, None], graph="chain")
GRID = bag("grid", [(i * 256, j * 256) for i in range(4) for j in range(5)], graph="grid")
FLAT = bag("flat", np.c_[np.arange(9.0), np.zeros(9)], graph="grid")
DOUBLE = {"dtype": torch.float64}


def scores(n, *, seed=1):
    return torch.randn(n, **DOUBLE, generator=torch.Generator().manual_seed(seed))


def by_hand(s, places):
    """Σ r (log r − log a) with the normal of a's own moments, on one axis or two."""
    a = np.exp(s - s.max())
    a /= a.sum()
    mean = a @ places
    off = places - mean
    covariance = (a[:, None] * off).T @ off
    log_r = -np.einsum("ni,ij,nj->n", off, np.linalg.inv(covariance), off) / 2
    log_r -= np.log(np.exp(log_r).sum())
    return float(np.exp(log_r) @ (log_r - np.log(a)))


@pytest.mark.parametrize("one", [CHAIN, GRID], ids=["chain", "grid"])
def test_guidance_is_its_formula(one):
    s = scores(len(one.x))
    found = normal_guidance(s, pack([one]))
    assert found.item() == pytest.approx(by_hand(s.numpy(), one.coords.double().numpy()), rel=1e-9)


@pytest.mark.parametrize("middle", [1.0, 4.0, 6.5])
def test_a_bell_costs_nothing_wherever_it_lies(middle):
    at = torch.arange(30.0, **DOUBLE)
    one = bag("long", at[:, None].numpy(), graph="chain")
    bell = -(at - 10 - middle).square() / 8
    assert normal_guidance(bell, pack([one])).item() == pytest.approx(0, abs=1e-6)
    two = torch.logaddexp(-(at - 5).square() / 8, -(at - 24).square() / 8)
    assert normal_guidance(two, pack([one])).item() > 0.1


def test_one_hot_attention_has_the_least_variance_of_the_specification():
    s = torch.full((9,), -40.0, **DOUBLE)
    s[3] = 0
    # r is one instance as well: neighbours are 10⁶ variances away
    assert normal_guidance(s, pack([CHAIN])).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("unit", [7.5, 1e-6])
def test_guidance_does_not_depend_on_the_unit_of_coordinates(unit):
    larger = bag("larger", 1000 * unit + unit * GRID.coords.numpy(), graph="grid")
    s = scores(20)
    assert torch.allclose(normal_guidance(s, pack([GRID])), normal_guidance(s, pack([larger])))


def test_the_target_of_guidance_has_no_gradient():
    s = scores(9).requires_grad_()
    normal_guidance(s, pack([CHAIN])).sum().backward()
    a = s.detach().softmax(0)
    at = torch.arange(9.0, **DOUBLE)
    variance = (a * (at - a @ at).square()).sum()
    r = (-(at - a @ at).square() / (2 * variance)).softmax(0)
    assert torch.allclose(s.grad, a - r)  # of −Σ r log a alone


def test_instances_of_negative_bags_are_negative():
    mean = scores(29)
    variance = scores(29, seed=2).exp()
    tails = -norm.logcdf(0, mean.numpy(), variance.sqrt().numpy())
    bags = pack([FLAT, GRID])
    q = Diagonal(mean, variance)
    first_is_negative = negative_instances(q, torch.tensor([0, 1]), bags)
    assert first_is_negative.tolist() == pytest.approx([tails[:9].mean(), 0])
    second_is_negative = negative_instances(q, torch.tensor([1, 0]), bags)
    assert second_is_negative.tolist() == pytest.approx([0, tails[9:].mean()])


def test_a_finding_has_negative_bags_and_the_background_has_bags_of_its_own():
    mean = scores(29 * 3).view(29, 3)
    variance = scores(29 * 3, seed=2).exp().view(29, 3)
    bags = pack([FLAT, GRID])
    std = variance.sqrt().numpy()
    absent = -norm.logcdf(0, mean.numpy(), std)
    present = -norm.logsf(0, mean.numpy(), std)
    for y in ([0, 0], [0, 1], [2, 1], [2, 2]):
        values = negative_instances(Diagonal(mean, variance), torch.tensor(y), bags)
        expected = []
        for label, rows in zip(y, (slice(9), slice(9, None)), strict=True):
            terms = [absent[rows, c].mean() for c in (1, 2) if c != label]
            if label == 0:
                terms.append(present[rows, 0].mean())
            expected.append(sum(terms) / 3)
        assert values.tolist() == pytest.approx(expected)
    leaf = mean.clone().requires_grad_()
    negative_instances(Diagonal(leaf, variance), torch.tensor([2, 1]), bags).sum().backward()
    assert leaf.grad[:, 0].eq(0).all() and leaf.grad[:9, 1].ne(0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("z", [-1e4, -30.0, -5.0, -1.0, 0.0, 3.0, 10.0, 100.0, 1e3, 1e4, 1e6])
def test_the_gradient_of_negatives_is_that_of_the_normal_distribution_at_any_distance(z, dtype):
    mean = torch.tensor([z], dtype=dtype, requires_grad=True)
    one = pack([bag("one", [[5.0]], graph="chain")])
    loss = negative_instances(Diagonal(mean, torch.ones(1, dtype=dtype)), torch.tensor([0]), one)
    loss.sum().backward()
    assert loss.item() == pytest.approx(-norm.logcdf(-z), rel=1e-5)
    # φ(z) / Φ(−z) lies between z and z + 1/z
    expected = math.exp(norm.logpdf(z) - norm.logcdf(-z)) if z < 1e3 else z
    assert mean.grad.item() == pytest.approx(expected, rel=1e-5)


def test_negatives_of_a_point_mass_are_refused():
    with pytest.raises(InputError):
        negative_instances(Dirac(scores(9)), torch.tensor([0]), pack([CHAIN]))


def test_a_far_instance_has_a_finite_loss_and_gradient():
    mean = torch.full((9,), 60.0, requires_grad=True)
    loss = negative_instances(
        Diagonal(mean, torch.full((9,), 1e-4)), torch.tensor([0]), pack([CHAIN])
    )
    loss.sum().backward()
    assert loss.isfinite().all() and mean.grad.isfinite().all() and (mean.grad > 0).all()


@pytest.mark.parametrize(
    "term",
    [
        normal_guidance,
        lambda s, bags: negative_instances(Diagonal(s, s.exp()), torch.zeros(len(bags)), bags),
    ],
    ids=["guidance", "negatives"],
)
def test_a_bag_has_the_value_that_it_has_alone(term):
    s = scores(29)
    alone = [term(s[:9], pack([FLAT])), term(s[9:], pack([GRID]))]
    assert torch.equal(term(s, pack([FLAT, GRID])), torch.cat(alone))


def test_a_bag_of_one_instance_costs_nothing():
    one = bag("one", [[5.0]], graph="chain")
    assert normal_guidance(scores(1), pack([one])).tolist() == [0]


def shares(mean, sd, level):
    return norm.cdf((mean - level) / sd)


def two_kinds(bags, seed=0):
    """Evidence of negative bags, and of positive ones, a fifth of whose instances stand out."""
    g = np.random.default_rng(seed)
    negative = g.normal(-3, 1, (bags, 50))
    positive = g.normal(-3, 1, (bags, 50))
    positive[:, :10] += 4
    mean = torch.from_numpy(np.concatenate([negative, positive]).ravel())
    return mean, torch.full_like(mean, 0.16), [50] * 2 * bags, torch.arange(2 * bags) >= bags


def test_the_level_is_where_negative_bags_have_little_of_what_positive_ones_have():
    level = evidence_level(*(given := two_kinds(400)))
    mean = given[0].view(2, -1).numpy()
    false, true = shares(mean, 0.4, level).mean(1)
    # of many bags, the nearest end of the interval is close to the level itself
    assert 0.12 < false / true <= 0.15 and level < 0
    # above 0, the nearest end is the other one
    moved = evidence_level(given[0] + 3, *given[1:])
    assert 0 < moved < level + 3


@pytest.mark.nightly
def test_the_level_of_more_than_16_million_instances(monkeypatch):
    """`torch.quantile` refuses so many values."""
    monkeypatch.setattr(localisation, "LEVELS", 2)
    n = 2**24 + 2
    mean = torch.zeros(n, **DOUBLE)
    mean[n // 2 :] = 5
    variance = torch.tensor([0.01], **DOUBLE).expand(n)
    level = evidence_level(mean, variance, [n // 2, n // 2], torch.tensor([False, True]))
    assert level == 5


@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_levels_are_quantiles_of_all_means(monkeypatch, shift):
    mean, variance, sizes, positive = two_kinds(40)
    level = evidence_level(mean + shift, variance, sizes, positive)
    monkeypatch.setattr(localisation, "_quantiles", torch.quantile)
    assert level == evidence_level(mean + shift, variance, sizes, positive) != 0


def test_few_bags_move_the_level_less():
    few = [evidence_level(*two_kinds(4, seed)) for seed in range(20)]
    assert np.mean(few) > evidence_level(*two_kinds(400)) and max(few) <= 0


@pytest.mark.parametrize("labels", [[0, 0], [1, 1], [0, 1]])
def test_the_level_is_0_without_both_labels_or_a_difference(labels):
    mean = torch.full((40,), 2.0, **DOUBLE)
    sizes = [20, 20]
    y = torch.tensor(labels, dtype=torch.bool)
    assert evidence_level(mean, torch.ones_like(mean), sizes, y) == 0


def test_a_level_that_depends_on_one_bag_is_0():
    # one positive bag of four has all the evidence, and a third of the samples lack it
    mean = torch.full((8, 10), -2.0, **DOUBLE)
    mean[-1] = 9
    y = torch.arange(8) >= 4
    variance = torch.full((80,), 0.25, **DOUBLE)
    assert evidence_level(mean.flatten(), variance, [10] * 8, y) == 0
    mean[4:] = 9
    assert evidence_level(mean.flatten() - 20, variance, [10] * 8, y) < 0


def test_a_level_that_positive_bags_do_not_reach_is_0():
    # one instance of ten positive bags is far above all others: 0.1 instances a bag
    mean = torch.zeros(20, 10, **DOUBLE)
    mean[-1, 0] = 50
    sizes = [10] * 20
    y = torch.arange(20) >= 10
    variance = torch.full((200,), 0.01, **DOUBLE)
    assert evidence_level(mean.flatten() - 1, variance, sizes, y) == 0
