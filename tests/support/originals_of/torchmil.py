"""Weights of torchmil's models (Franblueee/torchmil): its names and its arguments."""

from typing import Any

from .authors import SQUARE
from .reading import Original, Rules, original

RULES: Rules = (
    (r"pool\.in_mlp\.0\.", "attention.trunk.first."),
    (r"pool\.in_mlp\.2\.", "attention.trunk.second."),
    (r"pool\.mu_f_nn\.", "attention.mean."),
    (r"pool\.log_diag_Sigma_nn\.", "attention.log_variance."),
    (r"(?:camil_att_|attention_)?pool\.fc1\.", "attention.trunk.first."),
    (r"(?:camil_att_|attention_)?pool\.fc_gated\.", "attention.trunk.gate."),
    (r"(?:camil_att_|attention_)?pool\.fc2\.", "attention.mean."),
    (r"(?:classifier|last_layer)\.", "classifier."),
    (r"transformer_encoder\.layers\.(\d+)\.att_module\.qkv_nn\.", r"encoder.blocks.\1.qkv."),
    (r"transformer_encoder\.layers\.(\d+)\.att_proj\.", r"encoder.blocks.\1.skip."),
    (r"transformer_encoder\.layers\.(\d+)\.mlp_module\.", r"encoder.blocks.\1.mlp."),
    (r"transformer_encoder\.layers\.\d+\.out_proj\.", "encoder.back."),
    (r"transformer_encoder\.layers\.(\d+)\.norm", r"encoder.blocks.\1.norm"),
    (r"transformer_encoder\.norm\.", "encoder.norm."),
    (r"fc1\.", "embed.net.0."),
)


def attention(of: Original, pool: str = "pool") -> dict[str, Any]:
    """Return the arguments of a model whose attention reads the features themselves."""
    first = of.state[f"{pool}.fc1.weight"]
    return {
        "in_dim": of.arguments.get("in_shape", first.shape)[-1],
        "embed": None,
        "attention_dim": len(first),
        "trunk": "gated" if f"{pool}.fc_gated.weight" in of.state else "tanh",
    }


