"""The authors' weights of each method, one section a method.

Sizes follow from the shapes and from the constructor's arguments, which are those of the stored
sets and are not checked.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from probsa import Bag
from probsa.models import Model, build
from probsa.models.setmil import SETMIL as SETMIL_MODEL
from probsa.models.setmil import Block
from probsa.models.vmil import VMIL

from .positions import give_positions
from .reading import Original, Rules, original, transplant

ABMIL: Rules = [
    (r"attention(?:_V)?\.0\.", "attention.trunk.first."),
    (r"attention_U\.0\.", "attention.trunk.gate."),
    (r"attention(?:\.2|_w)\.", "attention.mean."),
    (r"classifier\.0\.", "classifier."),
]


@original("abmil", model="abmil", names=ABMIL)
def abmil(of: Original) -> dict[str, Any]:
    """Read `Attention` or `GatedAttention` of AttentionDeepMIL, after the feature extractor."""
    gated = "attention_V.0.weight" in of.state
    first = of.state["attention_V.0.weight" if gated else "attention.0.weight"]
    return {
        "in_dim": first.shape[1],
        "embed": None,
        "attention_dim": len(first),
        "trunk": "gated" if gated else "tanh",
        "score_bias": True,
    }


CLAM: Rules = [
    (r".*instance_loss_fn", None),
    (r"attention_net\.0\.", "embed.net.0."),
    (r"attention_net\.3\.(?:attention_a|module)\.0\.", "attention.trunk.first."),
    (r"attention_net\.3\.attention_b\.0\.", "attention.trunk.gate."),
    (r"attention_net\.3\.(?:attention_c|module\.[23])\.", "attention.mean."),
    (r"classifiers\.", "classifier."),
    (r"instance_classifiers\.", "evidence.classifiers."),
]
CLAM_OPTIONS = {
    "B": "k_sample",
    "k_sample": "k_sample",
    "subtyping": "subtyping",
    "dropout": "dropout",
    "inst_loss": "instance_loss",
    "bag_weight": "bag_weight",
}
"""Our names of the original's arguments that change what is computed."""


@original("clam_sb", "clam_mb", model="clam-sb", names=CLAM)
def clam(of: Original) -> dict[str, Any]:
    """Read `CLAM_SB` or `CLAM_MB`."""
    gated = any("attention_b" in k for k in of.state)
    inner = of.state[f"attention_net.3.{'attention_a' if gated else 'module'}.0.weight"]
    width, features = of.state["attention_net.0.weight"].shape
    multi = of.reference == "clam_mb"
    if multi:  # one layer for each class: its row of one layer
        count = of.count(r"classifiers\.(\d+)\.weight")
        for name in ("weight", "bias"):
            rows = [of.state.pop(f"classifiers.{c}.{name}") for c in range(count)]
            of.state[f"classifiers.{name}"] = torch.cat(rows)
    options = {CLAM_OPTIONS[k]: v for k, v in of.arguments.items() if k in CLAM_OPTIONS}
    return {
        "name": "clam-mb" if multi else "clam-sb",
        "in_dim": features,
        "embed": width,
        "n_classes": len(of.state["classifiers.weight"]),
        "attention_dim": len(inner),
        "trunk": "gated" if gated else "tanh",
        **options,
    }


DSMIL: Rules = [
    (r"i_classifier\.fc\.(0\.)?", "instance_classifier."),
    (r"b_classifier\.q\.(weight|bias)$", r"query.0.\1"),
    (r"b_classifier\.q\.", "query."),
    (r"b_classifier\.v\.", "value."),
    (r"b_classifier\.fcc\.", "classifier."),
]


@original("dsmil", model="dsmil", names=DSMIL)
def dsmil(of: Original) -> dict[str, Any]:
    """Read MILNet of dsmil-wsi, of its code since 2022-09."""
    n_classes, in_dim = of.state["b_classifier.fcc.weight"].shape[-2:]
    linear = "b_classifier.q.weight" in of.state
    first = of.state[f"b_classifier.q.{'' if linear else '0.'}weight"]
    return {
        "in_dim": in_dim,
        "n_classes": n_classes,
        "embed": None,
        "query": "linear" if linear else "mlp",
        "query_dim": len(first),
        "value": "mlp" if "b_classifier.v.1.weight" in of.state else "identity",
        "dropout": of.arguments.get("dropout_v", 0.0),
        # our argument: a state dict does not determine it
        "bag_score": of.arguments.get("bag_score", "bag"),
        "labels": "independent",
    }


