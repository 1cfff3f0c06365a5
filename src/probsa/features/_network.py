"""Encoders whose network comes from another library, mostly timm's vision transformers.

The keys of weight files are those of the network alone, which `core` returns.
"""

from jaxtyping import Float
from torch import Tensor, nn

from ._base import Encoder
from ._torchvision import optional

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
CC_BY_NC_ND = "CC BY-NC-ND 4.0: non-commercial academic research, no sharing of derivatives."


class Network(Encoder):
    """An encoder whose features are the output of a network."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    @property
    def core(self) -> nn.Module:
        """The network without the encoder around it."""
        return self.network

    def features(self, x: Float[Tensor, "n 3 height width"]) -> Float[Tensor, "n numbers"]:
        """Return the pooled output of the network."""
        return self.network(x)


def timm_network(architecture: str, **arguments: object) -> nn.Module:
    """Return a network of timm without a classifier, with random weights.

    Raises:
        MissingExtra: timm is not installed.
    """
    return optional("timm").create_model(architecture, num_classes=0, **arguments)


def swiglu() -> dict[str, object]:
    """Return timm's arguments for the gated layers of DINOv2's largest networks."""
    return {"mlp_layer": optional("timm.layers").SwiGLUPacked, "act_layer": nn.SiLU}
