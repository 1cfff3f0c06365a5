"""The rival methods: every option changes a result, what is no option is refused, sizes."""

from typing import Any

import pytest
import torch
from support.options import changes, made, options_of, some_bags
from support.random_bags import types_not_executed

from probsa.errors import InputError, UnknownName
from probsa.models import RETIRED_OPTIONS, arguments, build
from probsa.training.config import RunConfig

SMALL: dict[str, dict[str, Any]] = {
    "camil": {"embed": 12, "heads": 2, "landmarks": 4, "attention_dim": 5},
    "clam": {"embed": 8, "attention_dim": 4, "k_sample": 2},
    "dsmil": {"embed": 8},
    "dtfdmil": {"embed": 8, "attention_dim": 4},
    "gtp": {"embed": 8, "clusters": 5, "heads": 2},
    "iibmil": {"embed": 8, "heads": 2, "layers": 1, "decoder_layers": 1, "warmup_epochs": 0},
    "patchgcn": {"embed": 6, "hidden": 7, "attention_dim": 4},
    "setmil": {"embed": 8, "reduced_dim": 4, "pyramid_dim": 3, "set_dim": 8, "heads": 2},
    "smabmil": {"embed": 8, "attention_dim": 4, "heads": 2},
    "transmil": {"embed": 12, "heads": 2, "landmarks": 4},
    "transmil-probsa-diag": {"samples": 3, "predict_samples": 7},
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
    "pooling": "closed_form",
    "samples": 4,
    "predict_samples": 5,
    "initial_log_variance": -1.0,
    "kappa": 2.0,
    "ridge": 0.5,
    "laplacian": "normalized",
    "kl_reduction": "sum",
}
ENCODER = {"encoder": "transformer"}
CHANGES: dict[str, dict[str, Any]] = {
    "camil": {**NYSTROM, "embed": (12, 10), "layers": 1, "query_dim": 7, "attention_dim": 6,
              "trunk": "tanh"},
    "clam-sb": {"embed": 16, "activation": "identity", "dropout": 0.5, "attention_dim": 5,
                "trunk": "tanh", "score_bias": False, "k_sample": 3, "subtyping": True,
                "instance_loss": "svm", "bag_weight": 0.5},
    "clam-sb-probsa-diag": PROBSA,
    "dsmil": {"embed": (8, 7), "dropout": 0.5, "query": "linear", "query_dim": 16,
              "value": "linear", "scaled": False, "bag_score": "mean_prob",
              "labels": ("independent", {"n_classes": 3})},
    "dtfdmil": {"embed": 7, "res_blocks": 1, "dropout": 0.5, "attention_dim": 5, "trunk": "tanh",
                "n_groups": 2, "distill": "mas", "instances_per_group": (2, {"distill": "maxs"}),
                "predict_samples": 3},
    "gtp": {"embed": (8, 6), "dropout": 0.5, "width": 12, "code": "torchmil", "clusters": 7,
            "layers": 1, "heads": 4, "mlp_ratio": 3.0, "unit_init": False},
    "iibmil": {"embed": (8, 6), "width": 4, "layers": 2, "heads": 4, "hidden": 7, "queries": 2,
               "decoder_layers": 2, "decoder_heads": 4, "dropout": 0.5, "instance_weight": 2.0,
               "bank_epochs": 2, "warmup_epochs": 2, "restrict_negative_bags": False},
    "patchgcn": {"embed": (8, 5), "layers": 2, "conv": "gcn", "width": (9, {"conv": "gcn"}),
                 "mlp_bias": False, "block": "plain", "hidden": (7, 6), "rho": 5,
                 "attention_dim": 5, "trunk": "tanh", "dropout": 0.5, "layer_dropout": 0.5,
                 "attention_dropout": 0.5},
    "setmil": {"embed": (8, 6), "reduction": 5, "reduced_dim": 5, "pyramid_dim": 5, "set_dim": 16,
               "layers": 1, "heads": 4, "dropout": 0.5, "empty": "tokens"},
    "smabmil": {"encoder": "transformer", "embed": (8, 6), "dropout": 0.5, "where": "late",
                "alpha": 0.7, "mode": "exact", "steps": 3,
                "spectral_norm": False, "attention_dim": 5, "attention_activation": "gelu",
                "layers": (1, ENCODER), "heads": (4, ENCODER), "width": (16, ENCODER),
                "out_proj": (False, ENCODER), "use_mlp": (False, ENCODER),
                "final_norm": (False, ENCODER), "add_self": (True, ENCODER)},
    "transmil": {**NYSTROM, "embed": (12, 10), "activation": "relu", "layers": 1},
    "transmil-probsa-diag": {**PROBSA, **NYSTROM, "embed": (12, 10), "activation": "relu",
                             "layers": 1, "attention_dim": 5, "trunk": "gated"},
    "vmil": {"embed": 16, "dropout": 0.5, "layers": 1, "heads": 4, "feedforward": 7, "gamma": 0.5,
             "warmup": 0.9, "reduction": "sum"},
}  # fmt: skip
"""Another value of each option, and other options with which it has an effect."""
ELSEWHERE = {
    "clam-sb-probsa-diag": {*CHANGES["clam-sb"], "log_variance_bounds"},
    "dtfdmil": {"joint", "clip", "score_bias"},
    "patchgcn": {"score_bias"},
    "smabmil": {"train_alpha"},
    "transmil-probsa-diag": {"log_variance_bounds"},
}