SQUARE: Rules = [
    (r"cls_token$", "encoder.cls_token"),
    (r"pos_layer\.proj\.", "encoder.ppeg.wide."),
    (r"pos_layer\.proj1\.", "encoder.ppeg.middle."),
    (r"pos_layer\.proj2\.", "encoder.ppeg.narrow."),
    (r"norm\.", "encoder.norm."),
]
"""The authors' names of the encoder, which are torchmil's as well."""
TRANSMIL: Rules = [
    *SQUARE,
    (r"layer1\.norm\.", "encoder.blocks.0.norm."),
    (r"layer1\.attn\.to_qkv\.", "encoder.blocks.0.qkv."),
    (r"layer1\.attn\.to_out\.0\.", "encoder.blocks.0.out."),
    (r"layer1\.attn\.res_conv\.", "encoder.blocks.0.convolution."),
    (r"layer2\.norm\.", "encoder.blocks.1.norm."),
    (r"layer2\.attn\.to_qkv\.", "encoder.blocks.1.qkv."),
    (r"layer2\.attn\.to_out\.0\.", "encoder.blocks.1.out."),
    (r"layer2\.attn\.res_conv\.", "encoder.blocks.1.convolution."),
    (r"_fc1\.0\.", "embed.net.0."),
    (r"_fc2\.", "classifier."),
]


@original("transmil", model="transmil", names=TRANSMIL)
def transmil(of: Original) -> dict[str, Any]:
    """Read TransMIL, trained with version 0.0.14 of its attention's package."""
    dim, in_dim = of.state["_fc1.0.weight"].shape
    return {
        "preset": "original",
        "in_dim": in_dim,
        "n_classes": len(of.state["_fc2.weight"]),
        "embed": dim,
        "heads": len(of.state["layer1.attn.res_conv.weight"]),
        "landmarks": dim // 2,
    }


AMIL: Rules = [
    (r"attention_net\.(?:module\.)?0\.", "embed.net.0."),
    (r"attention_net\.(?:module\.)?3\.attention_a\.0\.", "attention.trunk.first."),
    (r"attention_net\.(?:module\.)?3\.attention_b\.0\.", "attention.trunk.gate."),
    (r"attention_net\.(?:module\.)?3\.attention_c\.", "attention.mean."),
    (r"rho\.0\.", "classifier.0."),
    (r"classifier\.", "classifier.2."),
]


@original("patchgcn_repo_amil", model="abmil", names=AMIL)
def amil(of: Original) -> dict[str, Any]:
    """Read `MIL_Attention_FC_surv` of Patch-GCN's repository; its hazards are σ of our logits."""
    sizes = {k.replace(".module.", "."): v.shape for k, v in of.state.items()}
    width, in_dim = sizes["attention_net.0.weight"]
    drop = float(of.arguments.get("dropout", 0.25))
    return {
        "in_dim": in_dim,
        "n_classes": sizes["classifier.weight"][0],
        "embed": width,
        "dropout": drop,
        "attention_dim": sizes["attention_net.3.attention_a.0.weight"][0],
        "trunk": "gated",
        # as in CLAM: always 0.25, but only if there is dropout elsewhere
        "attention_dropout": 0.25 if drop else 0.0,
        "score_bias": True,
        "classifier_hidden": sizes["classifier.weight"][1],
    }


def framed(bag: Bag, side: int) -> Bag:
    """Return a bag whose own map is the original's canvas: centred, with corners of zeros."""
    assert bag.coords is not None
    at = bag.coords - bag.coords.amin(0)
    at = at + (side - 1 - at.amax(0)) // 2
    taken = set(map(tuple, at.tolist()))
    corners = [c for c in ((0, 0), (side - 1, side - 1)) if c not in taken]
    x = torch.cat([bag.x.detach(), bag.x.new_zeros(len(corners), bag.x.shape[1])])
    coords = torch.cat([at, at.new_tensor(corners).view(-1, 2)])
    return replace(bag, x=x.requires_grad_(), coords=coords)


