"""Original weights: other layouts of a file are read alike, and what does not fit is refused.

tests/models/test_parity.py compares the values.
"""

import pytest
import torch
from support.golden import Golden

from probsa import pack
from probsa.errors import InputError, ProbSAError, UnknownName
from probsa.models import from_original
from probsa.models._originals import sources


def renamed(*pairs):
    def rename(state):
        for theirs, ours in pairs:
            state = {k.replace(theirs, ours): v for k, v in state.items()}
        return state

    return rename


def with_prefix(prefix):
    return lambda state: {f"{prefix}{k}": v for k, v in state.items()}


INSIDE = renamed(("attention_net.", "attention_net.module."))  # DataParallel around one part
NO_DROPOUT = renamed(("net.3.module.3", "net.2.module.2"), ("net.3.", "net.2."))
EXTRACTOR = {f"feature_extractor_part{k}.0.weight": torch.zeros(2, 3) for k in (1, 2)}
LAYOUTS = [
    *(("transmil_nystrom014", with_prefix(p)) for p in ("model.", "module.", "state_dict.model.")),
    *((f"clam_{kind}", INSIDE) for kind in ("sb_gated", "sb_plain", "mb_gated", "mb_plain")),
    *((f"clam_{kind}", NO_DROPOUT) for kind in ("sb_gated", "sb_plain", "mb_gated", "mb_plain")),
    ("clam_sb_plain", with_prefix("module.")),
    ("clam_sb_gated", lambda state: {**state, "instance_loss_fn.labels": torch.arange(2)}),
    ("ckpt_patchgcn_repo_amil_blca0", INSIDE),
    *((f"abmil_{kind}", lambda state: {**state, **EXTRACTOR}) for kind in ("gated", "plain")),
    *((f"torchmil_{kind}", renamed((".module.", "."))) for kind in ("abmil", "abmil_gated")),
]


@pytest.mark.parametrize(("name", "change"), LAYOUTS)
def test_another_layout_of_the_same_weights(shared_golden, name, change):
    golden = Golden(shared_golden, name)
    bags = pack([golden.bag(0)])
    model = from_original(golden.name, change(golden.state), **golden.constructor)
    assert torch.equal(model(bags).logits, golden.model()(bags).logits)


def test_arguments_of_the_constructor(shared_golden):
    clam = Golden(shared_golden, "clam_sb_plain").state
    features = str(clam["attention_net.0.weight"].shape[1])
    model = from_original(
        "clam_sb", clam, gate="False", dropout="0.25", B="3", n_classes="3", subtyping="True",
        embed_dim=features, instance_loss="svm", bag_weight="0.5", bag_loss="svm",
    )  # fmt: skip
    constructor = {"dropout": 0.25, "k_sample": 3, "subtyping": True, "instance_loss": "svm"}
    assert constructor.items() <= model.arguments.items()
    assert model.loss_weights == {"nll": 0.5, "instance": 0.5}
    assert from_original("clam_sb", clam, drop_out="True").arguments["dropout"] == 0.25
    assert from_original("clam_sb", clam, dropout=False, inst_loss="None").evidence.kind == "ce"
    assert from_original("clam_sb", clam).name == "clam-sb"
    for name, model in (
        ("torchmil_smoothabmil", "abmil-probsa-dirac"),
        ("torchmil_probsmoothabmil_diag", "abmil-probsa-diag"),
        ("torchmil_probsmoothabmil_zero", "abmil-probsa-dirac"),
    ):
        golden = Golden(shared_golden, name)
        assert from_original(golden.name, golden.state).name == model
    abmil = from_original("torchmil_abmil", Golden(shared_golden, "torchmil_abmil").state,
                          att_act="gelu")  # fmt: skip
    assert abmil.arguments["attention_activation"] == "gelu"
    transmil = Golden(shared_golden, "torchmil_transmil")
    assert transmil.model(n_landmarks=None).encoder.blocks[0].options.landmarks == 16
    tabmil = Golden(shared_golden, "torchmil_transformerabmil")
    state = {k: v for k, v in tabmil.state.items() if ".mlp_module." not in k}
    without = from_original(tabmil.name, state, **tabmil.constructor | {"transf_use_mlp": False})
    assert without.arguments["use_mlp"] is False and without.arguments["layers"] == 2
    with pytest.raises(ProbSAError, match=r"unknown are .*mlp_module"):
        tabmil.model(transf_use_mlp=False)
    first = {"fc1.weight": torch.randn(32, 48), "fc1.bias": torch.randn(32)}
    with_layer = from_original(transmil.name, transmil.state | first, **transmil.constructor)
    bag = torch.randn(9, 48)
    torch.testing.assert_close(
        with_layer.embed(bag), torch.nn.functional.linear(bag, *first.values())
    )