def encoder(of: Original, *, heads: int = 8) -> dict[str, Any]:
    """Return our transformer's arguments; shapes do not determine `heads` and `add_self`."""
    start = "transformer_encoder.layers"
    given = of.arguments
    qkv = of.state[f"{start}.0.att_module.qkv_nn.weight"]
    mlp = given.get("transf_use_mlp", f"{start}.0.mlp_module.0.weight" in of.state)
    if not mlp:
        for key in [k for k in of.state if ".norm2." in k]:  # norms of the MLP, not used without it
            del of.state[key]
    return {
        "layers": given.get("transf_n_layers", of.count(rf"{start}\.(\d+)\.")),
        "heads": given.get("transf_n_heads", heads),
        "width": given.get("transf_att_dim", len(qkv) // 3),
        "use_mlp": mlp,
        "add_self": given.get("transf_add_self", True),
        "out_proj": False,
        "dropout": given.get("transf_dropout", 0.0),
    }


def nystrom(of: Original, dim: int) -> dict[str, Any]:
    """Return the arguments of the first layer and of Nyström attention of TransMIL and CAMIL."""
    assert not of.arguments.get("use_mlp"), "their layers have an MLP, ours have none"
    first = of.state.get("fc1.weight")
    return {
        "in_dim": dim if first is None else first.shape[1],
        "embed": None if first is None else dim,
        "heads": of.arguments.get("n_heads", 4),
        "pinv_iterations": of.arguments.get("pinv_iterations", 6),
        "convolution": False,
        "out_proj": False,
        "mask_padding": False,
    }


@original("torchmil_abmil", model="abmil", names=RULES)
@original("torchmil_transformerabmil", model="tabmil", names=RULES)
def _abmil(of: Original) -> dict[str, Any]:
    """Read torchmil's ABMIL or TransformerABMIL: no first layer and no bias on w."""
    transformer = of.reference == "torchmil_transformerabmil"
    given = of.arguments
    values = attention(of)
    pool = "pool_" if transformer else ""
    gated = given.get(f"{pool}gated", values["trunk"] == "gated")
    return {
        **values,
        "attention_dim": given.get(f"{pool}att_dim", values["attention_dim"]),
        "trunk": "gated" if gated else "tanh",
        "attention_activation": given.get("pool_act" if transformer else "att_act", "tanh"),
        **(encoder(of) if transformer else {}),
    }


@original(
    *("torchmil_smoothabmil", "torchmil_probsmoothabmil", "torchmil_transformerprobsmoothabmil"),
    model="abmil-probsa-diag",
    names=RULES,
)
def _probsa(of: Original) -> dict[str, Any]:
    """Read torchmil's three models: no first layer, normalised Laplacian, κ = 1, no ridge."""
    given = of.arguments
    transformer = "transformer" in of.reference
    hidden, width = of.state["pool.in_mlp.0.weight"].shape
    diag = any(k.startswith("pool.log_diag_Sigma_nn.") for k in of.state)
    posterior = "diag" if given.get("covar_mode", "diag" if diag else "zero") == "diag" else "dirac"
    samples = given.get("n_samples_train", 1)
    return {
        "name": f"{'tabmil' if transformer else 'abmil'}-probsa-{posterior}",
        "in_dim": given.get("in_shape", (width,))[-1],
        "embed": None,
        "attention_dim": given.get("att_dim", given.get("pool_att_dim", hidden // 2)),
        "trunk": "mlp",
        "log_variance_bounds": None,
        "samples": samples,
        "predict_samples": given.get("n_samples_test", samples),
        "laplacian": "normalized",
        "ridge": 0.0,
        **(encoder(of) if transformer else {}),
    }


@original(
    "torchmil_transmil",
    model="transmil",
    names=[
        *SQUARE,
        (r"layers\.(\d+)\.norm1\.", r"encoder.blocks.\1.norm."),
        (r"layers\.(\d+)\.norm2\.", None),  # belongs to the MLP, which is absent
        (r"layers\.(\d+)\.att_module\.qkv_nn\.", r"encoder.blocks.\1.qkv."),
        *RULES,
    ],
)
def _transmil(of: Original) -> dict[str, Any]:
    dim = of.state["cls_token"].shape[-1]
    return {
        "layers": of.count(r"layers\.(\d+)\.norm1\.weight"),
        "landmarks": of.arguments.get("n_landmarks") or dim // 2,
        **nystrom(of, dim),
    }


@original(
    "torchmil_camil",
    model="camil",
    names=[
        (r"nystrom_transformer_layer\.att_module\.qkv_nn\.", "layers.0.qkv."),
        (r"nystrom_transformer_layer\.norm1\.", "layers.0.norm."),
        (r"nystrom_transformer_layer\.norm2\.", None),  # belongs to the MLP, which is absent
        (r"camil_self_attention\.v_nn\.", "values."),
        *RULES,
    ],
)
def _camil(of: Original) -> dict[str, Any]:
    qk = of.state["camil_self_attention.qk_nn.weight"]
    del of.state["camil_self_attention.qk_nn.weight"]
    of.state["queries.weight"], of.state["keys.weight"] = qk.split(len(qk) // 2)[:2]
    return {
        **attention(of, "camil_att_pool"),
        "layers": 1,
        "landmarks": of.arguments.get("n_landmarks") or 256,
        "query_dim": len(qk) // 2,
        **nystrom(of, qk.shape[1]),
    }


@original(
    "torchmil_gtp",
    model="gtp",
    names=[
        (r"cls_token$", "class_token"),
        (r"gcn_conv\.fc\.", "gcn."),
        (r"cluster_proj\.", "assign."),
        (r"transformer_encoder\.layers\.(\d+)\.att_module\.qkv_nn\.", r"blocks.\1.qkv."),
        (r"transformer_encoder\.layers\.(\d+)\.mlp_module\.", r"blocks.\1.mlp."),
        (r"transformer_encoder\.layers\.(\d+)\.", r"blocks.\1."),
        (r"transformer_encoder\.", ""),
    ],
)
def _gtp(of: Original) -> dict[str, Any]:
    """Return the arguments of a GTP with ReLU instead of both normalisations, weighted edges."""
    width = of.state["cls_token"].shape[-1]
    gcn = of.state["gcn_conv.fc.weight"]
    of.state["gcn_conv.fc.weight"] = gcn.T
    return {
        "preset": "original",
        "in_dim": gcn.shape[1],
        "n_classes": len(of.state["classifier.bias"]),
        "width": width,
        "code": "torchmil",
        "clusters": len(of.state["cluster_proj.bias"]),
        "layers": of.count(r"transformer_encoder\.layers\.(\d+)\."),
        "heads": of.arguments.get("n_heads", 8),
        "mlp_ratio": len(of.state["transformer_encoder.layers.0.mlp_module.0.bias"]) / width,
    }


@original(
    "torchmil_patchgcn",
    model="patchgcn",
    names=[
        (r"mlp\.", "phi.net."),
        (r"gcn_layers\.(\d+)\.conv\.fc\.", r"layers.\1.conv.linear."),
        (r"gcn_layers\.", "layers."),
        *RULES,
    ],
)
def _patchgcn(of: Original) -> dict[str, Any]:
    """Return the arguments: GCN layers without residuals, plain attention, no rho."""
    width, features = of.state["gcn_layers.0.conv.fc.weight"].shape
    rate = of.arguments.get("dropout", 0.0)
    depth = of.count(r"mlp\.(\d+)\.0\.weight")
    for key in [k for k in of.state if k.startswith("mlp.")]:
        _, layer, _, name = key.split(".")
        # our layers stand one after the other: linear, ReLU and, with a rate, dropout
        of.state[f"mlp.{int(layer) * (3 if rate else 2)}.{name}"] = of.state.pop(key)
    return {
        **attention(of),
        "in_dim": features,
        "layers": of.count(r"gcn_layers\.(\d+)\."),
        "conv": "gcn",
        "width": width,
        "block": "plain",
        "hidden": (width,) * depth,
        "score_bias": False,
        "dropout": rate,
        "layer_dropout": rate,
    }


MODES = {"afs": "afs", "max": "maxs", "maxmin": "maxmins"}


@original(
    "torchmil_dtfdmil",
    model="dtfdmil",
    names=[
        (r"u_attention_pool\.fc1\.", "bag_attention.trunk.first."),
        (r"u_attention_pool\.fc2\.", "bag_attention.mean."),
        (r"u_classifier\.", "bag_classifier."),
        *RULES,
    ],
)
def _dtfdmil(of: Original) -> dict[str, Any]:
    """Return the arguments: joint tiers; `max` and `maxmin` take every instance."""
    return {
        **attention(of, "attention_pool"),
        "score_bias": False,
        "n_groups": of.arguments.get("n_groups", 8),
        "distill": MODES[of.arguments.get("distill_mode", "maxmin")],
        "instances_per_group": None,
        "joint": True,
        "clip": None,
        "predict_samples": 1,
    }


@original(
    "torchmil_clam_sb",
    model="clam-sb",
    names=[(r"inst_classifiers\.", "evidence.classifiers."), *RULES],
)
def _clam(of: Original) -> dict[str, Any]:
    """Return the arguments of CLAM_SB; its instance term, a sum over two classes, is twice ours."""
    return {
        **attention(of),
        "score_bias": "pool.fc2.bias" in of.state,
        "k_sample": of.arguments.get("k_sample", 10),
        "instance_loss": "svm",
        "subtyping": True,
    }


@original(
    "torchmil_dsmil",
    model="dsmil",
    names=[
        (r"inst_classifier\.", "instance_classifier."),
        (r"q_nn\.(weight|bias)$", r"query.0.\1"),
        (r"q_nn\.", "query."),
        (r"v_nn\.", "value."),
        (r"bag_classifier\.", "classifier."),
    ],
)
def _dsmil(of: Original) -> dict[str, Any]:
    """Return the arguments of DSMIL; the weights of its two losses are twice ours.

    Its logits are the bag stream's; its predictions are `bag_score="mean_logit"`.
    """
    given = of.arguments
    head = of.state["bag_classifier.weight"]
    of.state["bag_classifier.weight"] = head[None]
    linear = "q_nn.weight" in of.state
    first = of.state[f"q_nn.{'' if linear else '0.'}weight"]
    return {
        "in_dim": given.get("in_shape", head.shape)[-1],
        "embed": None,
        "query": "mlp" if given.get("nonlinear_q", not linear) else "linear",
        "query_dim": given.get("att_dim", len(first)),
        "value": "mlp" if given.get("nonlinear_v", "v_nn.1.weight" in of.state) else "identity",
        "dropout": given.get("dropout", 0.0),
        "bag_score": given.get("bag_score", "bag"),
    }


SM = {"sm_mode": "approx", "sm_alpha": "trainable", "sm_steps": 10}
"""torchmil's arguments of Sm, with their defaults."""
POOL = {**SM, "sm_where": "early", "spectral_norm": False}


@original(
    *("torchmil_smabmil", "torchmil_smtransformerabmil"),
    model="smabmil",
    names=[
        (r"pool\.proj1\.", "attention.first."),
        (r"pool\.proj2\.", "attention.last."),
        (r"pool\.sm\.sm\.coef$", "attention.sm.logit"),
        (r"transformer_encoder\.layers\.(\d+)\.att_module\.sm\.sm\.coef$", r"smooths.\1.logit"),
        *RULES,
    ],
)
def _smabmil(of: Original) -> dict[str, Any]:
    """Return the arguments of SmABMIL or SmTransformerABMIL, with 1 − α if approximate."""
    given = of.arguments
    transformer = of.reference == "torchmil_smtransformerabmil"
    pool, act = ("pool_", "pool_act") if transformer else ("", "att_act")
    options = {k: given.get(f"{pool}{k}", default) for k, default in POOL.items()}
    exact = options["sm_mode"] == "exact"
    alpha = options["sm_alpha"]
    for key in [k for k in of.state if k.endswith(".coef")]:
        coef = of.state[key]
        # log α/(1 − α): their coefficient is the quotient, or its inverse if approximate
        of.state[key] = coef.log() if exact else -coef.log()
    normed = "pool.proj1.parametrizations.weight.original"
    first = of.state[normed if normed in of.state else "pool.proj1.weight"]
    trained = alpha == "trainable"
    return {
        "in_dim": given.get("in_shape", first.shape)[-1],
        "embed": None,
        "where": options["sm_where"],
        "alpha": 0.5 if trained else alpha if exact or alpha == 0 else 1 - alpha,
        "train_alpha": trained,
        "mode": "exact" if exact else "approximate",
        "steps": options["sm_steps"],
        "spectral_norm": options["spectral_norm"],
        "attention_dim": len(first),
        "attention_activation": given.get(act, "tanh"),
        **({"encoder": "transformer", **encoder(of, heads=4)} if transformer else {}),
    }
