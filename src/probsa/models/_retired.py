"""Options of models that no longer exist, with the only value that stored runs may still have."""

from typing import Any

RETIRED_OPTIONS: dict[str, dict[str, Any]] = {
    "dsmil": {"activation": "relu", "value_dropout": 0.0, "loss_weights": [0.5, 0.5],
              "init": "orthogonal", "class_mixing": True},
    "dtfdmil": {"activation": "relu"},
    "evidence-dirac": {"negatives": 0.0},
    "gtp": {"activation": "identity", "gcn": "normalized", "adjacency": "binary", "blocks": "vit",
            "mincut_weight": 1.0, "ortho_weight": 1.0},
    "iibmil": {"prototype_momentum": 0.99, "top_share": 0.1, "bank_momentum": [0.95, 0.8]},
    "setmil": {"windows": [3, 5, 7], "pyramid_dropout": 0.0, "pyramid_attention_dropout": 0.0,
               "attention_dropout": 0.0, "mlp_ratio": 4.0, "qkv_bias": False, "relative": "euc",
               "relative_mode": "bias", "relative_on": "q", "relative_shared": False,
               "pyramid_relative": "none", "pyramid_relative_mode": "bias",
               "pyramid_relative_on": "q", "canvas": None, "augment": False, "layout": "map",
               "focal": [0.25, 2.0]},
    "smabmil": {"activation": None},
    "vmil": {"activation": "relu", "alternate": "epochs", "warmup_block": 2, "block": 5,
             "branch": "mlp", "aggregation": "max", "top_k": 10},
}  # fmt: skip
