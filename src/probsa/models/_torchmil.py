"""The weights of torchmil's models (Franblueee/torchmil): its names and its arguments.

ABMIL, T-ABMIL and ProbSA read theirs in attention_mil.py, with the names of `RULES`.
"""

import re
from typing import Any

from torch import Tensor

from ..errors import CheckpointError
from ._originals import Rules, State, number, original, part

RULES = (
    (r"pool\.in_mlp\.0\.(?:module\.)?", "attention.trunk.first."),
    (r"pool\.in_mlp\.2\.(?:module\.)?", "attention.trunk.second."),
    (r"pool\.mu_f_nn\.(?:module\.)?", "attention.mean."),
    (r"pool\.log_diag_Sigma_nn\.(?:module\.)?", "attention.log_variance."),
    (r"(?:camil_att_|attention_)?pool\.fc1\.(?:module\.)?", "attention.trunk.first."),
    (r"(?:camil_att_|attention_)?pool\.fc_gated\.(?:module\.)?", "attention.trunk.gate."),
    (r"(?:camil_att_|attention_)?pool\.fc2\.(?:module\.)?", "attention.mean."),
    (r"(?:classifier|last_layer)\.(?:module\.)?", "classifier."),
    (r"transformer_encoder\.layers\.(\d+)\.att_module\.qkv_nn\.", r"encoder.blocks.\1.qkv."),
    (r"transformer_encoder\.layers\.(\d+)\.att_proj\.", r"encoder.blocks.\1.skip."),
    (r"transformer_encoder\.layers\.(\d+)\.mlp_module\.", r"encoder.blocks.\1.mlp."),
    (r"transformer_encoder\.layers\.\d+\.out_proj\.", "encoder.back."),
    (r"transformer_encoder\.layers\.(\d+)\.norm", r"encoder.blocks.\1.norm"),
    (r"transformer_encoder\.norm\.", "encoder.norm."),
    (r"fc1\.", "embed.net.0."),
)
ENCODER = (
    *("transf_att_dim", "transf_n_layers", "transf_n_heads"),
    *("transf_use_mlp", "transf_add_self", "transf_dropout"),
)
"""Arguments of torchmil's transformer."""
TAKEN = ("in_shape", "att_dim", "criterion", "dropout", "feat_ext")
"""Arguments of most of torchmil's models, which do not change what is read, except `dropout`."""
FIRST = ("pool.fc1.module.weight", "pool.fc1.weight")
HIDDEN = ("pool.in_mlp.0.module.weight", "pool.in_mlp.0.weight")


def either(state: State, keys: tuple[str, ...], *, layout: str) -> Tensor:
    """Return the tensor under the first name that exists; torchmil's lazy layers add `module`."""
    return part(state, next((k for k in keys if k in state), keys[0]), layout=layout)


def in_dim(arguments: dict[str, Any], width: int) -> int:
    """Return the number of features: that of `in_shape` if given, else the width."""
    return arguments["in_shape"][-1] if "in_shape" in arguments else width


