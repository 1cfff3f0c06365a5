"""DTFD-MIL equals reference outputs, the specification's values and a computation by hand."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.golden import Golden, close
from support.options import made, some_bags
from support.random_bags import F64, random_bag

from probsa import pack
from probsa.models import build
from probsa.models.dtfdmil import partition

TYPES = ["AFS", "MaxS", "MaxMinS"]
EVERY_WAY = ["afs", "maxs", "maxmins", "mas"]


@pytest.fixture(scope="module")
def golden(shared_golden) -> Golden:
    return Golden(shared_golden, "dtfd")


def run(golden: Golden, b: int, distill: str):
    model, bags = golden.model(distill=distill), pack([golden.bag(b)])
    noise = golden.noise(b)
    return model, bags, noise, model(bags, noise=noise)


@pytest.mark.parametrize("b", [0, 1, 2])
def test_tier_one_of_the_original(golden, b):
    model, bags, noise, out = run(golden, b, "AFS")
    h = model.instances(bags)
    close(h, golden.expected(f"bag{b}.midfeat"))
    close(out.extras["attention"], golden.expected(f"bag{b}.att_raw"))
    groups = model.groups(bags, noise=noise, generator=None)
    order, sizes = groups.ranked(-noise)[:, 0], groups.sizes.tolist()
    a = groups.softmax(out.extras["attention"])[order, 0]
    cam = a[:, None] * F.linear(h, model.classifier.weight)[order]
    prob = model.margin(cam).sigmoid()
    each = zip(*(v.split(sizes) for v in (order, a, cam, prob)), strict=True)
    for g, (index, a_g, cam_g, prob_g) in enumerate(each):
        assert torch.equal(index, golden.expected(f"bag{b}.group{g}.index"))
        close(a_g, golden.expected(f"bag{b}.group{g}.att"))
        close(cam_g, golden.expected(f"bag{b}.group{g}.cam"))
        close(prob_g, golden.expected(f"bag{b}.group{g}.prob_last"))
        close(out.extras["group_logits"][0, g], golden.expected(f"bag{b}.group{g}.pred"))
    assert len(groups.sizes) == golden.constructor["numGroup"]


@pytest.mark.parametrize("distill", TYPES)
@pytest.mark.parametrize("b", [0, 1, 2])
def test_tier_two_losses_and_gradients_of_the_original(golden, b, distill):
    model, bags, noise, out = run(golden, b, distill)
    key = f"bag{b}.train.{distill}"
    groups = model.groups(bags, noise=noise, generator=None)
    h, e = model.instances(bags), out.extras["attention"]
    a = groups.softmax(e)
    chosen, sizes = model.distilled(
        h, a, model.pool(h, a, groups, bags),
        cam=F.linear(h, model.classifier.weight), e=e, groups=groups,
    )  # fmt: skip
    assert sizes == [len(chosen)]
    close(chosen[:, 0], golden.expected(f"{key}.pseudo_feat"))
    close(chosen[:, 0], golden.expected(f"bag{b}.test.{distill}.pseudo_feat"))
    raw = model.bag_attention(chosen[:, 0]).mean
    close(raw, golden.expected(f"{key}.tier2_att_raw"))
    close(raw.softmax(0), golden.expected(f"{key}.tier2_att"))
    close(out.logits[:, 0], golden.expected(f"{key}.slide_logits"))
    losses = model.losses(out, bags)
    assert set(losses) == {"nll", "group_nll"} and model.loss_weights == {}
    close(losses["group_nll"], golden.expected(f"{key}.loss0"))
    close(losses["nll"], golden.expected(f"{key}.loss1"))
    close(losses["group_nll"], golden.expected(f"bag{b}.test.{distill}.loss0"))
    close(out.probability, golden.expected(f"bag{b}.test.{distill}.slide_prob"))
    # the original's test loss of tier 2 takes the probability for its logarithm
    y = int(bags.y[0])
    close(-out.probability[0, y], golden.expected(f"bag{b}.test.{distill}.loss1"))
    assert set(golden.names(model).values()) == set(dict(model.named_parameters()))
    total = losses["nll"] + losses["group_nll"]
    golden.check_gradients(model, total, bags.x, b=b, key=f"train.{distill}.")


# --- by hand


def test_the_score_is_the_probability_with_attention_over_the_whole_bag():
    model = build("dtfdmil", in_dim=5, embed=8, attention_dim=4, n_classes=2).double().eval()
    bags = pack([random_bag(9, seed=1, y=1), random_bag(1, seed=2, y=0)])
    out = model(bags)
    for rows, n in ((slice(0, 9), 9), (slice(9, 10), 1)):
        h = model.instances(bags)[rows]
        w = model.classifier.weight
        a = model.attention(h).mean.softmax(0)
        want = (a * n * (h @ (w[1] - w[0]))).sigmoid()
        torch.testing.assert_close(out.attention.mean[rows], want)
        torch.testing.assert_close(out.extras["cam"][rows], h @ (w[1] - w[0]))


@pytest.mark.parametrize("distill", EVERY_WAY)
def test_one_logit_is_two_with_nothing_for_the_first_class(distill):
    small = {"in_dim": 5, "embed": 8, "attention_dim": 4, "distill": distill}
    one = build("dtfdmil", **small).double().eval()
    two = build("dtfdmil", **small, n_classes=2).double().eval()
    state = one.state_dict()
    for tier in ("classifier", "bag_classifier"):
        for k in ("weight", "bias"):
            v = state[f"{tier}.{k}"]
            state[f"{tier}.{k}"] = torch.cat([torch.zeros_like(v), v])
    two.load_state_dict(state)
    bags = pack([random_bag(9, seed=1, y=1), random_bag(3, seed=2, y=0)])
    a, b = one(bags), two(bags)
    torch.testing.assert_close(a.attention.mean, b.attention.mean)
    torch.testing.assert_close(a.probability[:, 0], b.probability[:, 1])
    for key, value in one.losses(a, bags).items():
        torch.testing.assert_close(value, two.losses(b, bags)[key])


def test_more_classes_have_a_score_each_and_the_last_decides():
    model = build("dtfdmil", in_dim=5, embed=8, attention_dim=4, n_classes=3, distill="maxs")
    model.double().eval()
    bags = pack([random_bag(9, seed=1, y=2)])
    noise = torch.arange(9, dtype=F64)[:, None]
    out = model(bags, noise=noise)
    assert out.attention.mean.shape == out.extras["cam"].shape == (9, 3)
    h, e = model.instances(bags), out.extras["attention"]
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
                assert groups.sizes[4 * b + g].item() == len(rows)
                assert (groups.of[start:, s][rows] == 4 * b + g).all()
        start += n


def test_a_group_too_small_gives_an_instance_twice():
    model = made("dtfdmil", embed=None, distill="maxmins", instances_per_group=2).double()
    model.eval().predict_samples = 1
    bags = pack([random_bag(11, seed=1, features=6), random_bag(1, seed=2, features=6)])
    h, noise = model.instances(bags), torch.rand(12, 1, dtype=F64)
    groups = model.groups(bags, noise=noise, generator=None)
    e, cam = model.attention(h).mean, F.linear(h, model.classifier.weight)
    a = groups.softmax(e)
    pooled = model.pool(h, a, groups, bags)
    chosen, counts = model.distilled(h, a, pooled, cam=cam, e=e, groups=groups)
    assert counts == [16, 2] and groups.sizes.tolist() == [3, 3, 3, 2, 1, 0, 0, 0]
    want = []
    for g in range(5):
        rows = (groups.of[:, 0] == g).nonzero()[:, 0]
        best = rows[(a[rows, 0] * cam[rows, 0]).argsort(descending=True)]
        want += [*best[:2], *best[-2:]]
    torch.testing.assert_close(chosen[:, 0], h[torch.stack(want)])


@pytest.mark.parametrize("distill", EVERY_WAY)
@pytest.mark.parametrize("per_group", [2, None])
def test_a_bag_does_not_see_its_batch_mates(distill, per_group):
    model = made(
        "dtfdmil", embed=8, attention_dim=4, distill=distill, instances_per_group=per_group
    )
    model.double().eval()
    bags = [random_bag(n, seed=n, features=6, y=n % 2) for n in (13, 1, 4, 30)]
    out, alone = model(whole := pack(bags)), [model(pack([bag])) for bag in bags]
    torch.testing.assert_close(out.logits, torch.cat([o.logits for o in alone]))
    torch.testing.assert_close(out.attention.mean, torch.cat([o.attention.mean for o in alone]))
    terms = [model.losses(o, pack([bag])) for o, bag in zip(alone, bags, strict=True)]
    for key, value in model.losses(out, whole).items():
        torch.testing.assert_close(value, torch.stack([t[key] for t in terms]).mean())


def test_a_prediction_is_the_mean_over_its_partitions():
    model = made("dtfdmil", predict_samples=5).double().eval()
    bags = some_bags()
    assert model(bags).logits.shape == (2, 5, 1)
    assert model(bags).std.max() > 0
    noise = torch.rand(len(bags.x), 5, dtype=F64)
    each = torch.stack([model(bags, noise=noise[:, s : s + 1]).probability for s in range(5)])
    torch.testing.assert_close(model(bags, noise=noise).probability, each.mean(0))
    assert model.train()(bags).logits.shape == (2, 1, 1)


def test_partitions_are_drawn_afresh_in_training_and_kept_in_prediction():
    model, bags = made("dtfdmil").double(), some_bags()
    first, second = model(bags).logits, model(bags).logits
    assert (first - second).abs().max() > 1e-9
    model.eval()
    assert torch.equal(model(bags).logits, model(bags).logits)
    other = made("dtfdmil", seed=1).double().eval()
    assert (model(bags).logits - other(bags).logits).abs().max() > 1e-9


@pytest.mark.parametrize("distill", EVERY_WAY)
def test_no_gradient_crosses_the_tiers_unless_they_are_joint(distill):
    bags = some_bags()
    for joint in (False, True):
        model = made("dtfdmil", distill=distill, joint=joint).double()
        losses = model.losses(model(bags, generator=torch.Generator().manual_seed(0)), bags)
        for term, reached in (("nll", {"bag_attention", "bag_classifier"}), ("group_nll", set())):
            model.zero_grad()
            losses[term].backward(retain_graph=True)
            got = {k.split(".")[0] for k, p in model.named_parameters() if p.grad is not None}
            if term == "group_nll":
                assert got == {"embed", "attention", "classifier"}
            elif joint:
                # tier 1 selects the instances; their vectors come from the first layer
                assert got == reached | {"embed"} | ({"attention"} if distill == "afs" else set())
            else:
                assert got == reached


def test_four_parts_are_clipped_each_by_itself():
    model = made("dtfdmil", res_blocks=1, clip=2.0)
    groups = model.parameter_groups()
    names = {id(p): k.split(".")[0] for k, p in model.named_parameters()}
    assert [{names[id(p)] for p in g["params"]} for g in groups] == [
        {"embed", "residual"}, {"attention"}, {"classifier"}, {"bag_attention", "bag_classifier"},
    ]  # fmt: skip
    assert all(g["clip_norm"] == 2.0 for g in groups)
    assert sum(len(g["params"]) for g in groups) == len(names)
    plain = made("dtfdmil", embed=None, clip=None).parameter_groups()
    assert len(plain) == 3 and not any("clip_norm" in g for g in plain)


def test_a_bias_on_w_shifts_the_raw_attention_and_nothing_else():
    with_bias, bags = made("dtfdmil").double().eval(), some_bags()
    without = made("dtfdmil", score_bias=False).double().eval()
    state = with_bias.state_dict()
    effective = {k: v for k, v in state.items() if not k.endswith("attention.mean.bias")}
    without.load_state_dict(effective)
    a, b = with_bias(bags), without(bags)
    shift = state["attention.mean.bias"].expand(len(bags.x))
    torch.testing.assert_close(a.extras["attention"] - b.extras["attention"], shift)
    torch.testing.assert_close(a.logits, b.logits)
