"""ABMIL and T-ABMIL: originals in other layouts, a published survival model, invalid options.

test_parity.py holds most comparisons with reference outputs.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from models.test_parity import features, q
from support.golden import Golden, close
from support.options import changes, some_bags
from support.random_bags import F64, types_not_executed
from torch import Tensor

from probsa import Bag, pack
from probsa.core.bags import Bags
from probsa.errors import CheckpointError, InputError, UnknownName
from probsa.layers.pooling import pool_vectors
from probsa.layers.transformer import TransformerLayer
from probsa.models import Model, build, from_original

AMIL = "ckpt_patchgcn_repo_amil_blca0"
AMIL_OURS = {
    **{f"attention_net.0.{k}": f"embed.net.0.{k}" for k in ("weight", "bias")},
    **{f"attention_net.3.attention_a.0.{k}": f"attention.trunk.first.{k}"
       for k in ("weight", "bias")},
    **{f"attention_net.3.attention_b.0.{k}": f"attention.trunk.gate.{k}"
       for k in ("weight", "bias")},
    **{f"attention_net.3.attention_c.{k}": f"attention.mean.{k}" for k in ("weight", "bias")},
    **{f"rho.0.{k}": f"classifier.0.{k}" for k in ("weight", "bias")},
    **{f"classifier.{k}": f"classifier.2.{k}" for k in ("weight", "bias")},
}  # fmt: skip


def one_bag(x: Tensor, y: int | None = None) -> Bags:
    return pack([Bag(name="a", x=x, edges=torch.zeros(2, 0).long(), weights=torch.zeros(0), y=y)])


def tensors(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    return {k: q(k, *shape) for k, shape in shapes.items()}


# the gated ABMIL of Patch-GCN's repository, on survival


@pytest.fixture(scope="module")
def amil(shared_golden) -> Golden:
    return Golden(shared_golden, AMIL)


def nll_surv(logits: Tensor, y: int, *, censored: int, alpha: float) -> Tensor:
    """Return −log of the hazard at bin y after surviving earlier bins, or of surviving bin y.

    The latter applies to a censored patient.
    """
    hazards = logits.sigmoid()
    survival = torch.cumprod(1 - hazards, 0)
    before = torch.cat([torch.ones(1, dtype=logits.dtype), survival]).clamp_min(1e-7)
    seen = -(1 - censored) * (before[y].log() + hazards[y].clamp_min(1e-7).log())
    return (1 - alpha) * (seen - censored * before[y + 1].log()) + alpha * seen


@pytest.mark.parametrize("b", [0, 1, 2])
def test_the_published_survival_model(amil, b):
    model, bags = amil.model(), pack([bag := amil.bag(b)])
    out = model(bags)
    close(out.attention.mean, amil.expected(f"bag{b}.att_raw"))
    close(out.attention.mean.softmax(0), amil.expected(f"bag{b}.att"))
    pooled = pool_vectors(out.attention.mean[:, None], model.instances(bags), bags.sizes)
    close(pooled[:, 0], amil.expected(f"bag{b}.pooled"))
    close(out.logits[:, 0], amil.expected(f"bag{b}.logits"))
    hazards = out.logits[:, 0].sigmoid()
    close(hazards, amil.expected(f"bag{b}.hazards"))
    close(torch.cumprod(1 - hazards, 1), amil.expected(f"bag{b}.S"))
    assert out.logits[0, 0].argmax() == amil.expected(f"bag{b}.y_hat").item()
    close(model.losses(out, bags)["nll"], amil.expected(f"bag{b}.ce"))

    censored = int(amil.expected(f"bag{b}.censor"))
    for alpha, name in ((0.0, "nll_surv_a0"), (0.4, "nll_surv_a04")):
        loss = nll_surv(out.logits[0, 0], bag.y, censored=censored, alpha=alpha)
        close(loss, amil.expected(f"bag{b}.{name}"))
    total = nll_surv(out.logits[0, 0], bag.y, censored=censored, alpha=0.0)
    close(total, amil.expected(f"bag{b}.total"))
    assert set(AMIL_OURS.values()) == set(dict(model.named_parameters()))
    amil.check_gradients(model, total, bag.x, b=b, ours=AMIL_OURS)


def test_the_survival_model_as_its_file_names_it(amil):
    """It has DataParallel inside (`attention_net.module.0`); widths follow from the weights."""
    inside = {
        k.replace("attention_net.", "attention_net.module."): v for k, v in amil.state.items()
    }
    model = from_original("ckpt_patchgcn_repo_amil_ucec3", inside)
    close(model(pack([amil.bag(0)])).logits[:, 0], amil.expected("bag0.logits"))
    drops = [m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)]
    assert drops == [0.25] * 3  # first layer, attention, rho
    without = from_original(AMIL, amil.state, dropout=0)
    assert not any(m.p for m in without.modules() if isinstance(m, torch.nn.Dropout))


def altered(shapes: dict[str, tuple[int, ...]], change: dict) -> dict[str, tuple[int, ...]]:
    return {k: v for k, v in {**shapes, **change}.items() if v is not None}


# AttentionDeepMIL

PLAIN: dict[str, tuple[int, ...]] = {
    "attention.0.weight": (5, 9),
    "attention.0.bias": (5,),
    "attention.2.weight": (1, 5),
    "attention.2.bias": (1,),
    "classifier.0.weight": (1, 9),
    "classifier.0.bias": (1,),
}
GATED: dict[str, tuple[int, ...]] = {
    "attention_V.0.weight": (5, 9),
    "attention_V.0.bias": (5,),
    "attention_U.0.weight": (5, 9),
    "attention_U.0.bias": (5,),
    "attention_w.weight": (1, 5),
    "attention_w.bias": (1,),
    "classifier.0.weight": (1, 9),
    "classifier.0.bias": (1,),
}
DIGITS: dict[str, tuple[int, ...]] = {
    "feature_extractor_part1.0.weight": (20, 1, 5, 5),
    "feature_extractor_part1.0.bias": (20,),
    "feature_extractor_part2.0.weight": (9, 80),
    "feature_extractor_part2.0.bias": (9,),
}


@pytest.mark.parametrize("reference", ["abmil", "abmil_plain", "abmil_gated"])
@pytest.mark.parametrize(("shapes", "gated"), [(PLAIN, False), (GATED, True)])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_the_authors_attention_with_its_feature_extractor(reference, shapes, gated, prefix):
    """The keys determine the form; bags hold the output of the feature extractor."""
    state, x = tensors(shapes), features(6, 9)
    model = from_original(
        reference, {f"{prefix}{k}": v for k, v in (state | tensors(DIGITS)).items()}
    )
    out = model(one_bag(x))
    first, second = ("attention_V.0", "attention_w") if gated else ("attention.0", "attention.2")
    t = F.linear(x, state[f"{first}.weight"], state[f"{first}.bias"]).tanh()
    if gated:
        t = t * F.linear(x, state["attention_U.0.weight"], state["attention_U.0.bias"]).sigmoid()
    f = F.linear(t, state[f"{second}.weight"], state[f"{second}.bias"])[:, 0]
    logit = F.linear(f.softmax(0) @ x, state["classifier.0.weight"], state["classifier.0.bias"])
    torch.testing.assert_close(out.attention.mean, f, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(out.logits[0, 0], logit, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("shapes", "change", "message"),
    [
        (PLAIN, {"attention.0.weight": None}, r"no 'attention.0.weight'.*is it an ABMIL"),
        (PLAIN, {"attention.2.weight": (2, 5)}, "2 branches of attention"),
        (GATED, {"attention_U.0.weight": None}, "nothing given for attention.trunk.gate.weight"),
        (GATED, {"attention_U.0.bias": (4,)}, r"attention_U.0.bias has shape \(4,\).*\(5,\)"),
        (PLAIN, {"classifier.0.weight": (1, 8)}, r"classifier.0.weight.*\(1, 8\).*\(1, 9\)"),
        (PLAIN, {"extra.weight": (1, 8)}, "unknown are extra.weight"),
    ],
)
def test_another_state_dict_is_refused(shapes, change, message):
    with pytest.raises(CheckpointError, match=message):
        from_original("abmil_plain", tensors(altered(shapes, change)))


def test_the_original_setting_is_the_authors_plain_form():
    model = build("abmil", in_dim=800, preset="original")
    plain = {k: tuple(v.shape) for k, v in model.state_dict().items()}
    assert plain == {
        "embed.net.0.weight": (500, 800),
        "embed.net.0.bias": (500,),
        "attention.trunk.first.weight": (128, 500),
        "attention.trunk.first.bias": (128,),
        "attention.mean.weight": (1, 128),
        "attention.mean.bias": (1,),
        "classifier.weight": (1, 500),
        "classifier.bias": (1,),
    }


# torchmil


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "relu", "gelu"])
@pytest.mark.parametrize("lazy", ["", "module."])
def test_torchmils_activations_and_names(gated, activation, lazy):
    shapes: dict[str, tuple[int, ...]] = {
        f"pool.fc1.{lazy}weight": (4, 9),
        f"pool.fc1.{lazy}bias": (4,),
        "pool.fc2.weight": (1, 4),
        f"classifier.{lazy}weight": (1, 9),
        f"classifier.{lazy}bias": (1,),
    }
    if gated:
        shapes |= {f"pool.fc_gated.{lazy}weight": (4, 9), f"pool.fc_gated.{lazy}bias": (4,)}
    state, x = tensors(shapes), features(6, 9)
    constructor = {"in_shape": "(9,)", "att_dim": "4", "att_act": activation, "gated": str(gated)}
    out = from_original("torchmil_abmil", state, **constructor)(one_bag(x))
    act = {"tanh": torch.tanh, "relu": torch.relu, "gelu": F.gelu}[activation]
    t = act(F.linear(x, state[f"pool.fc1.{lazy}weight"], state[f"pool.fc1.{lazy}bias"]))
    if gated:
        gate = F.linear(x, state[f"pool.fc_gated.{lazy}weight"], state[f"pool.fc_gated.{lazy}bias"])
        t = t * gate.sigmoid()
    f = F.linear(t, state["pool.fc2.weight"])[:, 0]
    torch.testing.assert_close(out.attention.mean, f, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("constructor", "message"),
    [
        ({"gated": True}, "nothing given for attention.trunk.gate"),
        ({"att_dim": 5}, r"pool.fc1.weight has shape \(4, 9\).*\(5, 9\)"),
        ({"in_shape": (8,)}, r"\(4, 9\).*\(4, 8\)"),
    ],
)
def test_torchmils_arguments_are_held_against_the_weights(constructor, message):
    shapes = {"pool.fc1.weight": (4, 9), "pool.fc1.bias": (4,), "pool.fc2.weight": (1, 4),
              "classifier.weight": (1, 9), "classifier.bias": (1,)}  # fmt: skip
    with pytest.raises(CheckpointError, match=message):
        from_original("torchmil_abmil", tensors(shapes), **constructor)


def transformer_state(golden: Golden, *, mlp: bool) -> dict[str, Tensor]:
    return {k: v.double() for k, v in golden.state.items() if mlp or ".mlp_module." not in k}


def test_torchmils_transformer_without_mlps(shared_golden):
    """The second norms exist but are unused; each layer ends with Z = Y + SA(LN(Y))."""
    golden = Golden(shared_golden, "torchmil_transformerabmil")
    state = transformer_state(golden, mlp=False)
    constructor = {**golden.constructor, "transf_use_mlp": False}
    model = from_original(golden.name, state, **constructor)
    x = golden.bag(1).x.detach().double()
    h = y = x
    for k in range(2):
        w = {n: state[f"transformer_encoder.layers.{k}.{n}"]
             for n in ("norm1.weight", "norm1.bias", "att_module.qkv_nn.weight")}  # fmt: skip
        normed = F.layer_norm(y, (32,), w["norm1.weight"], w["norm1.bias"])
        qkv = F.linear(normed, w["att_module.qkv_nn.weight"]).view(-1, 3, 4, 8)
        a = torch.einsum("nhd,mhd->hnm", qkv[:, 0], qkv[:, 1]) / math.sqrt(8)
        y = y + torch.einsum("hnm,mhd->nhd", a.softmax(-1), qkv[:, 2]).flatten(1) + h
    norm = (state["transformer_encoder.norm.weight"], state["transformer_encoder.norm.bias"])
    want = F.layer_norm(y, (32,), *norm)
    torch.testing.assert_close(model.instances(one_bag(x)), want, rtol=1e-11, atol=1e-12)
    # its keys determine everything except the heads
    again = from_original(golden.name, state, transf_n_heads=4)
    assert again.arguments["use_mlp"] is False and again.arguments["layers"] == 2


def test_torchmils_transformer_in_probsa_without_mlps(shared_golden):
    golden = Golden(shared_golden, "torchmil_transformerprobsmoothabmil_diag")
    state = transformer_state(golden, mlp=False)
    constructor = {**golden.constructor, "transf_use_mlp": "False"}
    model = from_original(golden.name, state, **constructor)
    assert not any("mlp" in k or "norm2" in k for k in model.state_dict())
    with pytest.raises(CheckpointError, match=r"unknown are .*mlp_module"):
        from_original(golden.name, golden.state, **constructor)


def test_the_shapes_alone_say_which_posterior_it_is(shared_golden):
    for name, model in (
        ("torchmil_smoothabmil", "abmil-probsa-dirac"),
        ("torchmil_probsmoothabmil_diag", "abmil-probsa-diag"),
        ("torchmil_probsmoothabmil_zero", "abmil-probsa-dirac"),
    ):
        golden = Golden(shared_golden, name)
        assert from_original(name, golden.state).name == model
        with pytest.raises(UnknownName, match="named 'kappa'"):
            from_original(name, golden.state, kappa=2.0)


# options: test_options.py changes each of them


@pytest.mark.parametrize("name", ["abmil", "tabmil"])
@pytest.mark.parametrize("trunk", ["tanh", "gated"])
def test_every_activation_is_another(name, trunk):
    for activation in ("relu", "gelu"):
        assert changes(name, "attention_activation", activation, trunk=trunk) > 1e-6


def test_dropout_after_the_classifiers_hidden_layer_is_in_training_only():
    torch.manual_seed(0)
    model = build("abmil", in_dim=6, embed=None, dropout=0.5, classifier_hidden=9).double()
    model.eval()
    assert torch.equal(model(some_bags()).logits, model(some_bags()).logits)
    model.train()
    assert not torch.equal(model(some_bags()).logits, model(some_bags()).logits)


def test_a_hidden_layer_by_hand():
    model = build("abmil", in_dim=6, embed=None, classifier_hidden=4, n_classes=3).double()
    x = torch.randn(5, 6, dtype=F64)
    out = model(one_bag(x))
    z = out.attention.mean.softmax(0) @ x
    want = model.classifier[2](model.classifier[0](z).relu())
    torch.testing.assert_close(out.logits[0, 0], want, rtol=1e-12, atol=1e-13)


def test_a_layer_without_mlp_has_no_second_norm():
    layer = TransformerLayer(8, 8, heads=2, use_mlp=False)
    assert {k.split(".")[0] for k in layer.state_dict()} == {"norm1", "qkv", "out"}


def count(model: Model) -> int:
    return sum(p.numel() for p in model.parameters())


def test_the_research_codes_transformer_has_the_specified_size():
    research = {"out_proj": False, "use_mlp": False, "add_self": True}
    model = build("tabmil", in_dim=2048, attention_activation="gelu", **research)
    assert count(model) == 2_691_329


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("abmil", {"attention_activation": "elu"}, "attention_activation is 'elu'"),
        ("tabmil", {"attention_activation": "elu"}, "attention_activation is 'elu'"),
        (
            "abmil",
            {"attention_activation": "relu", "trunk": "mlp"},
            "has no effect on the 'mlp' trunk",
        ),
        (
            "abmil",
            {"attention_dropout": 1.0},
            "attention_dropout is 1.0; expected at least 0 and less than 1",
        ),
        ("abmil", {"classifier_hidden": 0}, "classifier_hidden is 0; expected at least 1"),
        ("abmil", {"trunk": "none"}, "trunk is 'none'"),
        ("tabmil", {"heads": 3}, "heads is 3"),
    ],
)
def test_what_is_no_option_is_refused(name, options, message):
    with types_not_executed(), pytest.raises(InputError, match=message):
        build(name, in_dim=6, **options)
