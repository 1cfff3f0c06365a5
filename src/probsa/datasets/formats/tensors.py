"""Read `.pt` files of other tools: one tensor per bag, without unpickling other objects."""

import pickle
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...errors import BagError, EmptyBag


def load_tensor(path: Path) -> np.ndarray:
    """Load the tensor of a file as an array.

    Raises:
        BagError: the file is missing or damaged, or does not hold a single tensor.
    """
    return _without_bfloat16(_load(path, mapped=False)).numpy()


def tensor_shape(path: Path) -> tuple[int, int]:
    """Return the number of instances and features of a file's tensor, without its values.

    Raises:
        BagError: the file is missing or damaged, or its tensor has another shape.
    """
    shape = tuple(_load(path, mapped=True).shape)
    if shape[:1] == (0,):
        raise EmptyBag(f"bag {path.stem!r} ({path}) is empty: a bag needs at least one instance")
    if len(shape) != 2 and not (len(shape) == 3 and shape[0] == 1):
        raise BagError(f"{path}: features have the shape {shape}, expected (instances, width)")
    return shape[-2], shape[-1]


def _without_bfloat16(tensor: Tensor) -> Tensor:
    values = tensor.detach()
    # NumPy has no bfloat16
    return values.float() if values.dtype == torch.bfloat16 else values


def _load(path: Path, *, mapped: bool) -> Tensor:
    if not path.is_file():
        raise BagError(f"there is no file {path}")
    try:
        content = torch.load(
            path,
            map_location="cpu",
            weights_only=True,
            mmap=mapped and zipfile.is_zipfile(path),
        )
    except pickle.UnpicklingError as error:
        raise BagError(
            f"{path} holds more than a tensor, or no tensor at all: a pickled object, which is not "
            "loaded since it could run code. Save the features alone, as one tensor (instances, "
            "width)"
        ) from error
    except (RuntimeError, OSError, EOFError, ValueError, KeyError, IndexError) as error:
        raise BagError(
            f"{path} cannot be read as .pt: it is damaged or in another format "
            f"({str(error).splitlines()[0] if str(error) else type(error).__name__}). "
            "Copy or make it again"
        ) from error
    if isinstance(content, Tensor):
        return content
    hint = (
        ". Lists of rows are written by eva; their order may differ from that of the coordinates"
        if isinstance(content, list)
        else ""
    )
    raise BagError(
        f"{path} holds a {type(content).__name__}, expected one tensor (instances, width){hint}"
    )
