"""Names of torchmil's attention pooling and encoder, shared by ABMIL, T-ABMIL and ProbSA."""

from typing import Any

from torch import Tensor

from ._originals import State, part

RULES = (
    (r"pool\.in_mlp\.0\.(?:module\.)?", "attention.trunk.first."),
    (r"pool\.in_mlp\.2\.(?:module\.)?", "attention.trunk.second."),
    (r"pool\.mu_f_nn\.(?:module\.)?", "attention.mean."),
    (r"pool\.log_diag_Sigma_nn\.(?:module\.)?", "attention.log_variance."),
    (r"pool\.fc1\.(?:module\.)?", "attention.trunk.first."),
    (r"pool\.fc_gated\.(?:module\.)?", "attention.trunk.gate."),
    (r"pool\.fc2\.(?:module\.)?", "attention.mean."),
    (r"(?:classifier|last_layer)\.(?:module\.)?", "classifier."),
    (r"transformer_encoder\.layers\.(\d+)\.att_module\.qkv_nn\.", r"encoder.blocks.\1.qkv."),
    (r"transformer_encoder\.layers\.(\d+)\.att_proj\.", r"encoder.blocks.\1.skip."),
    (r"transformer_encoder\.layers\.(\d+)\.mlp_module\.", r"encoder.blocks.\1.mlp."),
    (r"transformer_encoder\.layers\.\d+\.out_proj\.", "encoder.back."),
    (r"transformer_encoder\.layers\.(\d+)\.norm", r"encoder.blocks.\1.norm"),
    (r"transformer_encoder\.norm\.", "encoder.norm."),
)
ENCODER = (
    *("transf_att_dim", "transf_n_layers", "transf_n_heads"),
    *("transf_use_mlp", "transf_add_self", "transf_dropout"),
)
"""Arguments of torchmil's transformer."""
FIRST = ("pool.fc1.module.weight", "pool.fc1.weight")
HIDDEN = ("pool.in_mlp.0.module.weight", "pool.in_mlp.0.weight")


def either(state: State, keys: tuple[str, ...], *, of: str) -> Tensor:
    """Return the tensor under the first name that exists; torchmil's lazy layers add `module`."""
    return part(state, next((k for k in keys if k in state), keys[0]), of=of)


def in_dim(given: dict[str, Any], width: int) -> int:
    """Return the number of features: that of `in_shape` if given, else the width."""
    return given["in_shape"][-1] if "in_shape" in given else width


def encoder_arguments(state: State, given: dict[str, Any], *, of: str) -> dict[str, Any]:
    """Return our transformer's arguments.

    Shapes do not determine `heads` and `add_self`; torchmil's defaults are 8 and True.
    """
    start = "transformer_encoder.layers"
    qkv = part(state, f"{start}.0.att_module.qkv_nn.weight", of=of)
    numbers = {int(k.split(".")[2]) for k in state if k.startswith(f"{start}.")}
    return {
        "layers": given.get("transf_n_layers", len(numbers)),
        "heads": given.get("transf_n_heads", 8),
        "width": given.get("transf_att_dim", qkv.shape[0] // 3),
        "use_mlp": given.get("transf_use_mlp", f"{start}.0.mlp_module.0.weight" in state),
        "add_self": given.get("transf_add_self", True),
        "out_proj": False,
        "dropout": given.get("transf_dropout", 0.0),
    }
