"""Every option changes the result, and invalid options are refused."""

import pytest
import torch
from support.random_bags import F64, random_bag, types_not_executed

from probsa import pack
from probsa.errors import InputError
from probsa.models import arguments, build, names, register

BASE = {"in_dim": 6, "embed": 8, "attention_dim": 4}
OTHERWISE = {
    "in_dim": None,  # the width of the features
    "posterior": None,  # fixed by the name
    "class_weights": None,  # in the contract
    "preset": None,
    "n_classes": None,
    "seed": None,
}
CHANGES = {
    "embed": (8, 6),
    "activation": "identity",
    "dropout": 0.5,
    "attention_dim": 5,
    "trunk": "gated",
    "attention_activation": "gelu",
    "attention_dropout": 0.5,
    "score_bias": True,
    "layers": 1,
    "heads": 4,
    "width": 16,
    "out_proj": False,
    "use_mlp": False,
    "final_norm": False,
    "add_self": True,
    "classifier_hidden": 7,
    "samples": 4,
    "predict_samples": 5,
    "log_variance_bounds": (-4.0, 1.0),
    "initial_log_variance": -1.0,
    "pooling": "closed_form",
    "kappa": 2.0,
    "ridge": 0.5,
    "laplacian": "normalized",
    "kl_reduction": "sum",
    "learn_kappa": False,
    "kappa_rate": 0.5,
    "encoder": "transformer",
}
# these affect one variant only; the others accept them, so that recipes can share options
OF_STOCHASTIC = {"samples", "predict_samples", "log_variance_bounds", "initial_log_variance"}
OF_ENCODER = {"layers", "heads", "width", "out_proj", "use_mlp", "final_norm", "add_self"}
CASES = [
    (name, key)
    for name in names()
    if name.split("-")[0] in ("abmil", "tabmil", "evidence")
    for key in arguments(name)
    if key not in OTHERWISE
    and not (key in OF_STOCHASTIC and name.endswith("dirac"))
    and not (key in OF_ENCODER and not name.startswith("tabmil"))
]


def bags():
    return pack([random_bag(7, seed=1, features=6, y=1), random_bag(4, seed=2, features=6, y=0)])


def results(name, **options):
    """Return training losses, and a prediction after the step's statistics, from one seed."""
    start = {k: v for k, v in {**BASE, "heads": 2, "samples": 3, "predict_samples": 7}.items()
             if k in arguments(name)}  # fmt: skip
    torch.manual_seed(0)
    model = build(name, **{**start, **options}).double()
    if (head := model.attention.log_variance) is not None:
        # weights other than the initial 0, so that the bounds have an effect
        torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(9))
    torch.manual_seed(1)
    out = model(bags(), generator=torch.Generator().manual_seed(0))
    losses = model.losses(out, bags())
    with torch.no_grad():
        if (sums := model.batch_statistics(out, bags())) is not None:
            model.update_statistics(sums)
    predicted = model.eval()(bags()).logits.mean(1)
    return torch.cat([torch.stack([v.detach() for v in losses.values()]), predicted.flatten()])


@pytest.mark.parametrize(("name", "key"), CASES)
def test_an_option_changes_the_result(name, key):
    value = CHANGES[key]
    if key == "activation" and name.startswith("tabmil"):
        value = "relu"
    changed, plain = results(name, **{key: value}), results(name)
    assert (changed - plain).abs().max().item() > 1e-6


@pytest.mark.parametrize("name", ["abmil-probsa-dirac", "abmil-probsa-diag"])
def test_the_kl_is_the_posteriors_own_reduced_over_instances(name):
    for reduction, sizes in (("mean", [7.0, 4.0]), ("sum", [1.0, 1.0])):
        torch.manual_seed(0)
        model = build(name, **BASE, kappa=1.5, ridge=0.2, kl_reduction=reduction).double()
        out = model(bags())
        each = out.attention.kl(model.prior, bags()) / torch.tensor(sizes, dtype=F64)
        got = model.losses(out, bags())["kl"]
        torch.testing.assert_close(got, each.mean(), rtol=1e-13, atol=0)


@pytest.mark.parametrize(
    ("plain", "dirac"), [("abmil", "abmil-probsa-dirac"), ("tabmil", "tabmil-probsa-dirac")]
)
def test_without_its_kl_the_dirac_is_the_plain_method(plain, dirac):
    torch.manual_seed(0)
    a = build(plain, in_dim=6).double()
    torch.manual_seed(0)
    b = build(dirac, in_dim=6).double()
    assert a.state_dict().keys() == b.state_dict().keys()
    out_a, out_b = a(bags()), b(bags())
    assert torch.equal(out_a.logits, out_b.logits)
    assert torch.equal(a.losses(out_a, bags())["nll"], b.losses(out_b, bags())["nll"])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("abmil-probsa-diag", {"kl_reduction": "max"}, "'max'; expected 'mean' or 'sum'"),
        ("abmil-probsa-diag", {"samples": 0}, "samples is 0; expected at least 1"),
        ("abmil-probsa-diag", {"kappa": -1.0}, "kappa is -1.0; expected more than 0"),
        ("abmil-probsa-diag", {"n_classes": 0}, "n_classes is 0"),
        ("abmil-probsa-diag", {"initial_log_variance": -11.0}, "lies outside the bounds"),
        ("abmil", {"embed": 0}, "at least 1"),
        ("abmil", {"embed": (8, 0)}, "at least 1"),
        ("abmil", {"attention_dim": 0}, "at least 1"),
        ("abmil", {"classifier_hidden": 0}, "classifier_hidden is 0; expected at least 1"),
        ("abmil", {"trunk": "none"}, "trunk is 'none'"),
        ("abmil", {"attention_dropout": 1.0}, "expected at least 0 and less than 1"),
        ("tabmil", {"attention_activation": "elu"}, "attention_activation is 'elu'"),
        ("abmil", {"attention_activation": "relu", "trunk": "mlp"}, "no effect on the 'mlp' trunk"),
        ("tabmil", {"heads": 3}, "heads is 3"),
        ("abmil", {"preset": "papers"}, "preset is 'papers'; expected 'paper' or 'original'"),
    ],
)
def test_what_is_no_option_is_refused(name, options, message):
    with types_not_executed(), pytest.raises(InputError, match=message):
        build(name, **{**BASE, **options})


def test_two_models_cannot_share_a_name():
    with pytest.raises(ValueError, match="two models are named 'abmil'"):
        register("abmil")(type(build("tabmil", in_dim=6)))
