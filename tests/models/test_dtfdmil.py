"""DTFD-MIL equals reference outputs, the specification's values and a computation by hand."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.golden import Golden, close
from support.options import made, some_bags
from support.random_bags import F64, random_bag

from probsa import pack
from probsa.models.dtfdmil import order_within, partition

TYPES = ["AFS", "MaxS", "MaxMinS"]
EVERY_WAY = ["afs", "maxs", "maxmins", "mas"]


def small(**more):
    return made("dtfdmil", **{"embed": 8, "attention_dim": 4, **more}).double()


@pytest.fixture(scope="module")
def golden(shared_golden) -> Golden:
    return Golden(shared_golden, "dtfd")


def run(golden: Golden, b: int, distill: str):
    model = golden.model(distill=distill)
    bags = pack([golden.bag(b)])
    noise = golden.noise(b)
    groups = model.groups(bags, noise=noise, generator=None)
    return model, bags, groups, model(bags, noise=noise)


@pytest.mark.parametrize("b", [0, 1, 2])
def test_tier_one_of_the_original(golden, b):
    model, bags, groups, out = run(golden, b, "AFS")
    h = model.instances(bags)
    close(h, golden.expected(f"bag{b}.midfeat"))
    close(out.extras["attention"], golden.expected(f"bag{b}.att_raw"))
    order = order_within(golden.noise(b), groups.of)[:, 0]
    sizes = list(groups.sizes)
    a = groups.softmax(out.extras["attention"])[order, 0]
    cam = a[:, None] * F.linear(h, model.classifier.weight)[order]
    values = {"att": a, "cam": cam, "prob_last": model.margin(cam).sigmoid()}
    for g, index in enumerate(order.split(sizes)):
        assert torch.equal(index, golden.expected(f"bag{b}.group{g}.index"))
        close(out.extras["group_logits"][0, g], golden.expected(f"bag{b}.group{g}.pred"))
        for key, value in values.items():
            close(value.split(sizes)[g], golden.expected(f"bag{b}.group{g}.{key}"))
    assert len(sizes) == golden.constructor["numGroup"]


@pytest.mark.parametrize("distill", TYPES)
@pytest.mark.parametrize("b", [0, 1, 2])
def test_tier_two_losses_and_gradients_of_the_original(golden, b, distill):
    model, bags, groups, out = run(golden, b, distill)
    chosen, sizes = distilled(model, bags, groups)
    assert sizes == [len(chosen)]
    raw = model.bag_attention(chosen[:, 0]).mean
    losses = model.losses(out, bags)
    assert set(losses) == {"nll", "group_nll"} and model.loss_weights == {}
    actual = {
        "train": {
            "pseudo_feat": chosen[:, 0],
            "tier2_att_raw": raw,
            "tier2_att": raw.softmax(0),
            "slide_logits": out.logits[:, 0],
            "loss0": losses["group_nll"],
            "loss1": losses["nll"],
        },
        "test": {
            "pseudo_feat": chosen[:, 0],
            "loss0": losses["group_nll"],
            "slide_prob": out.probability,
            # the original's test loss of tier 2 takes the probability for its logarithm
            "loss1": -out.probability[0, int(bags.y[0])],
        },
    }
    for mode, values in actual.items():
        for key, value in values.items():
            close(value, golden.expected(f"bag{b}.{mode}.{distill}.{key}"))
    assert set(golden.names(model).values()) == set(dict(model.named_parameters()))
    total = losses["nll"] + losses["group_nll"]
    golden.check_gradients(model, total, bags.x, b=b, key=f"train.{distill}.")


def distilled(model, bags, groups):
    """Return the input of tier 2, and its number of vectors per bag."""
    h = model.instances(bags)
    e = model.attention(h).mean
    cam = F.linear(h, model.classifier.weight)
    a = groups.softmax(e)
    pooled = model.pool(h, a, groups, bags)
    return model.distilled(h, a, pooled, cam=cam, e=e, groups=groups)


def test_the_score_is_the_probability_with_attention_over_the_whole_bag():
    model = small(n_classes=2).eval()
    bags = pack([random_bag(9, seed=1, features=6), random_bag(1, seed=2, features=6)])
    out = model(bags)
    w = model.classifier.weight
    for rows in (slice(0, 9), slice(9, 10)):
        h = model.instances(bags)[rows]
        a = model.attention(h).mean.softmax(0)
        want = (a * len(h) * (h @ (w[1] - w[0]))).sigmoid()
        torch.testing.assert_close(out.attention.mean[rows], want)
        torch.testing.assert_close(out.extras["cam"][rows], h @ (w[1] - w[0]))


@pytest.mark.parametrize("distill", EVERY_WAY)
def test_one_logit_is_two_with_nothing_for_the_first_class(distill):
    one = small(distill=distill).eval()
    two = small(distill=distill, n_classes=2).eval()
    state = one.state_dict()
    for key in state:
        if "classifier" in key:
            state[key] = torch.cat([torch.zeros_like(state[key]), state[key]])
    two.load_state_dict(state)
    bags = pack([random_bag(n, seed=n, features=6, y=n % 2) for n in (9, 4)])
    a, b = one(bags), two(bags)
    torch.testing.assert_close(a.attention.mean, b.attention.mean)
    torch.testing.assert_close(a.probability[:, 0], b.probability[:, 1])
    for key, value in one.losses(a, bags).items():
        torch.testing.assert_close(value, two.losses(b, bags)[key])


def test_more_classes_have_a_score_each_and_the_last_decides():
    model = small(n_classes=3, distill="maxs").eval()
    bags = pack([random_bag(9, seed=1, features=6, y=2)])
    out = model(bags, noise=torch.arange(9, dtype=F64)[:, None])
    assert out.attention.mean.shape == out.extras["cam"].shape == (9, 3)
    h = model.instances(bags)
    e = out.extras["attention"]
    rows = []
    for g in torch.arange(9).split([3, 2, 2, 2]):
        p = (e[g].softmax(0)[:, None] * out.extras["cam"][g]).softmax(1)[:, -1]
        rows.append(g[p.argmax()])
    chosen = h[torch.stack(rows)]
    z = chosen.T @ model.bag_attention(chosen).mean.softmax(0)
    torch.testing.assert_close(out.logits[0, 0], model.bag_classifier(z))


def test_groups_are_cut_like_an_array_and_each_bag_by_itself():
    sizes = [1, 2, 3, 4, 5, 22]
    noise = torch.rand(sum(sizes), 3, generator=torch.Generator().manual_seed(0))
    groups = partition(noise, sizes, n_groups=4)
    start = 0
    for b, n in enumerate(sizes):
        for s in range(3):
            order = noise[start : start + n, s].argsort()
            for g, rows in enumerate(np.array_split(order.numpy(), 4)):
                assert groups.sizes[4 * b + g] == len(rows)
                assert (groups.of[start:, s][rows] == 4 * b + g).all()
        start += n


def test_a_group_too_small_gives_an_instance_twice():
    model = small(embed=None, distill="maxmins", instances_per_group=2).eval()
    bags = pack([random_bag(11, seed=1, features=6), random_bag(1, seed=2, features=6)])
    groups = model.groups(bags, noise=torch.rand(12, 1, dtype=F64), generator=None)
    chosen, counts = distilled(model, bags, groups)
    assert counts == [16, 2] and list(groups.sizes) == [3, 3, 3, 2, 1, 0, 0, 0]
    h = model.instances(bags)
    key = groups.softmax(model.attention(h).mean) * F.linear(h, model.classifier.weight)
    want = []
    for g in range(5):
        rows = (groups.of[:, 0] == g).nonzero()[:, 0]
        best = rows[key[rows, 0].argsort(descending=True)]
        want += [*best[:2], *best[-2:]]
    torch.testing.assert_close(chosen[:, 0], h[torch.stack(want)])


@pytest.mark.parametrize("distill", EVERY_WAY)
@pytest.mark.parametrize("per_group", [2, None])
def test_a_bag_does_not_see_its_batch_mates(distill, per_group):
    """The contract has the default alone."""
    model = small(distill=distill, instances_per_group=per_group).eval()
    bags = [random_bag(n, seed=n, features=6, y=n % 2) for n in (13, 1, 4, 30)]
    together = pack(bags)
    out = model(together)
    logits = []
    terms = []
    for bag in bags:
        alone = pack([bag])
        out_alone = model(alone)
        logits.append(out_alone.logits)
        terms.append(model.losses(out_alone, alone))
    torch.testing.assert_close(out.logits, torch.cat(logits))
    for key, value in model.losses(out, together).items():
        torch.testing.assert_close(value, torch.stack([term[key] for term in terms]).mean())


def test_partitions_are_drawn_afresh_in_training_and_kept_and_averaged_in_prediction():
    model = small(predict_samples=5)
    bags = some_bags()
    first = model(bags).logits
    second = model(bags).logits
    assert first.shape == (2, 1, 1) and (first - second).abs().max() > 1e-9
    out = model.eval()(bags)
    other_seed = small(predict_samples=5, seed=1).eval()(bags)
    assert out.logits.shape == (2, 5, 1) and out.std.max() > 0
    assert (out.logits - other_seed.logits).abs().max() > 1e-9
    noise = torch.rand(len(bags.x), 5, dtype=F64)
    samples = [model(bags, noise=column[:, None]).probability for column in noise.unbind(1)]
    torch.testing.assert_close(model(bags, noise=noise).probability, torch.stack(samples).mean(0))


@pytest.mark.parametrize("distill", EVERY_WAY)
def test_no_gradient_crosses_the_tiers_unless_they_are_joint(distill):
    bags = some_bags()
    for joint in (False, True):
        model = small(distill=distill, joint=joint)
        # tier 1 selects the instances; their vectors come from the first layer
        tier_2 = {"bag_attention", "bag_classifier"}
        if joint:
            tier_2 |= {"embed", "attention"} if distill == "afs" else {"embed"}
        losses = model.losses(model(bags, generator=torch.Generator().manual_seed(0)), bags)
        for term, parts in (("nll", tier_2), ("group_nll", {"embed", "attention", "classifier"})):
            model.zero_grad()
            losses[term].backward(retain_graph=True)
            reached = {k.split(".")[0] for k, p in model.named_parameters() if p.grad is not None}
            assert reached == parts


def test_four_parts_are_clipped_each_by_itself():
    model = small(res_blocks=1, clip=2.0)
    groups = model.parameter_groups()
    part_of = {id(p): name.split(".")[0] for name, p in model.named_parameters()}
    parts = [{part_of[id(p)] for p in group["params"]} for group in groups]
    assert parts == [
        {"embed", "residual"},
        {"attention"},
        {"classifier"},
        {"bag_attention", "bag_classifier"},
    ]
    assert all(group["clip_norm"] == 2.0 for group in groups)
    assert sum(len(group["params"]) for group in groups) == len(part_of)
    plain = small(embed=None, clip=None).parameter_groups()
    assert len(plain) == 3 and not any("clip_norm" in g for g in plain)
