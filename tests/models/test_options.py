"""Every option of a model changes a result, and what is no option is refused."""

import inspect
from typing import Any

import pytest
import torch
from support.options import made, some_bags
from support.random_bags import F64, types_not_executed
from torch import Tensor

from probsa.errors import InputError, UnknownName
from probsa.models import arguments, build, names, register

ATTENTION = {"embed": 8, "attention_dim": 4}
SAMPLES = {"samples": 3, "predict_samples": 7}
SMALL: dict[str, dict[str, Any]] = {
    "abmil": ATTENTION,
    "camil": {"embed": 12, "heads": 2, "landmarks": 4, "attention_dim": 5},
    "clam": {**ATTENTION, "k_sample": 2},
    "dsmil": {"embed": 8},
    "dtfdmil": ATTENTION,
    "evidence": ATTENTION,
    "gtp": {"embed": 8, "clusters": 5, "heads": 2},
    "iibmil": {"embed": 8, "heads": 2, "layers": 1, "decoder_layers": 1, "warmup_epochs": 0},
    "patchgcn": {"embed": 6, "hidden": 7, "attention_dim": 4},
    "setmil": {"embed": 8, "reduced_dim": 4, "pyramid_dim": 3, "set_dim": 8, "heads": 2},
    "smabmil": {**ATTENTION, "heads": 2},
    "tabmil": {**ATTENTION, "heads": 2},
    "transmil": {"embed": 12, "heads": 2, "landmarks": 4},
    "vmil": {"embed": 8, "heads": 2, "feedforward": 9},
}
NYSTROM = {
    "heads": 4,
    "landmarks": 3,
    "pinv_iterations": 4,
    "convolution": False,
    "out_proj": False,
    "mask_padding": False,
    "dropout": 0.5,
}
PROBSA = {
    "samples": 4,
    "predict_samples": 5,
    "log_variance_bounds": (-4.0, 1.0),
    "initial_log_variance": -1.0,
    "kappa": 2.0,
    "ridge": 0.5,
    "laplacian": "normalized",
    "kl_reduction": "sum",
    "learn_kappa": False,
    "kappa_rate": 0.5,
}
ENCODER = {"encoder": "transformer"}
TRANSFORMER = {
    "layers": 1,
    "heads": 4,
    "width": 16,
    "out_proj": False,
    "use_mlp": False,
    "final_norm": False,
    "add_self": True,
}
ABMIL = {
    "embed": (8, 6),
    "activation": "identity",
    "dropout": 0.5,
    "attention_dim": 5,
    "trunk": "gated",
    "attention_activation": "gelu",
    "attention_dropout": 0.5,
    "score_bias": True,
    "classifier_hidden": 7,
    **ENCODER,
    **{k: (v, ENCODER) for k, v in TRANSFORMER.items()},
}
TERMS = {
    "guidance": "normal",
    "guidance_weight": (2.0, {"guidance": "normal"}),
    "negatives": 2.0,
    "level": 0.5,
}
CHANGES: dict[str, dict[str, Any]] = {
    **{n: {**ABMIL, **PROBSA, **TERMS} for n in names() if n.startswith(("abmil", "evidence"))},
    **{
        n: {**ABMIL, **PROBSA, **TRANSFORMER, **TERMS, "activation": "relu"}
        for n in names()
        if n.startswith("tabmil")
    },
    "camil": {
        **NYSTROM,
        "embed": (12, 10),
        "layers": 1,
        "query_dim": 7,
        "attention_dim": 6,
        "trunk": "tanh",
    },
    "clam-sb": {
        "embed": 16,
        "activation": "identity",
        "dropout": 0.5,
        "attention_dim": 5,
        "trunk": "tanh",
        "score_bias": False,
        "k_sample": 3,
        "subtyping": True,
        "instance_loss": "svm",
        "bag_weight": 0.5,
        **TERMS,
    },
    "clam-sb-probsa-diag": {**PROBSA, **TERMS},
    "dsmil": {
        "embed": (8, 7),
        "dropout": 0.5,
        "query": "linear",
        "query_dim": 16,
        "value": "linear",
        "scaled": False,
        "bag_score": "mean_prob",
        "labels": ("independent", {"n_classes": 3}),
    },
    "dtfdmil": {
        "embed": 7,
        "res_blocks": 1,
        "dropout": 0.5,
        "attention_dim": 5,
        "trunk": "tanh",
        "n_groups": 2,
        "distill": "mas",
        "instances_per_group": (2, {"distill": "maxs"}),
        "predict_samples": 3,
    },
    "gtp": {
        "embed": (8, 6),
        "dropout": 0.5,
        "width": 12,
        "code": "torchmil",
        "clusters": 7,
        "layers": 1,
        "heads": 4,
        "mlp_ratio": 3.0,
        "unit_init": False,
    },
    "iibmil": {
        "embed": (8, 6),
        "width": 4,
        "layers": 2,
        "heads": 4,
        "hidden": 7,
        "queries": 2,
        "decoder_layers": 2,
        "decoder_heads": 4,
        "dropout": 0.5,
        "instance_weight": 2.0,
        "bank_epochs": 2,
        "warmup_epochs": 2,
        "restrict_negative_bags": False,
    },
    "patchgcn": {
        "embed": (8, 5),
        "layers": 2,
        "conv": "gcn",
        "width": (9, {"conv": "gcn"}),
        "mlp_bias": False,
        "block": "plain",
        "hidden": (7, 6),
        "rho": 5,
        "attention_dim": 5,
        "trunk": "tanh",
        "dropout": 0.5,
        "layer_dropout": 0.5,
        "attention_dropout": 0.5,
        **TERMS,
    },
    "setmil": {
        "embed": (8, 6),
        "reduction": 5,
        "reduced_dim": 5,
        "pyramid_dim": 5,
        "set_dim": 16,
        "layers": 1,
        "heads": 4,
        "dropout": 0.5,
        "empty": "tokens",
    },
    "smabmil": {
        **ENCODER,
        "embed": (8, 6),
        "dropout": 0.5,
        "where": "late",
        "alpha": 0.7,
        "mode": "exact",
        "steps": 3,
        "spectral_norm": False,
        "attention_dim": 5,
        "attention_activation": "gelu",
        **{k: (v, ENCODER) for k, v in TRANSFORMER.items()},
    },
    "transmil": {**NYSTROM, "embed": (12, 10), "activation": "relu", "layers": 1},
    "transmil-probsa-diag": {
        **PROBSA,
        **TERMS,
        **NYSTROM,
        "embed": (12, 10),
        "activation": "relu",
        "layers": 1,
        "attention_dim": 5,
        "trunk": "gated",
    },
    "vmil": {
        "embed": 16,
        "dropout": 0.5,
        "layers": 1,
        "heads": 4,
        "feedforward": 7,
        "gamma": 0.5,
        "warmup": 0.9,
        "reduction": "sum",
    },
}
"""Another value of each option, and other options with which it has an effect."""
OF_SAMPLES = {"samples", "predict_samples", "log_variance_bounds", "initial_log_variance"}
OF_ALL = {"in_dim", "n_classes", "class_weights", "seed", "preset"}
"""Arguments of all models, which the contract tests check."""
ELSEWHERE = {
    "clam-sb-probsa-diag": set(CHANGES["clam-sb"]),
    "dtfdmil": {"joint", "clip", "score_bias"},
    "patchgcn": {"score_bias"},
    "smabmil": {"train_alpha"},
    # accepted, so that recipes can share options
    **{n: OF_SAMPLES for n in names() if n.endswith("dirac")},
}


