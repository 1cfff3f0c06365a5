"""DTFD-MIL equals reference outputs, the specification's values and a computation by hand."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from models.test_parity import features, q
from support.golden import Golden, close
from support.options import made, some_bags
from support.random_bags import F64, random_bag

from probsa import Bag, pack
from probsa.core.segments import segment_softmax
from probsa.layers.pseudo_bags import partition
from probsa.models import build, from_original

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
    order = groups.order[:, 0]
    a = segment_softmax(out.extras["attention"][order], groups.sizes)
    cam = a[:, None] * F.linear(h, model.classifier.weight)[order]
    prob = model.margin(cam).sigmoid()
    each = zip(*(v.split(groups.sizes) for v in (order, a, cam, prob)), strict=True)
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
    a = groups.unsorted(segment_softmax(e[groups.order], groups.sizes))
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


@pytest.mark.parametrize("name", ["max", "maxmin"])
def test_where_torchmil_takes_every_instance(shared_golden, name):
    """Its tier 2 is then plain attention pooling of the bag; ours takes the requested number."""
    golden = Golden(shared_golden, f"torchmil_dtfdmil_{name}")
    model = golden.model()
    for b in range(3):
        x = golden.tensors[f"bag{b}.x"]
        s = golden.state
        t = (
            x @ s["u_attention_pool.fc1.module.weight"].T + s["u_attention_pool.fc1.module.bias"]
        ).tanh()
        z = x.T @ (t @ s["u_attention_pool.fc2.weight"][0]).softmax(0)
        logit = s["u_classifier.module.weight"] @ z + s["u_classifier.module.bias"]
        close(logit.squeeze(), golden.expected(f"bag{b}.logit"))
        noise = golden.noise(b)
        bags = pack([golden.bag(b)])
        one = build(
            "dtfdmil", **{**model.arguments, "instances_per_group": 1, "predict_samples": 1}
        )
        one.load_state_dict(model.state_dict())
        groups = one.groups(bags, noise=noise, generator=None)
        e = one.attention(x).mean
        rows = []
        for g in groups.order[:, 0].split(groups.sizes):
            p = (e[g].softmax(0)[:, None] * x[g]) @ one.classifier.weight[0]
            rows += [g[p.argmax()]] + [g[p.argmin()]] * (name == "maxmin")
        chosen = x[torch.stack(rows)]
        z = chosen.T @ one.bag_attention(chosen).mean.softmax(0)
        close(one.eval()(bags, noise=noise).logits.flatten(), one.bag_classifier(z))


# --- the specification's values


def fixture_model(distill: str, i: int):
    shapes = {
        "dim_reduction.fc1.weight": (32, 64),
        **{f"{p}attention_{k}.0.weight": (16, 32) for p in TIERS for k in "VU"},
        **{f"{p}attention_{k}.0.bias": (16,) for p in TIERS for k in "VU"},
        **{f"{p}attention_weights.weight": (1, 16) for p in TIERS},
        **{f"{p}attention_weights.bias": (1,) for p in TIERS},
        **{f"{p}fc.weight": (2, 32) for p in CLASSIFIERS},
        **{f"{p}fc.bias": (2,) for p in CLASSIFIERS},
    }
    state = {k: q(k, *shape) for k, shape in shapes.items()}
    constructor = {} if distill == "mas" else {"distill": distill}
    model = from_original("dtfd", state, numGroup=4, total_instance=4 * i, **constructor)
    if distill == "mas":  # from the publication; the original's code does not have it
        model.distill = "mas"
    return model


TIERS = ("attention.", "att_classifier.attention.")
CLASSIFIERS = ("classifier.", "att_classifier.classifier.")


@pytest.mark.parametrize(
    ("distill", "i", "logits", "loss"),
    [
        ("afs", 1, (0.02926956, -0.16321944), 0.79401605),
        ("maxs", 1, (0.067511496, 0.085110622), 0.68438633),
        ("maxmins", 1, (-0.1037023, 0.003922934), 0.64078176),
        ("mas", 1, (0.046464663, -0.38071787), 0.9293777),
        ("maxs", 2, (0.29690945, -0.15869803), 0.94667683),
        ("maxmins", 2, (0.028767192, -0.15913419), 0.79150476),
        ("mas", 2, (0.04495027, 0.012381265), 0.70956427),
    ],
)
def test_golden_tiers(distill, i, logits, loss):
    model = fixture_model(distill, i)
    empty = torch.zeros(2, 0, dtype=torch.long)
    bag = Bag(name="a", x=features(22, 64), edges=empty, weights=torch.zeros(0, dtype=F64), y=1)
    out = model(bags := pack([bag]), noise=torch.arange(22, dtype=F64)[:, None])
    got = out.extras["attention"][:4].tolist()
    assert got == pytest.approx([0.25803737, 0.47436402, 0.35692809, 0.37018607], abs=1e-6)
    tier1 = [
        0.37639016, 0.19394439, 0.10871857, 0.20689144,
        0.40684981, 0.33286755, 0.16928098, 0.17216825,
    ]  # fmt: skip
    assert out.extras["group_logits"].flatten().tolist() == pytest.approx(tier1, abs=1e-6)
    assert out.logits.flatten().tolist() == pytest.approx(logits, abs=1e-6)
    losses = model.losses(out, bags)
    assert losses["group_nll"].item() == pytest.approx(0.71407926, abs=1e-6)
    assert losses["nll"].item() == pytest.approx(loss, abs=1e-6)
    a = out.extras["attention"][:6].softmax(0)[:3]
    p = (a * out.extras["cam"][:3]).sigmoid().tolist()
    assert p == pytest.approx([0.50937031, 0.51784645, 0.47245534], abs=1e-6)


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


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 22])
def test_groups_are_cut_like_an_array_and_never_empty(n):
    order = torch.randperm(n)
    groups = partition(order.argsort()[:, None].float(), [n], n_groups=4)
    want = [part for part in np.array_split(order.numpy(), 4) if len(part)]
    got = groups.order[:, 0].split(groups.sizes)
    assert [g.tolist() for g in got] == [w.tolist() for w in want]
    assert groups.counts == [min(4, n)]
    assert [groups.of[g, 0].tolist() for g in got] == [[k] * len(g) for k, g in enumerate(got)]


def test_bags_are_partitioned_each_by_itself():
    a, b = torch.rand(9, 3), torch.rand(5, 3)
    both = partition(torch.cat([a, b]), [9, 5], n_groups=4)
    alone = [partition(a, [9], n_groups=4), partition(b, [5], n_groups=4)]
    assert torch.equal(both.order, torch.cat([alone[0].order, alone[1].order + 9]))
    assert torch.equal(both.of, torch.cat([alone[0].of, alone[1].of]))
    assert both.sizes == alone[0].sizes + alone[1].sizes


def test_a_group_too_small_gives_an_instance_twice():
    model = build("dtfdmil", in_dim=5, embed=None, distill="maxmins", instances_per_group=2)
    bags = pack([random_bag(11, seed=1), random_bag(1, seed=2)])
    groups = model.groups(bags, noise=torch.rand(12, 1), generator=None)
    assert groups.sizes == [3, 3, 3, 2, 1]
    places, sizes = model._places(groups)
    assert places == [0, 1, 1, 2, 3, 4, 4, 5, 6, 7, 7, 8, 9, 10, 9, 10, 11, 11]
    assert sizes == [16, 2]


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
