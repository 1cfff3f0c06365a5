"""Published encoders of slides: a table of vision transformers of timm, and two others.

Cards and settings are those of the model cards on the Hugging Face Hub. The keys of weight files
are those of the network alone, which `core` returns.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ._base import IMAGENET_MEAN, IMAGENET_STD, Card, Origin, Preprocessing, Resampling
from ._network import Network, optional
from ._registry import E, register

CC_BY_NC_ND = "CC BY-NC-ND 4.0: non-commercial academic research, no sharing of derivatives."


def published(
    name: str,
    repository: str,
    preprocessing: Preprocessing,
    *,
    paper: str = "",
    files: tuple[str, ...] = Origin().files,
    package: str = "timm",
    network: Mapping[str, object] | None = None,
    **card: Any,
) -> Callable[[E], E]:
    """Return a decorator that registers an encoder of the Hugging Face Hub.

    Args:
        name: The name for `build` and the command line.
        repository: Repository on the hub.
        preprocessing: Its preprocessing.
        paper: An address of the paper, if there is one.
        files: File names in the repository.
        package: The package that the class needs.
        network: Arguments of the class.
        card: The other fields of `Card`.
    """
    source = f"https://huggingface.co/{repository}"
    if paper:
        source += f" ({paper})"
    values = {"licence": CC_BY_NC_ND, "gated": True, **card}
    weights = Origin(repository=repository, files=files)
    encoder_card = Card(source=source, weights=weights, packages=(package,), **values)
    return register(name, preprocessing=preprocessing, card=encoder_card, **network or {})


def _input(resampling: Resampling, *, size: int = 224, **other_fields: Any) -> Preprocessing:
    """Return a preprocessing, with the normalisation of ImageNet unless another is given."""
    imagenet = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
    return Preprocessing(size=size, resampling=resampling, **{**imagenet, **other_fields})


@published(
    "uni2-h",
    "MahmoodLab/UNI2-h",
    _input("bilinear"),
    width=1536,
    summary="ViT-H/14 (681 M parameters) trained by DINOv2 on 200 million patches of H&E and IHC "
    "slides; class token.",
    files=("pytorch_model.bin",),
    network={
        "architecture": "vit_giant_patch14_224",
        "depth": 24,
        "is_gated": True,
        "options": {
            "img_size": 224,
            "patch_size": 14,
            "embed_dim": 1536,
            "num_heads": 24,
            "mlp_ratio": 2.66667 * 2,
            "init_values": 1e-5,
            "no_embed_class": True,
            "reg_tokens": 8,
            "dynamic_img_size": True,
        },
    },
)
@published(
    "virchow2",
    "paige-ai/Virchow2",
    _input("bicubic"),
    width=2560,
    summary="ViT-H/14 (632 M parameters) trained by DINOv2 on 3.1 million slides; class token and "
    "mean of the patch tokens.",
    paper="arXiv:2408.00738",
    network={
        "architecture": "vit_huge_patch14_224",
        "depth": 32,
        "is_gated": True,
        "with_mean": True,
        "options": {
            "img_size": 224,
            "mlp_ratio": 5.3375,
            "init_values": 1e-5,
            "reg_tokens": 4,
            "global_pool": "",
            "dynamic_img_size": True,
        },
    },
)
@published(
    "gigapath",
    "prov-gigapath/prov-gigapath",
    _input("bicubic", resize=256),
    width=1536,
    summary="ViT-g/16 (1.1 G parameters) trained by DINOv2 on 1.3 billion tiles of 171,189 slides; "
    "class token. Made for tiles of 256 pixels at 0.5 µm per pixel.",
    licence="Research use only; the terms are on its card.",
    paper="doi:10.1038/s41586-024-07441-w",
    files=("pytorch_model.bin",),
    network={
        "architecture": "vit_giant_patch14_dinov2",
        "depth": 40,
        "options": {
            "img_size": 224,
            "patch_size": 16,
            "embed_dim": 1536,
            "num_heads": 24,
            "mlp_ratio": 5.33334,
            "init_values": 1e-5,
        },
    },
)
@published(
    "h-optimus-1",
    "bioptimus/H-optimus-1",
    _input("bicubic", mean=(0.707223, 0.578729, 0.703617), std=(0.211883, 0.230117, 0.177517)),
    width=1536,
    summary="ViT-g/14 (1.1 G parameters) trained on over a million H&E slides; class token. Made "
    "for 0.5 µm per pixel.",
    network={
        "architecture": "vit_giant_patch14_reg4_dinov2",
        "depth": 40,
        "options": {
            "img_size": 224,
            "init_values": 1e-5,
            "global_pool": "token",
            "dynamic_img_size": False,
        },
    },
)
class VisionTransformer(Network):
    """A vision transformer of timm: its class token, or with it the mean of the patch tokens.

    Args:
        architecture: The name in timm.
        depth: Number of transformer layers.
        options: Other arguments of timm.
        is_gated: Whether the layers are gated, as in DINOv2's largest networks.
        with_mean: Whether the mean of the patch tokens follows; registers are left out.
    """

    def __init__(
        self,
        *,
        architecture: str,
        depth: int,
        options: Mapping[str, Any],
        is_gated: bool = False,
        with_mean: bool = False,
    ) -> None:
        layers: dict[str, object] = {}
        if is_gated:
            layers = {"mlp_layer": optional("timm.layers").SwiGLUPacked, "act_layer": nn.SiLU}
        super().__init__(_timm(architecture, depth=depth, **options, **layers))
        self.first_patch: int | None = None
        if with_mean:
            # the class token and the registers come first
            self.first_patch = 1 + options.get("reg_tokens", 0)

    def features(self, x: Float[Tensor, "n 3 height width"]) -> Float[Tensor, "n numbers"]:
        """Return the class token, with or without the mean of the patch tokens."""
        tokens = self.network(x)
        if self.first_patch is None:
            return tokens
        mean = tokens[:, self.first_patch :].mean(dim=1)
        return torch.cat((tokens[:, 0], mean), dim=1)


def _timm(architecture: str, **arguments: object) -> nn.Module:
    """Return a network of timm without a classifier, with random weights."""
    return optional("timm").create_model(architecture, num_classes=0, **arguments)


TRUNK = 1024
"""Channels of the tokens of CONCH v1.5."""
WIDTH = 768
"""Number of features of CONCH v1.5."""
HEADS = 8
"""Attention heads of its pooler."""
SIDE = 28
"""Number of its tokens in a row."""


class Pooler(nn.Module):
    """softmax(q kᵀ / √d) v, q from a learned query, k and v from the tokens (Yu et al. 2022)."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(1, WIDTH))
        self.ln_q = nn.LayerNorm(WIDTH)
        self.ln_k = nn.LayerNorm(TRUNK)
        self.to_q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.to_kv = nn.Linear(TRUNK, 2 * WIDTH, bias=False)
        self.to_out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, tokens: Float[Tensor, "n tokens 1024"]) -> Float[Tensor, "n 768"]:
        """Return one vector per patch."""
        q = self.to_q(self.ln_q(self.query)).expand(len(tokens), 1, WIDTH)
        k, v = self.to_kv(self.ln_k(tokens)).chunk(2, dim=-1)
        # (n, tokens, width) to (n, heads, tokens, width of a head)
        heads = [y.unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2) for y in (q, k, v)]
        pooled = nn.functional.scaled_dot_product_attention(*heads)
        return self.to_out(pooled.transpose(1, 2).flatten(1))


