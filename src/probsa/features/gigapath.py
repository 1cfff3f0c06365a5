"""The tile encoder of Prov-GigaPath (Xu et al., Nature 2024): ViT-g/16, trained by DINOv2."""

from ._base import Card, Origin, Preprocessing
from ._network import IMAGENET_MEAN, IMAGENET_STD, Network, timm_network
from ._registry import register


@register(
    "gigapath",
    preprocessing=Preprocessing(
        size=224, resize=256, mean=IMAGENET_MEAN, std=IMAGENET_STD, resampling="bicubic"
    ),
    card=Card(
        width=1536,
        summary="ViT-g/16 (1.1 G parameters) trained by DINOv2 on 1.3 billion tiles of 171,189 "
        "slides; class token. Made for tiles of 256 pixels at 0.5 µm per pixel.",
        licence="Research use only; the terms are on its card.",
        source="https://huggingface.co/prov-gigapath/prov-gigapath "
        "(doi:10.1038/s41586-024-07441-w)",
        gated=True,
        weights=Origin(repository="prov-gigapath/prov-gigapath", files=("pytorch_model.bin",)),
        packages=("timm",),
    ),
)
class GigaPath(Network):
    """The class token of GigaPath's tile encoder.

    Args:
        depth: number of transformer layers.
    """

    def __init__(self, *, depth: int = 40) -> None:
        network = timm_network(
            "vit_giant_patch14_dinov2",
            img_size=224,
            patch_size=16,
            embed_dim=1536,
            depth=depth,
            num_heads=24,
            mlp_ratio=5.33334,
            init_values=1e-5,
        )
        super().__init__(network)
