"""UNI2-h (Mahmood Lab, 2025): ViT-H/14 with eight register tokens, trained on slides by DINOv2."""

from ._base import Card, Origin, Preprocessing
from ._network import CC_BY_NC_ND, IMAGENET_MEAN, IMAGENET_STD, Network, swiglu, timm_network
from ._registry import register


@register(
    "uni2-h",
    preprocessing=Preprocessing(
        size=224, mean=IMAGENET_MEAN, std=IMAGENET_STD, resampling="bilinear"
    ),
    card=Card(
        width=1536,
        summary="ViT-H/14 (681 M parameters) trained by DINOv2 on 200 million patches of H&E and "
        "IHC slides; class token.",
        licence=CC_BY_NC_ND,
        source="https://huggingface.co/MahmoodLab/UNI2-h",
        gated=True,
        weights=Origin(repository="MahmoodLab/UNI2-h", files=("pytorch_model.bin",)),
        packages=("timm",),
    ),
)
class Uni2H(Network):
    """The class token of UNI2-h.

    Args:
        depth: number of transformer layers.
    """

    def __init__(self, *, depth: int = 24) -> None:
        network = timm_network(
            "vit_giant_patch14_224",
            img_size=224,
            patch_size=14,
            embed_dim=1536,
            depth=depth,
            num_heads=24,
            mlp_ratio=2.66667 * 2,
            init_values=1e-5,
            no_embed_class=True,
            reg_tokens=8,
            dynamic_img_size=True,
            **swiglu(),
        )
        super().__init__(network)
