"""Encoders whose network comes from another library, and how such libraries are imported.

torchvision's Linux wheel registers its operators in a library that is linked to CUDA. With a CPU
build of PyTorch this library cannot be loaded, and `import torchvision` fails at the first missing
operator. Defining two schemas is sufficient to import it; its detection operators do not work then.
"""

import importlib
import sys
from functools import cache
from types import ModuleType

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import absent_package, imports_from
from ._base import Encoder

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
# the definitions of a library disappear with the object
_defined: list[torch.library.Library] = []


@cache
def _guard() -> None:
    """Make sure that torchvision can be imported, if it is installed."""
    try:
        import torchvision  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as e:
        if absent_package(e) != "torchvision":
            raise
        return
    except RuntimeError as e:
        if "torchvision::nms" not in str(e):
            raise
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(operator + _SCHEMA)
        _defined.append(library)
        # the failed import has left some of its modules
        for module in list(sys.modules):
            if module == "torchvision" or module.startswith("torchvision."):
                del sys.modules[module]


def optional(package: str) -> ModuleType:
    """Import a package of the extra `encoders`.

    Raises:
        MissingExtra: The package is not installed.
    """
    _guard()
    with imports_from("encoders", package.partition(".")[0]):
        return importlib.import_module(package)


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