def encoder_arguments(state: State, arguments: dict[str, Any], *, layout: str) -> dict[str, Any]:
    """Return our transformer's arguments.

    Shapes do not determine `heads` and `add_self`; torchmil's defaults are 8 and True.
    """
    start = "transformer_encoder.layers"
    qkv = part(state, f"{start}.0.att_module.qkv_nn.weight", layout=layout)
    return {
        "layers": arguments.get("transf_n_layers", _count(state, rf"{start}\.(\d+)\.")),
        "heads": arguments.get("transf_n_heads", 8),
        "width": arguments.get("transf_att_dim", qkv.shape[0] // 3),
        "use_mlp": arguments.get("transf_use_mlp", f"{start}.0.mlp_module.0.weight" in state),
        "add_self": arguments.get("transf_add_self", True),
        "out_proj": False,
        "dropout": arguments.get("transf_dropout", 0.0),
    }


def _count(state: State, pattern: str) -> int:
    """Return how many numbers the layers with such names have."""
    return len({found[1] for k in state if (found := re.match(pattern, k))})


def _plain(state: State) -> None:
    """Remove `module` from the names of lazy layers."""
    for key in [k for k in state if ".module." in k]:
        state[key.replace(".module.", ".")] = state.pop(key)


def _nystrom(reference: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return our arguments of Nyström attention, as torchmil has it in TransMIL and CAMIL."""
    if arguments.get("use_mlp"):
        raise CheckpointError(f"{reference}: its layers have an MLP (use_mlp), ours have none")
    return {
        "heads": arguments.get("n_heads", 4),
        "pinv_iterations": arguments.get("pinv_iterations", 6),
        "convolution": False,
        "out_proj": False,
        "mask_padding": False,
    }


@original(
    "torchmil_transmil",
    model="transmil",
    takes=(*TAKEN, "n_layers", "n_heads", "n_landmarks", "pinv_iterations", "use_mlp"),
    names=[
        (r"cls_token$", "encoder.cls_token"),
        (r"pos_layer\.proj\.", "encoder.ppeg.wide."),
        (r"pos_layer\.proj1\.", "encoder.ppeg.middle."),
        (r"pos_layer\.proj2\.", "encoder.ppeg.narrow."),
        (r"norm\.", "encoder.norm."),
        (r"layers\.(\d+)\.norm1\.", r"encoder.blocks.\1.norm."),
        (r"layers\.(\d+)\.norm2\.", None),  # belongs to the MLP, which is absent
        (r"layers\.(\d+)\.att_module\.qkv_nn\.", r"encoder.blocks.\1.qkv."),
        *RULES,
    ],
)
def _transmil(reference: str, state: State, arguments: dict[str, Any]) -> dict[str, Any]:
    dim = part(state, "cls_token", layout="torchmil's TransMIL").shape[-1]
    first = state.get("fc1.weight")
    return {
        "in_dim": dim if first is None else first.shape[1],
        "embed": None if first is None else dim,
        "layers": _count(state, r"layers\.(\d+)\.norm1\.weight"),
        "landmarks": arguments.get("n_landmarks") or dim // 2,
        **_nystrom(reference, arguments),
    }


@original(
    "torchmil_camil",
    model="camil",
    takes=(
        *(*TAKEN, "nystrom_att_dim", "pool_att_dim", "gated_pool", "n_heads", "n_landmarks"),
        *("pinv_iterations", "use_mlp"),
    ),
    names=[
        (r"nystrom_transformer_layer\.att_module\.qkv_nn\.", "layers.0.qkv."),
        (r"nystrom_transformer_layer\.norm1\.", "layers.0.norm."),
        (r"nystrom_transformer_layer\.norm2\.", None),  # belongs to the MLP, which is absent
        (r"camil_self_attention\.v_nn\.", "values."),
        *RULES,
    ],
)
def _camil(reference: str, state: State, arguments: dict[str, Any]) -> dict[str, Any]:
    layout = "torchmil's CAMIL (nystrom_transformer_layer, camil_self_attention, camil_att_pool)"
    qk = part(state, "camil_self_attention.qk_nn.weight", layout=layout)
    dim, first = qk.shape[1], state.get("fc1.weight")
    del state["camil_self_attention.qk_nn.weight"]
    state["queries.weight"], state["keys.weight"] = qk.split(len(qk) // 2)[:2]
    return {
        "in_dim": dim if first is None else first.shape[1],
        "embed": None if first is None else dim,
        "layers": 1,
        "landmarks": arguments.get("n_landmarks") or 256,
        "query_dim": len(qk) // 2,
        "attention_dim": len(part(state, "camil_att_pool.fc1.weight", layout=layout)),
        "trunk": "gated" if "camil_att_pool.fc_gated.weight" in state else "tanh",
        **_nystrom(reference, arguments),
    }


@original(
    "torchmil_gtp",
    model="gtp",
    takes=(*TAKEN, "n_clusters", "n_layers", "n_heads", "use_mlp"),
    names=[
        (r"cls_token$", "class_token"),
        (r"gcn_conv\.fc\.", "gcn."),
        (r"cluster_proj\.", "assign."),
        (r"transformer_encoder\.layers\.(\d+)\.att_module\.qkv_nn\.", r"blocks.\1.qkv."),
        (r"transformer_encoder\.layers\.(\d+)\.mlp_module\.0\.", r"blocks.\1.mlp.0."),
        (r"transformer_encoder\.layers\.(\d+)\.mlp_module\.3\.", r"blocks.\1.mlp.3."),
        (r"transformer_encoder\.layers\.(\d+)\.", r"blocks.\1."),
        (r"transformer_encoder\.", ""),
    ],
)
def _gtp(reference: str, state: State, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a GTP with ReLU instead of both normalisations, weighted edges."""
    del reference
    layout = "torchmil's GTP, with its MLP"
    _plain(state)
    d = part(state, "cls_token", layout=layout).shape[-1]
    gcn = part(state, "gcn_conv.fc.weight", layout=layout)
    state["gcn_conv.fc.weight"] = gcn.T
    hidden = part(state, "transformer_encoder.layers.0.mlp_module.0.bias", layout=layout)
    return {
        "preset": "original",
        "in_dim": gcn.shape[1],
        "n_classes": len(part(state, "classifier.bias", layout=layout)),
        "width": d,
        "code": "torchmil",
        "clusters": len(part(state, "cluster_proj.bias", layout=layout)),
        "layers": _count(state, r"transformer_encoder\.layers\.(\d+)\."),
        "heads": arguments.get("n_heads", 8),
        "mlp_ratio": len(hidden) / d,
    }


@original(
    "torchmil_patchgcn",
    model="patchgcn",
    takes=(*TAKEN, "n_gcn_layers", "mlp_depth", "hidden_dim"),
    names=[
        (r"mlp\.", "phi.net."),
        (r"gcn_layers\.(\d+)\.conv\.fc\.", r"layers.\1.conv.linear."),
        (r"gcn_layers\.", "layers."),
        *RULES,
    ],
)
def _patchgcn(reference: str, state: State, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments: GCN layers without residuals, plain attention, no rho."""
    del reference
    _plain(state)
    layout = "torchmil's PatchGCN"
    width, features = part(state, "gcn_layers.0.conv.fc.weight", layout=layout).shape
    rate = number(arguments, "dropout", 0.0)
    depth = _count(state, r"mlp\.(\d+)\.0\.weight")
    for key in [k for k in state if k.startswith("mlp.")]:
        _, layer, _, name = key.split(".")
        # our layers stand one after the other: linear, ReLU and, with a rate, dropout
        state[f"mlp.{int(layer) * (3 if rate else 2)}.{name}"] = state.pop(key)
    return {
        "in_dim": features,
        "embed": None,
        "layers": _count(state, r"gcn_layers\.(\d+)\."),
        "conv": "gcn",
        "width": width,
        "block": "plain",
        "hidden": (width,) * depth,
        "attention_dim": len(part(state, "pool.fc1.weight", layout=layout)),
        "trunk": "tanh",
        "score_bias": False,
        "dropout": rate,
        "layer_dropout": rate,
    }


MODES = {"afs": "afs", "max": "maxs", "maxmin": "maxmins"}


@original(
    "torchmil_dtfdmil",
    variants=tuple(MODES),
    model="dtfdmil",
    takes=("in_shape", "att_dim", "n_groups", "distill_mode", "criterion"),
    names=[
        (r"u_attention_pool\.fc1\.", "bag_attention.trunk.first."),
        (r"u_attention_pool\.fc2\.", "bag_attention.mean."),
        (r"u_classifier\.", "bag_classifier."),
        *RULES,
    ],
)
def _dtfdmil(reference: str, state: State, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments: joint tiers; `max` and `maxmin` take every instance."""
    suffix = reference.rpartition("_")[2]
    mode = str(arguments.get("distill_mode", suffix if suffix in MODES else "maxmin"))
    if mode not in MODES:
        raise CheckpointError(f"distill_mode is {mode!r}; expected one of {', '.join(MODES)}")
    _plain(state)
    first = part(state, "attention_pool.fc1.weight", layout="torchmil's DTFDMIL")
    return {
        "in_dim": first.shape[1],
        "embed": None,
        "attention_dim": first.shape[0],
        "trunk": "tanh",
        "score_bias": False,
        "n_groups": number(arguments, "n_groups", 8),
        "distill": MODES[mode],
        "instances_per_group": None,
        "joint": True,
        "clip": None,
        "predict_samples": 1,
    }


@original(
    "torchmil_clam_sb",
    model="clam-sb",
    takes=("in_shape", "att_dim", "att_act", "k_sample", "gated", "inst_loss_name"),
    names=[(r"inst_classifiers\.", "evidence.classifiers."), *RULES],
)
def _clam(reference: str, state: State, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of CLAM_SB; its instance term, a sum over two classes, is twice ours."""
    del reference
    for key, known in (("att_act", "tanh"), ("inst_loss_name", "SmoothTop1SVM")):
        if arguments.get(key, known) != known:
            raise CheckpointError(f"{key} is {arguments[key]!r}: only {known!r} can be read")
    _plain(state)
    first = part(state, "pool.fc1.weight", layout="torchmil's CLAM_SB")
    return {
        "in_dim": first.shape[1],
        "embed": None,
        "attention_dim": first.shape[0],
        "trunk": "gated" if "pool.fc_gated.weight" in state else "tanh",
        "score_bias": "pool.fc2.bias" in state,
        "k_sample": arguments.get("k_sample", 10),
        "instance_loss": "svm",
        "subtyping": True,
    }


@original(
    "torchmil_dsmil",
    model="dsmil",
    takes=("in_shape", "att_dim", "nonlinear_q", "nonlinear_v", "dropout", "bag_score"),
    names=[
        (r"inst_classifier\.", "instance_classifier."),
        (r"q_nn\.(weight|bias)$", r"query.0.\1"),
        (r"q_nn\.", "query."),
        (r"v_nn\.", "value."),
        (r"bag_classifier\.", "classifier."),
    ],
)
def _dsmil(reference: str, state: State, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of DSMIL; the weights of its two losses are twice ours.

    Its logits are the bag stream's; its predictions are `bag_score="mean_logit"`.
    """
    del reference
    _plain(state)
    head = part(state, "bag_classifier.weight", layout="torchmil's DSMIL")
    state["bag_classifier.weight"] = head[None]
    linear = "q_nn.weight" in state
    first = part(state, f"q_nn.{'' if linear else '0.'}weight", layout="torchmil's DSMIL")
    return {
        "in_dim": in_dim(arguments, head.shape[-1]),
        "embed": None,
        "query": "mlp" if arguments.get("nonlinear_q", not linear) else "linear",
        "query_dim": arguments.get("att_dim", first.shape[0]),
        "value": "mlp" if arguments.get("nonlinear_v", "v_nn.1.weight" in state) else "identity",
        "dropout": arguments.get("dropout", 0.0),
        "bag_score": arguments.get("bag_score", "bag"),
    }


SM = {"sm_mode": "approx", "sm_alpha": "trainable", "sm_steps": 10}
"""torchmil's arguments of Sm, with their defaults."""
POOL = {**SM, "sm_where": "early", "spectral_norm": False}
SM_NAMES: Rules = [
    (r"pool\.proj1\.", "attention.first."),
    (r"pool\.proj2\.", "attention.last."),
    (r"pool\.sm\.sm\.coef$", "attention.sm.logit"),
    (r"transformer_encoder\.layers\.(\d+)\.att_module\.sm\.sm\.coef$", r"smooths.\1.logit"),
    *RULES,
]


@original(
    "torchmil_smabmil",
    variants=("early", "early_spectral", "mid", "late", "exact"),
    model="smabmil",
    takes=("in_shape", "criterion", "att_act", "att_dim", *POOL),
    names=SM_NAMES,
)
@original(
    "torchmil_smtransformerabmil",
    model="smabmil",
    takes=(
        *("in_shape", "criterion", "pool_act", "pool_att_dim", *(f"pool_{k}" for k in POOL)),
        *(*ENCODER, *(f"transf_{k}" for k in SM)),
    ),
    names=SM_NAMES,
)
def _smabmil(reference: str, state: State, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of SmABMIL or SmTransformerABMIL, with 1 − α if approximate."""
    transformer = reference == "torchmil_smtransformerabmil"
    pool, act = ("pool_", "pool_act") if transformer else ("", "att_act")
    options = {k: arguments.get(f"{pool}{k}", default) for k, default in POOL.items()}
    for k in SM if transformer else ():
        theirs = arguments.get(f"transf_{k}", SM[k])
        if theirs != options[k]:
            raise CheckpointError(
                f"transf_{k} is {theirs!r} and pool_{k} {options[k]!r}: both must be equal"
            )
    exact, alpha = options["sm_mode"] == "exact", options["sm_alpha"]
    for key in [k for k in state if k.endswith(".coef")]:
        coef = state[key]
        if not bool(coef > 0):
            raise CheckpointError(f"{key} is {float(coef):g}: α can only be read if it is above 0")
        # log α/(1 − α): their coefficient is the quotient, or its inverse if approximate
        state[key] = coef.log() if exact else -coef.log()
    names = ("pool.proj1.weight", "pool.proj1.parametrizations.weight.original")
    first = either(state, names, layout="torchmil's SmABMIL or SmTransformerABMIL")
    trained = alpha == "trainable"
    values: dict[str, Any] = {
        "in_dim": in_dim(arguments, first.shape[1]),
        "embed": None,
        "where": options["sm_where"],
        "alpha": 0.5 if trained else alpha if exact or alpha == 0 else 1 - alpha,
        "train_alpha": trained,
        "mode": "exact" if exact else "approximate",
        "steps": options["sm_steps"],
        "spectral_norm": options["spectral_norm"],
        "attention_dim": first.shape[0],
        "attention_activation": arguments.get(act, "tanh"),
    }
    if transformer:
        heads = {"transf_n_heads": 4, **arguments}
        layout = "torchmil's SmTransformerABMIL"
        values |= {"encoder": "transformer", **encoder_arguments(state, heads, layout=layout)}
    return values