SETMIL_LEAVES = {
    r"(norm[12])\.": r"\1.",
    r"attn\.(qkv|proj)\.": r"\1.",
    r"mlp\.(fc[12])\.": r"\1.",
    r"attn\.rpe_([qkv])\.rp_cols\.lookup_table_\w+$": r"relative.tables.\1.1",
    r"attn\.rpe_([qkv])\.(rp_rows\.)?lookup_table_\w+$": r"relative.tables.\1.0",
}
"""Names within the original's blocks, with ours."""
SETMIL_STEMS = {
    r"channel_reduce\.reduce\.attention": "reduce",
    r"aspp\.p1\.attention": "pyramid.0",
    r"aspp\.p2\.attention": "pyramid.1",
    r"aspp\.p3\.attention": "pyramid.2",
    r"blocks\.0": "blocks.0",
    r"blocks\.1": "blocks.1",
}
SETMIL: Rules = [
    *(
        (rf"{theirs}\.{leaf}", f"{ours}.{name}")
        for theirs, ours in SETMIL_STEMS.items()
        for leaf, name in SETMIL_LEAVES.items()
    ),
    (r"cls_token$", "class_token"),
    (r"head\.", "classifier."),
    (r"pos_embed$", None),  # ours is computed
]


@original("setmil", names=SETMIL)
def setmil(of: Original) -> Model:
    """Build SETMIL's original, with its other forms of relative positions."""
    given = of.arguments
    model = build(
        "setmil",
        preset="original",
        in_dim=given["in_chans"],
        n_classes=given["num_classes"],
        reduction=given["channel_reduce_rate"],
        reduced_dim=len(of.state["channel_reduce.reduce.attention.attn.proj.bias"]),
        pyramid_dim=given["embed_dim"],
        layers=given["depth"],
        heads=given["num_heads"],
    )
    assert isinstance(model, SETMIL_MODEL)
    for blocks, key in ((model.pyramid, "token_t"), (model.blocks, "irpe")):
        for block in blocks:
            assert isinstance(block, Block)
            give_positions(block, given[key], class_token=key == "irpe")
    return transplant(model, of.state, SETMIL)


VMIL_LAYER = r"transformer_encoder\.layers\.(\d+)\."
VMIL_NAMES: Rules = [
    (r"encoder_layer\.", None),  # never used
    (r"fe_1dcnn\.(\d)\.", r"p_branch.0.net.\1."),
    (r"fe_fc\.0\.", "p_branch.1."),
    (r"inst_classifier\.0\.", "p_head."),
    (r"trans_dim\.0\.", "q_embed.net.0."),
    (VMIL_LAYER + r"self_attn\.in_proj_", r"q_layers.\1.attention.qkv."),
    (VMIL_LAYER + r"self_attn\.out_proj\.", r"q_layers.\1.attention.out."),
    (VMIL_LAYER + r"linear1\.", r"q_layers.\1.feed.first."),
    (VMIL_LAYER + r"linear2\.", r"q_layers.\1.feed.second."),
    (VMIL_LAYER + "norm", r"q_layers.\1.norm"),
    (r"bag_classifier\.0\.", "q_head."),
]


class SpectralCNN(nn.Module):
    """The original's first layers of p: three times conv(3), PReLU and maxpool(2) on a spectrum.

    The package has an MLP in their place, since the order of deep features has no meaning.
    """

    def __init__(self, length: int) -> None:
        super().__init__()
        steps: list[nn.Module] = []
        for a, b in ((1, 20), (20, 128), (128, 64)):
            steps += [nn.Conv2d(a, b, (1, 3)), nn.PReLU(), nn.MaxPool2d((1, 2))]
            length = (length - 2) // 2
        self.net = nn.Sequential(*steps)
        self.out_dim = 64 * length

    def forward(self, x: Tensor) -> Tensor:
        # one image with a row per instance; kernels do not cross rows
        return self.net(x[None, None])[0].transpose(0, 1).flatten(1)


