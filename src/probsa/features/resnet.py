"""ResNets (He et al. 2016) in plain PyTorch, under torchvision's keys.

Weights of torchvision and timm can be loaded directly. As in torchvision, the stride of a
bottleneck is in its 3x3 convolution. Whole patches are resized to 224 pixels, as in CLAM;
torchvision's recipe for photographs would crop the border, and so lose tissue. `resnet50-bt` (Kang
et al., CVPR 2023) is the encoder of the ProbSA paper's slide features.
"""

from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from ._base import IMAGENET_MEAN, IMAGENET_STD, Card, Encoder, Origin, Preprocessing
from ._registry import register

IMAGENET = Preprocessing(size=224, mean=IMAGENET_MEAN, std=IMAGENET_STD, resampling="bilinear")

Depth = Literal[18, 50]
STAGES: dict[Depth, tuple[int, ...]] = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}
SIDES: dict[Depth, tuple[int, ...]] = {18: (3, 3), 50: (1, 3, 1)}
"""Convolutions of a block: two, or a bottleneck whose output is four times as wide."""


class Block(nn.Module):
    """relu(shortcut(x) + residual(x)); the first convolution of 3x3 has the stride."""

    def __init__(self, inside: int, planes: int, *, sides: tuple[int, ...], stride: int) -> None:
        super().__init__()
        self.count, channels = len(sides), inside
        for k, side in enumerate(sides, start=1):
            outside = 4 * planes if k == 3 else planes
            by = stride if k == sides.index(3) + 1 else 1
            self.add_module(f"conv{k}", _convolution(channels, outside, side=side, stride=by))
            self.add_module(f"bn{k}", nn.BatchNorm2d(outside))
            channels = outside
        self.downsample = None
        if stride > 1 or inside != channels:
            shortcut = _convolution(inside, channels, side=1, stride=stride)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(channels))

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c2 h2 w2"]:
        residual = x
        for k in range(1, self.count + 1):
            residual = self.get_submodule(f"conv{k}")(residual.relu() if k > 1 else residual)
            residual = self.get_submodule(f"bn{k}")(residual)
        return (residual + (x if self.downsample is None else self.downsample(x))).relu()


def _convolution(inside: int, outside: int, *, side: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inside, outside, side, stride=stride, padding=side // 2, bias=False)


def _torchvision(name: str, digest: str, *, source: str = "", **card: Any) -> Card:
    return Card(
        licence="BSD-3-Clause (torchvision).",
        source=source or "https://docs.pytorch.org/vision/stable/models/resnet.html",
        weights=Origin(
            url=f"https://download.pytorch.org/models/{name}-{digest}.pth",
            repository=f"timm/{name}.tv_in1k",
        ),
        **card,
    )


@register(
    "resnet18",
    depth=18,
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
    ),
)
class ResNet(Encoder):
    """A residual network whose features are the mean of its last maps.

    Args:
        depth: number of layers with weights, including the classifier.
        stages: number of stages that are kept, of four.
    """

    def __init__(self, *, depth: Depth = 50, stages: Literal[3, 4] = 4) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.stages = stages
        inside = 64
        for k, count in enumerate(STAGES[depth][:stages]):
            layer = nn.Sequential()
            for i in range(count):
                stride = 2 if k and not i else 1
                layer.append(Block(inside, 64 * 2**k, sides=SIDES[depth], stride=stride))
                inside = 64 * 2**k * (4 if depth == 50 else 1)
            self.add_module(f"layer{k + 1}", layer)
        self.heads = ("fc.", *(f"layer{k}." for k in range(stages + 1, 5)))

    def features(self, x: Float[Tensor, "n 3 height width"]) -> Float[Tensor, "n numbers"]:
        """Return the mean over the positions of the last maps."""
        x = self.maxpool(self.bn1(self.conv1(x)).relu())
        for k in range(self.stages):
            x = self.get_submodule(f"layer{k + 1}")(x)
        return x.mean(dim=(2, 3))