def small(name: str) -> dict[str, Any]:
    stem = name.partition("-")[0]
    return {**SMALL[stem], **(SMALL.get(name, {}) if name != stem else {})}


@pytest.mark.parametrize(
    ("name", "key"),
    [(n, k) for n in CHANGES for k in options_of(n, without=ELSEWHERE.get(n, ()))],
)
def test_an_option_changes_the_result(name, key):
    value, more = change if _has_base(change := CHANGES[name][key]) else (change, {})
    assert changes(name, key, value, **{**small(name), **more}) > 1e-6


def _has_base(change: object) -> bool:
    return isinstance(change, tuple) and isinstance(change[1], dict)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("camil", {"heads": 5}, "heads is 5: give a divisor of the attention's width, 12"),
        ("camil", {"trunk": "mlp"}, "trunk is 'mlp'; expected 'tanh' or 'gated'"),
        ("transmil", {"heads": 0}, "heads is 0: give a divisor"),
        ("transmil", {"dropout": 1.0}, "dropout is 1.0; expected at least 0 and less than 1"),
        ("clam-mb", {"k_sample": 0}, "k_sample is 0; expected at least 1"),
        ("clam-mb", {"instance_loss": "hinge"}, "instance_loss is 'hinge'; expected 'ce' or 'svm'"),
        ("dsmil", {"embed": 0}, "at least 1"),
        ("dsmil", {"n_classes": 0}, "n_classes is 0"),
        ("gtp", {"heads": 3}, "heads is 3: give a divisor of the transformer's width, 8"),
        ("gtp", {"mlp_ratio": 0.0}, "mlp_ratio is 0.0: the MLP needs at least one hidden unit"),
        ("patchgcn", {"width": 64}, "width is 64, but GENConv keeps the 6 channels .* conv='gcn'"),
        ("patchgcn", {"hidden": 0}, "expected widths of at least 1"),
        ("patchgcn", {"attention_dropout": 2.0}, r"dropout in the attention is 2.0"),
        ("smabmil", {"alpha": 1.0}, "alpha of Sm is 1.0"),
        ("smabmil", {"alpha": 0.0}, "alpha of Sm is 0.0; .* above 0"),
        ("smabmil", {**ENCODER, "width": 6, "add_self": True}, "width is 6: add_self .* width 8"),
        ("iibmil", {"decoder_heads": 5}, "heads is 5: give a divisor"),
        ("setmil", {"reduction": 2}, "reduction is 2: expected the odd side of a window"),
        ("setmil", {"heads": 3}, "heads is 3: give a divisor of the transformer's width, 8"),
        ("vmil", {"n_classes": 2}, "n_classes is 2: VMIL supports only two classes"),
    ],
)
def test_what_is_no_option_is_refused(name, options, message):
    with types_not_executed(), pytest.raises(InputError, match=message):
        build(name, in_dim=6, **{**small(name), **options})


@pytest.mark.parametrize("name", ["dtfdmil", "patchgcn"])
def test_a_bias_on_the_score_shifts_the_score_and_nothing_else(name):
    plain, biased = (
        made(name, **small(name), score_bias=bias).double().eval() for bias in (False, True)
    )
    biased.load_state_dict(plain.state_dict(), strict=False)
    torch.nn.init.constant_(biased.attention.mean.bias, 3.0)
    a, b = plain(bags := some_bags()), biased(bags)
    torch.testing.assert_close(a.logits, b.logits)
    raw_a, raw_b = (out.extras.get("attention", out.attention.mean) for out in (a, b))
    torch.testing.assert_close(raw_a + 3, raw_b)


@pytest.mark.parametrize("name", RETIRED_OPTIONS)
def test_runs_from_before_some_options_went_are_read_with_the_defaults(name):
    gone = RETIRED_OPTIONS[name]
    assert not set(gone) & set(arguments(name))
    stored = {"data": {"features": "f", "labels": "l"}, "model": {"name": name, **gone}}
    assert RunConfig.from_dict(stored).model_arguments == {}
    for key in gone:
        other = {**stored, "model": {"name": name, key: "another"}}
        assert set(RunConfig.from_dict(other).model_arguments) == {key}


def test_what_a_plain_clam_does_not_have_is_not_offered():
    for name in ("clam-sb", "clam-mb"):
        with pytest.raises(UnknownName, match=f"no argument of {name} named 'kappa'"):
            build(name, in_dim=6, kappa=1.0)


@pytest.mark.parametrize("name", ["clam-sb-probsa-diag", "transmil-probsa-diag"])
def test_bounds_hold_once_the_variance_is_learnt(name):
    """The head starts at 0, where bounds have no effect, so set its weights."""
    h = torch.randn(50, small(name)["embed"])
    for low, high in ((-10.0, 4.0), (-3.0, -1.0)):
        model = build(name, in_dim=6, **{**small(name), "log_variance_bounds": (low, high)})
        torch.nn.init.constant_(model.attention.log_variance.weight, 50)
        log_variance = model.attention(h).variance.log()
        assert low - 1e-5 <= log_variance.min() < log_variance.max() <= high + 1e-5
        assert log_variance.max() - log_variance.min() > 0.8 * (high - low)
