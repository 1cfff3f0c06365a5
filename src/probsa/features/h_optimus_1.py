"""H-optimus-1 (Bioptimus, 2025): ViT-g/14, four register tokens, trained on a million slides."""

from ._base import Card, Origin, Preprocessing
from ._network import CC_BY_NC_ND, Network, timm_network
from ._registry import register


@register(
    "h-optimus-1",
    preprocessing=Preprocessing(
        size=224,
        mean=(0.707223, 0.578729, 0.703617),
        std=(0.211883, 0.230117, 0.177517),
        resampling="bicubic",
    ),
    card=Card(
        width=1536,
        summary="ViT-g/14 (1.1 G parameters) trained on over a million H&E slides; class token. "
        "Made for 0.5 µm per pixel.",
        licence=CC_BY_NC_ND,
        source="https://huggingface.co/bioptimus/H-optimus-1",
        gated=True,
        weights=Origin(repository="bioptimus/H-optimus-1"),
        packages=("timm",),
    ),
)
class HOptimus1(Network):
    """The class token of H-optimus-1.

    Args:
        depth: number of transformer layers.
    """

    def __init__(self, *, depth: int = 40) -> None:
        network = timm_network(
            "vit_giant_patch14_reg4_dinov2",
            img_size=224,
            depth=depth,
            init_values=1e-5,
            global_pool="token",
            dynamic_img_size=False,
        )
        super().__init__(network)