@original("vmil", names=VMIL_NAMES)
def vmil(of: Original) -> Model:
    """Build VMIL's original, without the template layer that its transformer copies."""
    embed, in_dim = of.state["trans_dim.0.weight"].shape
    model = build(
        "vmil",
        preset="original",
        in_dim=in_dim,
        embed=embed,
        layers=of.arguments["_nlayer"],
        feedforward=len(of.state["transformer_encoder.layers.0.linear1.bias"]),
        gamma=of.arguments["_gamma"],
    )
    cnn = SpectralCNN(in_dim)
    assert isinstance(model, VMIL)
    model.p_branch = nn.Sequential(cnn, nn.Linear(cnn.out_dim, embed), nn.ReLU())
    return transplant(model, of.state, VMIL_NAMES)


GTP: Rules = [
    (r"cls_token$", "class_token"),
    (r"conv1\.bn_layer\.", "gcn.norm."),
    (r"conv1\.", "gcn."),
    (r"pool1\.", "assign."),
    (r"transformer\.(blocks\.\d+)\.attn\.qkv\.", r"\1.qkv."),
    (r"transformer\.(blocks\.\d+)\.attn\.proj\.", r"\1.out."),
    (r"transformer\.(blocks\.\d+)\.mlp\.fc1\.", r"\1.mlp.0."),
    (r"transformer\.(blocks\.\d+)\.mlp\.fc2\.", r"\1.mlp.3."),
    (r"transformer\.head\.", "classifier."),
    (r"transformer\.", ""),
]


@original("gtp", model="gtp", names=GTP)
def gtp(of: Original) -> dict[str, Any]:
    """Read GTP's original: a batch-normalised graph convolution, ViT blocks of 8 heads."""
    d = of.state["cls_token"].shape[-1]
    return {
        "preset": "original",
        "in_dim": of.state["conv1.weight"].shape[0],
        "n_classes": len(of.state["transformer.head.bias"]),
        "width": d,
        "clusters": len(of.state["pool1.bias"]),
        "layers": of.count(r"transformer\.blocks\.(\d+)\.norm1\.weight"),
        "heads": 8,
        "mlp_ratio": len(of.state["transformer.blocks.0.mlp.fc1.bias"]) / d,
    }


def iibmil_names() -> Rules:
    """Return the rules for the original's names; encoder and decoder name their parts alike."""
    block = r"patch_encoder\.trans_(\d+)\.layers\.0\."
    layer = r"wsi_aggregator\.decoder\.layers\.(\d+)\."
    rules: list[tuple[str, str | None]] = [
        # the original creates these but never calls them
        (r"patch_encoder\.(patch_to_embedding|transformer_encoder|encode_\d+)\.", None),
        (r"patch_encoder\.res_(\d+)\.", r"encoder.\1.raw."),
        (r"patch_encoder\.mlp_head\.0\.", "norm."),
        (r"patch_encoder\.mlp_head\.1\.", "instance_classifier."),
        (r"query_embed\.weight$", "queries"),
        (r"wsi_classifier\.", "classifier."),
    ]
    for k in range(5):  # their stages have four steps (the fourth is dropout), ours three
        for step in (0, 2):
            theirs = rf"patch_encoder\.depth_(\d+)\.{4 * k + step}\."
            rules.append((theirs, rf"encoder.\1.mlp.{3 * k + step}."))
    for at, attention, mine, name in (
        (block, "self_attn", r"encoder.\1.layer.", "attention"),
        (layer, "self_attn", r"decoder.\1.", "queries"),
        (layer, "cross_attn", r"decoder.\1.", "instances"),
    ):
        rules += [
            (rf"{at}{attention}\.in_proj_", f"{mine}{name}.qkv."),
            (rf"{at}{attention}\.out_proj\.", f"{mine}{name}.out."),
            (rf"{at}linear1\.", f"{mine}feed.first."),
            (rf"{at}linear2\.", f"{mine}feed.second."),
            (rf"{at}norm", f"{mine}norm"),
        ]
    return rules


