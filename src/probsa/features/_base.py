"""Stage 3: encoders, which turn the pixels of a patch or the windows of a slice into features."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import InputError

Resampling = Literal["bilinear", "bicubic"]
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
Precision = Literal["float32", "bf16", "fp16"]
PRECISIONS: dict[Precision, torch.dtype] = {
    "float32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where the weights of an encoder can be found: a URL, a hub repository or a package."""

    url: str = ""
    """URL of the weight file."""
    repository: str = ""
    """Repository on the Hugging Face Hub."""
    files: tuple[str, ...] = ("model.safetensors", "pytorch_model.bin")
    """File names in that repository or package; the first existing one is used."""
    package: str = ""
    """Python package that holds the file, which the extra `effnet` installs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """Properties of an encoder as published by its authors."""

    width: int
    """Number of features per patch; 0 if it is known only after construction."""
    licence: str
    """The licence, with its consequences in a few words."""
    source: str
    """A link to the paper, model card or repository."""
    summary: str = ""
    """The architecture and training data in one sentence."""
    gated: bool = False
    """True if the hub requires accepting a licence before downloading the weights."""
    weights: Origin | None = None
    """Origin of the weights; None if the encoder has no weights."""
    packages: tuple[str, ...] = ()
    """Optional packages that it needs, all part of the extra `encoders`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preprocessing:
    """Conversion from bytes to the network's input, performed on the encoder's device."""

    size: int
    """Side of the network's input in pixels."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    resampling: Resampling = "bicubic"
    resize: int | None = None
    """Size to resize to before cropping the centre to `size`; None for no crop."""


class Encoder(nn.Module, ABC):
    """Base class of encoders. Rows are independent; extraction calls only `encode`.

    `build` sets the name, the identity, and the `card` and `preprocessing` given to `register`. An
    encoder in another package may set them itself.
    """

    card: Card
    preprocessing: Preprocessing | None = None
    """Preprocessing; None if `features` takes pixels in [0, 1] of any size."""
    name: str = ""
    """The registered name."""
    identity: str = ""
    """Name and digest of the weights, so that features of different weights are never mixed."""
    heads: tuple[str, ...] = ()
    """Prefixes of additional keys in weight files, which are ignored."""
    revision: int = 1
    """Increased when the same weights give different features; part of the identity."""

    @property
    def width(self) -> int:
        """Number of features per patch."""
        return self.card.width

    @property
    def core(self) -> nn.Module:
        """The module to which the keys of a weight file belong."""
        return self

    @property
    def device(self) -> torch.device:
        """The device on which the encoder computes."""
        tensor = next(self.parameters(), None)
        tensor = next(self.buffers(), None) if tensor is None else tensor
        return torch.device("cpu") if tensor is None else tensor.device

    @abstractmethod
    def features(self, x: Float[Tensor, "n 3 height width"]) -> Float[Tensor, "n numbers"]:
        """Return the features of preprocessed patches."""

    def convert(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights of a file with the keys of `core`."""
        return dict(state)

    @torch.no_grad()
    def encode(self, pixels: Tensor, *, precision: Precision = "float32") -> Tensor:
        """Compute float32 features on the CPU from bytes, without gradients.

        The whole input is one batch. A row is the same in any batch, up to rounding.

        Args:
            pixels: (n, height, width, 3) uint8, RGB or three windows, on any device.
            precision: type of the network's matrix products; preprocessing and result are float32.

        Raises:
            InputError: the pixels have another type or shape.
        """
        if pixels.dtype != torch.uint8 or pixels.ndim != 4 or pixels.shape[3] != 3:
            got = f"{str(pixels.dtype).removeprefix('torch.')} of shape {tuple(pixels.shape)}"
            raise InputError(f"expected uint8 pixels of shape (n, height, width, 3), got {got}")
        if not pixels.shape[0]:
            return torch.zeros(0, self.width)
        device = self.device
        x = pixels.to(device, non_blocking=True).permute(0, 3, 1, 2).float() / 255
        if self.preprocessing is not None:
            x = preprocess(x, self.preprocessing)
        lower = precision != "float32"
        with torch.autocast(device.type, dtype=PRECISIONS[precision], enabled=lower):
            features = self.features(x)
        return features.float().cpu()


def preprocess(
    x: Float[Tensor, "n 3 height width"], how: Preprocessing
) -> Float[Tensor, "n 3 size size"]:
    """Resize the shorter side, crop the centre, and normalise pixels in [0, 1]."""
    shorter, shape = how.resize or how.size, x.shape[-2:]
    if min(shape) != shorter:
        size = [
            int(side * (shorter / min(shape))) if side > min(shape) else shorter for side in shape
        ]
        x = nn.functional.interpolate(x, size=size, mode=how.resampling, antialias=True)
        x = x.clamp(0, 1)  # cubic weights overshoot at edges; image libraries clip this to bytes
    top, left = (round((full - how.size) / 2) for full in x.shape[-2:])
    x = x[..., top : top + how.size, left : left + how.size]
    mean, std = (torch.tensor(v, device=x.device).view(1, 3, 1, 1) for v in (how.mean, how.std))
    return (x - mean) / std
