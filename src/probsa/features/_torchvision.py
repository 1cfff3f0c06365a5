"""Packages that import torchvision, beside a PyTorch without CUDA.

torchvision's Linux wheel registers its operators in a library that links CUDA. With a CPU build of
PyTorch it cannot load, and `import torchvision` stops at the first operator that is missing. Two
schemas without code are enough to import it; only its detection operators stay unusable.
"""

import importlib
import sys
from functools import cache
from types import ModuleType

import torch

from ..errors import MissingExtra

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
# a library's definitions go with the object
_defined: list[torch.library.Library] = []


@cache
def _guard() -> None:
    try:
        import torchvision  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        return
    except RuntimeError as e:
        if "torchvision::nms" not in str(e):
            raise
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(operator + _SCHEMA)
        _defined.append(library)
        # what the failed import left would be taken for the package
        for module in [m for m in sys.modules if m.partition(".")[0] == "torchvision"]:
            del sys.modules[module]


def optional(package: str) -> ModuleType:
    """Imports a package of the extra `encoders`.

    Raises:
        MissingExtra: it is not installed.
    """
    _guard()
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as e:
        raise MissingExtra((e.name or package).partition(".")[0], "encoders") from e
