"""Stage 3: an encoder turns the pixels of a patch, or the windows of a slice, into numbers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import InputError

Resampling = Literal["bilinear", "bicubic"]
Precision = Literal["float32", "bf16", "fp16"]
PRECISIONS: dict[Precision, torch.dtype] = {
    "float32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where the weights of an encoder lie: a file at an address, or a repository of a hub."""

    url: str = ""
    """Of the file itself."""
    repository: str = ""
    """On the Hugging Face Hub."""
    files: tuple[str, ...] = ("model.safetensors", "pytorch_model.bin")
    """In that repository: the first that exists."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """What an encoder's makers say of it."""

    width: int
    """Features of one patch; 0 where only the built encoder knows."""
    licence: str
    """And what follows from it, in a few words."""
    source: str
    """A link: paper, model card or repository."""
    summary: str = ""
    """What it is and what it was trained on, in a sentence."""
    gated: bool = False
    """Whether the hub asks for an accepted licence before it hands out the weights."""
    weights: Origin | None = None
    """None where there are none to load."""
    packages: tuple[str, ...] = ()
    """Optional packages that it is built with, all of the extra `encoders`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preprocessing:
    """From bytes to what the network was trained on, done on the encoder's device."""

    size: int
    """Side of the network's input in pixels."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    resampling: Resampling = "bicubic"
    resize: int | None = None
    """Where the card resizes to more than `size` and then cuts the centre: to how much."""


class Encoder(nn.Module, ABC):
    """Rows do not depend on one another; `encode` is all that extraction calls.

    What `register` says under a name (`card`, `preprocessing`) is set by `build`, with the name
    and the identity. An encoder of another package may set them itself.
    """

    card: Card
    preprocessing: Preprocessing | None = None
    """None where `features` takes pixels in [0, 1] of any size."""
    name: str = ""
    """As registered."""
    identity: str = ""
    """Name and a digest of the weights: features of other weights are not mixed with these."""
    heads: tuple[str, ...] = ()
    """Beginnings of keys that a file may hold beside the encoder's own: left out of it."""
    revision: int = 1
    """Raised when other numbers come out of the same weights; part of the identity."""

    @property
    def width(self) -> int:
        """Features of one patch."""
        return self.card.width

    @property
    def core(self) -> nn.Module:
        """What the weights of a file belong to, key by key."""
        return self

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        held = next(self.parameters(), None)
        held = next(self.buffers(), None) if held is None else held
        return torch.device("cpu") if held is None else held.device

    @abstractmethod
    def features(self, x: Float[Tensor, "n 3 height width"]) -> Float[Tensor, "n numbers"]:
        """Features of preprocessed patches."""

    def convert(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A file's weights under the keys of `core`, where its makers named them otherwise."""
        return dict(state)

    @torch.no_grad()
    def encode(self, pixels: Tensor, *, precision: Precision = "float32") -> Tensor:
        """Bytes as read to float32 features on the CPU, without gradients.

        The batch is the caller's: one call, one pass. A row is the same in any batch but for the
        rounding of the arithmetic.

        Args:
            pixels: (n, height, width, 3) uint8, RGB or three windows, on any device.
            precision: of the network's products; preprocessing and result are float32.

        Returns:
            (n, width) float32 on the CPU.

        Raises:
            InputError: pixels of another type or shape.
        """
        if pixels.dtype != torch.uint8 or pixels.ndim != 4 or pixels.shape[3] != 3:
            got = f"{str(pixels.dtype).removeprefix('torch.')} of shape {tuple(pixels.shape)}"
            raise InputError(f"an encoder takes uint8 pixels of shape (n, height, width, 3): {got}")
        if not pixels.shape[0]:
            return torch.zeros(0, self.width)
        device = self.device
        x = pixels.to(device, non_blocking=True).permute(0, 3, 1, 2).float() / 255
        if self.preprocessing is not None:
            x = preprocess(x, self.preprocessing)
        lower = precision != "float32"
        with torch.autocast(device.type, dtype=PRECISIONS[precision], enabled=lower):
            found = self.features(x)
        return found.float().cpu()


def preprocess(
    x: Float[Tensor, "n 3 height width"], how: Preprocessing
) -> Float[Tensor, "n 3 size size"]:
    """Pixels in [0, 1]: shorter side resized, centre cut out, normalised."""
    x = centre(resized(x, how.resize or how.size, resampling=how.resampling), how.size)
    mean = torch.tensor(how.mean, device=x.device).view(1, 3, 1, 1)
    std = torch.tensor(how.std, device=x.device).view(1, 3, 1, 1)
    return (x - mean) / std


def resized(
    x: Float[Tensor, "n 3 height width"], shorter: int, *, resampling: Resampling
) -> Float[Tensor, "n 3 new_height new_width"]:
    """The shorter side at that many pixels, the proportions kept; nothing where it is already."""
    height, width = x.shape[-2:]
    if min(height, width) == shorter:
        return x
    scale = shorter / min(height, width)
    size = (shorter, int(width * scale)) if height <= width else (int(height * scale), shorter)
    # cubic weights overshoot at edges; image libraries cut that off in bytes
    return nn.functional.interpolate(x, size=size, mode=resampling, antialias=True).clamp(0, 1)


def centre(
    x: Float[Tensor, "n 3 height width"], side: int
) -> Float[Tensor, "n 3 new_height new_width"]:
    """The middle `side` pixels of each direction."""
    top, left = (round((full - side) / 2) for full in x.shape[-2:])
    return x[..., top : top + side, left : left + side]
