"""ResNet-50 trained by Barlow Twins on patches of TCGA slides (Kang et al., CVPR 2023).

The encoder of the ProbSA paper's slide features. The release (Lunit Inc., `bt_rn50_ep200.torch`)
is for non-commercial use and not part of this package: the user gives the file or its URL. Its
notes state the normalisation but no resizing, which is therefore that of `resnet50` here.
"""

from ._base import Card, Origin, Preprocessing
from ._registry import register
from .resnet import ResNet


@register(
    "resnet50-bt",
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
    ),
)
class BarlowTwins(ResNet):
    """The network of `resnet50` with other weights and another normalisation."""

    def __init__(self) -> None:
        super().__init__(depth=50)
