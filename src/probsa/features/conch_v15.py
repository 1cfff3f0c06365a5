"""CONCH v1.5, the patch encoder of TITAN (Ding et al. 2024), written from its description.

A ViT-L/16 at 448 pixels. One learned query attends to all tokens after the last layer norm and
yields 768 features (the contrastive pooler of CoCa, Yu et al. 2022, with eight heads).
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ._base import Card, Origin, Preprocessing
from ._network import CC_BY_NC_ND, IMAGENET_MEAN, IMAGENET_STD, Network, timm_network
from ._registry import register

TRUNK, WIDTH, HEADS = 1024, 768, 8
PATCH, SIZE = 16, 448
POSITIONS = "trunk.pos_embed"


class Pooler(nn.Module):
    """softmax(q kᵀ / √d) v with q from a learned query, k and v from the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(1, WIDTH))
        self.ln_q = nn.LayerNorm(WIDTH)
        self.ln_k = nn.LayerNorm(TRUNK)
        self.to_q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.to_kv = nn.Linear(TRUNK, 2 * WIDTH, bias=False)
        self.to_out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, tokens_ntc: Float[Tensor, "n tokens 1024"]) -> Float[Tensor, "n 768"]:
        """Return one vector per patch."""
        n = tokens_ntc.shape[0]
        q = self.to_q(self.ln_q(self.query)).expand(n, 1, WIDTH)
        k, v = self.to_kv(self.ln_k(tokens_ntc)).chunk(2, dim=-1)
        split = [y.unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2) for y in (q, k, v)]
        pooled = nn.functional.scaled_dot_product_attention(*split)
        return self.to_out(pooled.transpose(1, 2).flatten(1))


class Tower(nn.Module):
    """The vision tower, with the keys of its weight file."""

    def __init__(self, *, depth: int) -> None:
        super().__init__()
        self.trunk = timm_network(
            "vit_large_patch16_224",
            img_size=SIZE,
            patch_size=PATCH,
            embed_dim=TRUNK,
            depth=depth,
            num_heads=16,
            mlp_ratio=4.0,
            qkv_bias=True,
            init_values=1e-6,
            global_pool="",
        )
        self.attn_pool_contrast = Pooler()
        self.ln_contrast = nn.LayerNorm(WIDTH)

    def forward(self, x: Float[Tensor, "n 3 448 448"]) -> Float[Tensor, "n 768"]:
        """Apply trunk, pooler and layer norm."""
        return self.ln_contrast(self.attn_pool_contrast(self.trunk(x)))


@register(
    "conch-v1.5",
    preprocessing=Preprocessing(
        size=SIZE, mean=IMAGENET_MEAN, std=IMAGENET_STD, resampling="bilinear"
    ),
    card=Card(
        width=WIDTH,
        summary="ViT-L/16 at 448 pixels (307 M parameters) trained on slides with their captions; "
        "attentional pooling. The patch encoder of TITAN, for 512 pixels at 20x.",
        licence=CC_BY_NC_ND,
        source="https://huggingface.co/MahmoodLab/conchv1_5 (arXiv:2411.19666)",
        gated=True,
        weights=Origin(repository="MahmoodLab/conchv1_5", files=("pytorch_model_vision.bin",)),
        packages=("timm",),
    ),
)
class ConchV15(Network):
    """The pooled output of CONCH v1.5's vision tower.

    Args:
        depth: number of transformer layers.
    """

    def __init__(self, *, depth: int = 24) -> None:
        super().__init__(Tower(depth=depth))

    def convert(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Resample position embeddings of another input size, as DINO does."""
        converted = dict(state)
        positions = converted.get(POSITIONS)
        rows = self.network.state_dict()[POSITIONS].shape[1]
        if positions is not None and positions.ndim == 3 and positions.shape[1] != rows:
            converted[POSITIONS] = grid_of(positions, SIZE // PATCH)
        return converted


def grid_of(
    positions: Float[Tensor, "1 rows channels"], side: int
) -> Float[Tensor, "1 new_rows channels"]:
    """Resample position embeddings (class token first) to a grid of `side` by `side`.

    As in DINO, the scale includes an extra tenth of a cell, so that rounding never loses a cell.
    """
    first, rest = positions[:, :1], positions[:, 1:]
    old = round(rest.shape[1] ** 0.5)
    if old * old != rest.shape[1]:
        return positions
    square = rest.unflatten(1, (old, old)).permute(0, 3, 1, 2)
    scale = (side + 0.1) / old
    grid = nn.functional.interpolate(square, scale_factor=(scale, scale), mode="bicubic")
    return torch.cat((first, grid.flatten(2).transpose(1, 2)), dim=1)
