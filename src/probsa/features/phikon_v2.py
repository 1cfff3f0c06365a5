"""Phikon-v2 (Filiot et al. 2024, Owkin): ViT-L/16 in the layout of transformers' DINOv2.

Versions of transformers name the attention matrices differently; both kinds of files are read.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ._base import Card, Origin, Preprocessing
from ._network import IMAGENET_MEAN, IMAGENET_STD, Network
from ._registry import register
from ._torchvision import optional

# names in transformers 4 and in transformers 5
RENAMED = (
    (".attention.attention.query.", ".attention.q_proj."),
    (".attention.attention.key.", ".attention.k_proj."),
    (".attention.attention.value.", ".attention.v_proj."),
    (".attention.output.dense.", ".attention.o_proj."),
)
POSITIONS = "embeddings.position_embeddings"


@register(
    "phikon-v2",
    preprocessing=Preprocessing(
        size=224, mean=IMAGENET_MEAN, std=IMAGENET_STD, resampling="bicubic"
    ),
    card=Card(
        width=1024,
        summary="ViT-L/16 (303 M parameters) trained by DINOv2 on 456 million tiles of 58,000 "
        "public slides; class token.",
        licence="Owkin non-commercial licence: academic research only.",
        source="https://huggingface.co/owkin/phikon-v2 (arXiv:2409.09173)",
        weights=Origin(repository="owkin/phikon-v2", files=("model.safetensors",)),
        packages=("transformers",),
    ),
)
class PhikonV2(Network):
    """The class token of Phikon-v2.

    Args:
        depth: number of transformer layers.
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
        named = self.network.state_dict()
        converted = dict(state)
        for both in RENAMED:
            ours = next(name for name in both if any(name in key for key in named))
            theirs = both[1 - both.index(ours)]
            converted = {key.replace(theirs, ours): value for key, value in converted.items()}
        positions = converted.get(POSITIONS)
        if positions is not None and positions.shape[1:] != named[POSITIONS].shape[1:]:
            # the network interpolates its trained positions itself
            empty = nn.Parameter(torch.empty_like(positions, device="meta"))
            self.network.get_submodule("embeddings").position_embeddings = empty
        return converted

    def features(self, x: Float[Tensor, "n 3 height width"]) -> Float[Tensor, "n numbers"]:
        """Return the class token after the last layer norm."""
        return self.network(x).last_hidden_state[:, 0]
