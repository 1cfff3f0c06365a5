"""ResNets (He et al. 2016) in plain PyTorch, under torchvision's keys.

Weights of torchvision and timm can be loaded directly. As in torchvision, the stride of a
bottleneck is in its 3x3 convolution. Whole patches are resized to 224 pixels, as in CLAM;
torchvision's recipe for photographs would crop the border, and so lose tissue. `resnet50-bt` (Kang
et al., CVPR 2023) is the encoder of the ProbSA paper's slide features.
"""

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from ._base import IMAGENET_MEAN, IMAGENET_STD, Card, Encoder, Origin, Preprocessing
from ._registry import register

IMAGENET = Preprocessing(size=224, mean=IMAGENET_MEAN, std=IMAGENET_STD, resampling="bilinear")

Depth = Literal[18, 50]
BLOCKS: dict[Depth, tuple[int, int, int, int]] = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}


class Basic(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    expansion = 1

    def __init__(self, inside: int, planes: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = _convolution(inside, planes, side=3, stride=stride)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = _convolution(planes, planes, side=3)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = _shortcut(inside, planes, stride=stride)

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c2 h2 w2"]:
        """Return relu(shortcut(x) + residual(x))."""
        residual = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (residual + (x if self.downsample is None else self.downsample(x))).relu()


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a shortcut; the output is four times as wide."""

    expansion = 4

    def __init__(self, inside: int, planes: int, *, stride: int) -> None:
        super().__init__()
        outside = planes * self.expansion
        self.conv1 = _convolution(inside, planes, side=1)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = _convolution(planes, planes, side=3, stride=stride)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = _convolution(planes, outside, side=1)
        self.bn3 = nn.BatchNorm2d(outside)
        self.downsample = _shortcut(inside, outside, stride=stride)

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c2 h2 w2"]:
        """Return relu(shortcut(x) + residual(x))."""
        residual = self.bn1(self.conv1(x)).relu()
        residual = self.bn2(self.conv2(residual)).relu()
        residual = self.bn3(self.conv3(residual))
        return (residual + (x if self.downsample is None else self.downsample(x))).relu()


def _convolution(inside: int, outside: int, *, side: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inside, outside, side, stride=stride, padding=side // 2, bias=False)


def _shortcut(inside: int, outside: int, *, stride: int) -> nn.Module | None:
    if stride == 1 and inside == outside:
        return None
    return nn.Sequential(
        _convolution(inside, outside, side=1, stride=stride), nn.BatchNorm2d(outside)
    )


@register(
    "resnet18",
    depth=18,
    preprocessing=IMAGENET,
    card=Card(
        width=512,
        summary="ResNet-18 trained on ImageNet photographs; mean of the last maps.",
        licence="BSD-3-Clause (torchvision).",
        source="https://docs.pytorch.org/vision/stable/models/resnet.html",
        weights=Origin(
            url="https://download.pytorch.org/models/resnet18-f37072fd.pth",
            repository="timm/resnet18.tv_in1k",
        ),
    ),
)
@register(
    "resnet50",
    preprocessing=IMAGENET,
    card=Card(
        width=2048,
        summary="ResNet-50 trained on ImageNet photographs; mean of the last maps.",
        licence="BSD-3-Clause (torchvision).",
        source="https://docs.pytorch.org/vision/stable/models/resnet.html",
        weights=Origin(
            url="https://download.pytorch.org/models/resnet50-0676ba61.pth",
            repository="timm/resnet50.tv_in1k",
        ),
    ),
)
@register(
    "resnet50-1024",
    stages=3,
    preprocessing=IMAGENET,
    card=Card(
        width=1024,
        summary="ResNet-50 trained on ImageNet, cut after its third stage as CLAM does; mean of "
        "those maps.",
        licence="BSD-3-Clause (torchvision).",
        source="https://doi.org/10.1038/s41551-020-00682-w",
        weights=Origin(
            url="https://download.pytorch.org/models/resnet50-0676ba61.pth",
            repository="timm/resnet50.tv_in1k",
        ),
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
        block = Bottleneck if depth == 50 else Basic
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.stages = stages
        inside = 64
        for k, count in enumerate(BLOCKS[depth][:stages]):
            planes, layers = 64 * 2**k, []
            for i in range(count):
                layers.append(block(inside, planes, stride=2 if k and not i else 1))
                inside = planes * block.expansion
            self.add_module(f"layer{k + 1}", nn.Sequential(*layers))
        self.heads = ("fc.", *(f"layer{k}." for k in range(stages + 1, 5)))

    def features(self, x: Float[Tensor, "n 3 height width"]) -> Float[Tensor, "n numbers"]:
        """Return the mean over the positions of the last maps."""
        x = self.maxpool(self.bn1(self.conv1(x)).relu())
        for k in range(self.stages):
            x = self.get_submodule(f"layer{k + 1}")(x)
        return x.mean(dim=(2, 3))
