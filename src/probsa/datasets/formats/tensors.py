"""Read `.pt` files of other tools: one tensor per bag, without unpickling other objects."""

import pickle
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...core import check_size, decoding
from ...errors import BagError, EmptyBag

AGAIN = "copy or make it again"
NUMPY_FLOATS = (torch.float16, torch.float32, torch.float64)
NUMPY_INTEGERS = (
    *(torch.bool, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)


def load_tensor(path: Path) -> np.ndarray:
    """Load the tensor of a file as an array."""
    values = _load(path, mapped=False).detach()
    if values.dtype.is_floating_point and values.dtype not in NUMPY_FLOATS:
        values = values.float()  # NumPy has neither bfloat16 nor floats of 8 bits
    return values.numpy()


def tensor_shape(path: Path) -> tuple[int, int]:
    """Return the number of instances and features of a file's tensor, without its values."""
    shape = tuple(_load(path, mapped=True).shape)
    if shape[:1] == (0,):
        raise EmptyBag(f"bag {path.stem!r} ({path}) is empty: a bag needs at least one instance")
    if len(shape) != 2 and not (len(shape) == 3 and shape[0] == 1):
        raise BagError(f"{path}: features have the shape {shape}, expected (instances, width)")
    return shape[-2], shape[-1]


def _load(path: Path, *, mapped: bool) -> Tensor:
    with decoding(path, kind=".pt", again=AGAIN):
        packed = zipfile.is_zipfile(path)
        if packed:
            with zipfile.ZipFile(path) as archive:
                stated = sum(member.file_size for member in archive.infolist())
            stored = path.stat().st_size
            check_size(path, what="the archive", stated=stated, stored=stored, again=AGAIN)
        try:
            content = torch.load(
                path, map_location="cpu", weights_only=True, mmap=mapped and packed
            )
        except pickle.UnpicklingError as error:
            raise BagError(
                f"{path} holds more than a tensor, or no tensor at all: a pickled object, which is "
                "not loaded since it could run code. Save the features alone, as one tensor "
                "(instances, width)"
            ) from error
    if isinstance(content, Tensor):
        return _checked(content, path)
    hint = ""
    if isinstance(content, list):
        hint = (
            ". Lists of rows are written by eva; their order may differ from that of the "
            "coordinates"
        )
    raise BagError(
        f"{path} holds a {type(content).__name__}, expected one tensor (instances, width){hint}"
    )


def _checked(tensor: Tensor, path: Path) -> Tensor:
    """Return a tensor of numbers in memory, whose rows are all stored.

    A tensor may repeat one stored row any number of times, or have no values at all.
    """
    plain = tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_nested
    # floats of less than 8 bits are packed, several in a byte
    packed = tensor.dtype.is_floating_point and "x2" in str(tensor.dtype)
    plain &= tensor.dtype in NUMPY_INTEGERS or (tensor.dtype.is_floating_point and not packed)
    if not plain or tensor.device.type != "cpu" or tensor.is_complex():
        raise BagError(
            f"{path} holds a tensor of another kind ({tensor.dtype}, {tensor.layout}, on "
            f"{tensor.device.type}): save the features as a dense tensor of numbers"
        )
    stated = tensor.numel() * tensor.element_size()
    stored = path.stat().st_size
    check_size(path, what="the tensor", stated=stated, stored=stored, again=AGAIN)
    if stated > tensor.untyped_storage().nbytes():
        raise BagError(
            f"{path}: the tensor repeats its values: its shape {tuple(tensor.shape)} needs "
            f"{stated:,} bytes, but {tensor.untyped_storage().nbytes():,} are stored: {AGAIN}"
        )
    return tensor
