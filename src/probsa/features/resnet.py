"""ResNets (He et al. 2016) of timm, with weights under torchvision's keys.

Weights of torchvision and timm can be loaded directly. Whole patches are resized to 224 pixels, as
in CLAM; torchvision's recipe for photographs would crop the border, and so lose tissue.
`resnet50-bt` (Kang et al., CVPR 2023) is the encoder of the ProbSA paper's slide features.
"""

from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from ._base import IMAGENET_MEAN, IMAGENET_STD, Card, Origin, Preprocessing
from ._network import Network, optional
from ._registry import register

IMAGENET = Preprocessing(size=224, mean=IMAGENET_MEAN, std=IMAGENET_STD, resampling="bilinear")


def _torchvision(name: str, digest: str, *, source: str = "", **card: Any) -> Card:
    """Return the card of an encoder with weights of torchvision, whose file name has a digest."""
    return Card(
        licence="BSD-3-Clause (torchvision).",
        source=source or "https://docs.pytorch.org/vision/stable/models/resnet.html",
        weights=Origin(
            url=f"https://download.pytorch.org/models/{name}-{digest}.pth",
            repository=f"timm/{name}.tv_in1k",
        ),
        packages=("timm",),
        **card,
    )


@register(
    "resnet18",
    architecture="resnet18",
    preprocessing=IMAGENET,
    card=_torchvision(
        "resnet18",
        "f37072fd",
        width=512,
        summary="ResNet-18 trained on ImageNet photographs; mean of the last maps.",
    ),
)
@register(
    "resnet50",
    preprocessing=IMAGENET,
    card=_torchvision(
        "resnet50",
        "0676ba61",
        width=2048,
        summary="ResNet-50 trained on ImageNet photographs; mean of the last maps.",
    ),
)
@register(
    "resnet50-1024",
    stages=3,
    preprocessing=IMAGENET,
    card=_torchvision(
        "resnet50",
        "0676ba61",
        width=1024,
        summary="ResNet-50 trained on ImageNet, cut after its third stage as CLAM does; mean of "
        "those maps.",
        source="https://doi.org/10.1038/s41551-020-00682-w",
    ),
)
@register(
    "resnet50-bt",
    # the release states the normalisation but no resizing, which is that of `resnet50` here
    preprocessing=Preprocessing(
        size=224,
        mean=(0.70322989, 0.53606487, 0.66096631),
        std=(0.21716536, 0.26081574, 0.20723464),
        resampling="bilinear",
    ),
    card=Card(
        width=2048,
        summary="ResNet-50 trained by Barlow Twins on 19 million patches of TCGA slides.",
        licence="Lunit Inc. Public License: non-commercial use only, no patent applications.",
        source="https://github.com/lunit-io/benchmark-ssl-pathology (arXiv:2212.04690)",
        weights=Origin(
            url="https://github.com/lunit-io/benchmark-ssl-pathology/releases/download/"
            "pretrained-weights/bt_rn50_ep200.torch"
        ),
        packages=("timm",),
    ),
)
class ResNet(Network):
    """A residual network whose features are the mean of its last maps.

    Args:
        architecture: The name in timm.
        stages: Number of stages that are kept, of four.
    """

    def __init__(self, *, architecture: str = "resnet50", stages: Literal[3, 4] = 4) -> None:
        network = optional("timm").create_model(architecture, num_classes=0)
        super().__init__(network)
        if stages == 4:
            self.heads = ("fc.",)
        else:
            network.layer4 = nn.Identity()
            self.heads = ("fc.", "layer4.")  # files of weights also hold what is left out

    def features(self, x: Float[Tensor, "n 3 height width"]) -> Float[Tensor, "n numbers"]:
        """Return the mean over the positions of the last maps."""
        network: Any = self.network
        return network.forward_features(x).mean(dim=(2, 3))