@published(
    "conch-v1.5",
    "MahmoodLab/conchv1_5",
    _input("bilinear", size=16 * SIDE),
    width=WIDTH,
    summary="ViT-L/16 at 448 pixels (307 M parameters) trained on slides with their captions; "
    "attentional pooling. The patch encoder of TITAN, for 512 pixels at 20x.",
    paper="arXiv:2411.19666",
    files=("pytorch_model_vision.bin",),
)
class ConchV15(Network):
    """The vision tower of CONCH v1.5 (Ding et al. 2024), written from its description.

    A learned query attends to all tokens after the last layer norm.

    Args:
        depth: Number of transformer layers.
    """

    def __init__(self, *, depth: int = 24) -> None:
        tower = nn.Module()
        tower.trunk = _timm(
            "vit_large_patch16_224",
            img_size=16 * SIDE,
            depth=depth,
            init_values=1e-6,
            global_pool="",
        )
        tower.attn_pool_contrast = Pooler()
        tower.ln_contrast = nn.LayerNorm(WIDTH)
        super().__init__(tower)

    def convert(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Resample position embeddings of another input size, as DINO does."""
        key = "trunk.pos_embed"
        rows = 1 + SIDE**2  # the class token and the patches
        positions = state.get(key)
        if positions is None or positions.ndim != 3 or positions.shape[1] == rows:
            return dict(state)
        return {**state, key: resampled_positions(positions, SIDE)}

    def features(self, x: Float[Tensor, "n 3 448 448"]) -> Float[Tensor, "n 768"]:
        """Return the pooled tokens after a layer norm."""
        tower: Any = self.network
        return tower.ln_contrast(tower.attn_pool_contrast(tower.trunk(x)))


def resampled_positions(
    positions: Float[Tensor, "1 rows channels"], side: int
) -> Float[Tensor, "1 new_rows channels"]:
    """Resample position embeddings (class token first) to a grid of `side` by `side`.

    As in DINO, the scale includes an extra tenth of a cell, so that rounding never loses a cell.
    """
    class_token = positions[:, :1]
    patches = positions[:, 1:]
    old_side = round(patches.shape[1] ** 0.5)
    if old_side * old_side != patches.shape[1]:
        return positions
    old_grid = patches.unflatten(1, (old_side, old_side)).permute(0, 3, 1, 2)
    scale = (side + 0.1) / old_side
    grid = nn.functional.interpolate(old_grid, scale_factor=(scale, scale), mode="bicubic")
    return torch.cat((class_token, grid.flatten(2).transpose(1, 2)), dim=1)


ATTENTION_NAMES = (
    (".attention.attention.query.", ".attention.q_proj."),
    (".attention.attention.key.", ".attention.k_proj."),
    (".attention.attention.value.", ".attention.v_proj."),
    (".attention.output.dense.", ".attention.o_proj."),
)
"""The names of the attention's matrices in transformers 4 and in transformers 5."""


@published(
    "phikon-v2",
    "owkin/phikon-v2",
    _input("bicubic"),
    width=1024,
    summary="ViT-L/16 (303 M parameters) trained by DINOv2 on 456 million tiles of 58,000 public "
    "slides; class token.",
    licence="Owkin non-commercial licence: academic research only.",
    paper="arXiv:2409.09173",
    files=("model.safetensors",),
    gated=False,
    package="transformers",
)
class PhikonV2(Network):
    """The class token of Phikon-v2, in the layout of transformers' DINOv2.

    Versions of transformers name the matrices of the attention differently; both are read.

    Args:
        depth: Number of transformer layers.
    """

    def __init__(self, *, depth: int = 24) -> None:
        transformers = optional("transformers")
        config = transformers.Dinov2Config(
            hidden_size=1024,
            num_hidden_layers=depth,
            num_attention_heads=16,
            mlp_ratio=4,
            image_size=224,
            patch_size=16,
        )
        super().__init__(transformers.Dinov2Model(config))

    def convert(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename keys for the installed version of transformers, and keep the file's positions."""
        expected = self.network.state_dict()
        converted = dict(state)
        for old_name, new_name in ATTENTION_NAMES:
            is_new = not any(old_name in key for key in expected)
            ours, theirs = (new_name, old_name) if is_new else (old_name, new_name)
            converted = {key.replace(theirs, ours): value for key, value in converted.items()}
        key = "embeddings.position_embeddings"
        positions = converted.get(key)
        if positions is not None and positions.shape[1:] != expected[key].shape[1:]:
            # the network interpolates its trained positions itself
            empty = nn.Parameter(torch.empty_like(positions, device="meta"))
            self.network.get_submodule("embeddings").position_embeddings = empty
        return converted

    def features(self, x: Float[Tensor, "n 3 height width"]) -> Float[Tensor, "n numbers"]:
        """Return the class token after the last layer norm."""
        return self.network(x).last_hidden_state[:, 0]
