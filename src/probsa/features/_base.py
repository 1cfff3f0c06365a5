"""Stage 3: encoders, which turn the pixels of a patch or the windows of a slice into features."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
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
    """Python package that holds the file."""
    extra: str = ""
    """Extra of probsa that installs this package; empty if none does."""


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

    @property
    def statement(self) -> str:
        """The text that identities of encoders are digests of.

        Files of features store these digests: the text must stay the same, whatever the fields of
        this class are called.
        """
        return (
            f"Preprocessing(size={self.size!r}, mean={self.mean!r}, std={self.std!r}, "
            f"resampling={self.resampling!r}, resize={self.resize!r})"
        )


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
        for tensor in chain(self.parameters(), self.buffers()):
            return tensor.device
        return torch.device("cpu")

    @abstractmethod
    def features(self, x: Float[Tensor, "n 3 height width"]) -> Float[Tensor, "n numbers"]:
        """Return the features of preprocessed patches."""

    def convert(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights of a file with the keys of `core`."""
        return dict(state)

    @torch.no_grad()
    def encode(self, pixels: Tensor, *, precision: Precision = "float32") -> Tensor:
        """Return float32 features on the CPU, computed from bytes without gradients.

        The whole input is one batch. A row is the same in any batch, up to rounding.

        Args:
            pixels: The patches, (n, height, width, 3) uint8 on any device: RGB or three windows.
            precision: The type of the network's matrix products. Preprocessing and result are
                float32.

        Raises:
            InputError: The pixels have another type or shape.
        """
        if pixels.dtype != torch.uint8 or pixels.ndim != 4 or pixels.shape[3] != 3:
            dtype = str(pixels.dtype).removeprefix("torch.")
            raise InputError(
                "expected uint8 pixels of shape (n, height, width, 3), got "
                f"{dtype} of shape {tuple(pixels.shape)}"
            )
        if not pixels.shape[0]:
            return torch.zeros(0, self.width)
        device = self.device
        x = pixels.to(device, non_blocking=True).permute(0, 3, 1, 2).float() / 255
        if self.preprocessing is not None:
            x = preprocess(x, self.preprocessing)
        is_lower = precision != "float32"
        with torch.autocast(device.type, dtype=PRECISIONS[precision], enabled=is_lower):
            features = self.features(x)
        return features.float().cpu()


def preprocess(
    x: Float[Tensor, "n 3 height width"], options: Preprocessing
) -> Float[Tensor, "n 3 size size"]:
    """Resize the shorter side, crop the centre, and normalise pixels in [0, 1]."""
    height, width = x.shape[-2:]
    shorter_side = min(height, width)
    target = options.resize or options.size
    if shorter_side != target:
        # as torchvision rounds: the shorter side exactly, the longer one down
        scale = target / shorter_side
        new_height = target if height == shorter_side else int(height * scale)
        new_width = target if width == shorter_side else int(width * scale)
        x = nn.functional.interpolate(
            x, size=[new_height, new_width], mode=options.resampling, antialias=True
        )
        x = x.clamp(0, 1)  # cubic weights overshoot at edges; image libraries clip this to bytes
    size = options.size
    top = round((x.shape[-2] - size) / 2)
    left = round((x.shape[-1] - size) / 2)
    x = x[..., top : top + size, left : left + size]
    mean = torch.tensor(options.mean, device=x.device).view(1, 3, 1, 1)
    std = torch.tensor(options.std, device=x.device).view(1, 3, 1, 1)
    return (x - mean) / std