def small(name: str) -> dict[str, Any]:
    samples = {k: v for k, v in SAMPLES.items() if k in arguments(name)}
    return {**SMALL[name.partition("-")[0]], **samples}


def results(name: str, **options: Any) -> Tensor:
    """Return the weighted losses of six epochs, logits and scores of a prediction, and the memory.

    Noise is added to initial values, some of which are 0. No optimiser takes a step.
    """
    model = made(name, **options).double().train()
    bags = some_bags()
    generator = torch.Generator().manual_seed(3)
    for p in model.parameters():
        p.data += 0.3 * torch.randn(p.shape, generator=generator, dtype=F64)
    torch.manual_seed(1)
    parts = []
    for epoch in range(6):
        model.start_epoch(epoch, 6)
        out = model(bags, generator=torch.Generator().manual_seed(epoch))
        weights = model.loss_weights
        parts += [v * weights.get(k, 1.0) for k, v in sorted(model.losses(out, bags).items())]
        with torch.no_grad():
            sums = model.batch_statistics(out, bags)
            if sums is not None:
                model.update_statistics(sums)
        model.after_step(out, bags)
    out = model.eval()(bags)
    parts += [out.logits.mean(1), model.instance_scores(bags, out).mean, *model.memory().values()]
    joined = torch.cat([p.detach().flatten() for p in parts])
    assert bool(joined.isfinite().all()), options  # NaN differs from everything
    return joined