@original("iibmil", model="iibmil", names=iibmil_names())
def iibmil(of: Original) -> dict[str, Any]:
    """Read IIB-MIL's original."""
    z, raw = of.state["patch_encoder.res_0.weight"].shape
    return {
        "preset": "original",
        "in_dim": raw,
        "n_classes": len(of.state["wsi_classifier.weight"]),
        "width": z,
        "layers": of.count(r"patch_encoder\.res_(\d+)\.weight"),
        "hidden": len(of.state["patch_encoder.trans_0.layers.0.linear1.weight"]),
        "queries": len(of.state["query_embed.weight"]),
        "decoder_layers": of.count(r"wsi_aggregator\.decoder\.layers\.(\d+)\.linear1\.weight"),
    }


DTFD: Rules = [
    (r"dim_reduction\.fc1\.", "embed.net.0."),
    (r"dim_reduction\.resBlocks\.(\d+)\.block\.", r"residual.\1.net."),
    (r"att_classifier\.attention\.attention_V\.0\.", "bag_attention.trunk.first."),
    (r"att_classifier\.attention\.attention_U\.0\.", "bag_attention.trunk.gate."),
    (r"att_classifier\.attention\.attention_weights\.", "bag_attention.mean."),
    (r"att_classifier\.classifier\.fc\.", "bag_classifier."),
    (r"attention\.attention_V\.0\.", "attention.trunk.first."),
    (r"attention\.attention_U\.0\.", "attention.trunk.gate."),
    (r"attention\.attention_weights\.", "attention.mean."),
    (r"classifier\.fc\.", "classifier."),
]


@original("dtfd", model="dtfdmil", names=DTFD)
def dtfd(of: Original) -> dict[str, Any]:
    """Read DTFD-MIL from the state dicts of four modules, each with its module's prefix."""
    embed, in_dim = of.state["dim_reduction.fc1.weight"].shape
    groups = of.arguments.get("numGroup", 4)
    return {
        "in_dim": in_dim,
        "embed": embed,
        "n_classes": len(of.state["classifier.fc.weight"]),
        "attention_dim": len(of.state["attention.attention_V.0.weight"]),
        "res_blocks": sum(k.endswith(".block.0.weight") for k in of.state),
        "dropout": of.arguments.get("droprate", 0.0),
        "n_groups": groups,
        "distill": of.arguments.get("distill", "AFS").lower(),
        "instances_per_group": of.arguments.get("total_instance", groups) // groups,
        "predict_samples": of.arguments.get("num_MeanInference", 1),
    }


PATCHGCN: Rules = [
    (r"fc\.0\.", "embed.net.0."),
    # created but never called
    (r"layers\.0\.norm\.", None),
    (r"layers\.(\d+)\.conv\.(?:aggr_module\.)?t$", r"layers.\1.conv.t"),
    # the original has a dropout of 0 before its last layer
    (r"layers\.(\d+)\.conv\.mlp\.4\.", r"layers.\1.conv.mlp.3."),
    (r"path_phi\.0\.", "phi.net.0."),
    (r"path_attention_head\.attention_a\.0\.", "attention.trunk.first."),
    (r"path_attention_head\.attention_b\.0\.", "attention.trunk.gate."),
    (r"path_attention_head\.attention_c\.", "attention.mean."),
    (r"path_rho\.0\.", "classifier.0."),
    (r"classifier\.", "classifier.2."),
]


@original("patchgcn", model="patchgcn", names=PATCHGCN)
def patchgcn(of: Original) -> dict[str, Any]:
    """Read `PatchGCN_Surv`, of any version of PyG; its survival bins become classes."""
    embed, in_dim = of.state["fc.0.weight"].shape
    rate = float(of.arguments.get("dropout", 0.25))
    return {
        "in_dim": in_dim,
        "n_classes": len(of.state["classifier.weight"]),
        "embed": embed,
        "layers": of.count(r"layers\.(\d+)\.conv\.mlp\.0\.weight"),
        "mlp_bias": "layers.0.conv.mlp.0.bias" in of.state,
        "hidden": len(of.state["path_phi.0.weight"]),
        "rho": len(of.state["path_rho.0.weight"]),
        "attention_dim": len(of.state["path_attention_head.attention_a.0.weight"]),
        "dropout": rate,
        "attention_dropout": rate,
    }