WEIGHT = "attention_net.0.weight"
REFUSED = [
    # references and arguments
    ("clam_sb_gated", {}, {"k_samples": 3}, r"argument of clam_sb named 'k_samples'.*'k_sample'"),
    ("torchmil_smoothabmil", {}, {"kappa": 2.0}, "named 'kappa'"),
    ("torchmil_clam_sb", {}, {"att_act": "relu"}, "att_act is 'relu': only 'tanh' can be read"),
    ("torchmil_dtfdmil_max", {}, {"distill_mode": "min"}, "distill_mode is 'min'; expected one of"),
    ("torchmil_dtfdmil_max", {}, {"n_groups": 2.5}, "n_groups is 2.5; expected a whole number"),
    ("torchmil_patchgcn", {}, {"dropout": "x"}, "dropout is 'x'; expected"),
    ("torchmil_transmil", {}, {"use_mlp": True}, r"torchmil_transmil: .*\(use_mlp\)"),
    ("clam_sb_gated", {}, {"size_arg": "huge"}, "size_arg is 'huge'; expected 'small' or 'big'"),
    # arguments that contradict the weights
    ("clam_sb_gated", {}, {"n_classes": 7}, r"classifiers\.\w+ has shape .* \(7,"),
    ("clam_sb_gated", {}, {"gate": "False"}, "unknown are attention_net.3.attention_b.0.bias"),
    ("clam_sb_gated", {}, {"size_arg": "big"}, r"attention_a\.0\.\w+ has shape .* \(384,"),
    ("transmil_nystrom014", {}, {"n_classes": 2}, r"_fc2\.\w+ has shape \(3,.* where .* has \(2,"),
    ("torchmil_abmil", {}, {"gated": True}, "nothing given for attention.trunk.gate"),
    ("torchmil_abmil", {}, {"in_shape": (8,)}, r"weight has shape .* \(\d+, 8\)"),
    # other state dicts
    ("clam_sb_gated", {"classifiers.weight": None}, {}, "no 'classifiers.weight' .* of clam_sb"),
    ("clam_sb_gated", {WEIGHT: torch.zeros(5, 4, 3)}, {}, "clam_sb: a tensor .* another form"),
    ("torchmil_abmil", {}, {"in_shape": 8}, "in_shape is 8; expected a list"),
    (
        *("clam_sb_gated", {"attention_net.3.attention_c.weight": torch.zeros(2, 256)}, {}),
        r"attention_c.weight has shape \(2, 256\) where clam-sb .* \(1, \d+\)",
    ),
    ("clam_sb_gated", {"head.weight": torch.zeros(1)}, {}, "unknown are head.weight"),
    ("clam_mb_gated", {"classifiers.0.bias": torch.zeros(2)}, {}, r"0.bias has shape \(2,\); clam"),
    ("torchmil_clam_sb", {"pool.fc1.weight": None, "pool.fc1.module.weight": None}, {}, "no 'pool"),
    ("abmil_plain", {"attention.0.weight": None}, {}, "no 'attention.0.weight'.*be that of abmil"),
    ("abmil_plain", {"attention.2.weight": torch.zeros(2, 5)}, {}, r"\(2, 5\) where abmil .* \(1,"),
    (
        *("transmil_nystrom014", {"layer2.attn.to_qkv.weight": torch.zeros(96, 31)}, {}),
        r"layer2.attn.to_qkv.weight has shape \(96, 31\)",
    ),
    ("torchmil_smabmil_mid", {"pool.sm.sm.coef": torch.tensor(-1.0)}, {}, "coef is -1: α can only"),
    (
        *("torchmil_smtransformerabmil", {}, {"transf_sm_steps": 3, "pool_sm_steps": 4}),
        "transf_sm_steps is 3 and pool_sm_steps 4: both must be equal",
    ),
    # earlier attention packages keep the wrong rows of a padded bag, which gives other numbers
    ("transmil_nystrom009", {}, {"nystrom_attention": "0.0.9"}, "keep the wrong rows.*=0.0.14"),
    ("transmil_nystrom014", {}, {"nystrom_attention": "0.0.13"}, "keep the wrong rows.*=0.0.14"),
]


@pytest.mark.parametrize(("name", "change", "arguments", "says"), REFUSED)
def test_what_does_not_fit_is_named(shared_golden, name, change, arguments, says):
    golden = Golden(shared_golden, name)
    state = {k: v for k, v in {**golden.state, **change}.items() if v is not None}
    with pytest.raises(ProbSAError, match=says):
        from_original(golden.name, state, **{**golden.constructor, **arguments})


@pytest.mark.parametrize(
    ("reference", "meant"),
    [("CLAM-SB", "clam_sb"), ("torchmil_abmill", "torchmil_abmil"), ("dsmill", "dsmil")],
)
def test_a_name_that_is_not_known_is_refused_with_a_suggestion(reference, meant):
    with pytest.raises(
        UnknownName, match=f"no reference named {reference!r}. Did you mean {meant!r}"
    ):
        from_original(reference, {})


def test_every_original_has_a_set_of_reference_outputs(shared_golden):
    stems = [p.stem for p in shared_golden.glob("*.safetensors")]
    assert set(sources()) == {
        Golden(shared_golden, s).reference for s in stems if s.startswith(tuple(sources()))
    } | {"patchgcn_repo_amil"}


def test_transmil_needs_the_version_of_its_attention(shared_golden):
    golden = Golden(shared_golden, "transmil_nystrom014")
    with pytest.raises(InputError, match="nystrom_attention is 'not given'"):
        from_original("transmil", golden.state, **golden.constructor)