@pytest.mark.parametrize("name", CHANGES)
def test_every_option_changes_the_result(name):
    plain = {}
    without_effect = []
    for key in sorted(set(arguments(name)) - OF_ALL - ELSEWHERE.get(name, set())):
        value = CHANGES[name][key]
        base = small(name)
        if isinstance(value, tuple) and isinstance(value[1], dict):
            value, other_options = value
            base |= other_options
        default = arguments(name)[key].default
        assert default is inspect.Parameter.empty or value != base.get(key, default), key
        if str(base) not in plain:
            plain[str(base)] = results(name, **base)
        before = plain[str(base)]
        after = results(name, **{**base, key: value})
        if after.shape == before.shape and (after - before).abs().max().item() <= 1e-6:
            without_effect.append(key)
    assert without_effect == []


REFUSED = [
    ("abmil-probsa-diag", {"kl_reduction": "max"}),
    ("abmil-probsa-diag", {"samples": 0}),
    ("abmil-probsa-diag", {"kappa": -1.0}),
    ("abmil-probsa-diag", {"initial_log_variance": -11.0}),
    ("abmil", {"n_classes": 0}),
    ("evidence-dirac", {"negatives": 1.0}),
    ("abmil", {"embed": (8, 0)}),
    ("abmil", {"attention_dim": 0}),
    ("abmil", {"classifier_hidden": 0}),
    ("abmil", {"trunk": "none"}),
    ("abmil", {"attention_dropout": 1.0}),
    ("abmil", {"attention_activation": "relu", "trunk": "mlp"}),
    ("abmil", {"preset": "papers"}),
    ("tabmil", {"attention_activation": "elu"}),
    ("tabmil", {"heads": 3}),
    ("camil", {"heads": 5}),
    ("camil", {"trunk": "mlp"}),
    ("transmil", {"heads": 0}),
    ("clam-mb", {"k_sample": 0}),
    ("clam-mb", {"instance_loss": "hinge"}),
    ("clam-mb", {"kappa": 1.0}),
    ("gtp", {"mlp_ratio": 0.0}),
    ("patchgcn", {"width": 64}),
    ("patchgcn", {"hidden": 0}),
    ("patchgcn", {"attention_dropout": 2.0}),
    ("smabmil", {"alpha": 1.0}),
    ("smabmil", {"alpha": 0.0}),
    ("smabmil", {**ENCODER, "width": 6, "add_self": True}),
    ("setmil", {"reduction": 2}),
    ("vmil", {"n_classes": 2}),
]


@pytest.mark.parametrize(("name", "options"), REFUSED)
def test_what_is_no_option_is_refused(name, options):
    *_, key = options
    with types_not_executed(), pytest.raises((InputError, UnknownName), match=key):
        build(name, in_dim=6, **{**small(name), **options})


@pytest.mark.parametrize("name", ["dtfdmil", "patchgcn"])
def test_a_bias_on_the_score_shifts_the_score_and_nothing_else(name):
    plain = made(name, **small(name), score_bias=False).double().eval()
    biased = made(name, **small(name), score_bias=True).double().eval()
    biased.load_state_dict(plain.state_dict(), strict=False)
    torch.nn.init.constant_(biased.attention.mean.bias, 3.0)
    bags = some_bags()
    a = plain(bags)
    b = biased(bags)
    torch.testing.assert_close(a.logits, b.logits)
    score_a = a.extras.get("attention", a.attention.mean)
    score_b = b.extras.get("attention", b.attention.mean)
    torch.testing.assert_close(score_a + 3, score_b)


@pytest.mark.parametrize("plain", ["abmil", "tabmil"])
def test_without_its_kl_the_dirac_is_the_plain_method(plain):
    """And its KL is that of the posterior, reduced over the instances of each bag."""
    bags = some_bags()
    for reduction, sizes in (("mean", [12.0, 7.0]), ("sum", [1.0, 1.0])):
        options = {"kappa": 1.5, "ridge": 0.2, "kl_reduction": reduction}
        method = made(plain).double()
        dirac = made(f"{plain}-probsa-dirac", **options).double()
        assert method.state_dict().keys() == dirac.state_dict().keys()
        out = method(bags)
        out_dirac = dirac(bags)
        assert torch.equal(out.logits, out_dirac.logits)
        terms = dirac.losses(out_dirac, bags)
        assert torch.equal(method.losses(out, bags)["nll"], terms["nll"])
        kl = out_dirac.attention.kl(dirac.prior, bags) / torch.tensor(sizes, dtype=F64)
        torch.testing.assert_close(terms["kl"], kl.mean(), rtol=1e-13, atol=0)


def test_two_models_cannot_share_a_name():
    with pytest.raises(ValueError, match="abmil"):
        register("abmil")(type(build("tabmil", in_dim=6)))
