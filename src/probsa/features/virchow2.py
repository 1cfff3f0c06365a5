"""Virchow2 (Zimmermann et al. 2024, Paige and Microsoft): ViT-H/14, trained by DINOv2."""

import torch
from jaxtyping import Float
from torch import Tensor

from ._base import Card, Origin, Preprocessing
from ._network import CC_BY_NC_ND, IMAGENET_MEAN, IMAGENET_STD, Network, swiglu, timm_network
from ._registry import register

REGISTERS = 4


@register(
    "virchow2",
    preprocessing=Preprocessing(
        size=224, mean=IMAGENET_MEAN, std=IMAGENET_STD, resampling="bicubic"
    ),
    card=Card(
        width=2560,
        summary="ViT-H/14 (632 M parameters) trained by DINOv2 on 3.1 million slides; class token "
        "and mean of the patch tokens.",
        licence=CC_BY_NC_ND,
        source="https://huggingface.co/paige-ai/Virchow2 (arXiv:2408.00738)",
        gated=True,
        weights=Origin(repository="paige-ai/Virchow2"),
        packages=("timm",),
    ),
)
class Virchow2(Network):
    """The class token and the mean of the patch tokens; the four registers are omitted.

    Args:
        depth: number of transformer layers.
    """

    def __init__(self, *, depth: int = 32) -> None:
        network = timm_network(
            "vit_huge_patch14_224",
            img_size=224,
            depth=depth,
            mlp_ratio=5.3375,
            init_values=1e-5,
            reg_tokens=REGISTERS,
            global_pool="",
            dynamic_img_size=True,
            **swiglu(),
        )
        super().__init__(network)

    def features(self, x: Float[Tensor, "n 3 height width"]) -> Float[Tensor, "n numbers"]:
        """Return the class token and the mean of the patch tokens, concatenated."""
        tokens = self.network(x)
        return torch.cat((tokens[:, 0], tokens[:, 1 + REGISTERS :].mean(dim=1)), dim=1)
