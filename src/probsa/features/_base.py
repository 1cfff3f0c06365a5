"""Stage 3: an encoder turns the pixels of a patch, or the windows of a slice, into numbers."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from jaxtyping import Float, UInt8
from torch import Tensor, nn

Resampling = Literal["bilinear", "bicubic"]
Precision = Literal["float32", "bf16", "fp16"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """What an encoder's makers say of it."""

    width: int
    """Features of one patch."""
    licence: str
    """And what follows from it, in a few words."""
    source: str
    """A link: paper, model card or repository."""
    gated: bool = False
    """Whether the hub asks for an accepted licence before it hands out the weights."""


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
    """Rows do not depend on one another; `encode` is all that extraction calls."""

    card: ClassVar[Card]
    preprocessing: Preprocessing | None = None
    """None where `features` takes pixels in [0, 1] of any size."""
    name: str = ""
    """As registered."""
    identity: str = ""
    """Name and a digest of the weights: features of other weights are not mixed with these."""

    @property
    def width(self) -> int:
        """Features of one patch."""
        return self.card.width

    @abstractmethod
    def features(self, x: Float[Tensor, "n 3 height width"]) -> Float[Tensor, "n width"]:
        """Features of preprocessed patches."""

    def encode(
        self, pixels: UInt8[Tensor, "n height width 3"], *, precision: Precision = "float32"
    ) -> Float[Tensor, "n width"]:
        """Bytes as read to float32 features on the CPU: without gradients, in `eval()`."""
        raise NotImplementedError
